// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
)

// summarize derives all that people and tools read from the records.
func (d *decider) summarize() {
	d.Status.ObservedGeneration = d.Task.Generation
	done := 0
	for i := range d.Status.Steps {
		if d.Status.Steps[i].Phase.Done() {
			done++
		}
	}
	d.Status.Progress = fmt.Sprintf("%d/%d", done, len(d.Task.Spec.Steps))
	d.Status.CurrentStep = ""
	if record := d.current(); record != nil {
		d.Status.CurrentStep = record.Name
	}
	if d.Status.Usage == nil {
		d.Status.Usage = &v1alpha1.Usage{}
	}
	state := d.state()
	if state.phase.Finished() {
		d.end(state)
	}
	d.Status.Phase = state.phase
	d.setConditions(state)
}

// state is a task's phase with the reason and message of its conditions.
type state struct {
	phase   v1alpha1.TaskPhase
	stalled bool
	Problem
}

// state finds the one state that the task is in: the first that holds.
func (d *decider) state() state {
	record := d.current()
	switch {
	case d.allDone():
		return state{v1alpha1.TaskSucceeded, false, Problem{v1alpha1.ReasonCompleted, d.completed()}}
	case record != nil && record.Phase == v1alpha1.StepFailed:
		return d.failed(record)
	case d.Task.Spec.Cancel && (record == nil || record.Phase.Finished()):
		return state{v1alpha1.TaskCancelled, true, Problem{v1alpha1.ReasonCancelled, "cancelled by spec.cancel; " + d.remaining()}}
	case d.pastDeadline() && (record == nil || record.Phase.Finished()):
		return state{v1alpha1.TaskFailed, true, Problem{v1alpha1.ReasonDeadlineExceeded, d.deadlineMessage()}}
	case d.frozen != nil:
		return state{v1alpha1.TaskWaiting, true, *d.frozen}
	case d.waiting != nil:
		return state{v1alpha1.TaskWaiting, false, *d.waiting}
	case record != nil && record.Phase == v1alpha1.StepUnknown:
		return state{v1alpha1.TaskUnknown, !d.settling, Problem{v1alpha1.ReasonOutcomeUnknown, fmt.Sprintf(
			"step %s, attempt %d, may have taken effect, and its outcome is not known; condition OutcomeUnknown says what settles it", record.Name, record.Attempt)}}
	}
	return d.active(record)
}

// active is the state of a task that nothing is wrong with.
func (d *decider) active(record *v1alpha1.StepStatus) state {
	switch {
	case record != nil && record.Phase == v1alpha1.StepRunning:
		return state{v1alpha1.TaskRunning, false, Problem{v1alpha1.ReasonRunning, fmt.Sprintf("step %s runs (attempt %d) as Job %s", record.Name, record.Attempt, record.JobName)}}
	case record != nil && record.Phase == v1alpha1.StepStopping:
		return state{v1alpha1.TaskRunning, false, Problem{v1alpha1.ReasonStopping, fmt.Sprintf("step %s is being stopped: %s", record.Name, record.Message)}}
	case record != nil && record.Phase == v1alpha1.StepChecking && d.atWork(record).Phase == v1alpha1.StepRetrying && d.Task.Spec.Suspend:
		return state{v1alpha1.TaskSuspended, false, Problem{v1alpha1.ReasonSuspended, "held by spec.suspend; set it to false to go on"}}
	case record != nil && record.Phase == v1alpha1.StepChecking:
		return state{v1alpha1.TaskRunning, false, Problem{v1alpha1.ReasonChecking, fmt.Sprintf("the check of step %s runs", record.Name)}}
	case record != nil && record.Phase == v1alpha1.StepVerifying:
		return state{v1alpha1.TaskRunning, false, Problem{v1alpha1.ReasonVerifying, fmt.Sprintf("step %s is run twice, and what it leaves compared", record.Name)}}
	case d.Task.Spec.Suspend:
		return state{v1alpha1.TaskSuspended, false, Problem{v1alpha1.ReasonSuspended, "held by spec.suspend; set it to false to go on"}}
	case record != nil && record.Phase == v1alpha1.StepRetrying && record.Attempt == 0:
		return state{v1alpha1.TaskPending, false, Problem{v1alpha1.ReasonProgressing, fmt.Sprintf("step %s is about to start", record.Name)}}
	case record != nil && record.Phase == v1alpha1.StepRetrying:
		return state{v1alpha1.TaskWaiting, false, Problem{v1alpha1.ReasonRetrying, fmt.Sprintf("step %s failed in attempt %d (%s) and is tried again", record.Name, record.Attempt, record.Reason)}}
	}
	return state{v1alpha1.TaskPending, false, Problem{v1alpha1.ReasonProgressing, "about to start the next step"}}
}

func (d *decider) failed(record *v1alpha1.StepStatus) state {
	if record.Reason == v1alpha1.ReasonDeadlineExceeded {
		return state{v1alpha1.TaskFailed, true, Problem{v1alpha1.ReasonDeadlineExceeded, d.deadlineMessage()}}
	}
	if record.Attempt == 0 {
		return state{v1alpha1.TaskFailed, true, Problem{v1alpha1.ReasonStepFailed, fmt.Sprintf("step %s failed before its first attempt: %s: %s", record.Name, record.Reason, record.Message)}}
	}
	message := fmt.Sprintf("step %s failed in attempt %d: %s: %s", record.Name, record.Attempt, record.Reason, record.Message)
	if d.Task.Spec.JobHistory != v1alpha1.JobHistoryNone {
		message += "; see kubectl logs job/" + record.JobName
	}
	return state{v1alpha1.TaskFailed, true, Problem{v1alpha1.ReasonStepFailed, message}}
}

func (d *decider) deadlineMessage() string {
	limit := int64(0)
	if d.Task.Spec.ActiveDeadlineSeconds != nil {
		limit = *d.Task.Spec.ActiveDeadlineSeconds
	}
	return fmt.Sprintf("activeDeadlineSeconds of %d passed; %s", limit, d.remaining())
}

func (d *decider) remaining() string {
	return fmt.Sprintf("%d of %d steps had succeeded", d.count(v1alpha1.StepSucceeded), len(d.Task.Spec.Steps))
}

func (d *decider) completed() string {
	if skipped := d.count(v1alpha1.StepSkipped); skipped > 0 {
		return fmt.Sprintf("%d steps succeeded and %d were skipped by decision", d.count(v1alpha1.StepSucceeded), skipped)
	}
	return fmt.Sprintf("all %d steps succeeded", len(d.Task.Spec.Steps))
}

func (d *decider) count(phase v1alpha1.StepPhase) int {
	n := 0
	for i := range d.Status.Steps {
		if d.Status.Steps[i].Phase == phase {
			n++
		}
	}
	return n
}

// allDone says whether the plan is completed: every step of it is done, and it is still
// the plan that ran.
func (d *decider) allDone() bool {
	record := d.current()
	return d.frozen == nil && record != nil && record.Phase.Done() &&
		len(d.Status.Steps) == len(d.Task.Spec.Steps)
}

// end records that the task has ended.
func (d *decider) end(s state) {
	d.Status.CompletionTime = new(metav1.NewTime(d.Now))
	switch s.phase {
	case v1alpha1.TaskSucceeded:
		d.event(false, v1alpha1.EventTaskSucceeded, s.Message)
	case v1alpha1.TaskCancelled:
		d.event(true, v1alpha1.EventTaskCancelled, s.Message)
	default:
		d.event(true, v1alpha1.EventTaskFailed, s.Message)
	}
}

// setConditions sets every condition from the state:
//
//	state         Ready  Succeeded  Reconciling  Stalled
//	succeeded     True   True       False        False
//	ended badly   False  False      False        True
//	stalled       False  Unknown    False        True
//	suspended     False  Unknown    False        False
//	anything else False  Unknown    True         False
func (d *decider) setConditions(s state) {
	finished := s.phase.Finished()
	good := s.phase == v1alpha1.TaskSucceeded
	reconciling := !finished && !s.stalled && s.phase != v1alpha1.TaskSuspended

	succeeded := metav1.ConditionUnknown
	if finished {
		succeeded = status(good)
	}
	d.set(v1alpha1.ConditionReady, status(good), s.Reason, s.Message)
	d.set(v1alpha1.ConditionSucceeded, succeeded, s.Reason, s.Message)
	d.setOr(v1alpha1.ConditionReconciling, reconciling, s.Problem, Problem{idleReason(s), ""})
	if d.setOr(v1alpha1.ConditionStalled, s.stalled, s.Problem, Problem{v1alpha1.ReasonNotStalled, ""}) && !finished {
		d.event(true, v1alpha1.EventTaskStalled, s.Reason+": "+s.Message)
	}
	d.setOr(v1alpha1.ConditionSuspended, d.Task.Spec.Suspend && !finished,
		Problem{v1alpha1.ReasonSuspended, "spec.suspend is true: nothing new is started"}, Problem{v1alpha1.ReasonNotSuspended, ""})
	unknown := Problem{Reason: v1alpha1.ReasonOutcomeUnknown}
	record := d.unknownRecord()
	if record != nil {
		unknown.Message = d.unknownMessage(record)
	}
	d.setOr(v1alpha1.ConditionOutcomeUnknown, record != nil, unknown, Problem{v1alpha1.ReasonOutcomesKnown, ""})
}

// unknownRecord is a step whose outcome is not known, or nil.
func (d *decider) unknownRecord() *v1alpha1.StepStatus {
	for i := range d.Status.Steps {
		if d.Status.Steps[i].Unknown != nil {
			return &d.Status.Steps[i]
		}
	}
	return nil
}

// idleReason is why a task is not reconciling.
func idleReason(s state) string {
	if s.phase.Finished() {
		return v1alpha1.ReasonFinished
	}
	return s.Reason
}

// setOr sets a condition to True with one reason or to False with another, and says
// whether it has just become True.
func (d *decider) setOr(kind string, value bool, yes, no Problem) bool {
	was := meta.IsStatusConditionTrue(d.Status.Conditions, kind)
	if value {
		d.set(kind, metav1.ConditionTrue, yes.Reason, yes.Message)
	} else {
		d.set(kind, metav1.ConditionFalse, no.Reason, no.Message)
	}
	return value && !was
}

func (d *decider) set(kind string, value metav1.ConditionStatus, reason, message string) {
	meta.SetStatusCondition(&d.Status.Conditions, metav1.Condition{
		Type:               kind,
		Status:             value,
		Reason:             reason,
		Message:            message,
		ObservedGeneration: d.Task.Generation,
		LastTransitionTime: metav1.NewTime(d.Now),
	})
}

func status(yes bool) metav1.ConditionStatus {
	if yes {
		return metav1.ConditionTrue
	}
	return metav1.ConditionFalse
}
