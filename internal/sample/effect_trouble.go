// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package sample

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"
)

// troubleField is the field of an effect's input that asks for trouble. It is taken out
// before the rest is sent to the ledger.
const troubleField = "trouble"

// Trouble is what goes wrong around an effect, on purpose.
type Trouble struct {
	// Before and After say what happens before the effect, and between it and the output.
	Before Mishap `json:"before"`
	After  Mishap `json:"after"`
	// Attempts is how many of the step's first attempts it befalls. Default: 1.
	Attempts int `json:"attempts"`
}

// Mishap is one thing that goes wrong: first the hold, then one end or none.
type Mishap struct {
	// Hold waits until the ledger releases the hold with this name.
	Hold string `json:"hold"`
	// Exit ends the program with this code, 1 to 255; 75 asks for another attempt.
	Exit int `json:"exit"`
	// Kill ends the program by SIGKILL, without a word.
	Kill bool `json:"kill"`
}

// takeTrouble parts an input into the effect and the trouble of this attempt.
func (p Program) takeTrouble(raw []byte) ([]byte, Trouble, error) {
	var none, t Trouble
	var fields map[string]json.RawMessage
	if json.Unmarshal(raw, &fields) != nil || fields[troubleField] == nil {
		return raw, none, nil
	}
	if err := decodeInput(fields[troubleField], &t); err != nil {
		return nil, none, err
	}
	for _, m := range []Mishap{t.Before, t.After} {
		if m.Exit < 0 || m.Exit > 255 || (m.Exit > 0 && m.Kill) {
			return nil, none, failf("trouble cannot be: give exit from 1 to 255, or kill, not both")
		}
	}
	delete(fields, troubleField)
	body, err := json.Marshal(fields)
	if err != nil {
		return nil, none, failf("encoding the effect: %v", err)
	}
	attempt, err := p.attempt()
	if err != nil {
		return nil, none, err
	}
	if attempt > max(t.Attempts, 1) {
		t = none
	}
	return body, t, nil
}

// befall has a mishap happen.
func (p Program) befall(ctx context.Context, base, when string, m Mishap) error {
	if m.Hold != "" {
		if err := p.awaitRelease(ctx, base, m.Hold); err != nil {
			return err
		}
	}
	switch {
	case m.Kill:
		return &Exit{Code: exitKilled, Kill: true}
	case m.Exit != 0:
		return &Exit{Code: m.Exit, Message: fmt.Sprintf("exit code %d %s the effect, as asked by trouble.%s.exit", m.Exit, when, when)}
	}
	return nil
}

// holdPause is how long to wait before asking anew for a hold where the ledger did not
// answer.
const holdPause = time.Second

// awaitRelease waits, by one long request after the other, for the release of a hold.
func (p Program) awaitRelease(ctx context.Context, base, name string) error {
	for {
		r, err := p.send(ctx, base, call{method: http.MethodGet, path: waitPath, query: url.Values{"key": {name}}})
		switch {
		case ctx.Err() != nil:
			return stopped("held")
		case err == nil && r.status == http.StatusOK:
			return nil
		case err == nil && r.status == http.StatusNoContent:
			continue
		case err == nil && !transient(r.status):
			return failf("waiting for the hold %q: %s", name, r.said)
		}
		if gone := (*lostError)(nil); err != nil && !errors.As(err, &gone) {
			return err
		}
		if p.Pause(ctx, holdPause) != nil {
			return stopped("held")
		}
	}
}
