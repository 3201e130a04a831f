// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
)

// startNext starts the next step: by its first attempt, by its check, or, where its key
// has been used, by taking the output that goes with it.
func (d *decider) startNext() {
	step := &d.Task.Spec.Steps[len(d.Status.Steps)]
	if step.Run == nil && step.HTTP == nil {
		d.frozen = ValidatePlan(d.Task)
		return
	}
	what, problem := d.renderMain(step)
	before := checkedBefore(step)
	if problem == nil && before && len(d.Load) == 0 {
		if _, why := d.renderRole(step, v1alpha1.RoleCheck, what.key); why != nil && why.Reason == v1alpha1.ReasonUnavailable {
			problem = why
		}
	}
	switch {
	case len(d.Load) > 0:
		return
	case problem != nil && problem.Reason == v1alpha1.ReasonUnavailable:
		d.waitToStart(step, problem)
		return
	}
	d.Status.Steps = append(d.Status.Steps, v1alpha1.StepStatus{
		Name:     step.Name,
		SpecHash: stepexec.SpecHash(step),
		Effect:   step.Effect,
		ActionStatus: v1alpha1.ActionStatus{
			Phase: v1alpha1.StepRunning, IdempotencyKey: what.key, ActionHash: what.identity.Hash(), StartTime: metav1.NewTime(d.Now),
		},
	})
	a := d.mainOf(d.current())
	switch {
	case problem != nil:
		d.finish(a, v1alpha1.StepFailed, problem.Reason, problem.Message)
	case d.reuse(a):
	case before:
		d.startCheck(a.record)
	default:
		d.startAttempt(a, what)
	}
}

// reuse takes the output of a step of the run that has succeeded under the same key: the
// effect that both mean has happened.
func (d *decider) reuse(a activity) bool {
	for i := range d.Status.Steps {
		from := &d.Status.Steps[i]
		if from == a.record || from.Phase != v1alpha1.StepSucceeded || from.IdempotencyKey != a.IdempotencyKey {
			continue
		}
		var output []byte
		if from.Output != nil {
			output = from.Output.Raw
		}
		if d.keep(a, output, from.OutputRef.DeepCopy()) {
			d.finish(a, v1alpha1.StepSucceeded, v1alpha1.ReasonReused, fmt.Sprintf(
				"step %s has succeeded under the same idempotencyKey; its output was taken and nothing was run", from.Name))
		}
		return true
	}
	return false
}

// startAttempt starts the next attempt of an action.
func (d *decider) startAttempt(a activity, what rendered) {
	a.Phase = v1alpha1.StepRunning
	a.Attempt++
	a.JobName, a.JobUID, a.PodUID = d.jobName(a), "", ""
	if a.Attempt > 1 || !a.StartTime.Time.Equal(d.Now) {
		a.AttemptTime = new(metav1.NewTime(d.Now))
	}
	a.NextAttemptTime = nil
	a.Reason, a.Message = "", ""
	if a.main() {
		d.Status.Usage = usageOf(d.Status.Usage, a.Attempt)
	}
	d.makeJob(a, what)
	d.tellStart(a)
}

func (d *decider) tellStart(a activity) {
	if a.once() && d.World.Unguarded != "" {
		d.event(true, v1alpha1.EventPoliciesMissing, fmt.Sprintf("step %s must not start twice, and nothing keeps others from its fence: %s; install config/policy",
			a.record.Name, d.World.Unguarded))
	}
	switch {
	case !a.main():
		d.event(false, v1alpha1.EventStepStarted, fmt.Sprintf("%s attempt %d started as Job %s", a.name(), a.Attempt, a.JobName))
	case a.Attempt > 1:
		d.event(false, v1alpha1.EventStepStarted, fmt.Sprintf("step %s attempt %d started as Job %s", a.record.Name, a.Attempt, a.JobName))
	default:
		d.follow(v1alpha1.EventStepStarted, fmt.Sprintf("step %s started as Job %s", a.record.Name, a.JobName))
	}
}

// makeJob asks for the attempt's pod, and for its Job unless that exists.
func (d *decider) makeJob(a activity, what rendered) {
	attempt := &stepexec.Attempt{
		Step: a.record.Name, Role: a.role, Record: a.ActionStatus.DeepCopy(), Run: what.run, HTTP: what.http, Input: what.input,
		Timeout: what.timeout, StartTimeout: a.step.StartDeadline(), Once: a.once(),
	}
	action := Action{Kind: MakeJob, Attempt: attempt}
	if job := d.World.Job; job != nil && job.Name == a.JobName {
		action.Job = job
	}
	d.Actions = append(d.Actions, action)
	d.wakeAfter(a.step.StartDeadline())
}

// settle looks at the current step's action at work and moves its record on.
func (d *decider) settle(record *v1alpha1.StepStatus) {
	if d.decidedMeanwhile(record) {
		return
	}
	a := d.atWork(record)
	switch a.Phase {
	case v1alpha1.StepRetrying:
		d.settleRetrying(a)
	case v1alpha1.StepUnknown:
		d.settleUnknown(a)
	case v1alpha1.StepSucceeded: // what follows it could not be started
		d.roleEnded(a)
	default:
		d.settleAttempt(a)
	}
}

func (d *decider) settleAttempt(a activity) {
	if d.World.Conflict != nil && d.World.Pod == nil && a.PodUID == "" {
		d.settleConflict(a)
		return
	}
	if verdict := d.verdict(a); verdict != nil {
		d.conclude(a, *verdict)
		return
	}
	d.stopIfAsked(a)
	if a.Phase == v1alpha1.StepStopping {
		d.stopPod()
		return
	}
	d.drive(a)
}

// settleConflict holds an attempt whose Job or pod cannot be made, since a stranger's
// object has its name. Nothing of it has run, so it may end at once.
func (d *decider) settleConflict(a activity) {
	message, conflict := "", d.World.Conflict.Message
	switch {
	case d.Task.Spec.Cancel:
		message = "cancelled before it could start: " + conflict
	case d.pastDeadline():
		message = "could not start: " + conflict
	default:
		if d.frozen == nil {
			d.frozen = d.World.Conflict
		}
		d.wakeAfter(conflictRecheck)
		return
	}
	d.ended = &endedAttempt{a.JobName, Verdict{Class: NotStarted, Reason: v1alpha1.ReasonNameConflict, Message: message}}
	d.endByTask(a, message)
}

// conflictRecheck is how often a stranger's object under our name is looked at again:
// no watch of ours tells when it goes away.
const conflictRecheck = 30 * time.Second

func (d *decider) settleRetrying(a activity) {
	switch {
	case d.Task.Spec.Cancel:
		d.endByTask(a, "cancelled while it waited for its next attempt")
	case d.pastDeadline():
		d.endByTask(a, "the task's activeDeadlineSeconds passed while the step waited for its next attempt; last failure: "+a.Message)
	case d.Task.Spec.Suspend, d.frozen != nil:
	case a.NextAttemptTime != nil && d.Now.Before(a.NextAttemptTime.Time):
		d.wakeAt(a.NextAttemptTime.Time)
	default:
		what, ok := d.sameAction(a)
		switch {
		case !ok:
		case a.main() && a.Attempt == 0 && checkedBefore(a.step): // what the check said may be old
			d.startCheck(a.record)
		default:
			d.startAttempt(a, what)
		}
	}
}

func checkedBefore(step *v1alpha1.Step) bool {
	return step.Check != nil && step.Check.When == v1alpha1.CheckBefore
}

// endByTask ends an action because its task is cancelled, or past its deadline.
func (d *decider) endByTask(a activity, message string) {
	if d.Task.Spec.Cancel {
		d.finish(a, v1alpha1.StepCancelled, v1alpha1.ReasonCancelled, message)
		return
	}
	d.finish(a, v1alpha1.StepFailed, v1alpha1.ReasonDeadlineExceeded, message)
}

// conclude records how the current attempt ended.
func (d *decider) conclude(a activity, v Verdict) {
	if d.needsPlan(a, v) {
		d.wakeAfter(conflictRecheck)
		return
	}
	d.ended = &endedAttempt{jobName: a.JobName, verdict: v}
	switch {
	case v.Class == Success && a.main():
		d.succeed(a, v)
	case v.Class == Success:
		d.succeedRole(a, v)
	case a.once() && v.unknown():
		d.becomeUnknown(a, v)
	case a.Phase == v1alpha1.StepStopping && a.Reason == v1alpha1.ReasonCancelled && v.Class != Final:
		d.finish(a, v1alpha1.StepCancelled, v1alpha1.ReasonCancelled, "stopped because the task was cancelled")
	case d.Task.Spec.Cancel:
		d.finish(a, v1alpha1.StepCancelled, v1alpha1.ReasonCancelled, "the task was cancelled; the attempt had ended: "+v.Message)
	case a.Phase == v1alpha1.StepStopping && a.Reason == v1alpha1.ReasonDeadlineExceeded:
		d.finish(a, v1alpha1.StepFailed, v1alpha1.ReasonDeadlineExceeded, "stopped because the task's activeDeadlineSeconds passed")
	case d.pastDeadline():
		d.finish(a, v1alpha1.StepFailed, v1alpha1.ReasonDeadlineExceeded, "the task's activeDeadlineSeconds passed; the attempt had ended: "+v.Message)
	default:
		d.retryOrFail(a, v)
	}
}

// needsPlan says whether it takes the plan to say what an attempt's end leads to, and the
// plan is not what it was: then the end is looked at when it is.
func (d *decider) needsPlan(a activity, v Verdict) bool {
	if d.frozen == nil || d.frozen.Reason != v1alpha1.ReasonPlanChanged || d.taskEnds() {
		return false
	}
	switch {
	case a.role == v1alpha1.RoleCheck:
		return true
	case v.Class == Success, v.Class == Final, a.once() && v.unknown():
		return false
	}
	return a.Phase == v1alpha1.StepRunning
}

// succeed records the step's own output, and ends the step unless it is to be tested.
func (d *decider) succeed(a activity, v Verdict) {
	a.record.Unknown = nil
	if !d.keepResult(a, v) {
		return
	}
	if d.Task.Spec.Verify != nil && !a.once() {
		d.startVerify(a, v.Message)
		return
	}
	d.finish(a, v1alpha1.StepSucceeded, "", v.Message)
}

// keepResult records the output of an attempt, or fails the action where there is no room
// for it.
func (d *decider) keepResult(a activity, v Verdict) bool { return d.keep(a, v.Output, d.World.Output) }

// keep records an output, which stands elsewhere where ref says so, or fails the action
// where there is no room for it.
func (d *decider) keep(a activity, output []byte, ref *v1alpha1.OutputRef) bool {
	a.Output, a.OutputRef = nil, ref
	if ref == nil && output != nil && string(output) != "null" {
		a.Output = &apiextensionsv1.JSON{Raw: output}
	}
	size, limit, yes := d.tooLarge()
	if !yes {
		return true
	}
	a.Output, a.OutputRef = nil, nil
	d.finish(a, v1alpha1.StepFailed, v1alpha1.ReasonOutputTooLarge, fmt.Sprintf(
		"it succeeded, but with its output the checkpoint would have about %d bytes, and at most %d are kept; have the plan's steps return less, or references, in another AgentTask", size, limit))
	return false
}

// finish ends an action for good. Where it is not the step's own, the step's follows.
func (d *decider) finish(a activity, phase v1alpha1.StepPhase, reason, message string) {
	a.Phase = phase
	a.Reason, a.Message = reason, shorten(message)
	a.NextAttemptTime = nil
	a.CompletionTime = new(metav1.NewTime(d.Now))
	if !a.main() {
		d.roleEnded(a)
		return
	}
	took := d.Now.Sub(a.StartTime.Time).Round(time.Second)
	name := a.record.Name
	switch {
	case reason == v1alpha1.ReasonReused:
		d.event(false, v1alpha1.EventStepReused, fmt.Sprintf("step %s: %s", name, message))
	case reason == v1alpha1.ReasonDecided:
		d.event(false, v1alpha1.EventStepDecided, fmt.Sprintf("step %s ended as %s: %s", name, phase, message))
	case phase == v1alpha1.StepSucceeded:
		d.event(false, v1alpha1.EventStepSucceeded, fmt.Sprintf("step %s succeeded after %s", name, took))
	case phase == v1alpha1.StepCancelled:
		d.event(true, v1alpha1.EventStepCancelled, fmt.Sprintf("step %s ended as %s: %s", name, phase, message))
	default:
		d.event(true, v1alpha1.EventStepFailed, fmt.Sprintf("step %s ended as %s: %s: %s", name, phase, reason, message))
	}
}

// roleEnded draws the conclusion for a step of the end of another of its actions.
func (d *decider) roleEnded(a activity) {
	if a.role == v1alpha1.RoleCheck {
		d.checkEnded(a)
		return
	}
	d.verifyEnded(a)
}

// succeedRole records the output of an action that is not the step's own.
func (d *decider) succeedRole(a activity, v Verdict) {
	if a.role == v1alpha1.RoleCheck {
		d.judgeCheck(a, v)
		return
	}
	if d.keepResult(a, v) {
		d.finish(a, v1alpha1.StepSucceeded, "", v.Message)
	}
}

func usageOf(usage *v1alpha1.Usage, attempt int32) *v1alpha1.Usage {
	next := v1alpha1.Usage{}
	if usage != nil {
		next = *usage
	}
	next.Attempts++
	if attempt > 1 {
		next.Retries++
	}
	return &next
}
