// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TaskPhase is the state of a task in one word, for people. Programs read
// status.conditions.
// +kubebuilder:validation:Enum=Pending;Running;Waiting;Unknown;Suspended;Succeeded;Failed;Cancelled
type TaskPhase string

const (
	// TaskPending: the operator has seen the task and started no step.
	TaskPending TaskPhase = "Pending"
	// TaskRunning: a step runs, or is about to.
	TaskRunning TaskPhase = "Running"
	// TaskWaiting: nothing runs until a wait ends: a retry's backoff, a refusal of the
	// API server, a pod that cannot start, a plan that was changed. The Ready
	// condition says which.
	TaskWaiting TaskPhase = "Waiting"
	// TaskUnknown: an attempt of a step with effect Once may have taken effect and left no
	// outcome. The OutcomeUnknown condition says what is known, and what settles it.
	TaskUnknown TaskPhase = "Unknown"
	// TaskSuspended: spec.suspend is true and no step runs.
	TaskSuspended TaskPhase = "Suspended"
	// TaskSucceeded: every step succeeded. Final.
	TaskSucceeded TaskPhase = "Succeeded"
	// TaskFailed: a step failed for good, or the deadline passed. Final.
	TaskFailed TaskPhase = "Failed"
	// TaskCancelled: spec.cancel ended the task. Final.
	TaskCancelled TaskPhase = "Cancelled"
)

// Finished says whether the phase is final.
func (p TaskPhase) Finished() bool {
	return p == TaskSucceeded || p == TaskFailed || p == TaskCancelled
}

// StepPhase is the state of a step that has been started, or of one of its actions.
// +kubebuilder:validation:Enum=Running;Retrying;Stopping;Checking;Verifying;Unknown;Succeeded;Skipped;Failed;Cancelled
type StepPhase string

const (
	// StepRunning: the current attempt is meant to run. It is written before the Job
	// is made.
	StepRunning StepPhase = "Running"
	// StepRetrying: an attempt failed and the next one starts at nextAttemptTime.
	StepRetrying StepPhase = "Retrying"
	// StepStopping: the current attempt is being stopped, reason says why. A result
	// that still comes in is recorded.
	StepStopping StepPhase = "Stopping"
	// StepChecking: the step's check runs, whose record stands in actions.
	StepChecking StepPhase = "Checking"
	// StepVerifying: the step has succeeded and is being tested, see spec.verify; the
	// records of the test stand in actions.
	StepVerifying StepPhase = "Verifying"
	// StepUnknown: the current attempt may have taken effect and left no outcome. A
	// result that still comes in is recorded; else onUnknown or an AgentDecision settles it.
	StepUnknown StepPhase = "Unknown"
	// StepSucceeded: the result is recorded. Final.
	StepSucceeded StepPhase = "Succeeded"
	// StepSkipped: an AgentDecision said to go on without it. Its output is null. Final.
	StepSkipped StepPhase = "Skipped"
	// StepFailed: it failed for good. Final.
	StepFailed StepPhase = "Failed"
	// StepCancelled: it was stopped because the task was cancelled. Final.
	StepCancelled StepPhase = "Cancelled"
)

// Finished says whether the phase is final.
func (p StepPhase) Finished() bool {
	return p == StepFailed || p == StepCancelled || p.Done()
}

// Done says whether the plan goes on after a step in this phase.
func (p StepPhase) Done() bool { return p == StepSucceeded || p == StepSkipped }

// AgentTaskStatus is the checkpoint: all that is needed to go on after a crash.
type AgentTaskStatus struct {
	// observedGeneration is the metadata.generation this status was made from.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// phase is the state in one word, for people.
	// +optional
	Phase TaskPhase `json:"phase,omitempty"`

	// runID is the run that idempotency keys derive from: spec.runID or the UID.
	// +optional
	RunID string `json:"runID,omitempty"`

	// planHash is the sha256 of the steps as they were when the plan was last checked.
	// +optional
	PlanHash string `json:"planHash,omitempty"`

	// progress is finished steps out of all, for example 3/8.
	// +optional
	Progress string `json:"progress,omitempty"`

	// currentStep is the step that runs, waits, or ended the task.
	// +optional
	CurrentStep string `json:"currentStep,omitempty"`

	// startTime is when the operator first saw the task.
	// +optional
	StartTime *metav1.Time `json:"startTime,omitempty"`

	// completionTime is when the task ended, however it ended.
	// +optional
	CompletionTime *metav1.Time `json:"completionTime,omitempty"`

	// checkpointTime is when this status was last written.
	// +optional
	CheckpointTime *metav1.Time `json:"checkpointTime,omitempty"`

	// conditions follow the kstatus convention: Ready, Succeeded, Reconciling, Stalled,
	// Suspended and OutcomeUnknown, all present from the first reconcile on.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// usage counts what the task has used so far.
	// +optional
	Usage *Usage `json:"usage,omitempty"`

	// steps holds a record for each step that has been started, in plan order.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=500
	Steps []StepStatus `json:"steps,omitempty"`
}

// Usage counts what a task has used.
type Usage struct {
	// attempts is how many attempts have been started, of all steps.
	Attempts int32 `json:"attempts"`
	// retries is how many of them were not a step's first.
	Retries int32 `json:"retries"`
}

// StepStatus is the record of one step that has been started.
//
// +structType=atomic
type StepStatus struct {
	// name is the step's name in spec.steps.
	// +kubebuilder:validation:MaxLength=40
	Name string `json:"name"`

	// specHash is the sha256 (first 16 hex digits) of the step as it stood in the plan
	// when it started, by which a later change to it is noticed.
	SpecHash string `json:"specHash"`

	// effect is the step's effect as it was when it started.
	// +optional
	Effect Effect `json:"effect,omitempty"`

	ActionStatus `json:",inline"`

	// actions are the records of the step's other actions: its check, and those of
	// spec.verify.
	// +optional
	// +listType=map
	// +listMapKey=role
	// +kubebuilder:validation:MaxItems=8
	Actions []RoleStatus `json:"actions,omitempty"`

	// unknown is set from when an attempt may have taken effect and left no outcome, until
	// that is settled: by a later attempt that succeeds, by the check or by a decision.
	// +optional
	Unknown *Unknown `json:"unknown,omitempty"`

	// decision is the AgentDecision that was applied last.
	// +optional
	Decision *AppliedDecision `json:"decision,omitempty"`
}

// ActionStatus is the record of one action: its current attempt, and how it ended.
type ActionStatus struct {
	// phase is the action's state.
	Phase StepPhase `json:"phase"`

	// attempt counts attempts from 1. It is written before the attempt's Job is made. 0:
	// none was made, since a check, a key that was used before or a decision came first.
	// +kubebuilder:validation:Minimum=0
	Attempt int32 `json:"attempt"`

	// idempotencyKey is what the program gets as AGENTTASK_IDEMPOTENCY_KEY, the same
	// for every attempt.
	// +kubebuilder:validation:MaxLength=255
	IdempotencyKey string `json:"idempotencyKey"`

	// actionHash is the sha256 of the exact action: step, command or request, rendered
	// input. An AgentDecision names it.
	ActionHash string `json:"actionHash"`

	// jobName is the name of the current attempt's Job and of its pod.
	// +optional
	JobName string `json:"jobName,omitempty"`

	// jobUID is the UID of the one Job that may run the current attempt of a step with
	// effect Once. Once written it stays for the attempt.
	// +optional
	JobUID types.UID `json:"jobUID,omitempty"`

	// podUID is the UID of the one pod that may run the current attempt of a step with
	// effect Once. Only this pod's scheduling gate is ever removed.
	// +optional
	PodUID types.UID `json:"podUID,omitempty"`

	// startTime is when the first attempt was started.
	StartTime metav1.Time `json:"startTime"`

	// attemptTime is when the current attempt was started, where that is not the first.
	// +optional
	AttemptTime *metav1.Time `json:"attemptTime,omitempty"`

	// firstFailureTime is when the first failed attempt ended; retry.maxElapsed
	// counts from it.
	// +optional
	FirstFailureTime *metav1.Time `json:"firstFailureTime,omitempty"`

	// nextAttemptTime is when the next attempt starts, to the microsecond. It is drawn once.
	// +optional
	NextAttemptTime *metav1.MicroTime `json:"nextAttemptTime,omitempty"`

	// completionTime is when it ended for good.
	// +optional
	CompletionTime *metav1.Time `json:"completionTime,omitempty"`

	// output is the result, any JSON of at most 2 KiB. Larger results stand in
	// outputRef. What has succeeded and has neither has the result null.
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Schemaless
	Output *apiextensionsv1.JSON `json:"output,omitempty"`

	// outputRef says where a larger result is kept.
	// +optional
	OutputRef *OutputRef `json:"outputRef,omitempty"`

	// reason says in one word why it is in its phase, where success does not.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Reason string `json:"reason,omitempty"`

	// message says it in a sentence, with what to do. At most 1 KiB.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
}

// Role is what an action is for its step.
// +kubebuilder:validation:Enum=check;observe;again;observe-again
type Role string

const (
	// RoleMain is the step's own action. Its record is the step's.
	RoleMain Role = "main"
	// RoleCheck is its check.
	RoleCheck Role = "check"
	// RoleObserve is spec.verify's look at the world after the step's own run.
	RoleObserve Role = "observe"
	// RoleAgain is the second run, with the same key.
	RoleAgain Role = "again"
	// RoleObserveAgain is the look at the world after that.
	RoleObserveAgain Role = "observe-again"
)

// RoleStatus is the record of an action that is not the step's own.
type RoleStatus struct {
	// role is what the action is for its step.
	Role Role `json:"role"`

	ActionStatus `json:",inline"`
}

// Unknown is an outcome that is not known.
type Unknown struct {
	// time is when it turned out that no outcome is known.
	Time metav1.Time `json:"time"`

	// attempt is which attempt left no outcome.
	Attempt int32 `json:"attempt"`

	// reason says in one word what became of the attempt.
	// +kubebuilder:validation:MaxLength=64
	Reason string `json:"reason"`

	// message says it in a sentence.
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message"`

	// podDead says that the attempt's pod is provably dead: nothing of the attempt runs
	// any more. Without it no further attempt starts.
	// +optional
	PodDead bool `json:"podDead,omitempty"`
}

// AppliedDecision records who settled what.
type AppliedDecision struct {
	// name of the AgentDecision.
	Name string `json:"name"`
	// uid of the AgentDecision.
	UID types.UID `json:"uid"`
	// decision is what was decided.
	Decision DecisionKind `json:"decision"`
	// attempt is which attempt was decided upon.
	Attempt int32 `json:"attempt"`
	// decidedBy is who decided.
	// +kubebuilder:validation:MaxLength=256
	DecidedBy string `json:"decidedBy"`
	// reason is why, in the decider's words.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Reason string `json:"reason,omitempty"`
	// time is when it was applied.
	Time metav1.Time `json:"time"`
}

// OutputRef says where a result of more than 2 KiB is kept, and how to check it.
type OutputRef struct {
	// uri is where it is: configmap:NAME, the key output.json of a ConfigMap in the
	// task's namespace.
	// +kubebuilder:validation:MaxLength=1024
	URI string `json:"uri"`
	// sha256 of the result's canonical JSON, in hex.
	// +kubebuilder:validation:MaxLength=64
	SHA256 string `json:"sha256"`
	// bytes is the result's size.
	Bytes int64 `json:"bytes"`
}
