// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package faults_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"github.com/agenttask-dev/agenttask/test/faults"
	"github.com/agenttask-dev/agenttask/test/harness"
)

// restores are snapshots of etcd at each boundary of steps, to which it is set back when
// the plan has run to its end. They need a control plane of their own, one after another.
func restores(b *baseline) []tried {
	var cases []tried
	for _, w := range b.writes {
		if w.Is("update", "agenttasks/status") {
			cases = append(cases, tried{fault{name: "restore", class: classRestore, run: restore}, b, w.N})
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
	w.operator("second", nil)
	w.rest()
}

// keys says which steps went under more than one key, before and after a restore taken
// together: then the outside world cannot know that it is the same effect.
func keys(h *faults.History) []faults.Violation {
	found := map[string][]string{}
	for _, e := range h.Effects {
		if !slices.Contains(found[e.Step], e.Key) {
			found[e.Step] = append(found[e.Step], e.Key)
		}
	}
	var list []faults.Violation
	for step, keys := range found {
		if len(keys) > 1 {
			list = append(list, faults.Violation{Invariant: "I6", What: fmt.Sprintf("step %s went under %d keys", step, len(keys))})
		}
	}
	return list
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
	for _, c := range cases {
		ok := t.Run(c.id(), func(t *testing.T) { r.add(c, l.try(t, c)) })
		r.done(c, ok)
	}
}
