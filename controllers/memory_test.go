// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"fmt"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
)

var taskKey = types.NamespacedName{Namespace: "ns", Name: "task"}

func taskAt(resourceVersion string, phase v1alpha1.TaskPhase, jobName string) *v1alpha1.AgentTask {
	task := &v1alpha1.AgentTask{ObjectMeta: metav1.ObjectMeta{Namespace: taskKey.Namespace, Name: taskKey.Name, UID: "task-uid", ResourceVersion: resourceVersion}}
	task.Status.Phase = phase
	if jobName != "" {
		task.Status.Steps = []v1alpha1.StepStatus{{Name: "one", ActionStatus: v1alpha1.ActionStatus{Phase: v1alpha1.StepRunning, JobName: jobName}}}
	}
	return task
}

func podNamed(name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: taskKey.Namespace, Name: name}}
}

func TestATaskIsKeptUntilSomethingNewerIsSeen(t *testing.T) {
	m := newMemory()
	m.keepTask(taskAt("20", v1alpha1.TaskRunning, ""))
	tests := map[string]struct {
		uid  types.UID
		seen string
		want bool
	}{
		"the same version":                      {"task-uid", "20", true},
		"an older one, from a cache behind":     {"task-uid", "9", true},
		"a newer one":                           {"task-uid", "100", false},
		"another task of that name":             {"other-uid", "20", false},
		"a version that cannot be compared":     {"task-uid", "x", false},
		"no version at all, which is no number": {"task-uid", "", false},
	}
	for name, tc := range tests {
		if got := m.taskSince(taskKey, tc.uid, tc.seen) != nil; got != tc.want {
			t.Errorf("%s: kept is %t, want %t", name, got, tc.want)
		}
	}
	m.dropTask(taskKey)
	if m.taskSince(taskKey, "task-uid", "20") != nil {
		t.Error("a task that was dropped is still there")
	}
}

func TestOnlyTheCurrentAttemptsLastSightsAreKept(t *testing.T) {
	m := newMemory()
	m.keepTask(taskAt("1", v1alpha1.TaskRunning, "job-2"))
	for i := range 100 {
		m.podVanished(taskKey, podNamed(fmt.Sprintf("job-%d", i)), true)
		m.jobVanished(taskKey, &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("job-%d", i), UID: types.UID(fmt.Sprint(i))}})
	}
	m.with(taskKey, "task-uid", func(task *taskMemory) {
		if len(task.vanishedPods) != 1 || task.vanishedPods["job-2"].Pod == nil || len(task.vanishedJobs) != 1 {
			t.Errorf("kept %d pods and %d Jobs, want job-2 of each", len(task.vanishedPods), len(task.vanishedJobs))
		}
	})
	if len(m.jobs) != 1 {
		t.Errorf("%d Jobs have an owner, want 1", len(m.jobs))
	}
	m.keepTask(taskAt("2", v1alpha1.TaskSucceeded, ""))
	m.podVanished(taskKey, podNamed("job-2"), true)
	m.with(taskKey, "task-uid", func(task *taskMemory) {
		if len(task.vanishedPods)+len(task.vanishedJobs) != 0 || task.task != nil {
			t.Errorf("a finished task keeps %+v", task)
		}
	})
}

func TestSettledJobsAreForgottenOnceSeen(t *testing.T) {
	m := newMemory()
	m.keepTask(taskAt("1", v1alpha1.TaskRunning, "job-1"))
	m.own("job-uid", taskKey)
	if owner, ok := m.ownerOf("job-uid"); !ok || owner != taskKey {
		t.Fatalf("the Job's owner is %v", owner)
	}
	m.settle("job-uid", taskKey)
	if _, ok := m.ownerOf("job-uid"); ok {
		t.Error("a settled Job still has an owner")
	}
	if !m.seenSettled(taskKey, "job-uid") || m.seenSettled(taskKey, "job-uid") {
		t.Error("a settled Job is not seen exactly once")
	}
	m.own("other", taskKey)
	m.forget(taskKey)
	if len(m.tasks)+len(m.jobs) != 0 {
		t.Errorf("a task that is forgotten leaves %v %v", m.tasks, m.jobs)
	}
	m.own("late", taskKey)
	if len(m.jobs) != 0 {
		t.Error("a Job of a task that is not known is kept")
	}
}
