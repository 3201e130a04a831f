// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/engine"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
)

// observeFence gathers what the fence holds of a task, what was decided about it, and
// whether it is guarded.
func (r *Reconciler) observeFence(ctx context.Context, task *v1alpha1.AgentTask, world *engine.World) error {
	held, strangers, err := r.heldPods(ctx, client.ObjectKeyFromObject(task), task.UID)
	if err != nil {
		return err
	}
	if world.Decisions, err = r.openDecisions(ctx, client.ObjectKeyFromObject(task)); err != nil {
		return err
	}
	r.leaveUndone(task, held, world)
	if hasOnce(task) {
		world.Unguarded = r.guard.missing(ctx, r)
	}
	// That the pod of an old task of this name cannot be let go does not hold up the new one.
	err = r.releaseOrphans(ctx, client.ObjectKeyFromObject(task), strangers)
	if err != nil && !errors.Is(err, errStale) {
		logf.FromContext(ctx).Error(err, "a pod of an earlier task of this name is still held")
		return nil
	}
	return err
}

// leaveUndone takes out what was done and is not yet seen in the cache.
func (r *Reconciler) leaveUndone(task *v1alpha1.AgentTask, held []*corev1.Pod, world *engine.World) {
	now := r.Clock.Now()
	world.Held = slices.DeleteFunc(held, func(pod *corev1.Pod) bool { return r.memory.isDone(task, pod.UID, now) })
	world.Decisions = slices.DeleteFunc(world.Decisions, func(d *v1alpha1.AgentDecision) bool { return r.memory.isDone(task, d.UID, now) })
}

func hasOnce(task *v1alpha1.AgentTask) bool {
	return slices.ContainsFunc(task.Spec.Steps, func(s v1alpha1.Step) bool { return s.Effect == v1alpha1.EffectOnce })
}

// heldPods are the pods of a task's name that the fence holds: those of the task itself,
// and those of another of that name, which is gone.
func (r *Reconciler) heldPods(ctx context.Context, key types.NamespacedName, uid types.UID) (own, strangers []*corev1.Pod, err error) {
	list := &corev1.PodList{}
	if err := r.List(ctx, list, client.InNamespace(key.Namespace), client.MatchingFields{indexHeld: key.Name}); err != nil {
		return nil, nil, err
	}
	for i := range list.Items {
		pod := &list.Items[i]
		if pod.Annotations[v1alpha1.AnnotationTaskUID] == string(uid) {
			own = append(own, pod)
		} else {
			strangers = append(strangers, pod)
		}
	}
	return own, strangers, nil
}

// sweep clears up after a task that is gone: pods that the fence holds, and decisions.
func (r *Reconciler) sweep(ctx context.Context, key types.NamespacedName) error {
	_, held, err := r.heldPods(ctx, key, "")
	if err != nil {
		return err
	}
	if err := r.releaseOrphans(ctx, key, held); err != nil {
		return err
	}
	return r.refuseDecisions(ctx, key)
}

// releaseOrphans lets go of pods whose task is gone, as the API server says itself.
func (r *Reconciler) releaseOrphans(ctx context.Context, key types.NamespacedName, pods []*corev1.Pod) error {
	if len(pods) == 0 {
		return nil
	}
	uid, err := r.liveUID(ctx, key)
	if err != nil {
		return err
	}
	for _, pod := range pods {
		if pod.Annotations[v1alpha1.AnnotationTaskUID] == string(uid) {
			return errStale
		}
		if err := r.letGo(ctx, pod, true); err != nil {
			return err
		}
	}
	return nil
}

// liveUID is the UID of the task of a name, or empty where there is none.
func (r *Reconciler) liveUID(ctx context.Context, key types.NamespacedName) (types.UID, error) {
	live := taskMetadata()
	if err := r.Live.Get(ctx, key, live); err != nil {
		return "", client.IgnoreNotFound(err)
	}
	return live.UID, nil
}

// openFence removes the gate of the pod that the checkpoint names: of that very pod, as
// it was when it was looked at, so that a late call finds another state and fails.
func (r *Reconciler) openFence(ctx context.Context, task *v1alpha1.AgentTask, pod *corev1.Pod) (finding, error) {
	opened := "opened " + pod.UID // the same pod is let go of later, under its UID
	if r.memory.isDone(task, opened, r.Clock.Now()) {
		return finding{}, nil
	}
	at := slices.IndexFunc(pod.Spec.SchedulingGates, func(g corev1.PodSchedulingGate) bool { return g.Name == v1alpha1.FenceGate })
	path := fmt.Sprintf("/spec/schedulingGates/%d", at)
	err := r.patchPod(ctx, pod,
		test("/metadata/resourceVersion", pod.ResourceVersion),
		test(path, pod.Spec.SchedulingGates[at]),
		operation{Op: "remove", Path: path})
	switch {
	case err == nil:
		r.remember(task, finding{})
		r.memory.did(task, opened, r.Clock.Now())
		return finding{}, nil
	case apierrors.IsNotFound(err), apierrors.IsConflict(err), testFailed(err): // it is gone, or was changed: look again
		r.memory.with(client.ObjectKeyFromObject(task), task.UID, func(m *taskMemory) { m.suspect = true })
		return finding{}, errStale
	}
	found := findingOf(err, "let the step's pod start")
	if found.refusal != nil {
		found.refusal.Retry = r.refusalBackoff(task)
	}
	return found, unlessRefused(err)
}

// releasePod lets go of a pod whose outcome is recorded, or that is left over.
func (r *Reconciler) releasePod(ctx context.Context, task *v1alpha1.AgentTask, a engine.Action) error {
	if a.Leftover {
		// What no record names may be named by a newer one.
		if err := r.newest(ctx, task); err != nil {
			return err
		}
	}
	if err := r.letGo(ctx, a.Pod, a.Leftover); err != nil {
		return err
	}
	r.memory.did(task, a.Pod.UID, r.Clock.Now())
	return nil
}

// newest is errStale where the API server holds a newer task than was read.
func (r *Reconciler) newest(ctx context.Context, task *v1alpha1.AgentTask) error {
	live := taskMetadata()
	err := r.Live.Get(ctx, client.ObjectKeyFromObject(task), live)
	if err == nil && live.UID == task.UID && live.ResourceVersion == task.ResourceVersion {
		return nil
	}
	r.memory.dropTask(client.ObjectKeyFromObject(task))
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	return errStale
}

// letGo drops the fence's finalizer of a pod, and deletes it where it is left over and
// never started: it would wait for ever.
func (r *Reconciler) letGo(ctx context.Context, pod *corev1.Pod, leftover bool) error {
	if leftover && stepexec.Gated(pod) && pod.DeletionTimestamp.IsZero() {
		if err := r.deleteObject(ctx, pod); err != nil {
			return err
		}
	}
	at := slices.Index(pod.Finalizers, v1alpha1.FenceFinalizer)
	path := fmt.Sprintf("/metadata/finalizers/%d", at)
	err := r.patchPod(ctx, pod, test(path, v1alpha1.FenceFinalizer), operation{Op: "remove", Path: path})
	if testFailed(err) { // it is another pod, or the finalizer is gone or has moved
		live := &corev1.Pod{}
		if err := r.Live.Get(ctx, client.ObjectKeyFromObject(pod), live); err != nil || live.UID != pod.UID || !stepexec.Held(live) {
			return client.IgnoreNotFound(err)
		}
		return errStale
	}
	return client.IgnoreNotFound(err)
}

// operation is one of a JSON patch, RFC 6902.
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

func test(path string, value any) operation { return operation{"test", path, value} }

// patchPod patches one pod: that very one, by its UID.
func (r *Reconciler) patchPod(ctx context.Context, pod *corev1.Pod, operations ...operation) error {
	body, err := json.Marshal(append([]operation{test("/metadata/uid", pod.UID)}, operations...))
	if err != nil {
		return err
	}
	target := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}}
	return r.Patch(ctx, target, client.RawPatch(types.JSONPatchType, body))
}

// testFailed says whether a JSON patch was not applied since the object is not as its
// tests say. The API server answers that as it answers what it finds invalid, but without
// naming a field.
func testFailed(err error) bool {
	status := apierrors.APIStatus(nil)
	return apierrors.IsInvalid(err) && errors.As(err, &status) && (status.Status().Details == nil || len(status.Status().Details.Causes) == 0)
}
