// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
)

// startNext starts the first attempt of the next step.
func (d *decider) startNext() {
	step := &d.Task.Spec.Steps[len(d.Status.Steps)]
	if step.Run == nil {
		d.frozen = ValidatePlan(d.Task.Spec.Steps)
		return
	}
	input, problem := d.render(step)
	switch {
	case len(d.Load) > 0:
		return
	case problem != nil && problem.Reason == v1alpha1.ReasonUnavailable:
		d.waitToStart(step, problem)
		return
	}
	record := v1alpha1.StepStatus{
		Name:      step.Name,
		Phase:     v1alpha1.StepRunning,
		Attempt:   1,
		SpecHash:  stepexec.SpecHash(step),
		JobName:   stepexec.JobName(d.Task.Name, d.Task.UID, step.Name, stepexec.RoleMain, 1),
		StartTime: metav1.NewTime(d.Now),
	}
	action := stepexec.RunActionOf(step, input)
	if problem != nil {
		action.Input = []byte("null")
	}
	record.IdempotencyKey, record.ActionHash = action.Key(d.Status.RunID), action.Hash()
	d.Status.Steps = append(d.Status.Steps, record)
	started := d.current()
	if problem != nil {
		d.finish(started, v1alpha1.StepFailed, problem.Reason, problem.Message)
		return
	}
	d.Status.Usage = usageOf(d.Status.Usage, started.Attempt)
	d.makeJob(step, started, input, nil)
	d.follow(v1alpha1.EventStepStarted, fmt.Sprintf("step %s started as Job %s", step.Name, record.JobName))
}

// startRetry starts the next attempt of a step that waited for it.
func (d *decider) startRetry(record *v1alpha1.StepStatus) {
	step := d.stepOf(record)
	input, ok := d.sameInput(step, record)
	if !ok {
		return
	}
	record.Phase = v1alpha1.StepRunning
	record.Attempt++
	record.JobName = stepexec.JobName(d.Task.Name, d.Task.UID, step.Name, stepexec.RoleMain, record.Attempt)
	record.AttemptTime = new(metav1.NewTime(d.Now))
	record.NextAttemptTime = nil
	record.Reason, record.Message = "", ""
	d.Status.Usage = usageOf(d.Status.Usage, record.Attempt)
	d.makeJob(step, record, input, nil)
	d.event(false, v1alpha1.EventStepStarted, fmt.Sprintf("step %s attempt %d started as Job %s", step.Name, record.Attempt, record.JobName))
}

// sameInput renders a started step's input again. Where the action is not what the
// record says, nothing may run under its key.
func (d *decider) sameInput(step *v1alpha1.Step, record *v1alpha1.StepStatus) ([]byte, bool) {
	if d.frozen != nil || step.Run == nil {
		return nil, false
	}
	input, problem := d.render(step)
	if len(d.Load) > 0 {
		return nil, false
	}
	switch {
	case problem != nil && problem.Reason == v1alpha1.ReasonUnavailable:
		d.wait(record, problem.Reason, problem.Message)
		d.wakeAfter(unavailableRecheck)
		return nil, false
	case problem != nil:
		d.frozen = &Problem{problem.Reason, fmt.Sprintf(
			"step %s has started, and its input can no longer be rendered: %s; put back what it needs to go on, or cancel the task", step.Name, problem.Message)}
		d.wakeAfter(conflictRecheck)
		return nil, false
	case stepexec.RunActionOf(step, input).Key(d.Status.RunID) == record.IdempotencyKey:
		return input, true
	}
	d.frozen = &Problem{v1alpha1.ReasonPlanChanged, fmt.Sprintf(
		"step %s has started, and its action is no longer what its first attempt ran (params changed?); take the change back to go on, or create another AgentTask", step.Name)}
	return nil, false
}

// makeJob asks for the attempt's pod, and for its Job unless that exists.
func (d *decider) makeJob(step *v1alpha1.Step, record *v1alpha1.StepStatus, input []byte, existing *batchv1.Job) {
	d.Actions = append(d.Actions, Action{Kind: MakeJob, Step: step, Record: record.DeepCopy(), Input: input, Job: existing})
	d.wakeAfter(step.StartDeadline())
}

// settle looks at the current attempt and moves its record on.
func (d *decider) settle(record *v1alpha1.StepStatus) {
	if record.Phase == v1alpha1.StepRetrying {
		d.settleRetrying(record)
		return
	}
	if d.World.Conflict != nil && d.World.Pod == nil {
		d.settleConflict(record)
		return
	}
	if verdict := d.verdict(record); verdict != nil {
		d.conclude(record, *verdict)
		return
	}
	d.stopIfAsked(record)
	if record.Phase == v1alpha1.StepStopping {
		d.stopPod()
		return
	}
	d.drive(record)
}

// settleConflict holds an attempt whose Job or pod cannot be made, since a stranger's
// object has its name. Nothing of it has run, so it may end at once.
func (d *decider) settleConflict(record *v1alpha1.StepStatus) {
	switch {
	case d.Task.Spec.Cancel:
		d.finish(record, v1alpha1.StepCancelled, v1alpha1.ReasonCancelled, "cancelled before it could start: "+d.World.Conflict.Message)
	case d.pastDeadline():
		d.finish(record, v1alpha1.StepFailed, v1alpha1.ReasonDeadlineExceeded, "could not start: "+d.World.Conflict.Message)
	default:
		if d.frozen == nil {
			d.frozen = d.World.Conflict
		}
		d.wakeAfter(conflictRecheck)
		return
	}
	d.ended = &endedAttempt{jobName: record.JobName, verdict: verdictOf(record)}
}

// conflictRecheck is how often a stranger's object under our name is looked at again:
// no watch of ours tells when it goes away.
const conflictRecheck = 30 * time.Second

func (d *decider) settleRetrying(record *v1alpha1.StepStatus) {
	switch {
	case d.Task.Spec.Cancel:
		d.finish(record, v1alpha1.StepCancelled, v1alpha1.ReasonCancelled, "cancelled while it waited for its next attempt")
	case d.pastDeadline():
		d.finish(record, v1alpha1.StepFailed, v1alpha1.ReasonDeadlineExceeded, "the task's activeDeadlineSeconds passed while the step waited for its next attempt; last failure: "+record.Message)
	case d.Task.Spec.Suspend, d.frozen != nil:
	case record.NextAttemptTime != nil && d.Now.Before(record.NextAttemptTime.Time):
		d.wakeAt(record.NextAttemptTime.Time)
	default:
		d.startRetry(record)
	}
}

// stopIfAsked turns a running attempt to Stopping where the task, its deadline or the
// attempt's own start deadline says so. The stop is in the checkpoint before it happens.
func (d *decider) stopIfAsked(record *v1alpha1.StepStatus) {
	if record.Phase == v1alpha1.StepStopping && isTaskStop(record.Reason) {
		return
	}
	switch {
	case d.Task.Spec.Cancel:
		stopping(record, v1alpha1.ReasonCancelled, "stopped because the task was cancelled")
	case d.pastDeadline():
		stopping(record, v1alpha1.ReasonDeadlineExceeded, fmt.Sprintf("stopped because the task's activeDeadlineSeconds of %d passed", *d.Task.Spec.ActiveDeadlineSeconds))
	case record.Phase == v1alpha1.StepStopping || d.World.Pod == nil:
	case jobSuspended(d.World.Job):
		stopping(record, v1alpha1.ReasonJobSuspended, "its Job was suspended while it ran; it will be tried again")
	case !started(d.World.Pod) && !d.Now.Before(d.startDeadline(record)):
		reason, message := d.cannotStart(record)
		stopping(record, reason, message)
	}
}

func stopping(record *v1alpha1.StepStatus, reason, message string) {
	record.Phase = v1alpha1.StepStopping
	record.Reason, record.Message = reason, shorten(message)
}

func isTaskStop(reason string) bool {
	return reason == v1alpha1.ReasonCancelled || reason == v1alpha1.ReasonDeadlineExceeded
}

func (d *decider) startDeadline(record *v1alpha1.StepStatus) time.Time {
	// The later of two clocks: the API server's may be behind ours, and the pod may have
	// been made long after its attempt was started.
	from := d.World.Pod.CreationTimestamp.Time
	for _, own := range []*metav1.Time{&record.StartTime, record.AttemptTime} {
		if own != nil && own.After(from) {
			from = own.Time
		}
	}
	return from.Add(d.stepOf(record).StartDeadline())
}

// cannotStart says why a pod has not started by its deadline.
func (d *decider) cannotStart(record *v1alpha1.StepStatus) (reason, message string) {
	limit := d.stepOf(record).StartDeadline()
	why := holdup(d.World.Pod)
	if why == nil && keptHoldup(record) {
		why = &Problem{record.Reason, record.Message}
	}
	if why != nil {
		return why.Reason, fmt.Sprintf("did not start within its startTimeout of %s: %s", limit, why.Message)
	}
	return v1alpha1.ReasonStartTimeout, fmt.Sprintf("did not start within its startTimeout of %s", limit)
}

// stopPod deletes the attempt's pod, or looks again at once where there is none, now
// that the checkpoint says that none will be made.
func (d *decider) stopPod() {
	if d.World.Blocked != nil {
		d.wakeAfter(goneRecheck)
		return
	}
	if d.World.Pod == nil {
		d.wakeAfter(time.Millisecond)
		return
	}
	if d.World.Pod.DeletionTimestamp.IsZero() {
		d.Actions = append(d.Actions, Action{Kind: StopPod, Pod: d.World.Pod})
	}
	d.wakeAfter(goneRecheck)
}

// drive brings a running attempt's Job and pod about, and says what it waits for.
func (d *decider) drive(record *v1alpha1.StepStatus) {
	step := d.stepOf(record)
	job, pod := d.World.Job, d.World.Pod
	switch {
	case d.World.Refusal != nil:
		d.wait(record, d.World.Refusal.Reason, d.World.Refusal.Message)
		d.wakeAfter(d.World.Refusal.Retry)
	case d.World.Blocked != nil:
		d.wait(record, d.World.Blocked.Reason, d.World.Blocked.Message)
		d.wakeAfter(goneRecheck)
	case pod != nil:
		d.watchPod(record)
	case job != nil && !job.DeletionTimestamp.IsZero():
		d.wait(record, v1alpha1.ReasonJobDeleted, "its Job is being deleted")
		d.wakeAfter(goneRecheck)
	case jobSuspended(job):
		d.wait(record, v1alpha1.ReasonJobSuspended, "its Job is suspended, by a queue or by somebody; it goes on when the Job's spec.suspend is false")
	default:
		if input, ok := d.sameInput(step, record); ok {
			d.makeJob(step, record, input, job)
			if record.Reason == v1alpha1.ReasonRefused || record.Reason == v1alpha1.ReasonUnavailable { // until there is a pod: each try would be two writes
				d.wait(record, record.Reason, record.Message)
			}
		}
	}
}

// goneRecheck is how often an object that is being deleted is looked at again, in
// case the end of it was not heard of.
const goneRecheck = 5 * time.Second

// watchPod says what a living pod waits for, if anything.
func (d *decider) watchPod(record *v1alpha1.StepStatus) {
	pod := d.World.Pod
	switch {
	case !pod.DeletionTimestamp.IsZero():
		d.wait(record, v1alpha1.ReasonPodLost, "its pod is being deleted; it is tried again when the pod is gone")
		d.wakeAfter(goneRecheck)
	case !started(pod):
		d.watchStart(record)
		d.wakeAt(d.startDeadline(record))
	default:
		record.Reason, record.Message = "", ""
	}
}

// keptHoldup says whether the record holds what kubelet said of an image or a container.
func keptHoldup(record *v1alpha1.StepStatus) bool {
	return record.Reason == v1alpha1.ReasonImageUnavailable || record.Reason == v1alpha1.ReasonContainerConfig
}

// watchStart says why a pod has not started. What kubelet says of an image or a
// container stays until the program runs, since kubelet keeps changing its words.
func (d *decider) watchStart(record *v1alpha1.StepStatus) {
	why := holdup(d.World.Pod)
	switch {
	case why != nil:
		d.wait(record, why.Reason, why.Message)
	case keptHoldup(record):
		d.wait(record, record.Reason, record.Message)
	default:
		record.Reason, record.Message = "", ""
	}
}

// wait notes why the current step does not run. The first message of a reason stays,
// so that a message that keeps changing does not become a write each time.
func (d *decider) wait(record *v1alpha1.StepStatus, reason, message string) {
	if record.Reason != reason {
		record.Reason, record.Message = reason, shorten(message)
		d.event(true, v1alpha1.EventStepWaiting, fmt.Sprintf("step %s waits: %s: %s", record.Name, reason, message))
	}
	d.waiting = &Problem{record.Reason, aboutStep(record.Name) + record.Message}
}

// conclude records how the current attempt ended.
func (d *decider) conclude(record *v1alpha1.StepStatus, verdict Verdict) {
	d.ended = &endedAttempt{jobName: record.JobName, verdict: verdict}
	switch {
	case verdict.Class == Success:
		d.succeed(record, verdict)
	case record.Phase == v1alpha1.StepStopping && record.Reason == v1alpha1.ReasonCancelled:
		d.finish(record, v1alpha1.StepCancelled, v1alpha1.ReasonCancelled, "stopped because the task was cancelled")
	case d.Task.Spec.Cancel:
		d.finish(record, v1alpha1.StepCancelled, v1alpha1.ReasonCancelled, "the task was cancelled; the attempt had ended: "+verdict.Message)
	case record.Phase == v1alpha1.StepStopping && record.Reason == v1alpha1.ReasonDeadlineExceeded:
		d.finish(record, v1alpha1.StepFailed, v1alpha1.ReasonDeadlineExceeded, "stopped because the task's activeDeadlineSeconds passed")
	case d.pastDeadline():
		d.finish(record, v1alpha1.StepFailed, v1alpha1.ReasonDeadlineExceeded, "the task's activeDeadlineSeconds passed; the attempt had ended: "+verdict.Message)
	default:
		d.retryOrFail(record, verdict)
	}
}

func (d *decider) succeed(record *v1alpha1.StepStatus, verdict Verdict) {
	record.Output, record.OutputRef = nil, d.World.Output
	if record.OutputRef == nil && string(verdict.Output) != "null" {
		record.Output = &apiextensionsv1.JSON{Raw: verdict.Output}
	}
	if size, limit, yes := d.tooLarge(); yes {
		record.Output, record.OutputRef = nil, nil
		d.finish(record, v1alpha1.StepFailed, v1alpha1.ReasonOutputTooLarge, fmt.Sprintf(
			"it succeeded, but with its output the checkpoint would have about %d bytes, and at most %d are kept; have the plan's steps return less, or references, in another AgentTask", size, limit))
		return
	}
	d.finish(record, v1alpha1.StepSucceeded, "", verdict.Message)
}

// finish ends a step for good.
func (d *decider) finish(record *v1alpha1.StepStatus, phase v1alpha1.StepPhase, reason, message string) {
	record.Phase = phase
	record.Reason, record.Message = reason, shorten(message)
	record.NextAttemptTime = nil
	record.CompletionTime = new(metav1.NewTime(d.Now))
	took := d.Now.Sub(record.StartTime.Time).Round(time.Second)
	switch phase {
	case v1alpha1.StepSucceeded:
		d.event(false, v1alpha1.EventStepSucceeded, fmt.Sprintf("step %s succeeded after %s", record.Name, took))
	case v1alpha1.StepCancelled:
		d.event(true, v1alpha1.EventStepCancelled, fmt.Sprintf("step %s ended as %s: %s", record.Name, phase, message))
	default:
		d.event(true, v1alpha1.EventStepFailed, fmt.Sprintf("step %s ended as %s: %s: %s", record.Name, phase, reason, message))
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
