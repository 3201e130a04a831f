// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"slices"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
	"github.com/agenttask-dev/agenttask/test/harness"
)

// retold is the tidy story in which a step takes two attempts, the first of which went
// otherwise.
func retold(step string, first []move) []move {
	moves := slices.Concat(first, []move{{"retrying " + step, func(s *story) {
		record(s.task, step).Phase = v1alpha1.StepRetrying
		s.keepTask()
	}}}, attemptOf(step, 2))
	all := tidy()
	from, to := index(all, "intent "+step+"-1"), index(all, "end "+step+"-1")
	all = slices.Concat(all[:from], moves, all[to+1:])
	return change(append(all, move{"finish second", func(s *story) { s.finishJob(step + "-2") }}),
		"finish "+step+"-1", func(s *story) { s.failJob(step + "-1") })
}

func (s *story) failJob(id string) {
	s.jobs[id].Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobFailed, Status: corev1.ConditionTrue}}
	s.keep(harness.Revision{Job: s.jobs[id].DeepCopy()})
}

// undecided is the tidy story in which the outcome of pay was unknown, and somebody said
// that it is complete.
func undecided(unknown bool) []move {
	moves := change(tidy(), "end pay-1", func(s *story) { s.endPod("pay-1", stepexec.Result{Outcome: stepexec.OutcomeInterrupted}) })
	moves = after(moves, "end pay-1", func(s *story) {
		if unknown {
			record(s.task, pay).Phase = v1alpha1.StepUnknown
			s.keepTask()
		}
		r := record(s.task, pay)
		r.Reason, r.Decision = v1alpha1.ReasonDecided, &v1alpha1.AppliedDecision{Decision: v1alpha1.DecisionComplete, Attempt: 1}
	})
	return moves
}

// letGo drops the finalizer of a pod.
func letGo(id string) func(*story) {
	return func(s *story) { s.changePod(id, func(p *corev1.Pod) { p.Finalizers = nil }) }
}

func TestWhatAFaultMayCost(t *testing.T) {
	gone := func(step string) []move {
		return change(attemptOf(step, 1), "end "+step+"-1", func(s *story) { s.dropPod(step + "-1") })
	}
	deleting := func(s *story) {
		s.changePod("pay-1", func(p *corev1.Pod) { p.DeletionTimestamp = new(metav1.Now()) })
		s.dropPod("pay-1")
	}
	neverRan := change(without(without(attemptOf(pay, 1), "schedule pay-1"), "run pay-1"), "end pay-1", deleting)
	all := []Difference{PodGone, NextAttempt, Decided}
	replay := func(step string) func(*story) {
		return func(s *story) {
			s.makePod(step+"-1", step)
			s.pods[step+"-1"].UID += "-again"
			s.endPod(step+"-1", stepexec.Result{Outcome: stepexec.OutcomeSucceeded})
		}
	}
	for name, c := range map[string]struct {
		moves []move
		step  string
		may   []Difference
		ok    bool
	}{
		"nothing, and nothing is cost":                  {tidy(), tell, all, true},
		"an attempt, since its pod went":                {retold(tell, gone(tell)), tell, all, true},
		"an attempt, but it cost one of another step":   {retold(tell, gone(tell)), look, all, false},
		"nothing, but an attempt was lost":              {retold(tell, gone(tell)), tell, nil, false},
		"an attempt, but its pod had ended and stayed":  {retold(tell, attemptOf(tell, 1)), tell, all, false},
		"an attempt of a fenced step that never ran":    {change(retold(pay, neverRan), "let go", letGo("pay-2")), pay, all, true},
		"an attempt of a fenced step that was running":  {change(retold(pay, gone(pay)), "let go", letGo("pay-2")), pay, all, false},
		"a decision on what was unknown":                {undecided(true), pay, all, true},
		"a decision, but nothing was unknown":           {undecided(false), pay, all, false},
		"a Job and its pod":                             {append(tidy(), move{"", func(s *story) { s.dropJob("tell-1"); s.dropPod("tell-1") }}), tell, []Difference{JobGone}, true},
		"a Job, but its pod stays":                      {append(tidy(), move{"", func(s *story) { s.dropJob("tell-1") }}), tell, []Difference{JobGone}, false},
		"a Job, but another one went":                   {append(tidy(), move{"", func(s *story) { s.dropJob("look-1"); s.dropPod("look-1") }}), tell, []Difference{JobGone}, false},
		"a second pod of a step without a fence":        {after(tidy(), "pod tell-1", func(s *story) { s.makeTwin("tell-1") }), tell, []Difference{SecondPod}, true},
		"a second pod that stays at the fence":          {after(tidy(), "pod pay-1", func(s *story) { s.makeTwin("pay-1") }), pay, []Difference{SecondPod}, false},
		"a second pod, but of another step than that":   {after(tidy(), "pod tell-1", func(s *story) { s.makeTwin("tell-1") }), pay, []Difference{SecondPod}, false},
		"a pod that was made once more":                 {after(retold(tell, gone(tell)), "finish", replay(tell)), tell, append(all, Replayed), true},
		"a fenced pod that was made once more":          {after(change(retold(pay, neverRan), "let go", letGo("pay-2")), "finish", replay(pay)), pay, append(all, Replayed), false},
		"an attempt, but its Job was not given its end": {without(retold(tell, gone(tell)), "finish tell-1"), tell, all, false},
	} {
		t.Run(name, func(t *testing.T) {
			h := play(c.moves)
			h.Touched = Touched{Step: c.step, Attempt: 1}
			found := CheckEnd(h, EndOf(play(tidy())), c.may)
			if (len(found) == 0) != c.ok {
				t.Errorf("want it to be right: %v; found %v", c.ok, found)
			}
		})
	}
}
