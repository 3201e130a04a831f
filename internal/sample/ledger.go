// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package sample

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// Record is one effect, as the answer to the request that made it shows it.
type Record struct {
	// Seq numbers the effects of this ledger from 1.
	Seq int64 `json:"seq"`
	// Key is the idempotency key.
	Key string `json:"key"`
	// Task and Step say who sent it.
	Task string `json:"task,omitempty"`
	Step string `json:"step,omitempty"`
	// Kind is what sort of effect it is, for example publish.
	Kind string `json:"kind,omitempty"`
	// Body is the effect itself, canonical JSON.
	Body json.RawMessage `json:"body"`
	// Time is when it was recorded.
	Time time.Time `json:"time"`
}

// Entry is a record and how many requests have come with its key.
type Entry struct {
	Record
	Count int64 `json:"count"`
}

// ErrKeyReused: the key belongs to another effect.
var ErrKeyReused = errors.New("this idempotency key belongs to another effect")

// ErrBody: the body is not one JSON value.
var ErrBody = errors.New("the body must be one JSON value")

// Ledger records each effect once. With a file, what it has answered survives a
// restart.
type Ledger struct {
	now func() time.Time

	mu      sync.Mutex
	journal *journal // nil: in memory
	entries []*Entry
	byKey   map[string]*Entry
	lastSeq int64
}

// NewLedger keeps its records in memory.
func NewLedger(now func() time.Time) *Ledger {
	return &Ledger{now: now, byKey: map[string]*Entry{}}
}

// OpenLedger keeps its records in a file, made where it does not exist.
func OpenLedger(path string, now func() time.Time) (*Ledger, error) {
	l := NewLedger(now)
	j, err := openJournal(path, l.apply)
	if err != nil {
		return nil, err
	}
	l.journal = j
	return l, nil
}

// Close closes the file.
func (l *Ledger) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.journal == nil {
		return nil
	}
	return l.journal.close()
}

// Add records r under its key and says whether that is new. The same effect again
// gives the record that is there; another effect under the key gives ErrKeyReused.
func (l *Ledger) Add(r Record) (_ Record, fresh bool, _ error) {
	body, err := canonical(r.Body)
	if err != nil {
		return Record{}, false, fmt.Errorf("%w: %w", ErrBody, err)
	}
	r.Body = body

	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.byKey[r.Key]; e != nil {
		if e.Kind != r.Kind || string(e.Body) != string(r.Body) {
			return Record{}, false, ErrKeyReused
		}
		return e.Record, false, l.commit(change{Replay: r.Key})
	}
	r.Seq = l.lastSeq + 1
	r.Time = l.now().UTC().Truncate(time.Millisecond)
	return r, true, l.commit(change{Effect: &r})
}

// List gives the effects in order, all or those of one task.
func (l *Ledger) List(task string) []Entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := []Entry{}
	for _, e := range l.entries {
		if task == "" || e.Task == task {
			list = append(list, *e)
		}
	}
	return list
}

// Clear forgets the effects of a task, or all of them, and their keys.
func (l *Ledger) Clear(task string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.commit(change{Clear: &clearance{Task: task}})
}

// change is one line of the file: exactly one field is set.
type change struct {
	Effect *Record    `json:"effect,omitempty"`
	Replay string     `json:"replay,omitempty"`
	Clear  *clearance `json:"clear,omitempty"`
}

// clearance names the task whose effects are forgotten; empty: all.
type clearance struct {
	Task string `json:"task,omitempty"`
}

// commit makes c durable and then true.
func (l *Ledger) commit(c change) error {
	if l.journal != nil {
		if err := l.journal.append(c); err != nil {
			return err
		}
	}
	return l.apply(c)
}

func (l *Ledger) apply(c change) error {
	switch {
	case c.Effect != nil:
		if l.byKey[c.Effect.Key] != nil {
			return fmt.Errorf("effect %d has a key that is there already", c.Effect.Seq)
		}
		e := &Entry{Record: *c.Effect, Count: 1}
		l.entries = append(l.entries, e)
		l.byKey[e.Key] = e
		l.lastSeq = max(l.lastSeq, e.Seq)
	case c.Replay != "":
		e := l.byKey[c.Replay]
		if e == nil {
			return fmt.Errorf("a replay of the key %q, which is not there", c.Replay)
		}
		e.Count++
	case c.Clear != nil:
		l.entries = slices.DeleteFunc(l.entries, func(e *Entry) bool {
			gone := c.Clear.Task == "" || e.Task == c.Clear.Task
			if gone {
				delete(l.byKey, e.Key)
			}
			return gone
		})
	default:
		return errors.New("neither effect nor replay nor clear")
	}
	return nil
}

// canonical is the RFC 8785 form of a JSON value, by which two bodies are compared.
func canonical(doc []byte) (json.RawMessage, error) {
	v := jsontext.Value(slices.Clone(doc))
	if err := v.Canonicalize(); err != nil {
		return nil, err
	}
	return json.RawMessage(v), nil
}
