// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
)

// settleByDecision settles an unknown outcome by the oldest decision on it, and says whether there
// is one.
func (d *decider) settleByDecision(a activity) bool {
	if retryDecided(a.record) {
		d.retryWhenGone(a)
		return true
	}
	for _, decision := range inOrder(d.World.Decisions) {
		if d.objection(decision) == nil {
			d.apply(a, decision)
			return true
		}
	}
	return false
}

func inOrder(decisions []*v1alpha1.AgentDecision) []*v1alpha1.AgentDecision {
	return slices.SortedFunc(slices.Values(decisions), func(a, b *v1alpha1.AgentDecision) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.UID, b.UID))
	})
}

// retryDecided says whether somebody decided to make another attempt after the current one.
func retryDecided(record *v1alpha1.StepStatus) bool {
	return record.Decision != nil && record.Decision.Attempt == record.Attempt && record.Decision.Decision == v1alpha1.DecisionRetry
}

// decidedMeanwhile takes a step back from its check to where a decision can settle it.
func (d *decider) decidedMeanwhile(record *v1alpha1.StepStatus) bool {
	if record.Phase != v1alpha1.StepChecking || record.Unknown == nil {
		return false
	}
	for _, decision := range d.World.Decisions {
		if decision.Spec.Step == record.Name && d.objection(decision) == nil {
			dropRole(record, v1alpha1.RoleCheck)
			record.Phase = v1alpha1.StepUnknown
			record.Reason, record.Message = record.Unknown.Reason, record.Unknown.Message
			d.wakeAfter(time.Millisecond)
			return true
		}
	}
	return false
}

func (d *decider) apply(a activity, decision *v1alpha1.AgentDecision) {
	spec := &decision.Spec
	a.record.Decision = &v1alpha1.AppliedDecision{
		Name: decision.Name, UID: decision.UID, Decision: spec.Decision, Attempt: spec.Attempt,
		DecidedBy: spec.DecidedBy, Reason: spec.Reason, Time: metav1.NewTime(d.Now),
	}
	said := fmt.Sprintf("%s decided to %s", spec.DecidedBy, decisionVerb[spec.Decision])
	if spec.Reason != "" {
		said += ": " + spec.Reason
	}
	if spec.Decision == v1alpha1.DecisionRetry {
		d.event(false, v1alpha1.EventStepDecided, fmt.Sprintf("step %s attempt %d: %s", a.record.Name, a.Attempt, said))
		d.retryWhenGone(a)
		return
	}
	a.record.Unknown = nil
	switch spec.Decision {
	case v1alpha1.DecisionComplete:
		if output, err := decidedOutput(decision); err == nil && d.keep(a, output, nil) {
			d.finish(a, v1alpha1.StepSucceeded, v1alpha1.ReasonDecided, said)
		}
	case v1alpha1.DecisionSkip:
		d.finish(a, v1alpha1.StepSkipped, v1alpha1.ReasonDecided, said)
	default:
		d.finish(a, v1alpha1.StepFailed, v1alpha1.ReasonDecided, said)
	}
}

var decisionVerb = map[v1alpha1.DecisionKind]string{
	v1alpha1.DecisionRetry:    "try it again",
	v1alpha1.DecisionComplete: "take it as done",
	v1alpha1.DecisionSkip:     "go on without it",
	v1alpha1.DecisionAbort:    "end it as failed",
}

// retryWhenGone makes the attempt that was decided upon as soon as the old pod is dead, or
// gone by somebody's doing.
func (d *decider) retryWhenGone(a activity) {
	switch {
	case d.taskEnds():
		d.endUnknown(a, a.Message)
	case a.record.Unknown.PodDead || d.World.Pod == nil:
		a.Phase, a.record.Unknown = v1alpha1.StepRetrying, nil
		a.NextAttemptTime = new(metav1.NewMicroTime(d.Now))
		d.wakeAfter(time.Millisecond)
	default:
		d.wakeAfter(goneRecheck)
	}
}

// objection says why a decision cannot be applied, or nil.
func (d *decider) objection(decision *v1alpha1.AgentDecision) *Problem {
	spec := &decision.Spec
	record := d.recordByName(spec.Step)
	switch {
	case spec.TaskUID != string(d.Task.UID):
		return &Problem{v1alpha1.ReasonOtherTask, fmt.Sprintf("AgentTask %s has the UID %s; the decision is on another of that name", d.Task.Name, d.Task.UID)}
	case decision.Generation > 1:
		return &Problem{v1alpha1.ReasonChanged, "it was changed after it was made; create another"}
	case record == nil:
		return &Problem{v1alpha1.ReasonNothingToDecide, fmt.Sprintf("step %s has not been started", spec.Step)}
	case record.ActionHash != spec.ActionHash:
		return &Problem{v1alpha1.ReasonOtherAction, fmt.Sprintf("step %s has the actionHash %s; look at it again, and decide on that", spec.Step, record.ActionHash)}
	case record.Attempt != spec.Attempt:
		return &Problem{v1alpha1.ReasonOtherAction, fmt.Sprintf("step %s is at attempt %d; look at it again, and decide on that", spec.Step, record.Attempt)}
	case record.Decision != nil && record.Decision.Attempt == spec.Attempt:
		return &Problem{v1alpha1.ReasonAlreadyDecided, fmt.Sprintf("%s has decided (AgentDecision %s, %s)", record.Decision.DecidedBy, record.Decision.Name, record.Decision.Decision)}
	case record.Phase != v1alpha1.StepUnknown && (record.Phase != v1alpha1.StepChecking || record.Unknown == nil):
		return &Problem{v1alpha1.ReasonNothingToDecide, fmt.Sprintf("step %s is %s; there is nothing to decide", spec.Step, record.Phase)}
	}
	if _, err := decidedOutput(decision); err != nil {
		return &Problem{v1alpha1.ReasonBadOutput, err.Error()}
	}
	return nil
}

// decidedOutput is the output that a decision gives its step, in canonical form.
func decidedOutput(decision *v1alpha1.AgentDecision) ([]byte, error) {
	given := decision.Spec.Output
	switch {
	case given == nil:
		return []byte("null"), nil
	case decision.Spec.Decision != v1alpha1.DecisionComplete:
		return nil, fmt.Errorf("spec.output is for decision Complete, and this is %s; leave it out", decision.Spec.Decision)
	}
	output, err := stepexec.Canonical(given.Raw)
	switch {
	case err != nil:
		return nil, fmt.Errorf("spec.output: %w", err)
	case len(output) > v1alpha1.MaxInlineOutput:
		return nil, fmt.Errorf("spec.output has %d bytes, and at most %d are kept; give a reference instead", len(output), v1alpha1.MaxInlineOutput)
	}
	return output, nil
}

func (d *decider) recordByName(step string) *v1alpha1.StepStatus {
	for i := range d.Status.Steps {
		if d.Status.Steps[i].Name == step {
			return &d.Status.Steps[i]
		}
	}
	return nil
}

// answerDecisions tells each decision what became of it.
func (d *decider) answerDecisions() {
	for _, decision := range inOrder(d.World.Decisions) {
		switch record := d.recordByName(decision.Spec.Step); {
		case record != nil && record.Decision != nil && record.Decision.UID == decision.UID:
			d.answer(decision, Problem{v1alpha1.ReasonApplied, fmt.Sprintf("applied to step %s, attempt %d", record.Name, record.Decision.Attempt)})
		default:
			why := d.objection(decision)
			if why == nil { // it came with the outcome's turning out to be unknown
				d.wakeAfter(time.Millisecond)
				continue
			}
			d.answer(decision, *why)
			d.event(true, v1alpha1.EventDecisionRefused, fmt.Sprintf("AgentDecision %s by %s was not applied: %s", decision.Name, decision.Spec.DecidedBy, why.Message))
		}
	}
}

func (d *decider) answer(decision *v1alpha1.AgentDecision, what Problem) {
	d.Actions = append(d.Actions, Action{Kind: AnswerDecision, Decision: decision, Answer: what})
}
