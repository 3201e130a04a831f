// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
	"github.com/agenttask-dev/agenttask/test/harness"
)

// SameEnd is I9, which compares a history with that of the undisturbed run.
var SameEnd = Invariant{ID: "I9", Name: "SameEnd", Sentence: "the end state equals the undisturbed run's, UIDs and times apart"}

// Touched is the attempt that an outside actor did something to.
type Touched struct {
	Step    string
	Attempt int32
}

// Difference is something that a fault may rightly cost. Each looks for the evidence in
// the history that the cost was due, and only then changes what is wanted; then the end
// must be just that.
type Difference struct {
	Name, Sentence string
	apply          func(*toll)
}

// The differences.
var (
	PodGone = Difference{"PodGone", "the pod that was deleted is gone", func(t *toll) {
		if !t.lives(t.pods) {
			delete(t.want.Pods, t.name())
		}
	}}
	JobGone = Difference{"JobGone", "the Job that was deleted is gone, and its pod with it", func(t *toll) {
		if !t.lives(t.jobs) {
			delete(t.want.Jobs, t.name())
			delete(t.want.Pods, t.name())
		}
	}}
	// NextAttempt is of steps that may repeat; and of a step that may not, where its pod had
	// no node, so that its program provably never ran.
	NextAttempt = Difference{"NextAttempt", "an attempt whose pod was ended, or went, before its outcome was recorded is followed by another one", func(t *toll) {
		next := t.nextAt()
		switch {
		case next == 0:
		case t.fenced(t.a) && !scheduled(t.pod()), !t.fenced(t.a) && (!t.ended() || t.goneBefore(next)):
			t.oneMore()
		}
	}}
	// Decided is of a step that may not repeat.
	Decided = Difference{"Decided", "whether the program that was ended had its effect, a person had to say", func(t *toll) {
		if t.ended() || !t.fenced(t.a) || !scheduled(t.pod()) || !t.unknown() {
			return
		}
		step := t.want.step(t.a.step)
		switch decision := t.decision(); {
		case step == nil:
		case decision == v1alpha1.DecisionComplete:
			step.Reason = v1alpha1.ReasonDecided
			if t.want.Pods[t.name()] != "" {
				t.want.Pods[t.name()] = failed
			}
		case decision == v1alpha1.DecisionRetry:
			t.oneMore()
		}
	}}
	// Replayed is of steps that may repeat: at the fence, the operator removes it.
	Replayed = Difference{"Replayed", "the pod of an attempt that had been deleted was made once more by an operator that knew no better, and ran under the same key", func(t *toll) {
		if len(t.podsOf(t.a)) > 1 && !t.fenced(t.a) && t.lives(t.pods) {
			t.want.Pods[t.name()] = "Succeeded"
		}
	}}
	// SecondPod is of steps without a fence: at the fence, the operator removes it.
	SecondPod = Difference{"SecondPod", "a second pod that somebody made under a Job without a fence is left to them", func(t *toll) {
		if !t.fenced(t.a) {
			t.want.Strays["pod"] = 1
		}
	}}
)

// failed is the end of a pod, and of a Job, that did not succeed.
const failed = "Failed"

// toll is what a fault is to cost.
type toll struct {
	*view
	want *End
	a    attempt
}

func (t *toll) name() string { return attemptName(t.a.step, t.a.number) }

// lives says whether one of some objects still stands under the attempt's name.
func (t *toll) lives(objects map[types.UID][]harness.Revision) bool {
	for _, list := range objects {
		if last := list[len(list)-1]; last.Object().GetName() == t.jobName(t.a) && !last.Deleted {
			return true
		}
	}
	return false
}

// pod is that of the attempt that was touched, under the attempt's own name. It has no
// revisions where none was made.
func (t *toll) pod() []harness.Revision {
	for _, pod := range t.podsOf(t.a) {
		if pod[0].Pod.Name == t.jobName(t.a) {
			return pod
		}
	}
	return nil
}

// nextAt is the RV at which an attempt after the one that was touched was recorded. 0:
// there is none.
func (t *toll) nextAt() int64 {
	for _, r := range t.tasks[t.a.task] {
		if s := record(r.Task, t.a.step); s != nil && s.Attempt > t.a.number {
			return r.RV
		}
	}
	return 0
}

// goneBefore says whether the attempt's pod went before an RV.
func (t *toll) goneBefore(rv int64) bool {
	gone := goneAt(t.pod())
	return gone != 0 && gone < rv
}

// ended says whether the attempt's program ended by itself.
func (t *toll) ended() bool {
	for _, r := range t.pod() {
		if result := resultOf(r.Pod); result != nil && result.Outcome != stepexec.OutcomeInterrupted {
			return true
		}
	}
	return false
}

// scheduled says whether a pod ever had a node.
func scheduled(pod []harness.Revision) bool {
	return len(pod) > 0 && pod[len(pod)-1].Pod.Spec.NodeName != ""
}

// unknown says whether the attempt's outcome ever was unknown.
func (t *toll) unknown() bool {
	for _, r := range t.tasks[t.a.task] {
		if s := record(r.Task, t.a.step); s != nil && s.Attempt == t.a.number && s.Phase == v1alpha1.StepUnknown {
			return true
		}
	}
	return false
}

// decision is what was decided about the attempt, if anything was.
func (t *toll) decision() v1alpha1.DecisionKind {
	if s := record(t.last(t.a.task), t.a.step); s != nil && s.Decision != nil && s.Decision.Attempt == t.a.number {
		return s.Decision.Decision
	}
	return ""
}

// oneMore wants one attempt more of the step, after the one that was touched.
func (t *toll) oneMore() {
	step := t.want.step(t.a.step)
	if step == nil {
		return
	}
	step.Attempt++
	t.want.Attempts++
	t.want.Retries++
	next := attemptName(t.a.step, step.Attempt)
	t.want.Jobs[next], t.want.Pods[next] = "Complete", "Succeeded"
	if t.want.Jobs[t.name()] != "" {
		t.want.Jobs[t.name()] = failed
	}
	if t.want.Pods[t.name()] != "" {
		t.want.Pods[t.name()] = failed
	}
}

// CheckEnd compares the end with the undisturbed run's, after what the fault may rightly
// cost and did.
func CheckEnd(h *History, undisturbed End, may []Difference) []Violation {
	v, want := viewOf(h), undisturbed.clone()
	if task := v.newest(); task != nil {
		t := &toll{view: v, want: &want, a: attempt{task.UID, h.Touched.Step, h.Touched.Attempt}}
		for _, d := range may {
			d.apply(t)
		}
	}
	diff := EndOf(h).Diff(want)
	if diff == "" {
		return nil
	}
	found := broken(0, "the end is not the undisturbed run's:\n%s", diff)
	found.Invariant = SameEnd.ID
	return []Violation{found}
}
