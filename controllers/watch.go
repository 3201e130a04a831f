// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
)

// SetupWithManager makes the reconciler hear of tasks, Jobs and pods.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	r.defaults()
	var err error
	if r.checkpoints, err = newCheckpoints(mgr.GetConfig(), mgr.GetHTTPClient()); err != nil {
		return fmt.Errorf("client of checkpoints: %w", err)
	}
	for _, index := range []struct {
		of   client.Object
		name string
		keys client.IndexerFunc
	}{
		{&batchv1.Job{}, indexOpenJobs, openJobOwner}, {&corev1.Pod{}, indexHeld, heldTask}, {&v1alpha1.AgentDecision{}, indexDecisions, decisionTask},
	} {
		if err := mgr.GetFieldIndexer().IndexField(context.Background(), index.of, index.name, index.keys); err != nil {
			return fmt.Errorf("index %s: %w", index.name, err)
		}
	}
	if err := mgr.Add(manager.RunnableFunc(r.watchPolicies)); err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named("agenttask").
		For(&v1alpha1.AgentTask{}, builder.OnlyMetadata, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&batchv1.Job{}, r.jobHandler()).
		Watches(&corev1.Pod{}, r.podHandler()).
		Watches(&v1alpha1.AgentDecision{}, handler.EnqueueRequestsFromMapFunc(taskOfDecision), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: r.MaxConcurrent,
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](errorBackoffBase, errorBackoffCap),
		}).
		Complete(r)
}

// A reconcile that failed is tried again after 5ms, doubled with each failure in a row
// up to 30s: a task must not sleep long after an outage has ended.
const (
	errorBackoffBase = 5 * time.Millisecond
	errorBackoffCap  = 30 * time.Second
)

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// jobHandler hears what a reconcile could act upon: a Job that is suspended, resumed,
// marked for deletion or gone.
func (r *Reconciler) jobHandler() handler.EventHandler {
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, q queue) {
			if job, ok := e.Object.(*batchv1.Job); ok && jobSight(job) != (jobSighted{}) {
				r.enqueue(q, taskOfJob(job))
			}
		},
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q queue) {
			before, ok1 := e.ObjectOld.(*batchv1.Job)
			after, ok2 := e.ObjectNew.(*batchv1.Job)
			if !ok1 || !ok2 {
				return
			}
			owner := taskOfJob(after)
			if owner != nil && jobFinished(after) {
				r.memory.seenSettled(owner.NamespacedName, after.UID)
			}
			if jobSight(before) != jobSight(after) {
				r.enqueue(q, owner)
			}
		},
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q queue) {
			job, ok := e.Object.(*batchv1.Job)
			owner := taskOfJob(job)
			if !ok || owner == nil || r.memory.seenSettled(owner.NamespacedName, job.UID) || jobFinished(job) {
				return
			}
			r.memory.jobVanished(owner.NamespacedName, job)
			r.enqueue(q, owner)
		},
	}
}

type jobSighted struct{ suspended, deleted bool }

func jobSight(job *batchv1.Job) jobSighted {
	return jobSighted{ptr.Deref(job.Spec.Suspend, false), !job.DeletionTimestamp.IsZero()}
}

// podHandler hears what a reconcile could act upon: a pod that ended, cannot start,
// has started after it could not, is marked for deletion, or is gone.
func (r *Reconciler) podHandler() handler.EventHandler {
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) {
			if pod, ok := e.Object.(*corev1.Pod); ok && (podSight(pod) != (podSighted{}) || stepexec.Gated(pod)) {
				r.enqueue(q, r.taskOfPod(ctx, pod))
			}
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) {
			before, ok1 := e.ObjectOld.(*corev1.Pod)
			after, ok2 := e.ObjectNew.(*corev1.Pod)
			if ok1 && ok2 && podSight(before) != podSight(after) {
				r.enqueue(q, r.taskOfPod(ctx, after))
			}
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) {
			pod, ok := e.Object.(*corev1.Pod)
			if !ok {
				return
			}
			if owner := r.taskOfPod(ctx, pod); owner != nil {
				// A pod whose label was taken away leaves the cache as one that was deleted does.
				final := !e.DeleteStateUnknown && !pod.DeletionTimestamp.IsZero()
				r.memory.podVanished(owner.NamespacedName, pod, final)
				r.enqueue(q, owner)
			}
		},
	}
}

// podSighted is what of a pod a decision depends on.
type podSighted struct {
	deleted, ended, started bool
	phase, holdup           string
}

func podSight(pod *corev1.Pod) podSighted {
	s := podSighted{deleted: !pod.DeletionTimestamp.IsZero()}
	if pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded {
		s.phase = string(pod.Status.Phase)
	}
	var waits []string
	for _, list := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for _, c := range list {
			if c.State.Waiting != nil && c.State.Waiting.Reason != "PodInitializing" && c.State.Waiting.Reason != "ContainerCreating" {
				waits = append(waits, c.State.Waiting.Reason)
			}
		}
	}
	for _, c := range pod.Status.ContainerStatuses {
		s.ended = s.ended || c.State.Terminated != nil
		s.started = s.started || c.State.Running != nil
	}
	for _, c := range pod.Status.Conditions {
		if c.Status == corev1.ConditionFalse && c.Type == corev1.PodScheduled && c.Reason != corev1.PodReasonSchedulingGated {
			waits = append(waits, "unscheduled")
		}
	}
	s.holdup = strings.Join(waits, ",")
	return s
}

func (r *Reconciler) enqueue(q queue, request *reconcile.Request) {
	if request != nil {
		q.Add(*request)
	}
}

// taskOfJob is the task that controls a Job, or nil. A Job that is not managed by us is
// none of its steps: on a server that drops managedBy, each would call for the next.
func taskOfJob(job *batchv1.Job) *reconcile.Request {
	if job == nil || !managedByUs(job) {
		return nil
	}
	owner := metav1.GetControllerOf(job)
	if owner == nil || owner.Kind != "AgentTask" {
		return nil
	}
	return &reconcile.Request{NamespacedName: types.NamespacedName{Namespace: job.Namespace, Name: owner.Name}}
}

// taskOfPod is the task whose Job controls a pod, or nil.
func (r *Reconciler) taskOfPod(ctx context.Context, pod *corev1.Pod) *reconcile.Request {
	owner := metav1.GetControllerOf(pod)
	if owner == nil || owner.Kind != "Job" {
		return nil
	}
	if key, ok := r.memory.ownerOf(owner.UID); ok {
		return &reconcile.Request{NamespacedName: key}
	}
	job := &batchv1.Job{}
	if err := r.Get(ctx, client.ObjectKey{Namespace: pod.Namespace, Name: owner.Name}, job); err == nil && job.UID == owner.UID {
		return taskOfJob(job)
	}
	// The Job was made by another process and is not in the cache yet, or no more. What the
	// pod says may be wrong, and then a task is looked at in vain.
	if name := cmp.Or(pod.Annotations[v1alpha1.AnnotationTask], pod.Labels[v1alpha1.LabelTask]); name != "" {
		return &reconcile.Request{NamespacedName: types.NamespacedName{Namespace: pod.Namespace, Name: name}}
	}
	return nil
}

// taskOfDecision is the task that a decision is on.
func taskOfDecision(_ context.Context, obj client.Object) []reconcile.Request {
	decision, ok := obj.(*v1alpha1.AgentDecision)
	if !ok {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: decision.Namespace, Name: decision.Spec.Task}}}
}
