// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/expr"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
)

// checkPlan looks at the plan when it is new or was changed, and freezes the task
// where it cannot go on with it.
func (d *decider) checkPlan() {
	if d.Status.PlanHash != "" && d.Status.ObservedGeneration == d.Task.Generation && !d.stalled() {
		return
	}
	d.Status.PlanHash = stepexec.PlanHash(d.Task.Spec.Steps)
	d.frozen = d.planChanged()
	if d.frozen == nil {
		d.frozen = ValidatePlan(d.Task)
	}
}

// stalled says whether the task was found stalled, perhaps by its plan: then that is
// looked at again each time, since observedGeneration says only that it was looked at.
func (d *decider) stalled() bool {
	return meta.IsStatusConditionTrue(d.Status.Conditions, v1alpha1.ConditionStalled)
}

// planChanged compares the steps that have started with the plan.
func (d *decider) planChanged() *Problem {
	for i := range d.Status.Steps {
		record := &d.Status.Steps[i]
		var what string
		switch {
		case i >= len(d.Task.Spec.Steps):
			what = "was removed from the plan"
		case d.Task.Spec.Steps[i].Name != record.Name:
			what = fmt.Sprintf("is no longer number %d of the plan, where %s stands now", i+1, d.Task.Spec.Steps[i].Name)
		case stepexec.SpecHash(&d.Task.Spec.Steps[i]) != record.SpecHash:
			what = "was changed"
		default:
			continue
		}
		return &Problem{v1alpha1.ReasonPlanChanged, fmt.Sprintf(
			"step %s has started and %s; take the change back to go on (steps that have not started may be changed)", record.Name, what)}
	}
	return nil
}

// plainVars are what an expression may read of the task itself.
func (d *decider) plainVars(key string) expr.Vars {
	return expr.Vars{
		Key:    key,
		Params: paramsOf(d.Task),
		Task:   expr.Task{Name: d.Task.Name, Namespace: d.Task.Namespace, UID: string(d.Task.UID), RunID: d.Status.RunID},
		Steps:  map[string]expr.StepVars{},
	}
}

// vars gathers what a template refers to.
func (d *decider) vars(template *expr.Template, key string) (expr.Vars, *Problem) {
	vars := d.plainVars(key)
	needed := d.needed(template)
	if problem := tooMuch(needed); problem != nil {
		return vars, problem
	}
	for _, record := range needed {
		output, problem := d.output(record)
		if problem != nil {
			return vars, problem
		}
		vars.Steps[record.Name] = expr.StepVars{Output: output, Phase: string(record.Phase), Attempt: int64(record.Attempt)}
	}
	return vars, nil
}

// needed are the records of finished steps that a template may read.
func (d *decider) needed(template *expr.Template) []*v1alpha1.StepStatus {
	wanted := map[string]bool{}
	for _, name := range template.Steps() {
		wanted[name] = true
	}
	var needed []*v1alpha1.StepStatus
	for i := range d.Status.Steps {
		record := &d.Status.Steps[i]
		if record.Phase.Done() && (wanted[record.Name] || template.Dynamic()) {
			needed = append(needed, record)
		}
	}
	return needed
}

// tooMuch says that the outputs of one input are too large together, before any of them
// is read.
func tooMuch(records []*v1alpha1.StepStatus) *Problem {
	sum, steps := int64(0), 0
	for _, record := range records {
		if record.OutputRef != nil {
			sum += max(record.OutputRef.Bytes, 0)
			steps++
		}
	}
	if sum <= v1alpha1.MaxLoaded {
		return nil
	}
	return &Problem{v1alpha1.ReasonInputTooLarge, fmt.Sprintf(
		"the outputs that the input may read, of %d steps, have %d bytes together, and at most %d are read for one input; name the steps you need: steps['a'], or return less",
		steps, sum, v1alpha1.MaxLoaded)}
}

// output is a record's output, or asks for it where it is kept elsewhere.
func (d *decider) output(record *v1alpha1.StepStatus) ([]byte, *Problem) {
	switch {
	case record.OutputRef != nil:
	case record.Output == nil: // null, which the status does not hold
		return []byte("null"), nil
	default:
		return record.Output.Raw, nil
	}
	loaded, ok := d.Outputs[record.Name]
	switch {
	case !ok:
		d.Load = append(d.Load, record.Name)
		return nil, nil
	case loaded.Problem != "":
		return nil, &Problem{v1alpha1.ReasonInputInvalid, fmt.Sprintf("output of step %s: %s", record.Name, loaded.Problem)}
	case loaded.Unavailable != "":
		return nil, &Problem{v1alpha1.ReasonUnavailable, fmt.Sprintf("the output of step %s cannot be read just now: %s", record.Name, loaded.Unavailable)}
	}
	return loaded.Output, nil
}

// unavailableRecheck is how often an output that cannot be read just now is tried again.
const unavailableRecheck = 5 * time.Second

// waitToStart leaves a step without a record until what its input needs can be read. As
// with wait, the first message of a reason stays.
func (d *decider) waitToStart(step *v1alpha1.Step, why *Problem) {
	d.wakeAfter(unavailableRecheck)
	ready := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.ConditionReady)
	if ready != nil && ready.Reason == why.Reason && strings.HasPrefix(ready.Message, aboutStep(step.Name)) {
		d.waiting = &Problem{ready.Reason, ready.Message}
		return
	}
	d.waiting = &Problem{why.Reason, aboutStep(step.Name) + shorten(why.Message)}
	d.event(true, v1alpha1.EventStepWaiting, fmt.Sprintf("step %s waits: %s: %s", step.Name, why.Reason, why.Message))
}

// aboutStep begins a task's message that is about one step.
func aboutStep(name string) string { return "step " + name + ": " }

func paramsOf(task *v1alpha1.AgentTask) []byte {
	if task.Spec.Params == nil {
		return nil
	}
	return task.Spec.Params.Raw
}
