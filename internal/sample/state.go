// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package sample

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// Record is one effect, as the answer to the request that made it shows it.
type Record struct {
	// Seq numbers the effects of this ledger from 1.
	Seq int64 `json:"seq"`
	// Key is the idempotency key, or the name of a raw effect.
	Key string `json:"key"`
	// Run, Task and Step say who sent it.
	Run  string `json:"run,omitempty"`
	Task string `json:"task,omitempty"`
	Step string `json:"step,omitempty"`
	// Kind is what sort of effect it is, for example publish.
	Kind string `json:"kind,omitempty"`
	// Path is the resource that it was sent to, for example /effects.
	Path string `json:"path,omitempty"`
	// Body is the effect itself, canonical JSON.
	Body json.RawMessage `json:"body"`
	// Time is when it was performed.
	Time time.Time `json:"time"`
}

// Entry is a record and two counts.
type Entry struct {
	Record
	// Count is how many requests have asked for this effect: those that performed
	// nothing are counted too, but not those that were refused for their form or their key.
	Count int64 `json:"count"`
	// Performed is how many effects were performed under this key, this one included.
	// For effects with a key it is 1 until the key expires.
	Performed int64 `json:"performed"`
}

// Filter picks the effects whose fields have these values; an empty one picks any.
type Filter struct {
	Run  string `json:"run"`
	Task string `json:"task"`
	Step string `json:"step"`
	Kind string `json:"kind"`
	Key  string `json:"key"`
	Path string `json:"path"`
}

func (f Filter) matches(r Record) bool {
	return allowed(f.Run, r.Run) && allowed(f.Task, r.Task) && allowed(f.Step, r.Step) &&
		allowed(f.Kind, r.Kind) && allowed(f.Key, r.Key) && allowed(f.Path, r.Path)
}

func allowed(want, value string) bool { return want == "" || want == value }

// keyRecord is what the ledger remembers of a key. It is written together with the
// effect.
type keyRecord struct {
	Key         string    `json:"key"`
	Fingerprint string    `json:"fingerprint"`
	Task        string    `json:"task,omitempty"`
	Expires     time.Time `json:"expires"`
	Answer      answer    `json:"answer"`

	entry *Entry // nil: nothing was performed
}

// answer is what a request gets: a problem, or else the effect's record.
type answer struct {
	Status  int      `json:"status"`
	Problem *problem `json:"problem,omitempty"`

	record *Record
}

// answer is the one that is kept, as it was given first.
func (k *keyRecord) answer() *answer {
	a := k.Answer
	if k.entry != nil {
		a.record = &k.entry.Record
	}
	return &a
}

// change is one line of the file: an effect, what is kept of its key, or both; or one of
// the others.
type change struct {
	Effect *Record `json:"effect,omitempty"`
	// Asked counts the earlier requests for Effect, which performed nothing.
	Asked int64      `json:"asked,omitempty"`
	Keep  *keyRecord `json:"keep,omitempty"`
	// Replay is a key that was asked for again.
	Replay string     `json:"replay,omitempty"`
	Clear  *clearance `json:"clear,omitempty"`
}

// clearance names the task whose effects are forgotten; empty: all.
type clearance struct {
	Task string `json:"task,omitempty"`
}

// state is what the lines of the file amount to.
type state struct {
	entries []*Entry
	keys    map[string]*keyRecord
	// latest is the last effect of each key, and performed how many there are.
	latest    map[string]*Entry
	performed map[string]int64
	lastSeq   int64
}

func newState() state {
	return state{keys: map[string]*keyRecord{}, latest: map[string]*Entry{}, performed: map[string]int64{}}
}

func (s *state) apply(c change) error {
	switch {
	case c.Effect != nil || c.Keep != nil:
		return s.add(c)
	case c.Replay != "":
		k := s.keys[c.Replay]
		if k == nil || k.entry == nil {
			return fmt.Errorf("a replay of the key %q, which is not there", c.Replay)
		}
		k.entry.Count++
	case c.Clear != nil:
		s.clear(c.Clear.Task)
	default:
		return errors.New("neither effect nor keep nor replay nor clear")
	}
	return nil
}

func (s *state) add(c change) error {
	var entry *Entry
	if c.Effect != nil {
		if k := s.keys[c.Effect.Key]; k != nil && c.Keep != nil && c.Effect.Time.Before(k.Expires) {
			return fmt.Errorf("effect %d has a key that is there already", c.Effect.Seq)
		}
		entry = &Entry{Record: *c.Effect, Count: 1 + c.Asked}
		s.entries = append(s.entries, entry)
		s.latest[entry.Key] = entry
		s.performed[entry.Key]++
		s.lastSeq = max(s.lastSeq, entry.Seq)
	}
	if c.Keep != nil {
		k := *c.Keep
		k.entry = entry
		s.keys[k.Key] = &k
	}
	return nil
}

func (s *state) clear(task string) {
	s.entries = slices.DeleteFunc(s.entries, func(e *Entry) bool { return allowed(task, e.Task) })
	for key, k := range s.keys {
		if allowed(task, k.Task) {
			delete(s.keys, key)
		}
	}
	clear(s.latest)
	clear(s.performed)
	for _, e := range s.entries {
		s.latest[e.Key] = e
		s.performed[e.Key]++
	}
}

// canonical is the RFC 8785 form of a JSON value, by which two bodies are compared.
func canonical(doc []byte) (json.RawMessage, error) {
	v := jsontext.Value(slices.Clone(doc))
	if err := v.Canonicalize(); err != nil {
		return nil, err
	}
	return json.RawMessage(v), nil
}
