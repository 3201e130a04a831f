// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
)

// Violation is an invariant that did not hold.
type Violation struct {
	// Invariant is its ID, such as I1.
	Invariant string
	// RV is the revision at which it was broken, 0 where that is no single one.
	RV   int64
	What string
}

func (v Violation) String() string {
	if v.RV == 0 {
		return fmt.Sprintf("%s: %s", v.Invariant, v.What)
	}
	return fmt.Sprintf("%s at revision %d: %s", v.Invariant, v.RV, v.What)
}

// Invariant is a promise that can be checked on a history.
type Invariant struct {
	ID, Name, Sentence string
	check              func(*view) []Violation
}

// Invariants are I1 to I8. I9 compares with another run: see Expectation.
var Invariants = []Invariant{
	{"I1", "OneUngated", "at most one pod per attempt loses its gate, and the status named it in an earlier revision", oneUngated},
	{"I2", "NoLateStart", "no pod loses its gate once its step is done or a later attempt exists", noLateStart},
	{"I3", "DeadBeforeNext", "attempt n+1 only after the pod of attempt n is provably dead", deadBeforeNext},
	{"I4", "OnlyForward", "phases only go forward, results never change, nothing is done that did not succeed", onlyForward},
	{"I5", "InOrder", "step n+1 only after step n", inOrder},
	{"I6", "EffectOnce", "each external effect at most once, exactly once if its step is done", effectOnce},
	{"I7", "Conditional", "every status write carries a resourceVersion, every pod patch tests the UID, every delete has a UID precondition", conditional},
	{"I8", "Settles", "a terminal or waiting state within a bound after faults stop, then no more writes", settles},
}

// Check runs all of Invariants over a history.
func Check(h *History) []Violation {
	v := viewOf(h)
	var found []Violation
	for _, i := range Invariants {
		for _, violation := range i.check(v) {
			violation.Invariant = i.ID
			found = append(found, violation)
		}
	}
	return found
}

func broken(rv int64, format string, args ...any) Violation {
	return Violation{RV: rv, What: fmt.Sprintf(format, args...)}
}

// attempts are all attempts of which there ever was a Job, in a stable order.
func (v *view) attempts() []attempt {
	found := map[attempt]bool{}
	for _, job := range v.jobs {
		if a, ok := v.attemptOfJob(job[0].Job); ok {
			found[a] = true
		}
	}
	return slices.SortedFunc(maps.Keys(found), func(a, b attempt) int {
		if a.step != b.step {
			return v.position(a) - v.position(b)
		}
		return int(a.number - b.number)
	})
}

// position is a step's place in its plan.
func (v *view) position(a attempt) int {
	return slices.IndexFunc(v.last(a.task).Spec.Steps, func(s v1alpha1.Step) bool { return s.Name == a.step })
}

// oneUngated: of the pods of a fenced attempt, at most one is ever without its gate; it
// was made with it; and when it lost it, the status had named its UID and its Job's.
func oneUngated(v *view) []Violation {
	var found []Violation
	for _, a := range v.attempts() {
		if !v.fenced(a) {
			continue
		}
		var open []types.UID
		for _, pod := range v.podsOf(a) {
			rv := openedAt(pod)
			if rv == 0 {
				continue
			}
			p := pod[0].Pod
			open = append(open, p.UID)
			if rv == pod[0].RV {
				found = append(found, broken(rv, "pod %s of step %s attempt %d was made without the gate", p.Name, a.step, a.number))
				continue
			}
			if !v.named(a, p, rv) {
				found = append(found, broken(rv, "pod %s (%s) of step %s attempt %d lost its gate, and no earlier status names it", p.Name, p.UID, a.step, a.number))
			}
		}
		if len(open) > 1 {
			found = append(found, broken(0, "%d pods of step %s attempt %d lost their gate: %v", len(open), a.step, a.number, open))
		}
	}
	return found
}

// named says whether a status before an RV bound the attempt to a pod and its Job.
func (v *view) named(a attempt, pod *corev1.Pod, rv int64) bool {
	job := pod.OwnerReferences[0].UID
	for _, r := range v.tasks[a.task] {
		if r.RV >= rv {
			return false
		}
		if s := record(r.Task, a.step); s != nil && s.Attempt == a.number && s.PodUID == pod.UID && s.JobUID == job {
			return true
		}
	}
	return false
}

// noLateStart: when a pod loses its gate, its step's record is not finished and its
// attempt is the current one.
func noLateStart(v *view) []Violation {
	var found []Violation
	for _, a := range v.attempts() {
		if !v.fenced(a) {
			continue
		}
		for _, pod := range v.podsOf(a) {
			rv := openedAt(pod)
			if rv == 0 {
				continue
			}
			var s *v1alpha1.StepStatus
			if last := before(v.tasks[a.task], rv); last != nil {
				s = record(last.Task, a.step)
			}
			switch {
			case s == nil: // I1 tells that no status named it
			case s.Phase.Finished():
				found = append(found, broken(rv, "pod %s of step %s lost its gate when the step was %s", pod[0].Pod.Name, a.step, s.Phase))
			case s.Attempt > a.number:
				found = append(found, broken(rv, "pod %s of step %s attempt %d lost its gate when attempt %d existed", pod[0].Pod.Name, a.step, a.number, s.Attempt))
			}
		}
	}
	return found
}

// deadBeforeNext: when a status first shows attempt n+1, each pod of attempt n that could
// run is provably dead. Where the step may run again (its effect is None or Idempotent, or
// an AgentDecision said Retry of attempt n), it is enough that the pod is gone.
func deadBeforeNext(v *view) []Violation {
	var found []Violation
	for uid, revisions := range v.tasks {
		seen := map[string]int32{}
		for _, r := range revisions {
			for i := range r.Task.Status.Steps {
				s := &r.Task.Status.Steps[i]
				was := seen[s.Name]
				seen[s.Name] = max(was, s.Attempt)
				if was == 0 || s.Attempt <= was {
					continue
				}
				if s.Attempt != was+1 {
					found = append(found, broken(r.RV, "step %s went from attempt %d to %d", s.Name, was, s.Attempt))
				}
				found = append(found, v.allDead(attempt{uid, s.Name, was}, s, r.RV)...)
			}
		}
	}
	return found
}

// allDead checks the pods of attempt a when the next one is recorded in s.
func (v *view) allDead(a attempt, s *v1alpha1.StepStatus, rv int64) []Violation {
	decided := s.Decision != nil && s.Decision.Decision == v1alpha1.DecisionRetry && s.Decision.Attempt == a.number
	var found []Violation
	for _, pod := range v.podsOf(a) {
		p := pod[0].Pod
		opened := openedAt(pod)
		if pod[0].RV > rv || (v.fenced(a) && (opened == 0 || opened > rv)) {
			continue // a pod that keeps its gate cannot run, and that it does keep it is I2
		}
		dead, gone := deadAt(pod), goneAt(pod)
		switch {
		case dead != 0 && dead < rv:
		case gone != 0 && gone < rv && (!v.fenced(a) || decided):
		default:
			found = append(found, broken(rv, "step %s attempt %d was recorded while pod %s of attempt %d was not provably dead", s.Name, s.Attempt, p.Name, a.number))
		}
	}
	return found
}
