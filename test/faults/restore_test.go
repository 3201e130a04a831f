// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package faults_test

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/agenttask-dev/agenttask/test/harness"
)

// restores are snapshots of etcd at each boundary of steps, to which it is set back when
// the plan has run to its end. They need a control plane of their own, one after another.
func restores(b *baseline) []tried {
	var cases []tried
	for i, write := range b.plan.writes {
		if write == checkpoint {
			cases = append(cases, tried{fault{name: "restore", class: classRestore, run: restore}, b, int64(i + 1)})
		}
	}
	return cases
}

// restore goes back to what was there after the n-th write. All that was done since is
// forgotten, but for the outside world.
func restore(w *world, _ *baseline, n int64) {
	path := filepath.Join(w.Dir, fmt.Sprintf("%s-%d.db", w.ns, n))
	line := harness.NewFaults(harness.Fault{At: n, Kind: harness.ActAfter, Act: func(harness.Write) {
		if err := w.Snapshot(w.ctx, path); err != nil {
			w.problem("snapshot: %w", err)
		}
	}})
	first := w.begin(line)
	w.rest()
	if first == nil || w.failed() != nil {
		return
	}
	first.Kill()
	if err := w.Restore(w.ctx, path); err != nil {
		w.problem("restore: %w", err)
		return
	}
	h, err := w.record.History(w.ctx)
	if err != nil {
		w.problem("after the restore: %w", err)
		return
	}
	w.restored = h.Restores
	if err := w.anotherNode(); err != nil {
		w.problem("after the restore: %w", err)
		return
	}
	w.operator("second", nil)
	w.rest()
}

// anotherNode puts a kubelet in place of the one there is, which knows nothing of what ran
// before.
func (w *world) anotherNode() error {
	w.before = append(w.before, w.kubelet.Starts(w.ns)...)
	if err := w.kubelet.Stop(); err != nil {
		return err
	}
	var err error
	if w.kubelet, err = w.StartKubelet(harness.KubeletOptions{Quick: true}); err == nil {
		w.kubelet.Play(w.ns, w.script)
	}
	return err
}

// runRestores runs the cases that set etcd back.
func runRestores(t *testing.T, r *report, cases []tried) {
	if len(cases) == 0 {
		return
	}
	l, err := startLab()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := l.stop(); err != nil {
			t.Error(err)
		}
	}()
	for range cases { // while the controllers that fill namespaces have not been disturbed
		ns, err := l.NewNamespace(t.Context(), "case", nil)
		if err != nil {
			t.Fatal(err)
		}
		l.spare <- ns
	}
	for _, c := range cases {
		ok := t.Run(c.id(), func(t *testing.T) { r.add(c, l.try(t, c)) })
		r.done(c, ok)
	}
}
