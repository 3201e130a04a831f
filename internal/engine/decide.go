// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"encoding/json"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
)

// Input is all that a decision depends on.
type Input struct {
	// Task as it was read. It is not changed.
	Task *v1alpha1.AgentTask
	// World is what was observed of the current attempt.
	World World
	// Outputs holds the outputs of steps whose record has an outputRef, as far as they
	// were asked for in Decision.Load.
	Outputs map[string]Loaded
	// Now is the time, and Rand a number from 0 up to but not including 1.
	Now  time.Time
	Rand func() float64
}

// Loaded is an output that is kept outside the status, or why it cannot be read.
type Loaded struct {
	Output json.RawMessage
	// Problem is what reading it again would not mend.
	Problem string
	// Unavailable says why it cannot be read just now.
	Unavailable string
}

// World is what was observed of a task's Jobs and pods. An object that is missing is
// nil, and was looked for at the API server itself, not only in a cache.
type World struct {
	// Job of the current attempt, owned by this task and made for this action.
	Job *batchv1.Job
	// Pod of the current attempt, controlled by that Job or by one of its name that
	// was deleted.
	Pod *corev1.Pod
	// JobVanished and PodVanished say that the object was seen and then seen to be deleted.
	JobVanished, PodVanished bool
	// LastPod is the last that was seen of a pod that vanished. LastPodFinal says that
	// this is how it was when it was deleted, and not merely an earlier sight of it.
	LastPod      *corev1.Pod
	LastPodFinal bool
	// Blocked says what must go away before the attempt's pod can be made.
	Blocked *Problem
	// Conflict says whose object has the name of the attempt's Job or pod.
	Conflict *Problem
	// Refusal says why the API server refused the attempt's Job, pod or stored output.
	Refusal *Refusal
	// Output is where the ended attempt's large output was stored, and OutputProblem
	// why it could not be.
	Output        *v1alpha1.OutputRef
	OutputProblem string
	// Ended are Jobs of ended attempts that still lack their final status.
	Ended []*batchv1.Job
	// Held are pods of the task that the fence's finalizer holds.
	Held []*corev1.Pod
	// Decisions are the AgentDecisions on the task that were not answered, oldest first.
	Decisions []*v1alpha1.AgentDecision
	// Unguarded says which admission policies are missing, where some are: what the fence
	// cannot refuse by itself is then not refused.
	Unguarded string
}

// SeenPod is the current attempt's pod, or the last that was seen of it, or nil.
func (w *World) SeenPod() *corev1.Pod {
	if w.Pod != nil {
		return w.Pod
	}
	return w.LastPod
}

// Problem is a reason and a sentence about it.
type Problem struct{ Reason, Message string }

// Refusal is the API server's no to what an attempt needs made, or something that
// cannot be reached just now. It costs no attempt.
type Refusal struct {
	// Reason is Refused or Unavailable.
	Reason  string
	Message string
	// Retry is how long to wait before it is tried again.
	Retry time.Duration
}

// Decision is what to do next.
type Decision struct {
	// Load names steps whose outputs must be read before anything can be decided: those
	// with an outputRef, or one that ended in World. All else is then empty.
	Load []string
	// Status is to be written where it differs from the task's, before any action.
	Status v1alpha1.AgentTaskStatus
	// Actions may follow once Status is written.
	Actions []Action
	// Events to record once Status is written.
	Events []Event
	// RequeueAfter is when to look again though nothing was heard. 0: no need.
	RequeueAfter time.Duration
}

// ActionKind is what an Action does.
type ActionKind string

const (
	// MakeJob makes the current attempt's Job, where it is missing, and its pod.
	MakeJob ActionKind = "MakeJob"
	// StopPod deletes the current attempt's pod, with grace.
	StopPod ActionKind = "StopPod"
	// FinishJob gives the Job of an ended attempt its final status, or deletes it
	// where jobHistory does not keep it.
	FinishJob ActionKind = "FinishJob"
	// OpenFence removes the scheduling gate of the one pod that the record names.
	OpenFence ActionKind = "OpenFence"
	// ReleasePod drops the fence's finalizer from a pod whose outcome is recorded, or from
	// one that is left over, which is deleted too where it never started.
	ReleasePod ActionKind = "ReleasePod"
	// AnswerDecision writes into an AgentDecision what became of it.
	AnswerDecision ActionKind = "AnswerDecision"
	// DeleteTask deletes the task, whose TTL has passed.
	DeleteTask ActionKind = "DeleteTask"
)

// Action is one thing to do at the API server.
type Action struct {
	Kind ActionKind
	// Attempt is what to make the Job from, of MakeJob.
	Attempt *stepexec.Attempt
	// Job is whose status to finish, of FinishJob; or the attempt's Job where only its
	// pod is missing, of MakeJob.
	Job *batchv1.Job
	// Pod is what to delete, of StopPod, to ungate, of OpenFence, or to let go, of ReleasePod.
	Pod *corev1.Pod
	// Leftover says that no record names the pod, of ReleasePod.
	Leftover bool
	// Verdict is the attempt's end, of FinishJob.
	Verdict Verdict
	// Keep says that jobHistory keeps the Job, of FinishJob.
	Keep bool
	// Decision is what to answer, and Answer what became of it, of AnswerDecision.
	Decision *v1alpha1.AgentDecision
	Answer   Problem
}

// Event is something a person wants to know.
type Event struct {
	Warning         bool
	Reason, Message string
}

// decider is one call of Decide at work.
type decider struct {
	Input
	Decision
	// frozen is why no step may start, though the task has not ended.
	frozen *Problem
	// waiting is why a step does not run, though it is meant to; its message names it.
	waiting *Problem
	// ended is the verdict on the attempt that ended in this call.
	ended *endedAttempt
	// settling says that an unknown outcome is being settled without anybody's help.
	settling bool
}

type endedAttempt struct {
	jobName string
	verdict Verdict
}

// Decide is the whole of what the operator decides, as a ladder.
func Decide(in Input) Decision {
	d := &decider{Input: in, Decision: Decision{Status: *in.Task.Status.DeepCopy()}}
	switch {
	case !in.Task.DeletionTimestamp.IsZero():
		d.releaseAll()
		return d.Decision
	case d.Status.Phase.Finished():
		d.finishJobs()
		d.releasePods()
		d.answerDecisions()
		d.expire()
		d.observeFinished()
		return d.Decision
	}
	d.begin()
	d.checkPlan()
	d.advance()
	if len(d.Load) > 0 {
		return Decision{Load: d.Load}
	}
	d.finishJobs()
	d.releasePods()
	d.answerDecisions()
	d.summarize()
	if d.Status.Phase.Finished() {
		d.expire()
	} else {
		d.wakeForDeadline()
	}
	if !equality.Semantic.DeepEqual(d.Status, in.Task.Status) {
		d.Status.CheckpointTime = new(metav1.NewTime(d.Now))
	}
	return d.Decision
}

// observeFinished says that an edit of a finished task was seen: tools that follow
// kstatus read a status behind the generation as in progress.
func (d *decider) observeFinished() {
	if d.Status.ObservedGeneration == d.Task.Generation {
		return
	}
	d.Status.ObservedGeneration = d.Task.Generation
	for i := range d.Status.Conditions {
		d.Status.Conditions[i].ObservedGeneration = d.Task.Generation
	}
	d.Status.CheckpointTime = new(metav1.NewTime(d.Now))
}

// begin fills in what a task has from its first checkpoint on.
func (d *decider) begin() {
	if d.Status.RunID != "" {
		return
	}
	d.Status.RunID = d.Task.Spec.RunID
	if d.Status.RunID == "" {
		d.Status.RunID = string(d.Task.UID)
	}
	d.Status.StartTime = new(metav1.NewTime(d.Now))
}

// advance settles the current step, if there is one, and starts the next if it may.
func (d *decider) advance() {
	record := d.current()
	if record != nil && !record.Phase.Finished() {
		d.settle(record)
		if !record.Phase.Finished() {
			return
		}
	}
	if !d.mayStartNext() {
		return
	}
	d.startNext()
	if d.mayStartNext() { // it was done at once, and the next one's turn comes with the next call
		d.wakeAfter(time.Millisecond)
	}
}

// mayStartNext says whether the task goes on to another step.
func (d *decider) mayStartNext() bool {
	record := d.current()
	switch {
	case record != nil && !record.Phase.Done():
		return false
	case len(d.Status.Steps) >= len(d.Task.Spec.Steps):
		return false
	case d.Task.Spec.Cancel, d.pastDeadline(), d.Task.Spec.Suspend:
		return false
	}
	return d.frozen == nil && d.waiting == nil
}

// current is the record of the step that was started last.
func (d *decider) current() *v1alpha1.StepStatus {
	if len(d.Status.Steps) == 0 {
		return nil
	}
	return &d.Status.Steps[len(d.Status.Steps)-1]
}

// stepOf finds a record's step in the plan, or an empty one where it was removed.
func (d *decider) stepOf(record *v1alpha1.StepStatus) *v1alpha1.Step {
	i := len(d.Status.Steps) - 1
	if i < len(d.Task.Spec.Steps) && d.Task.Spec.Steps[i].Name == record.Name {
		return &d.Task.Spec.Steps[i]
	}
	for i := range d.Task.Spec.Steps {
		if d.Task.Spec.Steps[i].Name == record.Name {
			return &d.Task.Spec.Steps[i]
		}
	}
	return &v1alpha1.Step{Name: record.Name}
}

// deadline is when the task must have ended, or nil.
func (d *decider) deadline() *time.Time {
	if d.Task.Spec.ActiveDeadlineSeconds == nil || d.Status.StartTime == nil {
		return nil
	}
	return new(d.Status.StartTime.Add(time.Duration(*d.Task.Spec.ActiveDeadlineSeconds) * time.Second))
}

func (d *decider) pastDeadline() bool {
	deadline := d.deadline()
	return deadline != nil && !d.Now.Before(*deadline)
}

func (d *decider) wakeForDeadline() {
	if deadline := d.deadline(); deadline != nil && !d.pastDeadline() {
		d.wakeAt(*deadline)
	}
}

// expire deletes a finished task when its TTL has passed.
func (d *decider) expire() {
	ttl := d.Task.Spec.TTLSecondsAfterFinished
	if ttl == nil || d.Status.CompletionTime == nil {
		return
	}
	end := d.Status.CompletionTime.Add(time.Duration(*ttl) * time.Second)
	if d.Now.Before(end) {
		d.wakeAt(end)
		return
	}
	d.Actions = append(d.Actions, Action{Kind: DeleteTask})
}

// wakeAt asks for another look at a time, or a little after it.
func (d *decider) wakeAt(t time.Time) {
	d.wakeAfter(t.Sub(d.Now))
}

func (d *decider) wakeAfter(wait time.Duration) {
	wait = max(wait, time.Millisecond)
	if d.RequeueAfter == 0 || wait < d.RequeueAfter {
		d.RequeueAfter = wait
	}
}

// follow is an event that goes on from a step's success in the same one, where that was
// the last: with plans in flight, events are a good part of all writes.
func (d *decider) follow(reason, message string) {
	if n := len(d.Events); n > 0 && d.Events[n-1].Reason == v1alpha1.EventStepSucceeded {
		d.Events[n-1].Message = shorten(d.Events[n-1].Message + "; " + message)
		return
	}
	d.event(false, reason, message)
}

func (d *decider) event(warning bool, reason, message string) {
	d.Events = append(d.Events, Event{Warning: warning, Reason: reason, Message: shorten(message)})
}
