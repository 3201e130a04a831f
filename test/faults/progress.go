// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"bytes"
	"encoding/json"
	"slices"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
	"github.com/agenttask-dev/agenttask/test/harness"
)

// onlyForward: from each status of a task to the next, nothing goes back, what is final
// stays as it is; and each step that is recorded as succeeded has a pod that succeeded.
func onlyForward(v *view) []Violation {
	var found []Violation
	for _, revisions := range v.tasks {
		for i := range revisions {
			if i > 0 {
				found = append(found, taskForward(revisions[i-1].Task, revisions[i])...)
			}
			found = append(found, v.earned(revisions, i)...)
		}
	}
	return found
}

// taskForward compares two revisions of a task that follow one another.
func taskForward(was *v1alpha1.AgentTask, r harness.Revision) []Violation {
	var found []Violation
	old, now := &was.Status, &r.Task.Status
	if old.Phase.Finished() && now.Phase != old.Phase {
		found = append(found, broken(r.RV, "the task went from %s to %q", old.Phase, now.Phase))
	}
	if len(now.Steps) < len(old.Steps) {
		return append(found, broken(r.RV, "%d step records became %d", len(old.Steps), len(now.Steps)))
	}
	for i := range old.Steps {
		if what := stepForward(&old.Steps[i], &now.Steps[i]); what != "" {
			found = append(found, broken(r.RV, "step %s %s", old.Steps[i].Name, what))
		}
	}
	return found
}

// stepForward says what of a record went back, or nothing.
func stepForward(was, now *v1alpha1.StepStatus) string {
	switch {
	case was.Name != now.Name:
		return "became " + now.Name
	case was.IdempotencyKey != now.IdempotencyKey, was.ActionHash != now.ActionHash:
		return "changed its key or its action"
	case was.Phase.Finished() && !sameResult(was, now):
		return "was " + string(was.Phase) + " and its result was changed"
	case now.Attempt < was.Attempt:
		return "went back to an earlier attempt"
	case now.Attempt > was.Attempt:
		return newAttempt(was, now)
	case was.PodUID != "" && (now.PodUID != was.PodUID || now.JobUID != was.JobUID):
		return "was bound to a pod, and then to another"
	case was.Attempt > 0 && rank(now.Phase) < rank(was.Phase):
		return "went back from " + string(was.Phase) + " to " + string(now.Phase)
	}
	return ""
}

// newAttempt says what is wrong with the beginning of an attempt, or nothing.
func newAttempt(was, now *v1alpha1.StepStatus) string {
	if was.Attempt > 0 && was.Phase != v1alpha1.StepRetrying && was.Phase != v1alpha1.StepUnknown && was.Phase != v1alpha1.StepChecking {
		return "began another attempt while the one before was " + string(was.Phase)
	}
	if now.PodUID != "" {
		return "began an attempt that was bound to a pod already"
	}
	return ""
}

func sameResult(was, now *v1alpha1.StepStatus) bool {
	if was.Phase != now.Phase || was.Attempt != now.Attempt || (was.Output == nil) != (now.Output == nil) || (was.OutputRef == nil) != (now.OutputRef == nil) {
		return false
	}
	return (was.Output == nil || bytes.Equal(was.Output.Raw, now.Output.Raw)) && (was.OutputRef == nil || *was.OutputRef == *now.OutputRef)
}

// rank orders the phases within one attempt. What may follow upon each other both ways
// has the same rank.
func rank(phase v1alpha1.StepPhase) int {
	switch phase {
	case v1alpha1.StepRunning:
		return 0
	case v1alpha1.StepStopping:
		return 1
	case v1alpha1.StepUnknown, v1alpha1.StepChecking, v1alpha1.StepVerifying, v1alpha1.StepRetrying:
		return 2
	}
	return 3
}

// earned: each step whose success is new in a revision had a pod that succeeded before,
// with just that output; or it says whose word it was.
func (v *view) earned(revisions []harness.Revision, i int) []Violation {
	var found []Violation
	r := revisions[i]
	for j := range r.Task.Status.Steps {
		s := &r.Task.Status.Steps[j]
		if s.Phase != v1alpha1.StepSucceeded || wordOfAnother(s) {
			continue
		}
		if i > 0 {
			if was := record(revisions[i-1].Task, s.Name); was != nil && was.Phase == v1alpha1.StepSucceeded {
				continue
			}
		}
		if what := v.success(attempt{r.Task.UID, s.Name, s.Attempt}, s, r.RV); what != "" {
			found = append(found, broken(r.RV, "step %s is recorded as succeeded, %s", s.Name, what))
		}
	}
	return found
}

// wordOfAnother says whether a step succeeded by a decision, a check or an earlier step.
func wordOfAnother(s *v1alpha1.StepStatus) bool {
	return s.Reason == v1alpha1.ReasonDecided || s.Reason == v1alpha1.ReasonCheckedDone || s.Reason == v1alpha1.ReasonReused
}

// success says why a recorded success of an attempt is not the word of a pod of its, or
// nothing.
func (v *view) success(a attempt, s *v1alpha1.StepStatus, rv int64) string {
	for _, pod := range v.podsOf(a) {
		if v.fenced(a) && pod[0].Pod.UID != s.PodUID {
			continue
		}
		for _, p := range pod {
			if result := resultOf(p.Pod); p.RV < rv && result != nil && result.Outcome == stepexec.OutcomeSucceeded {
				return v.sameOutput(s, result, rv)
			}
		}
	}
	return "and no pod of its attempt had succeeded"
}

// sameOutput says how a record's output differs from what the pod said, or nothing.
func (v *view) sameOutput(s *v1alpha1.StepStatus, result *stepexec.Result, rv int64) string {
	switch {
	case result.LogOutput != nil:
		if s.OutputRef == nil || s.OutputRef.SHA256 != result.LogOutput.SHA256 {
			return "and its outputRef is not of what the pod announced"
		}
		if !v.kept(s.OutputRef, rv) {
			return "and its output was not kept before"
		}
	case s.Output == nil:
		if len(result.Output) > 0 && string(result.Output) != "null" {
			return "and its output is missing"
		}
	case !sameJSON(s.Output.Raw, result.Output):
		return "with another output than its pod's: " + string(s.Output.Raw)
	}
	return ""
}

// kept says whether a ConfigMap held an output before an RV.
func (v *view) kept(ref *v1alpha1.OutputRef, rv int64) bool {
	return slices.ContainsFunc(v.Revisions, func(r harness.Revision) bool {
		return r.RV < rv && r.ConfigMap != nil && ref.URI == "configmap:"+r.ConfigMap.Name &&
			stepexec.SHA256Hex([]byte(r.ConfigMap.Data["output.json"])) == ref.SHA256
	})
}

func sameJSON(a, b []byte) bool {
	var x, y any
	if json.Unmarshal(a, &x) != nil || json.Unmarshal(b, &y) != nil {
		return false
	}
	one, err1 := json.Marshal(x)
	two, err2 := json.Marshal(y)
	return err1 == nil && err2 == nil && bytes.Equal(one, two)
}

// inOrder: a step's record appears when every step before it is done, and its Jobs and
// pods after that.
func inOrder(v *view) []Violation {
	var found []Violation
	for _, revisions := range v.tasks {
		seen := 0
		for _, r := range revisions {
			steps := r.Task.Status.Steps
			for i := seen; i < len(steps); i++ {
				if i > 0 && !done(&steps[i-1]) {
					found = append(found, broken(r.RV, "step %s was recorded when step %s was %s", steps[i].Name, steps[i-1].Name, steps[i-1].Phase))
				}
			}
			seen = max(seen, len(steps))
		}
	}
	for _, r := range v.Revisions {
		if what := v.outOfOrder(r); what != "" {
			found = append(found, broken(r.RV, "%s", what))
		}
	}
	return found
}

func done(s *v1alpha1.StepStatus) bool {
	return s.Phase == v1alpha1.StepSucceeded || s.Phase == v1alpha1.StepSkipped
}

// outOfOrder says why a Job or pod, new in a revision, came before its attempt was
// recorded, or nothing. With the attempt recorded, the steps before are done.
func (v *view) outOfOrder(r harness.Revision) string {
	var a attempt
	var ok bool
	var kind, name string
	switch {
	case r.Job != nil && v.jobs[r.Job.UID][0].RV == r.RV:
		a, ok = v.attemptOfJob(r.Job)
		kind, name = "Job", r.Job.Name
	case r.Pod != nil && v.pods[r.Pod.UID][0].RV == r.RV:
		a, ok = v.attemptOfPod(r.Pod)
		kind, name = "pod", r.Pod.Name
	}
	if !ok {
		return ""
	}
	last := before(v.tasks[a.task], r.RV)
	if last != nil {
		if s := record(last.Task, a.step); s != nil && s.Attempt >= a.number {
			return ""
		}
	}
	return kind + " " + name + " was made before the status recorded its attempt"
}
