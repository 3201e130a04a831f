// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"encoding/json"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
	"github.com/agenttask-dev/agenttask/test/harness"
)

// History is all that happened in one namespace: every revision of every object in etcd's
// order, every request, and what they do not hold.
type History struct {
	harness.History
	// Effects are what the steps' programs did to the outside world.
	Effects []Effect
	// Rests are the times at which the run had come to rest, or should have.
	Rests []Rest
	// Touched is the attempt that an outside actor did something to, if any did.
	Touched Touched
}

// Effect is a program that ran.
type Effect struct {
	Pod     types.UID
	Step    string
	Attempt int32
	Key     string
	// Done says that it had its effect: a program that asks for another attempt by exit
	// code 75 had none.
	Done bool
}

// Rest is a time at which nothing is left to do.
type Rest struct {
	// Missing is what did not come within the bound. Empty: the run came to rest.
	Missing string
	// Late are the writes that were tried after that.
	Late []string
}

// attempt is one attempt of a step's own action.
type attempt struct {
	task   types.UID
	step   string
	number int32
}

// view is a history sorted by object.
type view struct {
	*History
	tasks map[types.UID][]harness.Revision
	jobs  map[types.UID][]harness.Revision
	pods  map[types.UID][]harness.Revision
	// names are the attempts whose Job and pod have a name.
	names map[string]attempt
}

func viewOf(h *History) *view {
	v := &view{History: new(*h), tasks: map[types.UID][]harness.Revision{}, jobs: map[types.UID][]harness.Revision{}, pods: map[types.UID][]harness.Revision{}, names: map[string]attempt{}}
	v.Revisions = lineage(h)
	for _, r := range v.Revisions {
		switch {
		case r.Task != nil:
			v.name(r.Task)
			v.tasks[r.Task.UID] = append(v.tasks[r.Task.UID], r)
		case r.Job != nil:
			v.jobs[r.Job.UID] = append(v.jobs[r.Job.UID], r)
		case r.Pod != nil:
			v.pods[r.Pod.UID] = append(v.pods[r.Pod.UID], r)
		}
	}
	return v
}

// lineage are the revisions that count: where etcd was restored, what came after the
// snapshot was undone.
func lineage(h *History) []harness.Revision {
	return slices.DeleteFunc(slices.Clone(h.Revisions), func(r harness.Revision) bool {
		return slices.ContainsFunc(h.Restores, func(to harness.Restore) bool { return r.RV > to.Snapshot && r.RV < to.First })
	})
}

// mostAttempts is how many attempts of a step are known by name.
const mostAttempts = 12

// name notes the names of a task's attempts, of steps that are new to it.
func (v *view) name(task *v1alpha1.AgentTask) {
	if list := v.tasks[task.UID]; len(list) > 0 && list[len(list)-1].Task.Generation == task.Generation {
		return
	}
	for i := range task.Spec.Steps {
		step := task.Spec.Steps[i].Name
		for n := int32(1); n <= mostAttempts; n++ {
			v.names[stepexec.JobName(task.Name, task.UID, step, v1alpha1.RoleMain, n)] = attempt{task.UID, step, n}
		}
	}
}

// jobName is the name of an attempt's Job and pod.
func (v *view) jobName(a attempt) string {
	return stepexec.JobName(v.last(a.task).Name, a.task, a.step, v1alpha1.RoleMain, a.number)
}

// attemptOfJob is the attempt that a Job was made for, if it is controlled by its task.
func (v *view) attemptOfJob(job *batchv1.Job) (attempt, bool) {
	a, ok := v.names[job.Name]
	owner := metav1.GetControllerOf(job)
	return a, ok && owner != nil && owner.UID == a.task
}

// attemptOfPod is the attempt whose Job controls a pod, whatever the pod's own name.
func (v *view) attemptOfPod(pod *corev1.Pod) (attempt, bool) {
	owner := metav1.GetControllerOf(pod)
	if owner == nil || len(v.jobs[owner.UID]) == 0 {
		return attempt{}, false
	}
	return v.attemptOfJob(v.jobs[owner.UID][0].Job)
}

// podsOf are the pods of an attempt, each with its revisions.
func (v *view) podsOf(a attempt) [][]harness.Revision {
	var list [][]harness.Revision
	for _, r := range v.pods {
		if b, ok := v.attemptOfPod(r[0].Pod); ok && a == b {
			list = append(list, r)
		}
	}
	slices.SortFunc(list, func(a, b []harness.Revision) int { return int(a[0].RV - b[0].RV) })
	return list
}

// before is the last revision before an RV, or nil.
func before(list []harness.Revision, rv int64) *harness.Revision {
	for i := len(list) - 1; i >= 0; i-- {
		if list[i].RV < rv {
			return &list[i]
		}
	}
	return nil
}

// record is a step's record in a task, or nil.
func record(task *v1alpha1.AgentTask, step string) *v1alpha1.StepStatus {
	for i := range task.Status.Steps {
		if task.Status.Steps[i].Name == step {
			return &task.Status.Steps[i]
		}
	}
	return nil
}

// effectOf is a step's declared effect.
func effectOf(task *v1alpha1.AgentTask, step string) v1alpha1.Effect {
	for i := range task.Spec.Steps {
		if s := &task.Spec.Steps[i]; s.Name == step && s.Effect != "" {
			return s.Effect
		}
	}
	return v1alpha1.EffectIdempotent
}

// last is the task as it was last seen.
func (v *view) last(uid types.UID) *v1alpha1.AgentTask {
	list := v.tasks[uid]
	return list[len(list)-1].Task
}

// fenced says whether an attempt's step has effect Once.
func (v *view) fenced(a attempt) bool {
	return effectOf(v.last(a.task), a.step) == v1alpha1.EffectOnce
}

// openedAt is the RV at which a pod lost its gate, or had none from the start. 0: never.
func openedAt(pod []harness.Revision) int64 {
	for _, r := range pod {
		if !r.Deleted && !stepexec.Gated(r.Pod) {
			return r.RV
		}
	}
	return 0
}

// deadAt is the RV from which on a pod is provably dead. 0: never.
func deadAt(pod []harness.Revision) int64 {
	for _, r := range pod {
		if terminated(r.Pod) != nil {
			return r.RV
		}
		if r.Pod.Spec.NodeName == "" && (r.Deleted || !r.Pod.DeletionTimestamp.IsZero()) {
			return r.RV
		}
	}
	return 0
}

// goneAt is the RV at which a pod was removed. 0: never.
func goneAt(pod []harness.Revision) int64 {
	if len(pod) == 0 || !pod[len(pod)-1].Deleted {
		return 0
	}
	return pod[len(pod)-1].RV
}

// terminated is the end of a pod's step container, or nil.
func terminated(pod *corev1.Pod) *corev1.ContainerStateTerminated {
	for i := range pod.Status.ContainerStatuses {
		if s := &pod.Status.ContainerStatuses[i]; s.Name == stepexec.ContainerStep {
			return s.State.Terminated
		}
	}
	return nil
}

// resultOf is the result that a pod's runner left, or nil.
func resultOf(pod *corev1.Pod) *stepexec.Result {
	end := terminated(pod)
	if end == nil {
		return nil
	}
	result := &stepexec.Result{}
	if json.Unmarshal([]byte(end.Message), result) != nil {
		return nil
	}
	return result
}
