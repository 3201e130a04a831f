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
	"github.com/agenttask-dev/agenttask/internal/engine"
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
	vanishedPods map[string]vanishedPod
	// finished says that the task has ended.
	finished bool
	// jobs are the UIDs under which memory.jobs finds the task.
	jobs map[types.UID]bool
	// settled are UIDs of Jobs that were given their final status or deleted by us, until
	// the cache shows it.
	settled map[types.UID]bool
	// refusals counts refusals of the current attempt in a row.
	refusals int
	// unseen says that the API server had a Job or pod of the current attempt that the
	// cache did not show, so that no event of it may ever come.
	unseen bool
	// done is when we did what was to be done with a pod or a decision, by UID, which the
	// cache may not show yet.
	done map[types.UID]time.Time
	// suspect says that a write found an object to be other than it was seen.
	suspect bool
	// looked is when the API server itself was last asked about the current attempt.
	looked time.Time
}

// vanishedPod is the last sight of a pod. It is final where the API server said that this
// is how it was when it was deleted.
type vanishedPod struct {
	*corev1.Pod
	final bool
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
		t = &taskMemory{
			uid: uid, vanishedJobs: map[string]types.UID{}, vanishedPods: map[string]vanishedPod{},
			jobs: map[types.UID]bool{}, settled: map[types.UID]bool{}, done: map[types.UID]time.Time{},
		}
		m.tasks[key] = t
	}
	f(t)
}

// did notes that what was to be done with an object is done.
func (m *memory) did(task *v1alpha1.AgentTask, object types.UID, now time.Time) {
	m.with(types.NamespacedName{Namespace: task.Namespace, Name: task.Name}, task.UID, func(t *taskMemory) {
		for uid, when := range t.done {
			if now.Sub(when) >= doneHint {
				delete(t.done, uid)
			}
		}
		t.done[object] = now
	})
}

// isDone says whether what was to be done with an object has just been done.
func (m *memory) isDone(task *v1alpha1.AgentTask, object types.UID, now time.Time) bool {
	done := false
	m.with(types.NamespacedName{Namespace: task.Namespace, Name: task.Name}, task.UID, func(t *taskMemory) {
		when, ok := t.done[object]
		done = ok && now.Sub(when) < doneHint
	})
	return done
}

// doneHint is how long it is trusted that the cache only has not shown yet what we did.
const doneHint = 10 * time.Second

// forget drops all that is known of a task.
func (m *memory) forget(key types.NamespacedName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.drop(key)
}

func (m *memory) drop(key types.NamespacedName) {
	if t := m.tasks[key]; t != nil {
		for uid := range t.jobs {
			delete(m.jobs, uid)
		}
		delete(m.tasks, key)
	}
}

// own notes whose a Job is.
func (m *memory) own(job types.UID, key types.NamespacedName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ownLocked(job, key)
}

func (m *memory) ownLocked(job types.UID, key types.NamespacedName) {
	if t := m.tasks[key]; t != nil {
		t.jobs[job] = true
		m.jobs[job] = key
	}
}

// settle notes that nothing is left to do for a Job.
func (m *memory) settle(job types.UID, key types.NamespacedName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if t := m.tasks[key]; t != nil {
		t.settled[job] = true
		delete(t.jobs, job)
		delete(m.jobs, job)
	}
}

// seenSettled drops what settle noted, now that the cache shows it, and says whether it
// had been noted.
func (m *memory) seenSettled(key types.NamespacedName, job types.UID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.tasks[key]
	if t == nil || !t.settled[job] {
		return false
	}
	delete(t.settled, job)
	return true
}

func (m *memory) ownerOf(job types.UID) (types.NamespacedName, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	key, ok := m.jobs[job]
	return key, ok
}

// podVanished keeps the last sight of a pod of a task's current attempt.
func (m *memory) podVanished(key types.NamespacedName, pod *corev1.Pod, final bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if t := m.tasks[key]; t != nil && t.concerns(pod.Name) {
		t.vanishedPods[pod.Name] = vanishedPod{pod, final}
	}
}

// concerns says whether an object's name may be that of the current attempt's Job and pod.
func (t *taskMemory) concerns(name string) bool {
	if t.finished || t.task == nil {
		return !t.finished
	}
	current := engine.CurrentOf(t.task)
	return current != nil && current.JobName == name
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

// keepTask keeps a task as it was read or written, as long as it goes on.
func (m *memory) keepTask(task *v1alpha1.AgentTask) {
	m.with(types.NamespacedName{Namespace: task.Namespace, Name: task.Name}, task.UID, func(t *taskMemory) {
		t.task, t.finished = new(*task), task.Status.Phase.Finished()
		if t.finished {
			t.task = nil
			clear(t.vanishedJobs)
			clear(t.vanishedPods)
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
	if t := m.tasks[key]; t != nil && t.concerns(job.Name) {
		t.vanishedJobs[job.Name] = job.UID
		m.ownLocked(job.UID, key)
	}
}
