// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package stepexec

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
)

// noEviction asks autoscalers to leave a node alone while a pod that must not run twice
// is on it.
var noEviction = map[string]string{
	"cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
	"karpenter.sh/do-not-disrupt":                    "true",
}

// fence makes a pod of a template one that does not start by itself, and that does not
// go away before its outcome stands in the checkpoint. It says whose it is, for the time
// when its Job is gone.
func fence(template *corev1.PodTemplateSpec, task *v1alpha1.AgentTask) {
	template.Annotations = merged(merged(noEviction, template.Annotations), whose(task))
	shut(&template.Finalizers, &template.Spec)
}

// Fence makes sure that a task's pod is fenced, and that the operator finds it, whatever
// became of its Job's template.
func Fence(pod *corev1.Pod, task *v1alpha1.AgentTask) {
	pod.Labels = merged(pod.Labels, map[string]string{v1alpha1.LabelManaged: "true"})
	pod.Annotations = merged(pod.Annotations, whose(task))
	shut(&pod.Finalizers, &pod.Spec)
}

func whose(task *v1alpha1.AgentTask) map[string]string {
	return map[string]string{v1alpha1.AnnotationTaskUID: string(task.UID), v1alpha1.AnnotationTask: task.Name}
}

func shut(finalizers *[]string, spec *corev1.PodSpec) {
	if !slices.Contains(*finalizers, v1alpha1.FenceFinalizer) {
		*finalizers = append(*finalizers, v1alpha1.FenceFinalizer)
	}
	if !gated(spec) {
		spec.SchedulingGates = append(spec.SchedulingGates, corev1.PodSchedulingGate{Name: v1alpha1.FenceGate})
	}
}

// Gated says whether a pod waits at the fence.
func Gated(pod *corev1.Pod) bool { return gated(&pod.Spec) }

func gated(spec *corev1.PodSpec) bool {
	return slices.ContainsFunc(spec.SchedulingGates, func(g corev1.PodSchedulingGate) bool { return g.Name == v1alpha1.FenceGate })
}

// Held says whether the fence's finalizer keeps a pod.
func Held(pod *corev1.Pod) bool { return slices.Contains(pod.Finalizers, v1alpha1.FenceFinalizer) }
