// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package faults_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/test/faults"
	"github.com/agenttask-dev/agenttask/test/harness"
)

// Bounds: of what must come, and of how long nothing may come.
const (
	bound = 20 * time.Second
	quiet = 300 * time.Millisecond
	poll  = 5 * time.Millisecond
)

// recheck is how often operators look for themselves in cases that keep events from them.
const recheck = 200 * time.Millisecond

// lab is a control plane that many cases share, with a kubelet for all of them.
type lab struct {
	*harness.Cluster
	kubelet *harness.Kubelet
}

func startLab() (*lab, error) {
	cluster, err := harness.Start(harness.Options{})
	if err != nil {
		return nil, err
	}
	kubelet, err := cluster.StartKubelet(harness.KubeletOptions{Quick: true})
	if err != nil {
		return nil, errors.Join(err, cluster.Stop())
	}
	return &lab{cluster, kubelet}, nil
}

func (l *lab) stop() error { return errors.Join(l.kubelet.Stop(), l.Cluster.Stop()) }

// world is the namespace of one case.
type world struct {
	*lab
	ctx  context.Context
	ns   string
	plan *plan
	// bound is how long what must come is waited for.
	bound    time.Duration
	record   *harness.Recorder
	managers []*harness.Manager
	rests    []faults.Rest
	hold     hold
	// restored are the times at which etcd was set back.
	restored []harness.Restore
	// touched is what an outsider did its deed to.
	touched faults.Touched

	mu       sync.Mutex
	problems []error
	deferred []func()
}

func (l *lab) newWorld(ctx context.Context, p *plan) (*world, error) {
	ns, err := l.NewNamespace(ctx, "case", nil)
	if err != nil {
		return nil, err
	}
	w := &world{lab: l, ctx: ctx, ns: ns, plan: p, bound: bound}
	if w.record, err = l.Record(ctx, ns); err != nil {
		return nil, err
	}
	l.kubelet.Play(ns, func(pod *corev1.Pod) harness.Behaviour { return w.hold.apply(p.script(pod)) })
	return w, nil
}

// close ends all that the case started. What it made stays until the lab goes.
func (w *world) close() {
	for _, m := range w.managers {
		m.Kill()
	}
	w.hold.release()
	w.kubelet.Forget(w.ns)
	w.record.Close()
}

// problem notes what went wrong with the case itself, from any goroutine.
func (w *world) problem(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.problems = append(w.problems, fmt.Errorf(format, args...))
}

func (w *world) failed() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return errors.Join(w.problems...)
}

// operator starts a manager.
func (w *world) operator(name string, line *harness.Faults, more ...func(*harness.ManagerOptions)) *harness.Manager {
	o := harness.ManagerOptions{Name: name, Namespaces: []string{w.ns}, Faults: line}
	for _, f := range more {
		f(&o)
	}
	m, err := w.StartManager(o)
	if err != nil {
		w.problem("operator %s: %w", name, err)
		return nil
	}
	w.managers = append(w.managers, m)
	return m
}

// create makes the plan's task.
func (w *world) create() {
	if err := w.Client.Create(w.ctx, w.plan.task(w.ns)); err != nil {
		w.problem("creating the task: %w", err)
	}
}

// begin starts an operator on a line with faults, makes the task, and waits until each of
// the faults has struck.
func (w *world) begin(line *harness.Faults, more ...func(*harness.ManagerOptions)) *harness.Manager {
	m := w.operator("first", line, more...)
	w.create()
	w.struck(line)
	return m
}

// struck waits until each of a line's faults has struck.
func (w *world) struck(line *harness.Faults) {
	select {
	case <-line.Hit():
	case <-time.After(w.bound):
		w.problem("the fault did not strike; the operator made %d writes", len(line.Writes()))
	}
}

func (w *world) task() (*v1alpha1.AgentTask, error) {
	task := &v1alpha1.AgentTask{}
	return task, w.Client.Get(w.ctx, client.ObjectKey{Namespace: w.ns, Name: taskName}, task)
}

// rest waits until the task has ended or waits for somebody, with nothing left to do, and
// then for a while in which nothing may be written.
func (w *world) rest() {
	if missing := w.arrive(); missing != "" {
		w.rests = append(w.rests, faults.Rest{Missing: missing})
		return
	}
	w.rests = append(w.rests, faults.Rest{Late: w.late(quiet)})
}

// restAgain is rest after something that gives operators reason to write once more, though
// there is nothing to do: what they know may be old. It waits for the end of that first.
func (w *world) restAgain() {
	if w.arrive() == "" {
		w.silence()
	}
	w.rest()
}

// silence waits until nothing has been written for a while.
func (w *world) silence() {
	end := time.Now().Add(w.bound)
	for len(w.late(quiet/2)) > 0 || w.busy() {
		if time.Now().After(end) {
			w.problem("the operators do not stop writing")
			return
		}
	}
}

// arrive waits until nothing is left to do, and returns what then still is.
func (w *world) arrive() string {
	ctx, cancel := context.WithTimeout(w.ctx, w.bound)
	defer cancel()
	missing := "nothing was made"
	err := w.record.Wait(ctx, func(list []harness.Revision) bool {
		missing = faults.Outstanding(&harness.History{Revisions: list, Restores: w.restored})
		return missing == ""
	})
	if err != nil && missing == "" {
		return err.Error()
	}
	return missing
}

// late are the writes that are tried within a time. It ends with the first.
func (w *world) late(within time.Duration) []string {
	end := time.After(within)
	ticks := time.NewTicker(poll)
	defer ticks.Stop()
	before := len(w.writes())
	for {
		select {
		case <-end:
			return nil
		case <-ticks.C:
			if now := w.writes(); len(now) != before {
				return now[before:]
			}
		}
	}
}

// busy says whether a write of an operator that lives has no answer yet.
func (w *world) busy() bool {
	return slices.ContainsFunc(w.managers, func(m *harness.Manager) bool {
		list := m.Faults.Writes()
		return len(list) > 0 && list[len(list)-1].Code == 0 && len(list[len(list)-1].Struck) == 0 && !m.Faults.Dead()
	})
}

// writes are those that the case's operators have tried.
func (w *world) writes() []string {
	var list []string
	for i, m := range w.managers {
		for _, write := range m.Faults.Writes() {
			list = append(list, fmt.Sprintf("operator %d, %s", i+1, write))
		}
	}
	return list
}

// history is all that happened in the case.
func (w *world) history() (*faults.History, error) {
	h, err := w.record.History(w.ctx)
	if err != nil {
		return nil, err
	}
	return &faults.History{History: *h, Effects: w.effects(), Rests: w.rests}, nil
}

// effects are what the programs did, as the outside world counts it.
func (w *world) effects() []faults.Effect {
	var list []faults.Effect
	for _, s := range w.kubelet.Starts(w.ns) {
		list = append(list, faults.Effect{Pod: s.UID, Step: s.Step, Attempt: int32(s.Attempt), Key: s.Key, Done: w.plan.effective(s.Step, s.Attempt)})
	}
	return list
}

// hold keeps programs running that are started while it is on.
type hold struct {
	mu  sync.Mutex
	end chan struct{}
}

func (h *hold) set() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.end == nil {
		h.end = make(chan struct{})
	}
}

// release lets the programs end.
func (h *hold) release() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.end != nil {
		close(h.end)
		h.end = nil
	}
}

// forget lets programs that are started from now on end, and those that run never.
func (h *hold) forget() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.end = nil
}

func (h *hold) apply(b harness.Behaviour) harness.Behaviour {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.end != nil {
		b.Until = h.end
	}
	return b
}

// within waits for something that has a name.
func (w *world) within(what string, done <-chan struct{}) {
	select {
	case <-done:
	case <-time.After(w.bound):
		w.problem("waited in vain until %s", what)
	}
}

// tries waits until an operator has tried its first write, or looked for itself a few
// times without finding anything to write.
func (w *world) tries(line *harness.Faults) {
	select {
	case <-line.Hit():
	case <-time.After(3 * recheck):
	}
}
