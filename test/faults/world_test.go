// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package faults_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
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
	// drained is how long operators ask for nothing once all that they knew from before has
	// come to its end: on two busy cores they may stand still for longer than quiet.
	drained = 1500 * time.Millisecond
	poll    = 5 * time.Millisecond
)

// recheck is how often operators look for themselves in cases that keep events from them.
const recheck = 200 * time.Millisecond

// lab is a control plane that many cases share, with a kubelet for all of them.
type lab struct {
	*harness.Cluster
	kubelet *harness.Kubelet
	// spare are namespaces that were made ahead.
	spare chan string
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
	return &lab{cluster, kubelet, make(chan string, maxSpare)}, nil
}

// maxSpare is how many namespaces can be made ahead.
const maxSpare = 100

// namespace is one that was made ahead, or a new one.
func (l *lab) namespace(ctx context.Context) (string, error) {
	select {
	case ns := <-l.spare:
		return ns, nil
	default:
		return l.NewNamespace(ctx, "case", nil)
	}
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
	requests atomic.Int64
	hold     hold
	// restored are the times at which etcd was set back, and before the programs that had
	// been started by then.
	restored []harness.Restore
	before   []harness.ContainerStart
	// touched is what an outsider did its deed to.
	touched faults.Touched

	mu       sync.Mutex
	problems []error
	deferred []func()
}

func (l *lab) newWorld(ctx context.Context, p *plan) (*world, error) {
	ns, err := l.namespace(ctx)
	if err != nil {
		return nil, err
	}
	w := &world{lab: l, ctx: ctx, ns: ns, plan: p, bound: bound}
	if w.record, err = l.Record(ctx, ns); err != nil {
		return nil, err
	}
	l.kubelet.Play(ns, w.script)
	return w, nil
}

// script says what becomes of a pod, held as long as that is asked for.
func (w *world) script(pod *corev1.Pod) harness.Behaviour { return w.hold.apply(w.plan.script(pod)) }

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
	o.Wrap = w.counted(o.Wrap)
	m, err := w.StartManager(o)
	if err != nil {
		w.problem("operator %s: %w", name, err)
		return nil
	}
	w.managers = append(w.managers, m)
	return m
}

// counted counts an operator's requests of every kind, as a sign that it is at work.
func (w *world) counted(wrap func(http.RoundTripper) http.RoundTripper) func(http.RoundTripper) http.RoundTripper {
	return func(next http.RoundTripper) http.RoundTripper {
		if wrap != nil {
			next = wrap(next)
		}
		return harness.RoundTrip(func(r *http.Request) (*http.Response, error) {
			w.requests.Add(1)
			return next.RoundTrip(r)
		})
	}
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

// silence waits until no operator has asked for anything for a while.
func (w *world) silence() {
	end, ticks := time.Now().Add(w.bound), time.NewTicker(poll)
	defer ticks.Stop()
	for since, seen := time.Now(), w.requests.Load(); ; {
		now := <-ticks.C
		if n := w.requests.Load(); n != seen || w.busy() {
			since, seen = now, n
		}
		switch {
		case now.Sub(since) > drained:
			return
		case now.After(end):
			w.problem("the operators do not stop asking")
			return
		}
	}
}

// arrive waits until nothing is left to do, and returns what then still is.
func (w *world) arrive() string { return w.until(faults.Outstanding) }

// until waits until nothing is missing, and returns what then still is.
func (w *world) until(missing func(*harness.History) string) string {
	ctx, cancel := context.WithTimeout(w.ctx, w.bound)
	defer cancel()
	what := "nothing was made"
	err := w.record.Wait(ctx, func(list []harness.Revision) bool {
		what = missing(&harness.History{Revisions: list, Restores: w.restored})
		return what == ""
	})
	if err != nil && what == "" {
		return err.Error()
	}
	return what
}

// late are the writes that are tried within a time. It ends with the first.
func (w *world) late(within time.Duration) []string {
	end, ticks := time.After(within), time.NewTicker(poll)
	defer ticks.Stop()
	before := w.counts()
	for {
		select {
		case <-end:
			return nil
		case <-ticks.C:
			var list []string
			for i, m := range w.managers {
				for _, write := range m.Faults.Writes()[before[i]:] {
					list = append(list, fmt.Sprintf("operator %d, %s", i+1, write))
				}
			}
			if len(list) > 0 {
				return list
			}
		}
	}
}

// counts are how many writes each operator has tried.
func (w *world) counts() []int {
	list := make([]int, len(w.managers))
	for i, m := range w.managers {
		list[i] = len(m.Faults.Writes())
	}
	return list
}

// busy says whether a write of an operator that lives has no answer yet.
func (w *world) busy() bool {
	return slices.ContainsFunc(w.managers, func(m *harness.Manager) bool {
		list := m.Faults.Writes()
		return len(list) > 0 && list[len(list)-1].Code == 0 && len(list[len(list)-1].Struck) == 0 && !m.Faults.Dead()
	})
}

// writes are those that the case's operators have tried, a line each.
func (w *world) writes() []string {
	var list []string
	for i, m := range w.managers {
		for _, write := range m.Faults.Writes() {
			list = append(list, strings.TrimSpace(fmt.Sprintf("operator %d, %s: %d %v", i+1, write, write.Code, write.Struck)))
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

// effects are what the programs did, as the outside world counts it. Where etcd was set
// back, what was done before may be done again under the same key, by which it is known
// there, and counts once.
func (w *world) effects() []faults.Effect {
	var list []faults.Effect
	for _, s := range slices.Concat(w.before, w.kubelet.Starts(w.ns)) {
		for i := range list {
			if len(w.restored) > 0 && list[i].Step == s.Step && list[i].Key == s.Key {
				list[i].Done = false
			}
		}
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
