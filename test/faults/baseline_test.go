// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package faults_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/test/faults"
	"github.com/agenttask-dev/agenttask/test/harness"
)

// baseline is the undisturbed run of a plan.
type baseline struct {
	plan *plan
	// end is what it leaves behind.
	end faults.End
	// starts are the steps whose program the n-th write starts.
	starts map[int64]string
	// jobs and pods are those that were made, in order.
	jobs, pods []made
}

// made is a Job or pod that was made by the n-th write.
type made struct {
	n       int64
	step    string
	attempt int32
}

// name is what a deed after the n-th write is done to, or nil where there is none.
func (b *baseline) name(to aim, n int64) *made {
	list := b.jobs
	if to == lastPod || to == nextPod {
		list = b.pods
	}
	switch to {
	case lastJob, lastPod:
		for i := len(list) - 1; i >= 0; i-- {
			if list[i].n <= n {
				return &list[i]
			}
		}
	case nextJob, nextPod:
		for i := range list {
			if list[i].n > n {
				return &list[i]
			}
		}
	case theTask:
		return &made{}
	}
	return nil
}

// planned is what an undisturbed run of a plan will be, but for its end.
func planned(p *plan) *baseline {
	b := &baseline{plan: p, starts: map[int64]string{}}
	let := map[string]bool{}
	for i, write := range p.writes {
		what, attempt, _ := cutLast(write, " ")
		step, number, _ := strings.Cut(attempt, "/")
		n, _ := strconv.ParseInt(number, 10, 32)
		m := made{int64(i + 1), step, int32(n)}
		switch what {
		case "create jobs":
			b.jobs = append(b.jobs, m)
		case "create pods":
			b.pods = append(b.pods, m)
			if !p.fences(step) {
				b.starts[m.n] = step
			}
		case "patch pods":
			if !let[attempt] { // the second time it is let go
				b.starts[m.n] = step
			}
			let[attempt] = true
		}
	}
	return b
}

func cutLast(s, sep string) (before, after string, found bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

// fences says whether a step may not be run twice.
func (p *plan) fences(step string) bool {
	return slices.ContainsFunc(p.task("").Spec.Steps, func(s v1alpha1.Step) bool { return s.Name == step && s.Effect == v1alpha1.EffectOnce })
}

// undisturbed runs a plan without faults.
func undisturbed(t *testing.T, l *lab, p *plan) *baseline {
	t.Helper()
	line := harness.NewFaults()
	h := l.run(t, p, func(w *world) {
		w.operator("only", line)
		w.create()
		w.rest()
	})
	for _, v := range faults.Check(h) {
		t.Errorf("an undisturbed run: %s", v)
	}
	b := planned(p)
	if b.end = faults.EndOf(h); t.Failed() || b.end.Phase != v1alpha1.TaskSucceeded {
		t.Fatalf("an undisturbed run ends as %s", b.end.Phase)
	}
	writes := line.Writes()
	have := make([]string, len(writes))
	for i, w := range writes {
		have[i] = brief(w)
	}
	if diff := cmp.Diff(p.writes, have); diff != "" {
		t.Fatalf("an undisturbed run does not write what it must (-want +have):\n%s", diff)
	}
	return b
}

// sameWrite checks that the n-th write was the undisturbed run's, so that the case is the
// one that its ID names.
func (w *world) sameWrite(b *baseline, n int64) {
	if len(w.managers) == 0 {
		return
	}
	want := b.plan.writes[n-1]
	if list := w.managers[0].Faults.Writes(); int64(len(list)) < n || brief(list[n-1]) != want {
		w.problem("write %d is not %s, as in an undisturbed run", n, want)
	}
}

// brief is a write without what differs from run to run: "create pods pay/1".
func brief(w harness.Write) string {
	resource := w.Resource
	if w.Subresource != "" {
		resource += "/" + w.Subresource
	}
	name := strings.Split(w.Name, "-")
	if len(name) > 2 { // task-STEP-HASH-ATTEMPT
		name = []string{name[1], name[len(name)-1]}
	}
	return fmt.Sprintf("%s %s %s", w.Verb, resource, strings.Join(name, "/"))
}

func TestTheSpreadHasEachFaultAndEachWrite(t *testing.T) {
	var bases []*baseline
	for _, p := range plans {
		bases = append(bases, planned(p))
	}
	all := append(enumerate(singles(), bases), restores(bases[0])...)
	chosen := spread(all)
	if len(chosen) < leastSpread {
		t.Errorf("the spread has %d cases of %d", len(chosen), len(all))
	}
	ids, faults, writes := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, c := range chosen {
		ids[c.id()], faults[c.name], writes[c.place()] = true, true, true
	}
	if len(ids) != len(chosen) {
		t.Errorf("%d cases have %d IDs", len(chosen), len(ids))
	}
	for _, c := range all {
		if !faults[c.name] || !writes[c.place()] {
			t.Errorf("the spread has nothing of %s", c.id())
		}
	}
}

// leastSpread is how many cases the spread must have.
const leastSpread = 150
