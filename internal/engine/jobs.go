// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
)

// finishJobs asks for the final status of Jobs whose attempt is over.
func (d *decider) finishJobs() {
	if d.ended != nil && d.World.Job != nil && d.World.Job.Name == d.ended.jobName {
		d.finishJob(Action{Job: d.World.Job, Verdict: d.ended.verdict})
	}
	for _, job := range d.World.Ended {
		if record := d.recordOf(job.Name); record != nil && (record.Phase.Finished() || record.Phase == v1alpha1.StepRetrying) {
			d.finishJob(Action{Job: job, Verdict: verdictOf(record)})
			continue
		}
		if d.superseded(job.Name) {
			d.finishJob(Action{Job: job, Verdict: Verdict{Class: Final, Reason: "AttemptEnded", Message: "a later attempt took its place"}})
		}
	}
}

func (d *decider) finishJob(a Action) {
	history := d.Task.Spec.JobHistory
	a.Kind = FinishJob
	a.Keep = history != v1alpha1.JobHistoryNone && !(history == v1alpha1.JobHistoryFailed && a.Verdict.Class == Success)
	d.Actions = append(d.Actions, a)
}

// superseded says whether a Job is of an earlier attempt of an action that has a record.
// One of a later attempt, or of a step without a record, is none of ours to end: the task
// that was read may be old.
func (d *decider) superseded(jobName string) bool {
	base, attempt := stepexec.SplitJobName(jobName)
	for i := range d.Status.Steps {
		record := &d.Status.Steps[i]
		for _, action := range actionsOf(record) {
			if own, current := stepexec.SplitJobName(action.JobName); own == base && attempt < current {
				return true
			}
		}
		if d.oldCheck(record, base) {
			return true
		}
	}
	return false
}

// maxChecked is of how many attempts of a step the checks' Jobs are known by their names.
const maxChecked = 200

// oldCheck says whether Jobs of this name are of a check of an earlier attempt, or of any
// attempt of a step that has ended.
func (d *decider) oldCheck(record *v1alpha1.StepStatus, base string) bool {
	over := record.Attempt
	if record.Phase.Finished() {
		over++
	}
	for attempt := max(over-maxChecked, 0); attempt < over; attempt++ {
		for _, podDead := range []bool{false, true} {
			name := stepexec.JobName(d.Task.Name, d.Task.UID, record.Name, jobRole(v1alpha1.RoleCheck, attempt, podDead), 1)
			if own, _ := stepexec.SplitJobName(name); own == base {
				return true
			}
		}
	}
	return false
}

// actionsOf are the records of all of a step's actions, its own first.
func actionsOf(record *v1alpha1.StepStatus) []*v1alpha1.ActionStatus {
	all := []*v1alpha1.ActionStatus{&record.ActionStatus}
	for i := range record.Actions {
		all = append(all, &record.Actions[i].ActionStatus)
	}
	return all
}

func (d *decider) recordOf(jobName string) *v1alpha1.ActionStatus {
	for i := range d.Status.Steps {
		for _, action := range actionsOf(&d.Status.Steps[i]) {
			if action.JobName == jobName {
				return action
			}
		}
	}
	return nil
}
