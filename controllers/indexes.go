// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
)

// indexOpenJobs finds Jobs without a final status by the UID of the task that controls
// them.
const indexOpenJobs = "agenttask.dev/open-jobs"

func openJobOwner(obj client.Object) []string {
	job, ok := obj.(*batchv1.Job)
	if !ok || jobFinished(job) || !managedByUs(job) {
		return nil
	}
	owner := metav1.GetControllerOf(job)
	if owner == nil || owner.Kind != "AgentTask" {
		return nil
	}
	return []string{string(owner.UID)}
}

// indexHeld finds the pods that the fence's finalizer holds, by the name of their task.
const indexHeld = "agenttask.dev/held"

func heldTask(obj client.Object) []string {
	pod, ok := obj.(*corev1.Pod)
	if !ok || !stepexec.Held(pod) || pod.Annotations[v1alpha1.AnnotationTask] == "" {
		return nil
	}
	return []string{pod.Annotations[v1alpha1.AnnotationTask]}
}

// indexDecisions finds AgentDecisions without an answer by the name of their task.
const indexDecisions = "agenttask.dev/open-decisions"

func decisionTask(obj client.Object) []string {
	decision, ok := obj.(*v1alpha1.AgentDecision)
	if !ok || meta.FindStatusCondition(decision.Status.Conditions, v1alpha1.ConditionApplied) != nil {
		return nil
	}
	return []string{decision.Spec.Task}
}

func jobFinished(job *batchv1.Job) bool {
	for _, c := range job.Status.Conditions {
		if (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == corev1.ConditionTrue {
			return true
		}
	}
	return false
}

// CacheByObject is what the operator's caches hold: of Jobs and pods only its own, and
// of each only what is read. Objects are handed out without a copy: what comes from a
// cache may neither be changed nor written back whole.
func CacheByObject() map[client.Object]cache.ByObject {
	managed := labels.SelectorFromSet(labels.Set{v1alpha1.LabelManaged: "true"})
	return map[client.Object]cache.ByObject{
		&v1alpha1.AgentTask{}:     {Transform: trimTask, UnsafeDisableDeepCopy: new(true)},
		&batchv1.Job{}:            {Label: managed, Transform: trimJob, UnsafeDisableDeepCopy: new(true)},
		&v1alpha1.AgentDecision{}: {Transform: cache.TransformStripManagedFields(), UnsafeDisableDeepCopy: new(true)},
		&corev1.Pod{}:             {Label: managed, Transform: trimPod, UnsafeDisableDeepCopy: new(true)},
	}
}

// trimTask keeps what tells one version of a task from another. The annotation that
// kubectl apply writes holds the whole plan.
func trimTask(obj any) (any, error) {
	task, ok := obj.(*metav1.PartialObjectMetadata)
	if !ok {
		return obj, nil
	}
	trimmed := &metav1.PartialObjectMetadata{TypeMeta: task.TypeMeta, ObjectMeta: trimMeta(task)}
	trimmed.Generation = task.Generation
	return trimmed, nil
}

func trimJob(obj any) (any, error) {
	job, ok := obj.(*batchv1.Job)
	if !ok {
		return obj, nil
	}
	return &batchv1.Job{
		ObjectMeta: trimMeta(job, v1alpha1.AnnotationActionHash),
		Spec:       batchv1.JobSpec{Suspend: job.Spec.Suspend, ManagedBy: job.Spec.ManagedBy},
		Status:     batchv1.JobStatus{Conditions: job.Status.Conditions},
	}, nil
}

func trimPod(obj any) (any, error) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return obj, nil
	}
	trimmed := trimMeta(pod, v1alpha1.AnnotationTaskUID, v1alpha1.AnnotationTask)
	trimmed.Finalizers, trimmed.DeletionGracePeriodSeconds = pod.Finalizers, pod.DeletionGracePeriodSeconds
	if name := pod.Labels[v1alpha1.LabelTask]; name != "" {
		trimmed.Labels = map[string]string{v1alpha1.LabelTask: name}
	}
	return &corev1.Pod{
		ObjectMeta: trimmed,
		Spec: corev1.PodSpec{
			NodeName: pod.Spec.NodeName, SchedulingGates: pod.Spec.SchedulingGates, InitContainers: trimInit(pod.Spec.InitContainers),
		},
		Status: corev1.PodStatus{
			Phase: pod.Status.Phase, Reason: pod.Status.Reason, Message: pod.Status.Message, Conditions: trimConditions(pod.Status.Conditions),
			StartTime: pod.Status.StartTime, InitContainerStatuses: pod.Status.InitContainerStatuses, ContainerStatuses: pod.Status.ContainerStatuses,
		},
	}, nil
}

// trimInit keeps what tells an init container from a sidecar. The operator's own is known
// by its name.
func trimInit(list []corev1.Container) []corev1.Container {
	kept := make([]corev1.Container, 0, len(list))
	for i := range list {
		kept = append(kept, corev1.Container{Name: list[i].Name, RestartPolicy: list[i].RestartPolicy})
	}
	return kept
}

// trimConditions keeps the conditions that the engine reads.
func trimConditions(list []corev1.PodCondition) []corev1.PodCondition {
	var kept []corev1.PodCondition
	for _, c := range list {
		if c.Type == corev1.PodScheduled || c.Type == corev1.DisruptionTarget {
			kept = append(kept, c)
		}
	}
	return kept
}

func trimMeta(obj metav1.Object, annotations ...string) metav1.ObjectMeta {
	trimmed := metav1.ObjectMeta{
		Name: obj.GetName(), Namespace: obj.GetNamespace(), UID: obj.GetUID(), ResourceVersion: obj.GetResourceVersion(),
		CreationTimestamp: obj.GetCreationTimestamp(), DeletionTimestamp: obj.GetDeletionTimestamp(), OwnerReferences: obj.GetOwnerReferences(),
	}
	for _, key := range annotations {
		if value, ok := obj.GetAnnotations()[key]; ok {
			if trimmed.Annotations == nil {
				trimmed.Annotations = map[string]string{}
			}
			trimmed.Annotations[key] = value
		}
	}
	return trimmed
}
