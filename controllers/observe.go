// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"fmt"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/engine"
)

// observe gathers what a decision needs. Where the cache does not show the current
// attempt whole, or has not been doubted for long, the API server itself is asked.
func (r *Reconciler) observe(ctx context.Context, task *v1alpha1.AgentTask) (engine.World, error) {
	world := engine.World{}
	var err error
	if err = r.observeFence(ctx, task, &world); err != nil || !task.DeletionTimestamp.IsZero() {
		return world, err
	}
	record := engine.CurrentOf(task)
	if world.Ended, err = r.endedJobs(ctx, task, record); err != nil {
		return world, err
	}
	if record == nil {
		return world, nil
	}
	seen := r.sight(task, record)
	cached := world
	if err = r.look(ctx, r.Client, task, record, seen, &cached); err != nil {
		return world, err
	}
	attempt := cached
	if seen.doubtful || doubtful(cached) {
		attempt = world
		if err = r.lookLive(ctx, task, record, seen, &attempt); err != nil {
			return world, err
		}
		unseen := (attempt.Job != nil && cached.Job == nil) || (attempt.Pod != nil && cached.Pod == nil)
		r.memory.with(client.ObjectKeyFromObject(task), task.UID, func(m *taskMemory) { m.unseen = unseen })
	}
	return attempt, r.keepOutput(ctx, task, record, &attempt)
}

// doubtful says whether the cache alone is not enough to decide upon: something is
// missing, or a running pod would be stopped because its Job is suspended.
func doubtful(cached engine.World) bool {
	return cached.Job == nil || cached.Pod == nil || ptr.Deref(cached.Job.Spec.Suspend, false)
}

// sight is what this process remembers of the current attempt.
type sight struct {
	vanishedJob types.UID
	vanishedPod vanishedPod
	doubtful    bool
}

func (r *Reconciler) sight(task *v1alpha1.AgentTask, record *engine.Current) sight {
	seen, now := sight{}, r.Clock.Now()
	r.memory.with(client.ObjectKeyFromObject(task), task.UID, func(m *taskMemory) {
		m.prune(record.JobName)
		seen.vanishedJob, seen.vanishedPod = m.vanishedJobs[record.JobName], m.vanishedPods[record.JobName]
		if m.looked.IsZero() {
			m.looked = now
		}
		seen.doubtful = m.suspect || now.Sub(m.looked) >= r.RecheckInterval
	})
	return seen
}

// lookLive asks the API server. A task that is newer there ends the reconcile: what
// was read may be older than what is done.
func (r *Reconciler) lookLive(ctx context.Context, task *v1alpha1.AgentTask, record *engine.Current, seen sight, world *engine.World) error {
	now := r.Clock.Now()
	live := taskMetadata()
	err := r.Live.Get(ctx, client.ObjectKeyFromObject(task), live)
	switch {
	case apierrors.IsNotFound(err):
		r.memory.dropTask(client.ObjectKeyFromObject(task))
		return errGone
	case err != nil:
		return err
	}
	if live.UID != task.UID || live.ResourceVersion != task.ResourceVersion {
		r.memory.dropTask(client.ObjectKeyFromObject(task))
		return errStale
	}
	if err := r.look(ctx, r.Live, task, record, seen, world); err != nil {
		return err
	}
	r.memory.with(client.ObjectKeyFromObject(task), task.UID, func(m *taskMemory) { m.looked, m.suspect = now, false })
	return nil
}

// look reads the current attempt's Job and pod and says whose they are.
func (r *Reconciler) look(ctx context.Context, from client.Reader, task *v1alpha1.AgentTask, record *engine.Current, seen sight, world *engine.World) error {
	key := types.NamespacedName{Namespace: task.Namespace, Name: record.JobName}
	job := &batchv1.Job{}
	switch err := from.Get(ctx, key, job); {
	case apierrors.IsNotFound(err):
		world.JobVanished = seen.vanishedJob != ""
	case err != nil:
		return err
	default:
		if world.Conflict = jobConflict(job, task, record.ActionStatus); world.Conflict == nil {
			world.Job = job
		}
	}
	pod := &corev1.Pod{}
	switch err := from.Get(ctx, key, pod); {
	case apierrors.IsNotFound(err):
		rememberPod(world, record, seen)
	case err != nil:
		return err
	case record.PodUID != "" && pod.UID != record.PodUID: // not the one that may run
		rememberPod(world, record, seen)
	case record.PodUID != "" || podOf(pod, world.Job, seen.vanishedJob):
		world.Pod = pod
	default:
		world.Blocked, world.Conflict = foreignPod(pod, record.ActionStatus, world.Conflict)
	}
	return nil
}

// rememberPod gives what was last seen of the attempt's pod, which is not there any more.
func rememberPod(world *engine.World, record *engine.Current, seen sight) {
	last := seen.vanishedPod
	if last.Pod == nil {
		return
	}
	if last.UID == record.PodUID || (record.PodUID == "" && podOf(last.Pod, world.Job, seen.vanishedJob)) {
		world.PodVanished, world.LastPod, world.LastPodFinal = true, last.Pod, last.final
	}
}

// jobConflict says why a Job of the attempt's name is not the attempt's, or nil.
func jobConflict(job *batchv1.Job, task *v1alpha1.AgentTask, record *v1alpha1.ActionStatus) *engine.Problem {
	owner := metav1.GetControllerOf(job)
	hash := job.Annotations[v1alpha1.AnnotationActionHash]
	switch {
	case owner == nil || owner.UID != task.UID:
		return nameConflict("Job %s belongs to %s, not to this task; delete it to go on", job.Name, ownerName(owner))
	case !managedByUs(job):
		return nameConflict("Job %s is not managed by %s; delete it to go on", job.Name, v1alpha1.ManagedBy)
	case hash != record.ActionHash:
		return nameConflict("Job %s was made for another action (%s, not %s); delete it to go on", job.Name, hash, record.ActionHash)
	}
	return nil
}

func managedByUs(job *batchv1.Job) bool {
	return ptr.Deref(job.Spec.ManagedBy, "") == v1alpha1.ManagedBy
}

// podOf says whether a pod is controlled by the attempt's Job, or by that Job before
// it was seen to be deleted.
func podOf(pod *corev1.Pod, job *batchv1.Job, vanishedJob types.UID) bool {
	owner := metav1.GetControllerOf(pod)
	if owner == nil {
		return false
	}
	return (job != nil && owner.UID == job.UID) || (vanishedJob != "" && owner.UID == vanishedJob)
}

// foreignPod says what a pod of the attempt's name is that is not the attempt's: one of
// a deleted Job of that name goes away by itself, any other is a stranger's.
func foreignPod(pod *corev1.Pod, record *v1alpha1.ActionStatus, conflict *engine.Problem) (blocked, stranger *engine.Problem) {
	owner := metav1.GetControllerOf(pod)
	switch {
	case conflict != nil:
		return nil, conflict
	case owner != nil && owner.Kind == "Job" && owner.Name == record.JobName:
		return &engine.Problem{Reason: v1alpha1.ReasonPodLost, Message: fmt.Sprintf(
			"pod %s of a deleted Job is still there; the step goes on when the garbage collector has removed it", pod.Name)}, nil
	}
	return nil, nameConflict("pod %s belongs to %s, not to this task's Job; delete it to go on", pod.Name, ownerName(owner))
}

func nameConflict(format string, args ...any) *engine.Problem {
	return &engine.Problem{Reason: v1alpha1.ReasonNameConflict, Message: fmt.Sprintf(format, args...)}
}

func ownerName(owner *metav1.OwnerReference) string {
	if owner == nil {
		return "nobody"
	}
	return fmt.Sprintf("%s %s (%s)", owner.Kind, owner.Name, owner.UID)
}

// endedJobs are the task's Jobs whose attempt is over and that lack their final status.
func (r *Reconciler) endedJobs(ctx context.Context, task *v1alpha1.AgentTask, running *engine.Current) ([]*batchv1.Job, error) {
	list := &batchv1.JobList{}
	err := r.List(ctx, list, client.InNamespace(task.Namespace), client.MatchingFields{indexOpenJobs: string(task.UID)})
	if err != nil {
		return nil, err
	}
	var ended []*batchv1.Job
	for i := range list.Items {
		job := &list.Items[i]
		if running != nil && job.Name == running.JobName {
			continue
		}
		open := false
		r.memory.with(client.ObjectKeyFromObject(task), task.UID, func(m *taskMemory) { open = !m.settled[job.UID] })
		if open && job.DeletionTimestamp.IsZero() {
			ended = append(ended, job)
		}
	}
	return ended, nil
}
