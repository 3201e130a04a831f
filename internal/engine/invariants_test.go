// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
)

// allConditions is what every status must have.
var allConditions = []string{
	v1alpha1.ConditionReady, v1alpha1.ConditionSucceeded, v1alpha1.ConditionReconciling,
	v1alpha1.ConditionStalled, v1alpha1.ConditionSuspended, v1alpha1.ConditionOutcomeUnknown,
}

// problems collects what is wrong.
type problems []string

func (p *problems) must(ok bool, format string, args ...any) {
	if !ok {
		*p = append(*p, fmt.Sprintf(format, args...))
	}
}

func copyInput(in Input) Input {
	out := in
	out.Task = in.Task.DeepCopy()
	out.World.Job, out.World.Pod, out.World.LastPod = in.World.Job.DeepCopy(), in.World.Pod.DeepCopy(), in.World.LastPod.DeepCopy()
	out.World.Output = in.World.Output.DeepCopy()
	out.World.Ended = nil
	for _, job := range in.World.Ended {
		out.World.Ended = append(out.World.Ended, job.DeepCopy())
	}
	out.World.Held, out.World.Decisions = nil, nil
	for _, pod := range in.World.Held {
		out.World.Held = append(out.World.Held, pod.DeepCopy())
	}
	for _, decision := range in.World.Decisions {
		out.World.Decisions = append(out.World.Decisions, decision.DeepCopy())
	}
	return out
}

// broken is every invariant that a decision breaks, for a status that the engine made
// itself. before is a copy of in, taken before the decision.
func broken(before, in Input, d Decision) []string {
	p := brokenAlways(before, in, d)
	if len(d.Load) > 0 || !before.Task.DeletionTimestamp.IsZero() {
		return p
	}
	p = append(p, brokenStep(before.Task, d)...)
	p = append(p, brokenActions(before.Task, d)...)
	return append(p, brokenStatus(before.Task, d)...)
}

// brokenAlways holds for any status whatever.
func brokenAlways(before, in Input, d Decision) problems {
	var p problems
	p.must(reflect.DeepEqual(before.Task, in.Task), "the task was changed: %s", lazyDiff{before.Task, in.Task})
	p.must(reflect.DeepEqual(before.World, in.World), "the world was changed: %s", lazyDiff{before.World, in.World})
	p.must(d.RequeueAfter >= 0, "RequeueAfter is %s", d.RequeueAfter)
	if len(d.Load) > 0 {
		p.must(len(d.Actions) == 0 && len(d.Events) == 0 && d.RequeueAfter == 0 && d.Status.Phase == "", "a decision that loads outputs does something too: %+v", d)
		return p
	}
	old, now := before.Task.Status.Steps, d.Status.Steps
	p.must(len(now) >= len(old), "%d records became %d", len(old), len(now))
	for i := range min(len(old), len(now)) {
		o, n := &old[i], &now[i]
		p.must(o.Name == n.Name && o.IdempotencyKey == n.IdempotencyKey && o.ActionHash == n.ActionHash && o.SpecHash == n.SpecHash && o.StartTime == n.StartTime,
			"what identifies record %d was changed", i)
		p.must(n.Attempt >= o.Attempt, "record %d: attempt %d became %d", i, o.Attempt, n.Attempt)
		p.must(!o.Phase.Finished() || equality.Semantic.DeepEqual(o, n), "finished record %s was changed", o.Name)
	}
	return p
}

type lazyDiff struct{ a, b any }

func (d lazyDiff) String() string { return cmp.Diff(d.a, d.b) }

// brokenStep checks that the plan goes on by one step at a time.
func brokenStep(task *v1alpha1.AgentTask, d Decision) problems {
	var p problems
	old, now := task.Status.Steps, d.Status.Steps
	started := 0
	for i := range now {
		n := &now[i]
		p.must(i == 0 || now[i-1].Phase.Done(), "step %s has a record and the one before it is not done", n.Name)
		p = append(p, brokenRecord(n)...)
		if i >= len(old) {
			p.must(i < len(task.Spec.Steps) && task.Spec.Steps[i].Name == n.Name, "record %d is not the plan's step %d", i, i)
			p.must(n.Attempt <= 1 && (n.Attempt == 1) == (n.JobName != ""), "record %s begins with attempt %d as Job %q", n.Name, n.Attempt, n.JobName)
			started += startedOf(&v1alpha1.StepStatus{}, n)
			continue
		}
		p = append(p, brokenMove(&old[i], n)...)
		started += startedOf(&old[i], n)
	}
	p.must(len(now)-len(old) <= 1, "%d steps began in one call", len(now)-len(old))
	p.must(started <= 1, "%d attempts started in one call", started)
	if started == 1 {
		a := find(d, MakeJob)
		p.must(a != nil && a.Job == nil, "an attempt started and its Job is not made")
		p.must(!task.Spec.Cancel, "an attempt started though the task is cancelled")
		verifies := len(now) > 0 && now[len(now)-1].Phase == v1alpha1.StepVerifying // it is its step's end
		p.must(!task.Spec.Suspend || verifies, "an attempt started though the task is suspended")
	}
	return p
}

// startedOf counts the attempts that start between two records of a step.
func startedOf(o, n *v1alpha1.StepStatus) int {
	count := 0
	if n.Attempt > o.Attempt {
		count++
	}
	for i := range n.Actions {
		was := roleOf(o, n.Actions[i].Role)
		if n.Actions[i].JobName != "" && (was == nil || was.JobName != n.Actions[i].JobName) {
			count++
		}
	}
	return count
}

// brokenRecord checks one record by itself.
func brokenRecord(n *v1alpha1.StepStatus) problems {
	var p problems
	for _, a := range actionsOf(n) {
		p.must(a.Phase != v1alpha1.StepFailed || a.Reason != "" || a.Message != "", "record %s failed and does not say why", n.Name)
		p.must(a.Phase.Finished() == (a.CompletionTime != nil), "record %s is %s with completionTime %v", n.Name, a.Phase, a.CompletionTime)
		p.must((a.Phase == v1alpha1.StepRetrying) == (a.NextAttemptTime != nil), "record %s is %s with nextAttemptTime %v", n.Name, a.Phase, a.NextAttemptTime)
		p.must(len([]rune(a.Message)) <= v1alpha1.MaxMessage && len([]rune(a.Reason)) <= 64, "record %s: the API server refuses its reason or message", n.Name)
		p.must(a.IdempotencyKey != "" && a.ActionHash != "", "record %s has no key or hash", n.Name)
		p.must(a == &n.ActionStatus || a.PodUID == "" && a.JobUID == "", "record %s: an action that is not its own names a pod", n.Name)
	}
	p.must(n.PodUID == "" || n.Effect == v1alpha1.EffectOnce, "record %s names a pod, and its effect is %q", n.Name, n.Effect)
	p.must(n.Unknown == nil || n.Effect == v1alpha1.EffectOnce && n.Attempt > 0, "record %s is unknown in attempt %d with effect %q", n.Name, n.Attempt, n.Effect)
	p.must(n.Phase != v1alpha1.StepUnknown || n.Unknown != nil && n.Unknown.Attempt == n.Attempt, "record %s is in phase Unknown in attempt %d: %+v", n.Name, n.Attempt, n.Unknown)
	p.must(n.Unknown == nil || n.Unknown.Attempt <= n.Attempt && n.Unknown.Reason != "", "record %s: unknown %+v", n.Name, n.Unknown)
	p.must(!n.Phase.Done() || n.Unknown == nil, "record %s is %s, and its outcome is unknown", n.Name, n.Phase)
	working := n.Phase == v1alpha1.StepChecking || n.Phase == v1alpha1.StepVerifying
	p.must(!working || len(n.Actions) > 0, "record %s is %s without an action that does it", n.Name, n.Phase)
	p.must(n.Phase != v1alpha1.StepSkipped || n.Output == nil && n.OutputRef == nil, "record %s was skipped and has an output", n.Name)
	return p
}

// moves are the phases that may follow each in one call.
var moves = map[v1alpha1.StepPhase]string{
	v1alpha1.StepRunning:   "Running Retrying Stopping Checking Verifying Unknown Succeeded Failed Cancelled",
	v1alpha1.StepRetrying:  "Retrying Running Checking Failed Cancelled",
	v1alpha1.StepStopping:  "Stopping Retrying Verifying Unknown Succeeded Failed Cancelled",
	v1alpha1.StepChecking:  "Checking Retrying Running Unknown Succeeded Failed Cancelled",
	v1alpha1.StepVerifying: "Verifying Succeeded Failed Cancelled",
	v1alpha1.StepUnknown:   "Unknown Checking Retrying Succeeded Skipped Failed Cancelled",
	v1alpha1.StepSucceeded: "Succeeded", v1alpha1.StepFailed: "Failed", v1alpha1.StepCancelled: "Cancelled", v1alpha1.StepSkipped: "Skipped",
}

// brokenMove checks how a record follows from the one before.
func brokenMove(o, n *v1alpha1.StepStatus) problems {
	var p problems
	p.must(slices.Contains(strings.Fields(moves[o.Phase]), string(n.Phase)), "record %s: %s became %s", n.Name, o.Phase, n.Phase)
	p.must(o.Phase != v1alpha1.StepRetrying || n.Phase != v1alpha1.StepChecking || n.Attempt == 0, "record %s is checked in place of attempt %d", n.Name, n.Attempt+1)
	p.must(n.Effect == o.Effect, "record %s: effect %s became %s", n.Name, o.Effect, n.Effect)
	p.must(n.Attempt <= o.Attempt+1, "record %s: attempt %d became %d", n.Name, o.Attempt, n.Attempt)
	p.must(n.Attempt == o.Attempt || n.Phase == v1alpha1.StepRunning && (o.Phase == v1alpha1.StepRetrying || o.Phase == v1alpha1.StepChecking && o.Attempt == 0),
		"record %s: attempt %d follows from %s to %s", n.Name, n.Attempt, o.Phase, n.Phase)
	if n.Attempt == o.Attempt {
		p.must(n.JobName == o.JobName, "record %s: Job %s became %s", n.Name, o.JobName, n.JobName)
		p.must(o.PodUID == "" || n.PodUID == o.PodUID && n.JobUID == o.JobUID, "record %s: pod %s became %s", n.Name, o.PodUID, n.PodUID)
		sameUnknown := o.Unknown != nil && n.Unknown != nil && o.Unknown.Attempt == n.Unknown.Attempt
		p.must(!sameUnknown || !o.Unknown.PodDead || n.Unknown.PodDead, "record %s: a dead pod lives again", n.Name)
		settled := n.Phase.Finished() || n.Phase == v1alpha1.StepRetrying
		p.must(o.Unknown == nil || n.Unknown != nil || settled, "record %s: what was unknown in %s is known in %s", n.Name, o.Phase, n.Phase)
	}
	if o.Decision != nil && n.Decision != nil && o.Decision.Attempt == n.Decision.Attempt {
		p.must(o.Decision.UID == n.Decision.UID, "record %s: a decision was put in the place of another", n.Name)
	}
	p.must(o.Decision == nil || n.Decision != nil, "record %s: a decision was forgotten", n.Name)
	return p
}

// brokenActions checks that nothing is done which the status does not say.
func brokenActions(task *v1alpha1.AgentTask, d Decision) problems {
	var p problems
	count := map[ActionKind]int{}
	var last *v1alpha1.StepStatus
	var role v1alpha1.Role
	work := &v1alpha1.ActionStatus{}
	if n := len(d.Status.Steps); n > 0 {
		last = &d.Status.Steps[n-1]
		role, work = atWork(last)
	}
	for _, a := range d.Actions {
		count[a.Kind]++
		switch a.Kind {
		case MakeJob:
			p.must(work.Phase == v1alpha1.StepRunning && equality.Semantic.DeepEqual(*work, *a.Attempt.Record), "MakeJob for what is not the record that runs: %+v", a.Attempt)
			p.must(last != nil && a.Attempt.Step == last.Name && a.Attempt.Role == role && len(a.Attempt.Input) > 0, "MakeJob with another step or role, or without input")
			p.must(last != nil && a.Attempt.Once == (role == v1alpha1.RoleMain && last.Effect == v1alpha1.EffectOnce), "MakeJob with Once %v", a.Attempt.Once)
			p.must(!d.Status.Phase.Finished(), "MakeJob for a task that has ended")
		case StopPod:
			p.must(a.Pod != nil && work.Phase == v1alpha1.StepStopping, "StopPod though the record does not say so")
		case OpenFence:
			p.must(role == v1alpha1.RoleMain && work.Phase == v1alpha1.StepRunning && work.PodUID == a.Pod.UID && a.Pod.DeletionTimestamp.IsZero(),
				"the fence is opened for a pod that the record of a running attempt does not name")
		case ReleasePod:
			p = append(p, brokenRelease(d, a)...)
		case FinishJob:
			p.must(a.Job != nil && (work.JobName != a.Job.Name || work.Phase.Finished() || work.Phase == v1alpha1.StepRetrying),
				"FinishJob for an attempt that has not ended")
		case DeleteTask:
			p.must(d.Status.Phase.Finished() && task.Spec.TTLSecondsAfterFinished != nil, "DeleteTask without an end or a TTL")
		}
	}
	p.must(count[MakeJob] <= 1 && count[StopPod] <= 1 && count[OpenFence] <= 1 && count[DeleteTask] <= 1, "actions twice: %v", count)
	p.must(count[OpenFence] == 0 || count[MakeJob] == 0, "an attempt is made and let through in one decision")
	return p
}

// brokenRelease checks that no pod is let go whose outcome is still to be recorded.
func brokenRelease(d Decision, a Action) problems {
	var p problems
	for i := range d.Status.Steps {
		r := &d.Status.Steps[i]
		if r.PodUID != a.Pod.UID {
			continue
		}
		open := r.Phase == v1alpha1.StepRunning || r.Phase == v1alpha1.StepStopping
		if r.Phase == v1alpha1.StepUnknown || r.Phase == v1alpha1.StepChecking {
			open = !r.Unknown.PodDead && !retryDecided(r)
		}
		p.must(!open && !a.Leftover, "the pod of step %s, %s, is let go (as one that is left over: %v)", r.Name, r.Phase, a.Leftover)
		return p
	}
	p.must(a.Leftover, "a pod that no record names is not let go as one that is left over")
	return p
}

func find(d Decision, kind ActionKind) *Action {
	for i := range d.Actions {
		if d.Actions[i].Kind == kind {
			return &d.Actions[i]
		}
	}
	return nil
}

// brokenStatus checks what is not a record.
func brokenStatus(task *v1alpha1.AgentTask, d Decision) problems {
	var p problems
	old, now := task.Status, d.Status
	p.must(old.RunID == "" || old.RunID == now.RunID, "runID %s became %s", old.RunID, now.RunID)
	p.must(old.StartTime == nil || old.StartTime.Equal(now.StartTime), "startTime was changed")
	p.must(!old.Phase.Finished() || old.Phase == now.Phase, "phase %s became %s", old.Phase, now.Phase)
	p.must(now.Phase.Finished() == (now.CompletionTime != nil), "phase %s with completionTime %v", now.Phase, now.CompletionTime)
	p.must(now.ObservedGeneration == task.Generation, "observedGeneration is %d of %d", now.ObservedGeneration, task.Generation)
	p.must(len(now.Conditions) == len(allConditions), "%d conditions", len(now.Conditions))
	for _, kind := range allConditions {
		c := condition(&now, kind)
		p.must(c != nil && c.ObservedGeneration == task.Generation && c.Reason != "" && !c.LastTransitionTime.IsZero(), "condition %s: %+v", kind, c)
	}
	p = append(p, brokenKstatus(task, &now)...)
	p = append(p, brokenUnknown(task, d)...)
	written := !equality.Semantic.DeepEqual(old.CheckpointTime, now.CheckpointTime)
	old.CheckpointTime, now.CheckpointTime = nil, nil
	changed := !equality.Semantic.DeepEqual(old, now)
	p.must(!written || changed, "checkpointTime was changed and nothing else")
	if old.Phase != "" && !changed {
		for _, e := range d.Events {
			p.must(e.Reason == v1alpha1.EventDecisionRefused && find(d, AnswerDecision) != nil, "nothing changed, and there is an event: %+v", e)
		}
	}
	return p
}

// brokenUnknown checks what people are told of an unknown outcome.
func brokenUnknown(task *v1alpha1.AgentTask, d Decision) problems {
	var p problems
	var record *v1alpha1.StepStatus
	for i := range d.Status.Steps {
		if d.Status.Steps[i].Unknown != nil {
			record = &d.Status.Steps[i]
		}
	}
	c := condition(&d.Status, v1alpha1.ConditionOutcomeUnknown)
	if c == nil || task.Status.Phase.Finished() {
		return p
	}
	p.must((c.Status == metav1.ConditionTrue) == (record != nil), "OutcomeUnknown is %s, and the record is %+v", c.Status, record)
	p.must(len(c.Message) <= 4096, "OutcomeUnknown has a message of %d bytes", len(c.Message))
	if record == nil || record.Phase != v1alpha1.StepUnknown {
		return p
	}
	waits := d.RequeueAfter == 0 || d.RequeueAfter >= time.Second
	stalled := condition(&d.Status, v1alpha1.ConditionStalled).Status == metav1.ConditionTrue
	p.must(!waits || stalled || task.Spec.Suspend || d.Status.Phase == v1alpha1.TaskWaiting, "step %s waits for a person, and the task is not stalled", record.Name)
	return p
}

func condition(status *v1alpha1.AgentTaskStatus, kind string) *metav1.Condition {
	for i := range status.Conditions {
		if status.Conditions[i].Type == kind {
			return &status.Conditions[i]
		}
	}
	return nil
}

// kstatus is how GitOps tools read a status, in the few rules that matter here:
// https://github.com/kubernetes-sigs/cli-utils/blob/master/pkg/kstatus/README.md
func kstatus(generation int64, status *v1alpha1.AgentTaskStatus) string {
	is := func(kind string, value metav1.ConditionStatus) bool {
		c := condition(status, kind)
		return c != nil && c.Status == value
	}
	switch {
	case status.ObservedGeneration != generation:
		return "InProgress"
	case is(v1alpha1.ConditionReconciling, metav1.ConditionTrue):
		return "InProgress"
	case is(v1alpha1.ConditionStalled, metav1.ConditionTrue):
		return "Failed"
	case is(v1alpha1.ConditionReady, metav1.ConditionTrue):
		return "Current"
	}
	return "InProgress"
}

// brokenKstatus checks that a tool which knows only kstatus reads the task's state.
func brokenKstatus(task *v1alpha1.AgentTask, now *v1alpha1.AgentTaskStatus) problems {
	var p problems
	got := kstatus(task.Generation, now)
	reconciling, stalled := condition(now, v1alpha1.ConditionReconciling), condition(now, v1alpha1.ConditionStalled)
	if reconciling == nil || stalled == nil {
		return p
	}
	p.must(reconciling.Status != metav1.ConditionTrue || stalled.Status != metav1.ConditionTrue, "Reconciling and Stalled at once")
	switch now.Phase {
	case v1alpha1.TaskSucceeded:
		p.must(got == "Current", "a task that succeeded reads as %s", got)
	case v1alpha1.TaskFailed, v1alpha1.TaskCancelled:
		p.must(got == "Failed", "a task that ended as %s reads as %s", now.Phase, got)
	case v1alpha1.TaskSuspended:
		p.must(reconciling.Status == metav1.ConditionFalse && stalled.Status == metav1.ConditionFalse, "a suspended task is reconciling or stalled")
	default:
		p.must(got == "InProgress" || stalled.Status == metav1.ConditionTrue, "phase %s reads as %s", now.Phase, got)
	}
	return p
}
