// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/expr"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
)

// startCheck runs a step's check: before its first attempt, or on one whose outcome is
// not known.
func (d *decider) startCheck(record *v1alpha1.StepStatus) {
	d.startRole(record, v1alpha1.RoleCheck, v1alpha1.StepChecking)
}

// startRole starts another of a step's actions.
func (d *decider) startRole(record *v1alpha1.StepStatus, role v1alpha1.Role, phase v1alpha1.StepPhase) {
	what, problem := d.renderRole(d.stepOf(record), role, record.IdempotencyKey)
	switch {
	case len(d.Load) > 0:
		return
	case problem != nil && problem.Reason == v1alpha1.ReasonUnavailable: // all stays as it is until then
		d.waitToStart(d.stepOf(record), problem)
		return
	}
	record.Phase, record.NextAttemptTime = phase, nil
	if main := what.identity; problem == nil && role == v1alpha1.RoleAgain {
		main.Role = v1alpha1.RoleMain
		if main.Hash() != record.ActionHash {
			problem = &Problem{v1alpha1.ReasonPlanChanged, "its action is no longer what its first run was"}
		}
	}
	number := d.checksMade(record, role)
	a := d.beginRole(record, role)
	a.Attempt = number
	a.Phase, a.IdempotencyKey, a.StartTime = v1alpha1.StepRunning, record.IdempotencyKey, metav1.NewTime(d.Now)
	a.ActionHash = what.identity.Hash()
	if problem != nil {
		d.finish(a, v1alpha1.StepFailed, problem.Reason, problem.Message)
		return
	}
	d.startAttempt(a, what)
}

// checksMade is how many attempts an action of a role has had under the names that its
// next ones would have: their numbers go on, so that an old Job is not taken for a new one.
func (d *decider) checksMade(record *v1alpha1.StepStatus, role v1alpha1.Role) int32 {
	old := d.mainOf(record)
	if old.role, old.ActionStatus = role, roleOf(record, role); old.ActionStatus == nil || d.jobName(old) != old.JobName {
		return 0
	}
	return old.Attempt
}

// judgeCheck reads what a check that ended well has answered.
func (d *decider) judgeCheck(a activity, v Verdict) {
	answer := v.Output
	if answer == nil && d.World.Output != nil {
		loaded, ok := d.Outputs[a.record.Name]
		switch {
		case !ok:
			d.Load = append(d.Load, a.record.Name)
			return
		case loaded.Unavailable != "" && a.Phase == v1alpha1.StepRunning:
			d.ended = nil
			d.wait(a, v1alpha1.ReasonUnavailable, "its output cannot be read just now: "+loaded.Unavailable)
			d.wakeAfter(unavailableRecheck)
			return
		case loaded.Problem != "" || loaded.Unavailable != "":
			d.finish(a, v1alpha1.StepFailed, v1alpha1.ReasonOutputLost, "its output cannot be read: "+loaded.Problem+loaded.Unavailable)
			return
		}
		answer = loaded.Output
	}
	done, output, err := d.answerOf(a.step.Check, answer)
	switch {
	case err != nil:
		d.finish(a, v1alpha1.StepFailed, v1alpha1.ReasonOutputInvalid, err.Error())
	case done:
		d.checkedDone(a, output)
	default:
		d.checkedUndone(a)
	}
}

// answerOf reads a check's answer: whether the effect has happened, and with what output.
func (d *decider) answerOf(check *v1alpha1.Check, answer []byte) (done bool, output []byte, err error) {
	if check == nil {
		return false, nil, fmt.Errorf("the step has no check any more")
	}
	if check.Done == "" {
		return plainAnswer(answer)
	}
	vars := d.plainVars("")
	vars.Result = answer
	template, err := expr.CompileBool("check.done", check.Done, expr.Scope{Result: true})
	if err != nil {
		return false, nil, err
	}
	if done, err = template.RenderBool(vars); err != nil || !done {
		return false, nil, err
	}
	output = answer
	if check.Output != nil {
		template, err := expr.CompileIn("check.output", check.Output.Raw, expr.Scope{Result: true})
		if err != nil {
			return false, nil, err
		}
		if output, err = template.Render(vars); err != nil {
			return false, nil, err
		}
	}
	return true, output, checkSize(output)
}

// plainAnswer reads {"done": true or false, "output": anything}.
func plainAnswer(answer []byte) (done bool, output []byte, err error) {
	var said struct {
		Done   *bool           `json:"done"`
		Output json.RawMessage `json:"output"`
	}
	if json.Unmarshal(answer, &said) != nil || said.Done == nil {
		return false, nil, fmt.Errorf(`its output must be {"done": true or false, "output": anything}; return that, or set check.done`)
	}
	if said.Output == nil {
		said.Output = json.RawMessage("null")
	}
	output, err = stepexec.Canonical(said.Output)
	if err != nil {
		return false, nil, err
	}
	return *said.Done, output, checkSize(output)
}

func checkSize(output []byte) error {
	if len(output) > v1alpha1.MaxInlineOutput {
		return fmt.Errorf("the output that it gives the step has %d bytes, and at most %d are kept; choose what is needed by check.done and check.output", len(output), v1alpha1.MaxInlineOutput)
	}
	return nil
}

// checkedDone ends a step whose check says that its effect has happened.
func (d *decider) checkedDone(a activity, output []byte) {
	d.answered(a, "the effect has happened")
	main := d.mainOf(a.record)
	a.record.Unknown = nil
	if d.keep(main, output, nil) {
		d.finish(main, v1alpha1.StepSucceeded, v1alpha1.ReasonCheckedDone, "its check says that the effect has happened; the check's output was taken")
	}
}

// checkedUndone goes on with a step whose check says that its effect has not happened.
func (d *decider) checkedUndone(a activity) {
	d.answered(a, "the effect has not happened")
	main := d.mainOf(a.record)
	if main.record.Unknown != nil && main.record.Unknown.PodDead && main.Reason != v1alpha1.ReasonOutputLost {
		main.record.Unknown = nil
	}
	switch {
	case d.taskEnds():
		d.checkEnded(a)
	case main.Attempt == 0:
		main.Phase = v1alpha1.StepRetrying // until it may start
		main.NextAttemptTime = new(metav1.NewMicroTime(d.Now))
		if d.Task.Spec.Suspend || d.frozen != nil {
			return
		}
		if what, ok := d.sameAction(main); ok {
			d.startAttempt(main, what)
		}
	case main.Reason == v1alpha1.ReasonOutputLost: // the program says that it has
		main.Phase = v1alpha1.StepUnknown
		roleOf(a.record, v1alpha1.RoleCheck).Message = "it says that the effect has not happened, and the program that it has"
	case main.record.Unknown != nil:
		main.Phase = v1alpha1.StepUnknown
	default:
		d.retryOrFail(main, Verdict{Class: Lost, Reason: main.Reason, Message: main.Message + "; its check says that the effect has not happened"})
	}
}

// answered ends the record of a check whose answer was understood.
func (d *decider) answered(a activity, message string) {
	a.Phase, a.Reason, a.Message = v1alpha1.StepSucceeded, "", message
	a.NextAttemptTime = nil
	a.CompletionTime = new(metav1.NewTime(d.Now))
}

// checkEnded goes on with a step whose check failed for good or was stopped.
func (d *decider) checkEnded(a activity) {
	main := d.mainOf(a.record)
	switch {
	case d.taskEnds() && a.record.Unknown != nil:
		d.endUnknown(main, main.Message)
	case d.taskEnds():
		d.endByTask(main, a.Message)
	case a.record.Unknown != nil:
		main.Phase = v1alpha1.StepUnknown
		d.event(true, v1alpha1.EventStepUnknown, fmt.Sprintf("the check of step %s did not settle it: %s: %s", a.record.Name, a.Reason, a.Message))
	default:
		d.finish(main, v1alpha1.StepFailed, v1alpha1.ReasonCheckFailed, fmt.Sprintf("its check failed, so that it did not start: %s: %s", a.Reason, a.Message))
	}
}
