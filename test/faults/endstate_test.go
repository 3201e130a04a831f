// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"slices"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
	"github.com/agenttask-dev/agenttask/test/harness"
)

// tidy is the plain story with all that follows a step's end.
func tidy() []move {
	moves := plain()
	for _, step := range []string{look, pay, tell} {
		id := step + "-1"
		moves = append(moves, move{"finish " + id, func(s *story) { s.finishJob(id) }})
	}
	return append(moves, move{"let go", letGo("pay-1")})
}

func (s *story) finishJob(id string) {
	s.jobs[id].Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}}
	s.keep(harness.Revision{Job: s.jobs[id].DeepCopy()})
}

func (s *story) dropJob(id string) {
	s.keep(harness.Revision{Deleted: true, Job: s.jobs[id].DeepCopy()})
}

// recreate puts another task in the first one's place.
func (s *story) recreate() {
	s.keep(harness.Revision{Deleted: true, Task: s.task.DeepCopy()})
	s.task.UID = "other-uid"
	s.keepTask()
}

func (s *story) decide(answered bool) {
	d := &v1alpha1.AgentDecision{ObjectMeta: metav1.ObjectMeta{Name: "decision"}}
	if answered {
		d.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionApplied, Status: metav1.ConditionTrue}}
	}
	s.keep(harness.Revision{Decision: d})
}

func TestWhatIsOutstanding(t *testing.T) {
	unknown := append(slices.Concat(attemptOf(look, 1), without(attemptOf(pay, 1), "end pay-1")),
		move{"finish look-1", func(s *story) { s.finishJob("look-1") }},
		move{"unknown", func(s *story) {
			s.task.Status.Phase = v1alpha1.TaskUnknown
			record(s.task, pay).Phase = v1alpha1.StepUnknown
			s.keepTask()
		}})
	for name, c := range map[string]struct {
		moves []move
		want  string // is in it; empty: nothing is outstanding
	}{
		"all is done":                  {tidy(), ""},
		"a person must decide":         {unknown, ""},
		"a pod is held that has ended": {append(unknown, move{"", func(s *story) { s.endPod("pay-1", stepexec.Result{Outcome: stepexec.OutcomeInterrupted}) }}), "still held"},
		"there is no status":           {nil, "no status"},
		"the task runs": {slices.Concat(attemptOf(look, 1), []move{{"ready", func(s *story) {
			s.task.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Reason: "StepRunning"}}
			s.keepTask()
		}}}), "StepRunning"},
		"the task is stalled": {[]move{{"stalled", func(s *story) {
			s.task.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionStalled, Status: metav1.ConditionTrue}}
			s.keepTask()
		}}}, ""},
		"the task is being deleted":      {append(tidy(), move{"", func(s *story) { s.task.DeletionTimestamp = new(metav1.Now()); s.keepTask() }}), "being deleted"},
		"the task is gone":               {append(tidy(), move{"", func(s *story) { s.keep(harness.Revision{Deleted: true, Task: s.task.DeepCopy()}) }}), "gone"},
		"a Job is open":                  {without(tidy(), "finish pay-1"), "no final status"},
		"a Job is being deleted":         {append(tidy(), move{"", func(s *story) { s.jobs["pay-1"].DeletionTimestamp = new(metav1.Now()); s.finishJob("pay-1") }}), "being deleted"},
		"a pod is held":                  {without(tidy(), "let go"), "still held"},
		"a pod is being deleted":         {append(tidy(), move{"", func(s *story) { s.changePod("tell-1", func(p *corev1.Pod) { p.DeletionTimestamp = new(metav1.Now()) }) }}), "being deleted"},
		"a pod outlives its Job":         {append(tidy(), move{"", func(s *story) { s.dropJob("tell-1") }}), "deleted Job"},
		"a Job and its pod are gone":     {append(tidy(), move{"", func(s *story) { s.dropJob("tell-1"); s.dropPod("tell-1") }}), ""},
		"a Job outlives its task":        {append(tidy(), move{"", (*story).recreate}, move{"", stalled}), "former task"},
		"a decision has no answer":       {append(tidy(), move{"", func(s *story) { s.decide(false) }}), "decision"},
		"a decision has its answer":      {append(tidy(), move{"", func(s *story) { s.decide(false); s.decide(true) }}), ""},
		"a second pod of a Job is gated": {after(tidy(), "pod pay-1", func(s *story) { s.makeTwin("pay-1") }), "still held"},
		"a pod of an ended attempt is gated": {after(without(tidy(), "let go"), "finish", func(s *story) {
			s.changePod("pay-1", func(p *corev1.Pod) {
				p.Finalizers, p.Spec.SchedulingGates = nil, []corev1.PodSchedulingGate{{Name: v1alpha1.FenceGate}}
			})
		}), "still held"},
	} {
		t.Run(name, func(t *testing.T) {
			have := Outstanding(&play(c.moves).History)
			if (have == "") != (c.want == "") || !strings.Contains(have, c.want) {
				t.Errorf("want %q, have %q", c.want, have)
			}
		})
	}
}

// stalled lets the task wait for somebody.
func stalled(s *story) {
	s.task.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionStalled, Status: metav1.ConditionTrue}}
	s.keepTask()
}

func TestTheEndIsCompared(t *testing.T) {
	undisturbed := EndOf(play(tidy()))
	for name, c := range map[string]struct {
		moves []move
		same  bool
	}{
		"the same story":                  {tidy(), true},
		"another order of the same":       {sooner(tidy(), "finish tell-1", "finish look-1"), true},
		"another phase":                   {append(tidy(), move{"", edit(func(s *v1alpha1.AgentTaskStatus) { s.Phase = v1alpha1.TaskFailed })}), false},
		"another condition":               {append(tidy(), move{"", stalled}), false},
		"other counts":                    {append(tidy(), move{"", edit(func(s *v1alpha1.AgentTaskStatus) { s.Usage = &v1alpha1.Usage{Attempts: 4, Retries: 1} })}), false},
		"another attempt":                 {append(tidy(), move{"", editStep(tell, func(s *v1alpha1.StepStatus) { s.Attempt = 2 })}), false},
		"another key":                     {append(tidy(), move{"", editStep(tell, func(s *v1alpha1.StepStatus) { s.IdempotencyKey = "other" })}), false},
		"another output":                  {append(tidy(), move{"", editStep(tell, func(s *v1alpha1.StepStatus) { s.Output = nil })}), false},
		"an output kept elsewhere":        {append(tidy(), move{"", editStep(tell, func(s *v1alpha1.StepStatus) { s.Output, s.OutputRef = nil, &v1alpha1.OutputRef{SHA256: "x"} })}), false},
		"another reason":                  {append(tidy(), move{"", editStep(tell, func(s *v1alpha1.StepStatus) { s.Reason = "Why" })}), false},
		"a Job without its end":           {without(tidy(), "finish tell-1"), false},
		"a Job that is gone":              {append(tidy(), move{"", func(s *story) { s.dropJob("tell-1") }}), false},
		"a pod that is gone":              {append(tidy(), move{"", func(s *story) { s.dropPod("tell-1") }}), false},
		"a pod that is held":              {without(tidy(), "let go"), false},
		"a pod that is being deleted":     {append(tidy(), move{"", func(s *story) { s.changePod("tell-1", func(p *corev1.Pod) { p.DeletionTimestamp = new(metav1.Now()) }) }}), false},
		"a pod too many":                  {after(tidy(), "pod pay-1", func(s *story) { s.makeTwin("pay-1") }), false},
		"another task in place of it":     {append(tidy(), move{"", (*story).recreate}), false},
		"an effect that happened twice":   {after(tidy(), "run pay-1", func(s *story) { s.effect("pay-1", pay, 1) }), false},
		"an effect that may happen twice": {after(tidy(), "run tell-1", func(s *story) { s.effect("tell-1", tell, 1) }), true},
		"an effect that never happened":   {without(tidy(), "run pay-1"), false},
		"nothing":                         {[]move{{"", func(s *story) { s.h.Revisions = nil }}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			found := CheckEnd(play(c.moves), undisturbed, nil)
			if (len(found) == 0) != c.same {
				t.Errorf("want the same: %v; found %v", c.same, found)
			}
			for _, v := range found {
				if v.Invariant != SameEnd.ID {
					t.Errorf("found %s", v)
				}
			}
		})
	}
}

func TestWhatARestoreUndidDoesNotCount(t *testing.T) {
	// The first story runs to its end, etcd goes back to the time before pay, and all
	// from there on happens again, under other UIDs.
	h := play(plain())
	snapshot := index(plain(), "end look-1") + 1
	h.Restores = []harness.Restore{{Snapshot: h.Revisions[snapshot].RV, First: 1001}}
	second := play(plain())
	for _, r := range second.Revisions[snapshot+1:] {
		r.RV += 1000
		if r.Pod != nil {
			r.Pod.UID += "-again"
		}
		h.Revisions = append(h.Revisions, r)
	}
	for i := range h.Revisions {
		if task := h.Revisions[i].Task; task != nil && h.Revisions[i].RV > 1000 && len(task.Status.Steps) > 1 && task.Status.Steps[1].PodUID != "" {
			task.Status.Steps[1].PodUID += "-again"
		}
	}
	for _, e := range second.Effects[1:] {
		e.Pod += types.UID("-again")
		h.Effects = append(h.Effects, e)
	}
	expectBroken(t, h)
	h.Restores = nil
	if len(Check(h)) == 0 {
		t.Error("without the restore, nothing is found in a history that happens twice")
	}
}
