// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package sample

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"time"
)

// EffectOptions are the flags of the commands that have an effect.
type EffectOptions struct {
	// URL is the ledger's, without /effects.
	URL string
	// Kind is what sort of effect it is.
	Kind string
	// Work is how long to work between the ledger's answer and the output: whoever
	// stops the program there sees the next attempt repeat the request, and the
	// ledger not repeat the effect.
	Work time.Duration
}

// Effect sends the step's input to the ledger under the step's key, and leaves the record
// as output. Asked for twice, it happens once.
func Effect(ctx context.Context, p Program, o EffectOptions) error {
	return p.inputEffect(ctx, o, p.effect)
}

// OnceEffect is Effect without the ledger's help: what is asked for twice happens twice.
// Where nobody can know whether it has happened, the program says so by killing itself,
// which is the only end of a program that the operator does not take for its word.
func OnceEffect(ctx context.Context, p Program, o EffectOptions) error {
	return p.inputEffect(ctx, o, p.rawEffect)
}

// sendEffect has an effect once and gives its record.
type sendEffect func(ctx context.Context, o EffectOptions, body []byte) ([]byte, error)

// inputEffect has the effect that the step's input is, with the trouble that it asks for
// around it.
func (p Program) inputEffect(ctx context.Context, o EffectOptions, send sendEffect) error {
	if o.Kind == "" {
		return failf("--kind is missing: give what sort of effect it is, for example --kind publish")
	}
	raw, err := p.rawInput()
	if err != nil {
		return err
	}
	body, trouble, err := p.takeTrouble(raw)
	if err != nil {
		return err
	}
	if err := p.befall(ctx, o.URL, "before", trouble.Before); err != nil {
		return err
	}
	record, err := send(ctx, o, body)
	if err != nil {
		return err
	}
	if err := p.work(ctx, o.Work); err != nil {
		return err
	}
	if err := p.befall(ctx, o.URL, "after", trouble.After); err != nil {
		return err
	}
	return p.rawOutput(record)
}

// effect performs an effect that the ledger performs once by its key. A lost answer is
// asked for again.
func (p Program) effect(ctx context.Context, o EffectOptions, body []byte) ([]byte, error) {
	r, err := p.post(ctx, o, pathEffects, body)
	if err != nil {
		return nil, again(err)
	}
	return judge(r)
}

// rawEffect performs an effect whatever its key. It is asked for again only where it
// provably was not performed.
func (p Program) rawEffect(ctx context.Context, o EffectOptions, body []byte) ([]byte, error) {
	r, err := p.post(ctx, o, pathRaw, body)
	if gone := (*lostError)(nil); errors.As(err, &gone) && !gone.unsent {
		return nil, unknownf("whether the effect happened is not known: %v", gone)
	}
	if err != nil {
		return nil, again(err)
	}
	turnedAway := r.status == http.StatusServiceUnavailable && retryAfter(r.header) != ""
	if (r.status >= 500 && !turnedAway) || r.status == http.StatusRequestTimeout {
		return nil, unknownf("whether the effect happened is not known: %s", r.said)
	}
	return judge(r)
}

func (p Program) post(ctx context.Context, o EffectOptions, path string, body []byte) (*reply, error) {
	key, err := p.env(envKey)
	if err != nil {
		return nil, err
	}
	query := url.Values{"run": {p.Getenv(envRunID)}, "task": {p.Getenv(envTask)}, "step": {p.Getenv(envStep)}, "kind": {o.Kind}}
	return p.send(ctx, o.URL, call{method: http.MethodPost, path: path, query: query, key: key, body: body})
}
