// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package sample

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
)

// maxGates is how many gates there may be at once.
const maxGates = 1000

// errStopping ends what is held when the ledger stops.
var errStopping = errors.New("the ledger is stopping")

// gates hold requests and programs until they are told to go on. A gate has a name, for
// requests their key. It is closed at first; once opened it stays open until it is closed
// again.
type gates struct {
	stopped chan struct{}
	once    sync.Once

	mu     sync.Mutex
	byName map[string]*gate
}

type gate struct {
	open    chan struct{} // closed when the gate opens
	isOpen  bool
	waiting int
	held    chan struct{} // closed while somebody waits
}

// Hold is the state of a gate.
type Hold struct {
	Key string `json:"key"`
	// Waiting is how many requests and programs it holds.
	Waiting int `json:"waiting"`
	// Released says that it lets everybody through.
	Released bool `json:"released"`
}

func newGates() *gates {
	return &gates{stopped: make(chan struct{}), byName: map[string]*gate{}}
}

// get gives a gate, made where it does not exist. The caller has the lock.
func (g *gates) get(name string) (*gate, error) {
	if it := g.byName[name]; it != nil {
		return it, nil
	}
	if len(g.byName) >= maxGates {
		return nil, fmt.Errorf("there are %d holds already: forget them with DELETE /admin/faults", maxGates)
	}
	it := &gate{open: make(chan struct{}), held: make(chan struct{})}
	g.byName[name] = it
	return it, nil
}

// wait returns when the gate is open: nil, or why not.
func (g *gates) wait(ctx context.Context, name string) error {
	g.mu.Lock()
	it, err := g.get(name)
	if err != nil {
		g.mu.Unlock()
		return err
	}
	open := it.open
	it.enter()
	g.mu.Unlock()
	defer func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		it.leave()
	}()
	select {
	case <-open:
		return nil
	case <-g.stopped:
		return errStopping
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (it *gate) enter() {
	if it.waiting++; it.waiting == 1 {
		close(it.held)
	}
}

func (it *gate) leave() {
	if it.waiting--; it.waiting == 0 {
		it.held = make(chan struct{})
	}
}

// waitHeld returns when somebody waits at the gate: nil, or why not.
func (g *gates) waitHeld(ctx context.Context, name string) error {
	g.mu.Lock()
	it, err := g.get(name)
	if err != nil {
		g.mu.Unlock()
		return err
	}
	held := it.held
	g.mu.Unlock()
	select {
	case <-held:
		return nil
	case <-g.stopped:
		return errStopping
	case <-ctx.Done():
		return ctx.Err()
	}
}

// release opens a gate, also for those who come later.
func (g *gates) release(name string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	it, err := g.get(name)
	if err != nil {
		return err
	}
	it.release()
	return nil
}

func (it *gate) release() {
	if !it.isOpen {
		it.isOpen = true
		close(it.open)
	}
}

// close closes a gate.
func (g *gates) close(name string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	it, err := g.get(name)
	if err != nil {
		return err
	}
	if it.isOpen {
		it.isOpen, it.open = false, make(chan struct{})
	}
	return nil
}

// releaseAll opens the gates that there are. forget: as if there had been none.
func (g *gates) releaseAll(forget bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, it := range g.byName {
		it.release()
	}
	if forget {
		clear(g.byName)
	}
}

// list gives the gates by name.
func (g *gates) list() []Hold {
	g.mu.Lock()
	defer g.mu.Unlock()
	holds := []Hold{}
	for _, name := range slices.Sorted(maps.Keys(g.byName)) {
		it := g.byName[name]
		holds = append(holds, Hold{Key: name, Waiting: it.waiting, Released: it.isOpen})
	}
	return holds
}

// stop ends all waiting.
func (g *gates) stop() { g.once.Do(func() { close(g.stopped) }) }
