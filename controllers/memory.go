// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"sync"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
)

// memory holds hints of this process about tasks: it saves reads and rejected writes,
// and keeps the last sight of pods that were deleted. Nothing in it is needed to be
// correct: a fresh process starts with none.
type memory struct {
	mu    sync.Mutex
	tasks map[types.NamespacedName]*taskMemory
	// jobs finds a task from a Job's UID, for Jobs that the cache does not show (any more).
	jobs map[types.UID]types.NamespacedName
}

type taskMemory struct {
	uid types.UID
	// task is the task as we last read or wrote it, until it has ended. Nothing in it is
	// changed.
	task *v1alpha1.AgentTask
	// vanishedJobs are UIDs of Jobs that were seen to be deleted, by name.
	vanishedJobs map[string]types.UID
	// vanishedPods are the last sights of pods that were seen to be deleted, by name.
	vanishedPods map[string]*corev1.Pod
	// settled are UIDs of Jobs that were given their final status or deleted by us, and
	// when, until the cache can be trusted to show it.
	settled map[types.UID]time.Time
	// refusals counts refusals of the current attempt in a row.
	refusals int
	// unseen says that the API server had a Job or pod of the current attempt that the
	// cache did not show, so that no event of it may ever come.
	unseen bool
	// looked is when the API server itself was last asked about the current attempt.
	looked time.Time
}

func newMemory() *memory {
	return &memory{tasks: map[types.NamespacedName]*taskMemory{}, jobs: map[types.UID]types.NamespacedName{}}
}

// with runs f on the memory of a task, which it makes where there is none. A task of
// another UID under the same name starts with none.
func (m *memory) with(key types.NamespacedName, uid types.UID, f func(*taskMemory)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.tasks[key]
	if t == nil || t.uid != uid {
		m.drop(key)
		t = &taskMemory{uid: uid, vanishedJobs: map[string]types.UID{}, vanishedPods: map[string]*corev1.Pod{}, settled: map[types.UID]time.Time{}}
		m.tasks[key] = t
	}
	f(t)
}

// forget drops all that is known of a task.
func (m *memory) forget(key types.NamespacedName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.drop(key)
}

func (m *memory) drop(key types.NamespacedName) {
	if m.tasks[key] == nil {
		return
	}
	delete(m.tasks, key)
	for uid, owner := range m.jobs {
		if owner == key {
			delete(m.jobs, uid)
		}
	}
}

// own notes whose a Job is.
func (m *memory) own(job types.UID, key types.NamespacedName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.jobs[job] = key
}

func (m *memory) disown(job types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.jobs, job)
}

func (m *memory) ownerOf(job types.UID) (types.NamespacedName, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	key, ok := m.jobs[job]
	return key, ok
}

// podVanished keeps the last sight of a pod of a task that is remembered.
func (m *memory) podVanished(key types.NamespacedName, pod *corev1.Pod) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if t := m.tasks[key]; t != nil {
		t.vanishedPods[pod.Name] = pod
	}
}

// prune drops what concerns other attempts than the current one.
func (t *taskMemory) prune(jobName string) {
	for name := range t.vanishedJobs {
		if name != jobName {
			delete(t.vanishedJobs, name)
		}
	}
	for name := range t.vanishedPods {
		if name != jobName {
			delete(t.vanishedPods, name)
		}
	}
}

// settledFor is how long a settled Job is remembered.
const settledFor = 5 * time.Minute

// unsettled says whether a Job that the cache shows as open is so, as far as is known,
// and forgets Jobs that were settled long ago.
func (t *taskMemory) unsettled(job types.UID, now time.Time) bool {
	for uid, when := range t.settled {
		if now.Sub(when) > settledFor {
			delete(t.settled, uid)
		}
	}
	return t.settled[job].IsZero()
}

// keepTask keeps a task as it was read or written, as long as it goes on.
func (m *memory) keepTask(task *v1alpha1.AgentTask) {
	m.with(types.NamespacedName{Namespace: task.Namespace, Name: task.Name}, task.UID, func(t *taskMemory) {
		t.task = nil
		if !task.Status.Phase.Finished() {
			t.task = new(*task)
		}
	})
}

// dropTask drops the task itself, which turned out to be old.
func (m *memory) dropTask(key types.NamespacedName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if t := m.tasks[key]; t != nil {
		t.task = nil
	}
}

// taskSince is the task that is kept, where it is at least as new as a resourceVersion
// that was seen, or nil.
func (m *memory) taskSince(key types.NamespacedName, uid types.UID, seen string) *v1alpha1.AgentTask {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.tasks[key]
	if t == nil || t.uid != uid || t.task == nil {
		return nil
	}
	if order, err := resourceversion.CompareResourceVersion(t.task.ResourceVersion, seen); err != nil || order < 0 {
		return nil
	}
	return new(*t.task)
}

// jobVanished keeps whose a Job was, for the pod that may outlive it a little.
func (m *memory) jobVanished(key types.NamespacedName, job *batchv1.Job) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if t := m.tasks[key]; t != nil && t.settled[job.UID].IsZero() {
		t.vanishedJobs[job.Name] = job.UID
		m.jobs[job.UID] = key
	}
}
