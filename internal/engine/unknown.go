// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
)

// becomeUnknown records that an attempt that must not start twice may have taken effect,
// and left no word about it.
func (d *decider) becomeUnknown(a activity, v Verdict) {
	v.Message = firstOf(v.Message, "the program left no word about it")
	a.record.Unknown = &v1alpha1.Unknown{
		Time: metav1.NewTime(d.Now), Attempt: a.Attempt, Reason: v.Reason, Message: shorten(v.Message), PodDead: d.podDead(a),
	}
	dropRole(a.record, v1alpha1.RoleCheck) // it spoke of an earlier time
	if d.taskEnds() {
		d.endUnknown(a, v.Message)
		return
	}
	a.Phase = v1alpha1.StepUnknown
	a.Reason, a.Message = v.Reason, shorten(v.Message)
	d.ended = nil // its Job ends when it is settled
	d.event(true, v1alpha1.EventStepUnknown, fmt.Sprintf("step %s attempt %d may have taken effect, and its outcome is not known: %s: %s",
		a.record.Name, a.Attempt, v.Reason, v.Message))
	if d.goesOn(a) {
		d.settling = true
		d.wakeAfter(time.Millisecond)
	}
}

// taskEnds says whether the task ends as soon as nothing of it runs.
func (d *decider) taskEnds() bool { return d.Task.Spec.Cancel || d.pastDeadline() }

// endUnknown ends a step with its task, though its outcome is not known.
func (d *decider) endUnknown(a activity, why string) {
	d.endByTask(a, "whether it has taken effect is not known: "+why)
}

// goesOn says whether an unknown outcome is settled without a person, as far as the plan
// and the pod allow.
func (d *decider) goesOn(a activity) bool {
	policy := a.step.Policy()
	if d.frozen != nil || d.Task.Spec.Suspend || (a.Reason == v1alpha1.ReasonOutputLost && policy != v1alpha1.UnknownCheck) {
		return false
	}
	switch policy {
	case v1alpha1.UnknownFail:
		return true
	case v1alpha1.UnknownRetry:
		return a.record.Unknown.PodDead
	case v1alpha1.UnknownCheck:
		return roleOf(a.record, v1alpha1.RoleCheck) == nil
	}
	return false
}

// settleUnknown settles an unknown outcome: by word that came in late, by a decision, with
// the task's end, or as the plan says.
func (d *decider) settleUnknown(a activity) {
	if a.record.Unknown == nil { // never written so; what is missing is taken for not known
		a.record.Unknown = &v1alpha1.Unknown{Time: metav1.NewTime(d.Now), Attempt: a.Attempt, Reason: a.Reason, Message: a.Message}
	}
	v := d.seenVerdict(a)
	switch {
	case v == nil || v.unknown():
		d.settleWithout(a, v)
	case d.World.Refusal != nil:
		d.holdLateWord(a)
	default:
		d.takeLateWord(a, *v)
		return
	}
	if a.Phase != v1alpha1.StepUnknown && a.Phase != v1alpha1.StepChecking {
		d.ended = &endedAttempt{a.JobName, verdictOf(a.ActionStatus)}
	}
}

// settleWithout settles an unknown outcome of which the program itself says nothing; v is
// what can be seen of it, if anything.
func (d *decider) settleWithout(a activity, v *Verdict) {
	if unknown := a.record.Unknown; !unknown.PodDead && d.podDead(a) {
		unknown.PodDead = true
		if v != nil {
			a.Reason, a.Message = v.Reason, shorten(v.Message)
			unknown.Reason, unknown.Message = a.Reason, a.Message
		}
		dropRole(a.record, v1alpha1.RoleCheck) // what it said while the pod was alive may be old
	}
	switch {
	case d.settleByDecision(a):
	case d.taskEnds():
		d.endUnknown(a, a.Message)
	case d.goesOn(a):
		d.settleByPlan(a)
	case d.World.Pod != nil:
		d.wakeAfter(conflictRecheck)
	}
}

// takeLateWord takes the program's own word, which came in after its outcome was taken for
// unknown.
func (d *decider) takeLateWord(a activity, v Verdict) {
	a.record.Unknown = nil
	dropRole(a.record, v1alpha1.RoleCheck)
	d.conclude(a, v)
}

// holdLateWord waits with such a word whose output cannot be kept just now.
func (d *decider) holdLateWord(a activity) {
	switch {
	case d.settleByDecision(a):
	case d.taskEnds():
		a.record.Unknown = nil
		d.endByTask(a, "it ended all the same, and its output could not be kept: "+d.World.Refusal.Message)
	default:
		d.wakeAfter(max(d.World.Refusal.Retry, time.Second))
	}
}

func (d *decider) settleByPlan(a activity) {
	switch a.step.Policy() {
	case v1alpha1.UnknownCheck:
		d.startCheck(a.record)
	case v1alpha1.UnknownRetry:
		d.retryOrFail(a, Verdict{Class: Lost, Reason: a.Reason, Message: a.Message})
	default:
		d.finish(a, v1alpha1.StepFailed, v1alpha1.ReasonOutcomeUnknown, fmt.Sprintf("whether it has taken effect is not known: %s: %s", a.Reason, a.Message))
	}
}

// unknownMessage tells a person what happened, what is at stake and what settles it.
func (d *decider) unknownMessage(record *v1alpha1.StepStatus) string {
	unknown := record.Unknown
	message := fmt.Sprintf("step %s, attempt %d, may have taken effect, and its outcome is not known: %s: %s. ", record.Name, unknown.Attempt, unknown.Reason, unknown.Message)
	if unknown.Reason == v1alpha1.ReasonOutputLost {
		message = fmt.Sprintf("step %s, attempt %d, says that it succeeded, and its output is lost: %s. ", record.Name, unknown.Attempt, unknown.Message)
	}
	switch {
	case record.Phase.Finished():
		return message + fmt.Sprintf("The task has ended. Look whether the effect with idempotency key %s has happened, and mend what is to be mended by hand.", record.IdempotencyKey)
	case record.Phase == v1alpha1.StepChecking:
		return message + "Its check runs, which settles it."
	case record.Phase != v1alpha1.StepUnknown:
		return message + "It is tried again with the same key."
	case retryDecided(record):
		return message + fmt.Sprintf("%s decided to try again, which waits until pod %s is gone: it may still run. Delete it, by force if its node is gone for good.", record.Decision.DecidedBy, record.JobName)
	}
	if check := roleOf(record, v1alpha1.RoleCheck); check != nil {
		message += fmt.Sprintf("Its check did not settle it: %s. ", firstOf(check.Message, check.Reason))
	}
	if !unknown.PodDead {
		message += fmt.Sprintf("Pod %s is not provably dead and may still act. ", record.JobName)
	}
	return message + fmt.Sprintf("To run it again may do it twice, to go on without it may leave it undone. "+
		"Look whether the effect with idempotency key %s has happened, then choose one of Retry, Complete (add an output), Skip and Abort, and why: %s",
		record.IdempotencyKey, d.decisionCommand(record))
}

// decisionCommand is the command that settles an unknown outcome, to be copied. It is
// refused as it stands: which decision it is must be chosen.
func (d *decider) decisionCommand(record *v1alpha1.StepStatus) string {
	const whoami = `'"$(kubectl auth whoami -o jsonpath='{.status.userInfo.username}')"'`
	decision := struct {
		APIVersion string            `json:"apiVersion"`
		Kind       string            `json:"kind"`
		Metadata   map[string]string `json:"metadata"`
		Spec       any               `json:"spec"`
	}{v1alpha1.GroupVersion.String(), "AgentDecision", map[string]string{"generateName": record.JobName + "-"}, v1alpha1.AgentDecisionSpec{
		Task: d.Task.Name, TaskUID: string(d.Task.UID), Step: record.Name, Attempt: record.Attempt, ActionHash: record.ActionHash,
		Decision: "Retry|Complete|Skip|Abort", DecidedBy: "WHO", Reason: "WHY",
	}}
	doc, err := json.Marshal(decision)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("echo '%s' | kubectl -n %s create -f -", strings.Replace(string(doc), "WHO", whoami, 1), d.Task.Namespace)
}
