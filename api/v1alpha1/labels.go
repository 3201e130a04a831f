// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// Labels and annotations. None of them decides anything by itself: whose a Job or
// pod is, is read from its controller reference.
const (
	// LabelManaged marks Jobs, pods and ConfigMaps that the operator makes, with the
	// value "true". Written by the operator on creation; read by its caches, which
	// hold only what carries it. Where somebody removes it the operator finds the
	// object by its name.
	LabelManaged = "agenttask.dev/managed"
	// LabelTask is the task's name, for people: kubectl get jobs -l agenttask.dev/task=NAME.
	// Cut to 63 characters. Written by the operator; of a pod whose Job
	// it does not know yet the operator takes it as a hint at which task to look.
	LabelTask = "agenttask.dev/task"
	// LabelStep is the step's name, for people. Written by the operator.
	LabelStep = "agenttask.dev/step"
	// LabelAttempt is the attempt's number, for people. Written by the operator.
	LabelAttempt = "agenttask.dev/attempt"

	// LabelRole is what an action other than the step's own is for: check, observe, again
	// or observe-again. For people. Written by the operator.
	LabelRole = "agenttask.dev/role"

	// AnnotationActionHash, on a Job, is the step record's actionHash. Written by the
	// operator on creation; compared with the record when a Job of that name exists.
	AnnotationActionHash = "agenttask.dev/action-hash"
	// AnnotationGeneration, on a Job, is the task's metadata.generation that it was made
	// from. Written by the operator on creation; where the API server refuses the Job's pod
	// and the task was changed since, the Job is made anew.
	AnnotationGeneration = "agenttask.dev/generation"
	// AnnotationInput, on a step's pod, is the rendered input as canonical JSON. Written
	// by the operator on creation; the pod reads it through the downward API as
	// /agenttask/input.json.
	AnnotationInput = "agenttask.dev/input"

	// AnnotationTaskUID and AnnotationTask, on the pod of a step with effect Once, are its
	// task's UID and full name. Written by the operator on creation; read where such a pod
	// is left over, to see whether its task is still there.
	AnnotationTaskUID = "agenttask.dev/task-uid"
	AnnotationTask    = "agenttask.dev/task"

	// FenceGate is the scheduling gate of the pod of a step with effect Once. Written by
	// the operator on creation; removed by it when the pod's UID stands in the checkpoint.
	FenceGate = "agenttask.dev/fence"
	// FenceFinalizer holds such a pod until its outcome stands in the checkpoint. Written
	// by the operator on creation, and removed by it.
	FenceFinalizer = "agenttask.dev/fence"

	// ManagedBy is spec.managedBy of every step's Job: the built-in Job controller
	// leaves it alone.
	ManagedBy = "agenttask.dev/operator"
)
