// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package sample

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Resources of the ledger that take effects. A key is the same key on all of them but
// pathRaw, which takes it for a name only.
const (
	pathEffects = "/effects"
	pathRaw     = "/effects/raw"
	pathRefunds = "/refunds"
)

// DefaultKeyTTL is how long the ledger remembers a key unless told otherwise.
const DefaultKeyTTL = 24 * time.Hour

// Policy is what the ledger asks of keys.
type Policy struct {
	// KeyTTL is how long a key is remembered, counted from when its request was
	// performed. Then it is a new key. 0: DefaultKeyTTL.
	KeyTTL time.Duration
	// StrictKeys refuses keys that do not stand in quotation marks.
	StrictKeys bool
}

func (p Policy) keyTTL() time.Duration {
	if p.KeyTTL == 0 {
		return DefaultKeyTTL
	}
	return p.KeyTTL
}

var (
	// ErrKeyReused: the key was first sent with another effect.
	ErrKeyReused = errors.New("this idempotency key belongs to another effect")
	// ErrInFlight: a request with the key has not been answered yet.
	ErrInFlight = errors.New("the request that came first with this idempotency key is still being processed")
)

// Ledger performs each effect once, by its key, and counts. With a file, what it has
// performed survives a restart.
type Ledger struct {
	// Policy is set before the ledger is served.
	Policy Policy

	now    func() time.Time
	faults faults
	gates  *gates

	mu      sync.Mutex
	journal *journal // nil: in memory
	state   state
	// flights are the requests with a key that have no answer yet, by key.
	flights map[string]*flight
	// unperformed counts the raw requests that are still to be performed, by name.
	unperformed map[string]int
	// asked counts the requests of keys that performed nothing so far.
	asked map[string]int64
}

// flight is a request that is being processed.
type flight struct {
	record      Record
	fingerprint string
	// declined is the answer of a request that is to have no effect.
	declined  *problem
	performed bool
}

// NewLedger keeps its records in memory.
func NewLedger(now func() time.Time) *Ledger {
	return &Ledger{
		now: now, gates: newGates(), state: newState(),
		flights: map[string]*flight{}, unperformed: map[string]int{}, asked: map[string]int64{},
	}
}

// OpenLedger keeps its records in a file, made where it does not exist.
func OpenLedger(path string, now func() time.Time) (*Ledger, error) {
	l := NewLedger(now)
	j, err := openJournal(path, l.state.apply)
	if err != nil {
		return nil, err
	}
	l.journal = j
	return l, nil
}

// Close ends the requests that are held, without an answer, and closes the file.
func (l *Ledger) Close() error {
	l.gates.stop()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.journal == nil {
		return nil
	}
	return l.journal.close()
}

// begin takes up a request. It gives the flight that is to be performed and ended, or
// the answer that an earlier request with the same key and effect got.
func (l *Ledger) begin(r Record, declined *problem) (*flight, *answer, error) {
	f := &flight{record: r, declined: declined}
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.Path == pathRaw {
		l.unperformed[r.Key]++
		return f, nil, nil
	}
	var err error
	if f.fingerprint, err = fingerprint(r); err != nil {
		return nil, nil, err
	}
	if other := l.flights[r.Key]; other != nil {
		return nil, nil, l.collide(f, other)
	}
	if k := l.state.keys[r.Key]; k != nil && l.now().Before(k.Expires) {
		if k.Fingerprint != f.fingerprint {
			return nil, nil, ErrKeyReused
		}
		return nil, k.answer(), l.askedAgain(k)
	}
	l.flights[r.Key] = f
	return f, nil, nil
}

// collide is a request whose key is in flight.
func (l *Ledger) collide(f, other *flight) error {
	if f.fingerprint != other.fingerprint {
		return ErrKeyReused
	}
	if !other.performed {
		l.asked[f.record.Key]++
		return ErrInFlight
	}
	if err := l.askedAgain(l.state.keys[f.record.Key]); err != nil {
		return err
	}
	return ErrInFlight
}

// askedAgain counts a request that came with a key that is there; k may be nil.
func (l *Ledger) askedAgain(k *keyRecord) error {
	if k == nil || k.entry == nil {
		return nil
	}
	return l.commit(change{Replay: k.Key})
}

// perform has the effect of a flight, and keeps its key and answer with it: one write.
// said, where given, is answered and kept in place of the record.
func (l *Ledger) perform(f *flight, said *problem) (*answer, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now().UTC().Truncate(time.Millisecond)
	c := change{}
	a := &answer{Status: 201}
	if f.declined == nil {
		f.record.Seq = l.state.lastSeq + 1
		f.record.Time = now
		c.Effect, c.Asked = &f.record, l.asked[f.record.Key]
		a.record = &f.record
	} else {
		said = f.declined
	}
	if said != nil {
		a.Status, a.Problem = said.Status, said
	}
	if f.record.Path != pathRaw {
		c.Keep = &keyRecord{
			Key: f.record.Key, Fingerprint: f.fingerprint, Task: f.record.Task,
			Expires: now.Add(l.Policy.keyTTL()), Answer: *a,
		}
	}
	if err := l.commit(c); err != nil {
		return nil, err
	}
	delete(l.asked, f.record.Key)
	f.performed = true
	return a, nil
}

// end lets go of a flight's key; f may be nil.
func (l *Ledger) end(f *flight) {
	if f == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !f.performed {
		l.asked[f.record.Key]++
	}
	if f.record.Path != pathRaw {
		delete(l.flights, f.record.Key)
		return
	}
	if l.unperformed[f.record.Key]--; l.unperformed[f.record.Key] == 0 {
		delete(l.unperformed, f.record.Key)
	}
}

// Lookup gives the last effect that was performed under a key, whether the key has
// expired or not; nil: none. ErrInFlight: one may be performed any moment.
func (l *Ledger) Lookup(key string) (*Record, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.state.latest[key]; e != nil {
		return &e.Record, nil
	}
	if f := l.flights[key]; (f != nil && f.declined == nil) || l.unperformed[key] > 0 {
		return nil, ErrInFlight
	}
	return nil, nil
}

// List gives the effects in the order in which they were performed.
func (l *Ledger) List(f Filter) []Entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := []Entry{}
	for _, e := range l.state.entries {
		if f.matches(e.Record) {
			entry := *e
			entry.Performed = l.state.performed[e.Key]
			list = append(list, entry)
		}
	}
	return list
}

// Clear forgets the effects of a task, or all of them, and their keys.
func (l *Ledger) Clear(task string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.commit(change{Clear: &clearance{Task: task}}); err != nil {
		return err
	}
	if task == "" {
		clear(l.asked)
	}
	return nil
}

// commit makes c durable and then true.
func (l *Ledger) commit(c change) error {
	if l.journal != nil {
		if err := l.journal.append(c); err != nil {
			return err
		}
	}
	return l.state.apply(c)
}

// fingerprint tells effects apart: sha256 over the canonical JSON of what the request
// does and where. Who sent it is not in it.
func fingerprint(r Record) (string, error) {
	doc, err := json.Marshal(map[string]any{"method": "POST", "path": r.Path, "kind": r.Kind, "body": r.Body})
	if err == nil {
		doc, err = canonical(doc)
	}
	if err != nil {
		return "", fmt.Errorf("the request's fingerprint: %w", err)
	}
	sum := sha256.Sum256(doc)
	return hex.EncodeToString(sum[:]), nil
}
