// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
)

// activity is an action of the current step at work: the step's own, its check, or one
// of spec.verify. Its record is a series of attempts, whichever it is.
type activity struct {
	*v1alpha1.ActionStatus
	role v1alpha1.Role
	// record is the step's.
	record *v1alpha1.StepStatus
	// step as it stands in the plan.
	step *v1alpha1.Step
}

func (a activity) main() bool { return a.role == v1alpha1.RoleMain }

// once says whether an attempt must not start twice. The record tells, since the plan may
// have been changed.
func (a activity) once() bool { return a.main() && a.record.Effect == v1alpha1.EffectOnce }

// name is what people call it.
func (a activity) name() string {
	if a.main() {
		return "step " + a.record.Name
	}
	return fmt.Sprintf("step %s (%s)", a.record.Name, a.role)
}

// mainOf is a step's own action.
func (d *decider) mainOf(record *v1alpha1.StepStatus) activity {
	return activity{&record.ActionStatus, v1alpha1.RoleMain, record, d.stepOf(record)}
}

// atWork is the action whose attempts the step consists in now.
func (d *decider) atWork(record *v1alpha1.StepStatus) activity {
	a := d.mainOf(record)
	a.role, a.ActionStatus = atWork(record)
	return a
}

func atWork(record *v1alpha1.StepStatus) (v1alpha1.Role, *v1alpha1.ActionStatus) {
	if n := len(record.Actions); n > 0 && (record.Phase == v1alpha1.StepChecking || record.Phase == v1alpha1.StepVerifying) {
		return record.Actions[n-1].Role, &record.Actions[n-1].ActionStatus
	}
	return v1alpha1.RoleMain, &record.ActionStatus
}

// beginRole adds a record for another action of a step, in place of an older one of its role.
func (d *decider) beginRole(record *v1alpha1.StepStatus, role v1alpha1.Role) activity {
	dropRole(record, role)
	record.Actions = append(record.Actions, v1alpha1.RoleStatus{Role: role})
	a := d.mainOf(record)
	a.role, a.ActionStatus = role, &record.Actions[len(record.Actions)-1].ActionStatus
	return a
}

func dropRole(record *v1alpha1.StepStatus, role v1alpha1.Role) {
	var kept []v1alpha1.RoleStatus
	for i := range record.Actions {
		if record.Actions[i].Role != role {
			kept = append(kept, record.Actions[i])
		}
	}
	record.Actions = kept
}

// roleOf is the record of one of a step's other actions, or nil.
func roleOf(record *v1alpha1.StepStatus, role v1alpha1.Role) *v1alpha1.ActionStatus {
	for i := range record.Actions {
		if record.Actions[i].Role == role {
			return &record.Actions[i].ActionStatus
		}
	}
	return nil
}

// jobRole is the role in a Job's name. A step may be checked for each of its attempts, and
// once more when the attempt's pod is dead: each time is another series of Jobs.
func jobRole(role v1alpha1.Role, attempt int32, podDead bool) v1alpha1.Role {
	switch {
	case role != v1alpha1.RoleCheck:
		return role
	case podDead:
		return v1alpha1.Role(fmt.Sprintf("%s-%d-dead", role, attempt))
	}
	return v1alpha1.Role(fmt.Sprintf("%s-%d", role, attempt))
}

func (d *decider) jobName(a activity) string {
	role := jobRole(a.role, a.record.Attempt, a.record.Unknown != nil && a.record.Unknown.PodDead)
	return stepexec.JobName(d.Task.Name, d.Task.UID, a.record.Name, role, a.Attempt)
}

// Current is the attempt whose Job and pod matter now.
type Current struct {
	*v1alpha1.ActionStatus
	Step string
	Role v1alpha1.Role
	// Once says that it must not start twice.
	Once bool
}

// CurrentOf is a task's current attempt, or nil.
func CurrentOf(task *v1alpha1.AgentTask) *Current {
	if len(task.Status.Steps) == 0 {
		return nil
	}
	record := &task.Status.Steps[len(task.Status.Steps)-1]
	role, status := atWork(record)
	switch status.Phase {
	case v1alpha1.StepRunning, v1alpha1.StepStopping, v1alpha1.StepUnknown:
		if status.JobName == "" {
			return nil
		}
		return &Current{status, record.Name, role, role == v1alpha1.RoleMain && record.Effect == v1alpha1.EffectOnce}
	}
	return nil
}
