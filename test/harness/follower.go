// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"fmt"
	"strings"
	"sync"
)

// follower hears of each change that etcd makes and gives it to the Recorder of its
// namespace.
type follower struct {
	etcd etcd

	mu        sync.Mutex
	recorders map[string]*Recorder
	running   bool
	seen      int64 // all up to this revision is known
	changed   chan struct{}
	err       error
	cancel    context.CancelFunc
	ended     chan struct{}
}

func newFollower(etcd etcd) *follower {
	return &follower{etcd: etcd, recorders: map[string]*Recorder{}, changed: make(chan struct{})}
}

// start starts it, unless it runs.
func (f *follower) start(ctx context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.running {
		return f.err
	}
	revision, err := f.etcd.revision(ctx)
	if err != nil {
		return err
	}
	f.follow(revision)
	return nil
}

// follow hears of all that comes after a revision.
func (f *follower) follow(revision int64) {
	ctx, cancel := context.WithCancel(context.Background())
	f.running, f.seen, f.cancel, f.ended = true, revision, cancel, make(chan struct{})
	ended := f.ended
	go func() {
		defer close(ended)
		err := f.etcd.watch(ctx, revision+1, f.take)
		if ctx.Err() != nil {
			return
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		f.err = fmt.Errorf("the history is not complete: %w", err)
		f.notify()
	}()
}

// pause stops it, for the time in which etcd does not run.
func (f *follower) pause() {
	f.mu.Lock()
	running, cancel, ended := f.running, f.cancel, f.ended
	f.mu.Unlock()
	if running {
		cancel()
		<-ended
	}
}

// resume goes on after etcd was restored.
func (f *follower) resume(to Restore) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.running {
		return
	}
	for _, recorder := range f.recorders {
		recorder.restore(to)
	}
	f.follow(to.First - 1)
}

func (f *follower) notify() {
	close(f.changed)
	f.changed = make(chan struct{})
}

// take gives changes to the recorders of their namespaces.
func (f *follower) take(events []etcdEvent) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range events {
		key := string(e.KV.Key)
		if recorder := f.recorders[namespaceOf(key)]; recorder != nil {
			if err := recorder.add(e, key); err != nil {
				return err
			}
		}
		f.seen = e.KV.Revision
	}
	f.notify()
	return nil
}

// namespaceOf is the namespace of a key that is recorded, or nothing. What Kubernetes puts
// into each namespace is not.
func namespaceOf(key string) string {
	if strings.HasSuffix(key, "/kube-root-ca.crt") {
		return ""
	}
	for _, prefix := range recorded {
		if rest, ok := strings.CutPrefix(key, prefix); ok {
			namespace, _, _ := strings.Cut(rest, "/")
			return namespace
		}
	}
	return ""
}

// sync waits until all that etcd has done so far is known.
func (f *follower) sync(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, syncTimeout)
	defer cancel()
	revision, err := f.etcd.revision(ctx)
	if err != nil {
		return err
	}
	for {
		changed, err := f.next()
		if err != nil {
			return err
		}
		f.mu.Lock()
		seen := f.seen
		f.mu.Unlock()
		if seen >= revision {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("the history is at revision %d and not at %d: %w", seen, revision, ctx.Err())
		}
	}
}

// next is closed when more is known than now.
func (f *follower) next() (<-chan struct{}, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.changed, f.err
}
