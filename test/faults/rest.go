// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
	"github.com/agenttask-dev/agenttask/test/harness"
)

// Outstanding says what a run still lacks to be at rest, or nothing. At rest the task has
// ended, or waits for a person; every Job of an ended attempt has its final status or is
// gone; no pod is held or gated but one whose program may still run and whose outcome is
// not known; nothing is being deleted; and what belonged to a task or Job that is gone is
// gone as well.
func Outstanding(h *harness.History) string {
	v := viewOf(&History{History: *h})
	task := v.newest()
	if missing := v.unended(task); missing != "" {
		return missing
	}
	for _, what := range []func(*v1alpha1.AgentTask) string{v.openJob, v.openPod, v.openDecision} {
		if missing := what(task); missing != "" {
			return missing
		}
	}
	return ""
}

// Unended says why a task neither has ended nor waits for a person, or nothing.
func Unended(h *harness.History) string {
	v := viewOf(&History{History: *h})
	return v.unended(v.newest())
}

func (v *view) unended(task *v1alpha1.AgentTask) string {
	switch {
	case task == nil:
		return "there is no task"
	case v.tasks[task.UID][len(v.tasks[task.UID])-1].Deleted:
		return "the task is gone"
	case task.DeletionTimestamp != nil:
		return "the task is being deleted"
	case !waits(task):
		ready := meta.FindStatusCondition(task.Status.Conditions, v1alpha1.ConditionReady)
		if ready == nil {
			return "the task has no status"
		}
		return fmt.Sprintf("the task is %s at step %s: %s: %s", task.Status.Phase, task.Status.CurrentStep, ready.Reason, ready.Message)
	}
	return ""
}

// waits says whether a task has ended, or does not go on before somebody acts.
func waits(task *v1alpha1.AgentTask) bool {
	s := &task.Status
	return s.Phase.Finished() || s.Phase == v1alpha1.TaskUnknown || meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ConditionStalled)
}

// open says whether an attempt is the current one of a step that has not ended.
func open(task *v1alpha1.AgentTask, a attempt) bool {
	s := record(task, a.step)
	return s != nil && a.task == task.UID && s.Attempt == a.number && !s.Phase.Finished()
}

func (v *view) openJob(task *v1alpha1.AgentTask) string {
	for _, list := range v.jobs {
		last := list[len(list)-1]
		a, ok := v.attemptOfJob(last.Job)
		switch {
		case !ok || last.Deleted:
		case last.Job.DeletionTimestamp != nil:
			return fmt.Sprintf("Job %s is being deleted", last.Job.Name)
		case a.task != task.UID:
			return fmt.Sprintf("Job %s of a former task is still there", last.Job.Name)
		case !open(task, a) && jobEnd(last.Job) == jobOpen:
			return fmt.Sprintf("Job %s has no final status", last.Job.Name)
		}
	}
	return ""
}

func (v *view) openPod(task *v1alpha1.AgentTask) string {
	for _, list := range v.pods {
		last := list[len(list)-1]
		a, ok := v.attemptOfPod(last.Pod)
		if !ok || last.Deleted {
			continue
		}
		job := v.jobs[last.Pod.OwnerReferences[0].UID]
		waited := open(task, a) && record(task, a.step).PodUID == last.Pod.UID && terminated(last.Pod) == nil
		switch {
		case last.Pod.DeletionTimestamp != nil:
			return fmt.Sprintf("pod %s is being deleted", last.Pod.Name)
		case job[len(job)-1].Deleted:
			return fmt.Sprintf("pod %s of a deleted Job is still there", last.Pod.Name)
		case a.task != task.UID:
			return fmt.Sprintf("pod %s of a former task is still there", last.Pod.Name)
		case !waited && (stepexec.Held(last.Pod) || stepexec.Gated(last.Pod)):
			return fmt.Sprintf("pod %s is still held, and nothing is waited for", last.Pod.Name)
		}
	}
	return ""
}

// openDecision is a decision that nobody has answered.
func (v *view) openDecision(*v1alpha1.AgentTask) string {
	answered := map[string]bool{}
	for _, r := range v.Revisions {
		if r.Decision != nil {
			answered[r.Decision.Name] = r.Deleted || meta.FindStatusCondition(r.Decision.Status.Conditions, v1alpha1.ConditionApplied) != nil
		}
	}
	for name, yes := range answered {
		if !yes {
			return fmt.Sprintf("decision %s has no answer", name)
		}
	}
	return ""
}
