// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"io"
	"net/http"
	"sync"
)

// gateState is what a manager's line to the API server lets through.
type gateState int

const (
	gateOpen   gateState = iota
	gateCut              // nothing passes; who waits may give up
	gateFrozen           // nothing passes, and nobody gives up: the process does not run
	gateDead             // nothing passes any more
)

// gate is what each byte between a manager and the API server passes through.
type gate struct {
	life context.Context // over when the gate is dead
	end  context.CancelCauseFunc

	mu      sync.Mutex
	state   gateState
	changed chan struct{}
}

func newGate() *gate {
	g := &gate{changed: make(chan struct{})}
	g.life, g.end = context.WithCancelCause(context.Background())
	return g
}

// set changes the state. The dead stay dead.
func (g *gate) set(state gateState) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.state == gateDead || g.state == state {
		return
	}
	g.state = state
	close(g.changed)
	g.changed = make(chan struct{})
	if state == gateDead {
		g.end(ErrCut)
	}
}

// pass waits until the gate is open.
func (g *gate) pass(ctx context.Context) error {
	for {
		g.mu.Lock()
		state, changed := g.state, g.changed
		g.mu.Unlock()
		switch state {
		case gateOpen:
			return nil
		case gateDead:
			return ErrCut
		case gateFrozen:
			<-changed
		case gateCut:
			select {
			case <-changed:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	}
}

// send does a request under a context. It ends when the gate is dead, and so does the
// reading of its answer, each part of which passes the gate.
func (g *gate) send(ctx context.Context, r *http.Request, next http.RoundTripper) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(g.life, func() { cancel(ErrCut) })
	release := func() {
		stop()
		cancel(context.Canceled)
	}
	response, err := next.RoundTrip(r.WithContext(ctx))
	if err != nil {
		release()
		return nil, err
	}
	response.Body = &gatedBody{ReadCloser: response.Body, gate: g, ctx: ctx, release: release}
	return response, nil
}

// gatedBody is an answer that passes a gate.
type gatedBody struct {
	io.ReadCloser
	gate    *gate
	ctx     context.Context
	release func()
}

func (b *gatedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if closed := b.gate.pass(b.ctx); closed != nil {
		return 0, closed
	}
	return n, err
}

// Close ends the request.
func (b *gatedBody) Close() error {
	defer b.release()
	return b.ReadCloser.Close()
}
