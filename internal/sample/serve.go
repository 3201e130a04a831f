// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package sample

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// Timeouts of the ledger's server.
const (
	readTimeout     = 10 * time.Second
	writeTimeout    = 20 * time.Second
	idleTimeout     = time.Minute
	shutdownTimeout = 5 * time.Second
)

// LedgerOptions are the ledger's flags.
type LedgerOptions struct {
	// Addr is where to listen.
	Addr string
	// File keeps the records; empty: they are in memory.
	File string
	// Policy is what is asked of keys.
	Policy Policy
}

// RunLedger serves a ledger until ctx ends, then answers what it has begun.
func RunLedger(ctx context.Context, o LedgerOptions, log io.Writer) (err error) {
	if o.Policy.KeyTTL < 0 {
		return fmt.Errorf("--key-ttl is %v: give a time such as 24h", o.Policy.KeyTTL)
	}
	ledger := NewLedger(time.Now)
	if o.File != "" {
		if ledger, err = OpenLedger(o.File, time.Now); err != nil {
			return err
		}
	}
	ledger.Policy = o.Policy
	defer func() { err = errors.Join(err, ledger.Close()) }()
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", o.Addr)
	if err != nil {
		return fmt.Errorf("listening: %w; give a free address in --addr", err)
	}
	fmt.Fprintf(log, "ledger: %d effects, listening on %s\n", len(ledger.List(Filter{})), listener.Addr())
	return serve(ctx, listener, Handler(ledger), ledger.gates.stop)
}

// serve serves until ctx ends; then it calls stopping, which ends what is held.
func serve(ctx context.Context, listener net.Listener, handler http.Handler, stopping func()) error {
	server := &http.Server{
		Handler:        handler,
		ReadTimeout:    readTimeout,
		WriteTimeout:   writeTimeout,
		IdleTimeout:    idleTimeout,
		MaxHeaderBytes: 16 << 10,
	}
	server.RegisterOnShutdown(stopping)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	select {
	case err := <-served:
		return fmt.Errorf("serving: %w", err)
	case <-ctx.Done():
	}
	// What is in flight is answered even though ctx has ended.
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer cancel()
	return errors.Join(server.Shutdown(last), notClosed(<-served))
}

// notClosed is err without the one that a server's end gives.
func notClosed(err error) error {
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}
