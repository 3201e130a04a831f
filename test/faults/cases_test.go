// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package faults_test

import (
	"fmt"
	"slices"

	"github.com/agenttask-dev/agenttask/test/faults"
	"github.com/agenttask-dev/agenttask/test/harness"
)

// Classes of faults, as the report tells them apart.
const (
	classTransport = "a write fails"
	classFrozen    = "two operators, one frozen"
	classNetwork   = "network cut, lease lost"
	classWatch     = "watch events"
	classOutsider  = "outside actors"
	classRestore   = "etcd restored"
	classPair      = "two crashes"
)

// fault is one way in which a run is disturbed at its n-th write.
type fault struct {
	name, class string
	// strikes says whether it can strike an undisturbed run's n-th write. Nil: each.
	strikes func(b *baseline, n int64) bool
	// run disturbs the run. When it returns nothing is wrong any more, and an operator
	// works that nothing is kept from.
	run func(w *world, b *baseline, n int64)
	// may is what the fault may rightly cost.
	may []faults.Difference
	// everyPlan says that it strikes every plan, and not only the first.
	everyPlan bool
}

// tried is a case: a fault at a write of a plan.
type tried struct {
	fault
	base *baseline
	n    int64
}

// id names the case for ever, as long as the undisturbed run's writes stay the same.
func (c tried) id() string {
	id := fmt.Sprintf("write-%02d/%s", c.n, c.name)
	if c.base.plan.name != "" {
		id = c.base.plan.name + "/" + id
	}
	return id
}

// enumerate makes every case of a list of faults.
func enumerate(list []fault, bases []*baseline) []tried {
	var cases []tried
	for i, b := range bases {
		for n := int64(1); n <= int64(len(b.plan.writes)); n++ {
			for _, f := range list {
				if (i == 0 || f.everyPlan) && (f.strikes == nil || f.strikes(b, n)) {
					cases = append(cases, tried{f, b, n})
				}
			}
		}
	}
	return cases
}

// singles are all faults that strike once.
func singles() []fault {
	return slices.Concat(transportFaults(), frozenFaults(), raceFaults(), replayFaults(), networkFaults(), watchFaults(), outsiderFaults())
}

// transportFaults are what can become of one write between the operator and the API
// server. Where the operator dies of it, another one follows.
func transportFaults() []fault {
	var list []fault
	for _, f := range []struct {
		name      string
		kind      harness.FaultKind
		everyPlan bool
	}{
		{"die-before", harness.DieBefore, true},
		{"die-after", harness.DieAfter, true},
		{"conflict", harness.Conflict, false},
		{"too-many", harness.TooMany, false},
		{"error-before", harness.ErrorBefore, false},
		{"error-after", harness.ErrorAfter, false},
		{"timeout-after", harness.TimeoutAfter, false},
		{"reset-before", harness.ResetBefore, false},
		{"reset-after", harness.ResetAfter, false},
	} {
		list = append(list, fault{name: f.name, class: classTransport, everyPlan: f.everyPlan, run: func(w *world, _ *baseline, n int64) {
			line := harness.NewFaults(harness.Fault{At: n, Kind: f.kind})
			w.begin(line)
			if line.Dead() {
				w.operator("second", nil)
			}
			w.rest()
		}})
	}
	return list
}

// frozenFaults stop an operator at a write, as a virtual machine is paused, let another one
// do all that is left, and then let the first go on as if nothing had been. Or its write,
// or the answer, is lost, and it is stopped as it looks what has become of it.
func frozenFaults() []fault {
	var list []fault
	for _, f := range []struct {
		name  string
		kinds []harness.FaultKind
	}{
		{"freeze-before", []harness.FaultKind{harness.FreezeBefore}},
		{"freeze-after", []harness.FaultKind{harness.FreezeAfter}},
		{"lose-and-freeze-before", []harness.FaultKind{harness.ActBefore, harness.ResetBefore}},
		{"lose-and-freeze-after", []harness.FaultKind{harness.ActAfter, harness.ResetAfter}},
	} {
		list = append(list, fault{name: f.name, class: classFrozen, everyPlan: true, run: func(w *world, _ *baseline, n int64) {
			var line *harness.Faults
			line = harness.NewFaults(strikes(n, f.kinds, func() { line.Freeze() })...)
			w.begin(line)
			w.operator("second", nil)
			w.rest()
			line.Thaw()
			w.restAgain()
		}})
	}
	return list
}

// strikes are several faults of one write, of which some act.
func strikes(n int64, kinds []harness.FaultKind, act func()) []harness.Fault {
	list := make([]harness.Fault, len(kinds))
	for i, kind := range kinds {
		list[i] = harness.Fault{At: n, Kind: kind, Act: func(harness.Write) { act() }}
	}
	return list
}

// raceFaults stop an operator at a write, and let it go on in the middle of what another
// one does, which then has made two writes.
func raceFaults() []fault {
	var list []fault
	for _, f := range []struct {
		name string
		kind harness.FaultKind
	}{
		{"race-before", harness.FreezeBefore},
		{"race-after", harness.FreezeAfter},
	} {
		list = append(list, fault{name: f.name, class: classFrozen, everyPlan: true, run: func(w *world, _ *baseline, n int64) {
			line := harness.NewFaults(harness.Fault{At: n, Kind: f.kind})
			w.begin(line)
			w.operator("second", harness.NewFaults(harness.Fault{At: 2, Kind: harness.ActAfter, Act: func(harness.Write) { line.Thaw() }}))
			w.arrive() // it may have had less than two writes to make
			line.Thaw()
			w.restAgain()
		}})
	}
	return list
}

// networkFaults cut an operator off for longer than its Lease lasts. Another one takes the
// Lease and does the rest; the first finds out and ends.
func networkFaults() []fault {
	var list []fault
	for _, f := range []struct {
		name  string
		kinds []harness.FaultKind
	}{
		{"cut-before", []harness.FaultKind{harness.ActBefore, harness.ResetBefore}},
		{"cut-after", []harness.FaultKind{harness.ActAfter}},
	} {
		list = append(list, fault{name: f.name, class: classNetwork, run: func(w *world, _ *baseline, n int64) {
			var line *harness.Faults
			line = harness.NewFaults(strikes(n, f.kinds, func() { line.Cut() })...)
			first := w.operator("first", line, elected)
			w.create()
			w.struck(line)
			second := w.operator("second", nil, elected)
			if w.failed() != nil {
				return
			}
			w.within("the second operator takes the Lease", second.Elected())
			w.within("the first operator ends", first.Ended())
			line.Heal()
			w.rest()
		}})
	}
	return list
}

// elected lets an operator run only while it holds the Lease.
func elected(o *harness.ManagerOptions) { o.LeaderElection = &harness.LeaderElection{} }

// watched are the kinds whose events an operator hears.
var watched = []string{"agenttasks", "jobs", "pods"}

// watchFaults keep events from an operator, or show it what was long ago.
func watchFaults() []fault {
	var list []fault
	add := func(name string, run func(w *world, n int64)) {
		list = append(list, fault{name: name, class: classWatch, run: func(w *world, _ *baseline, n int64) { run(w, n) }})
	}
	for _, kind := range watched {
		add("silence-"+kind, func(w *world, n int64) {
			listening(w, n, func(events *harness.Watches) { events.Freeze(kind) }, func(events *harness.Watches) { events.Resume(kind) })
		})
		add("delay-"+kind, func(w *world, n int64) {
			listening(w, n, func(events *harness.Watches) { events.Delay(kind, 2) }, func(events *harness.Watches) { events.Delay(kind, 0) })
		})
		add("drop-"+kind, func(w *world, n int64) {
			listening(w, n, func(events *harness.Watches) { events.Drop(kind, 1) }, nil)
		})
	}
	list = append(list, fault{name: "old-view", class: classWatch, everyPlan: true, run: func(w *world, _ *baseline, n int64) { oldView(w, n) }})
	return list
}

// listening does something to what an operator hears from the n-th write on, and undoes it
// when the task has ended without.
func listening(w *world, n int64, do, undo func(*harness.Watches)) {
	events := harness.NewWatches(watched...)
	line := harness.NewFaults(harness.Fault{At: n, Kind: harness.ActAfter, Act: func(harness.Write) { do(events) }})
	w.begin(line, hearing(events))
	if missing := w.until(faults.Unended); missing != "" {
		w.problem("the task does not end: %s", missing)
	}
	if undo != nil {
		undo(events)
	}
	w.restAgain()
}

// hearing lets an operator hear through watches that may fail, and look for itself often.
func hearing(events *harness.Watches) func(*harness.ManagerOptions) {
	return func(o *harness.ManagerOptions) { o.Wrap, o.RecheckInterval = events.Wrap, recheck }
}

// older is how many writes the view is behind that an operator begins with.
const older = 5

// oldView lets an operator die at a write, and the next one begin with what was there some
// writes before. It hears no more until it has tried to write, or looked in vain.
func oldView(w *world, n int64) {
	var version string
	line := harness.NewFaults(
		harness.Fault{At: max(1, n-older), Kind: harness.ActBefore, Act: func(harness.Write) {
			var err error
			if version, err = w.Revision(w.ctx); err != nil {
				w.problem("the API server's revision: %w", err)
			}
		}},
		harness.Fault{At: n, Kind: harness.DieAfter})
	w.begin(line)
	events := harness.NewWatches(watched...)
	events.ServeOld(version, watched...)
	for _, kind := range watched {
		events.Freeze(kind)
	}
	next := harness.NewFaults(harness.Fault{At: 1, Kind: harness.ActBefore, Act: func(harness.Write) {}})
	w.operator("second", next, hearing(events))
	w.tries(next)
	for _, kind := range watched {
		events.Resume(kind)
	}
	w.restAgain()
}

var death = map[string]harness.FaultKind{"before": harness.DieBefore, "after": harness.DieAfter}

// pairs are crashes of an operator and then of the one that follows it.
func pairs(b *baseline) []tried {
	var cases []tried
	for n := int64(1); n <= int64(len(b.plan.writes)); n++ {
		for _, one := range []string{"before", "after"} {
			left := int64(len(b.plan.writes)) - n
			if one == "before" {
				left++
			}
			for m := int64(1); m <= left; m++ {
				for _, two := range []string{"before", "after"} {
					name := fmt.Sprintf("die-%s/write-%02d/die-%s", one, m, two)
					cases = append(cases, tried{fault{name: name, class: classPair, run: func(w *world, _ *baseline, n int64) {
						crash(w, n, m, death[one], death[two])
					}}, b, n})
				}
			}
		}
	}
	return cases
}

func crash(w *world, n, m int64, one, two harness.FaultKind) {
	w.begin(harness.NewFaults(harness.Fault{At: n, Kind: one}))
	second := harness.NewFaults(harness.Fault{At: m, Kind: two})
	w.operator("second", second)
	w.struck(second)
	w.operator("third", nil)
	w.rest()
}
