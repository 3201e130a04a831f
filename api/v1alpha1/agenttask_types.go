// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// AgentTask is one run of one plan: an ordered list of steps, each run as a Job
// whose name derives from the task's UID and the step. Its status is the
// checkpoint: whatever is recorded there is never run again, and a crash of the
// operator, a node or the API server is a pause, not a reset.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=agt,categories=all
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Step",type=string,JSONPath=`.status.currentStep`
// +kubebuilder:printcolumn:name="Progress",type=string,JSONPath=`.status.progress`
// +kubebuilder:printcolumn:name="Retries",type=integer,JSONPath=`.status.usage.retries`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Run-ID",type=string,JSONPath=`.status.runID`,priority=1
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`,priority=1
// +kubebuilder:printcolumn:name="Checkpoint",type=date,JSONPath=`.status.checkpointTime`,priority=1
type AgentTask struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the plan and how to run it.
	// +required
	Spec AgentTaskSpec `json:"spec"`

	// status is the checkpoint. Only the operator writes it.
	// +optional
	Status AgentTaskStatus `json:"status,omitempty"`
}

// AgentTaskList is a list of AgentTask.
//
// +kubebuilder:object:root=true
type AgentTaskList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []AgentTask `json:"items"`
}

// OnFailure is what a task does when one of its steps has failed for good.
// +kubebuilder:validation:Enum=Stop
type OnFailure string

// OnFailureStop ends the task as Failed; later steps do not run.
const OnFailureStop OnFailure = "Stop"

// JobHistory is which Jobs of ended attempts stay, to be looked at.
// +kubebuilder:validation:Enum=All;Failed;None
type JobHistory string

const (
	// JobHistoryAll keeps every Job and pod until the task itself is deleted.
	JobHistoryAll JobHistory = "All"
	// JobHistoryFailed deletes the Job of an attempt that succeeded as soon as
	// its result is in the checkpoint, and keeps the others.
	JobHistoryFailed JobHistory = "Failed"
	// JobHistoryNone deletes each Job as soon as its outcome is in the checkpoint.
	JobHistoryNone JobHistory = "None"
)

// AgentTaskSpec is the plan and how to run it.
//
// +kubebuilder:validation:XValidation:rule="has(self.runID) == has(oldSelf.runID) && (!has(self.runID) || self.runID == oldSelf.runID)",message="runID is immutable: idempotency keys derive from it; create another AgentTask for another run"
// +kubebuilder:validation:XValidation:rule="has(self.verify) == has(oldSelf.verify)",message="verify is immutable; create another AgentTask to test the plan in another way"
// +kubebuilder:validation:XValidation:rule="!(has(oldSelf.cancel) && oldSelf.cancel) || (has(self.cancel) && self.cancel)",message="cancel cannot be taken back; create another AgentTask to run the plan again"
type AgentTaskSpec struct {
	// description says in a sentence what the task is for. It is shown to people
	// and has no effect. At most 1024 characters.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Description string `json:"description,omitempty"`

	// runID names the run: idempotency keys derive from it, so a task that is
	// deleted and created again under the same runID sends the same keys.
	// Default: the task's metadata.uid, so that each new object is a new run.
	// Immutable. At most 63 lower-case letters, digits, '-' and '.', beginning and
	// ending with a letter or digit.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')",message="runID must be lower-case letters, digits, '-' and '.', and begin and end with a letter or digit, for example refund-order-123"
	RunID string `json:"runID,omitempty"`

	// params is a JSON object of the task's own values. Steps read them in
	// expressions as ${params.name}.
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=object
	Params *apiextensionsv1.JSON `json:"params,omitempty"`

	// steps is the plan, run in the order in which it stands. A step starts when the
	// result of the step before it is in the checkpoint. At least 1, at most 500;
	// names are unique. A step that has started may not be changed, and nothing may
	// be put before it: the task then waits with condition Stalled, reason
	// PlanChanged, until the change is taken back. Steps that have not started may
	// be changed.
	// +required
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=500
	Steps []Step `json:"steps"`

	// onFailure is what happens when a step has failed for good. Stop (the default)
	// ends the task as Failed.
	// +optional
	// +kubebuilder:default=Stop
	OnFailure OnFailure `json:"onFailure,omitempty"`

	// suspend, while true, starts nothing new: a step that is running finishes and
	// its result is recorded. Set it to false to go on. activeDeadlineSeconds keeps
	// counting.
	// +optional
	Suspend bool `json:"suspend,omitempty"`

	// cancel, once true, stops the running step (SIGTERM, then SIGKILL after the
	// pod's terminationGracePeriodSeconds) and ends the task as Cancelled. It cannot
	// be taken back. What finished steps did is not undone.
	// +optional
	Cancel bool `json:"cancel,omitempty"`

	// activeDeadlineSeconds is how long the task may take, in seconds since
	// status.startTime, waits and suspension included. Past it the running step is
	// stopped and the task fails with reason DeadlineExceeded. Default: no limit.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=315360000
	ActiveDeadlineSeconds *int64 `json:"activeDeadlineSeconds,omitempty"`

	// ttlSecondsAfterFinished is how long the task stays after it has ended, in
	// seconds since status.completionTime; then it is deleted, its Jobs and pods with
	// it. 0 deletes it at once. Default: it stays until somebody deletes it.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=315360000
	TTLSecondsAfterFinished *int32 `json:"ttlSecondsAfterFinished,omitempty"`

	// jobHistory is which Jobs of ended attempts stay, to be looked at with kubectl
	// get jobs and kubectl logs: All (the default) keeps each until the task is
	// deleted, Failed only those of attempts that did not succeed, None none.
	// +optional
	// +kubebuilder:default=All
	JobHistory JobHistory `json:"jobHistory,omitempty"`

	// podTemplate is what every step's pod starts from: labels, annotations, service
	// account, node selection, tolerations, volumes, image pull secrets, security
	// context, priority. The operator adds the step's container, named "step"; a
	// container of that name given here is its base. Sidecars are init containers
	// with restartPolicy Always. Where a security context sets nothing else, step
	// pods meet the Pod Security level "restricted" and run as user 65532.
	// +optional
	// +kubebuilder:validation:XValidation:rule="!has(self.spec) || !has(self.spec.containers) || self.spec.containers.all(c, c.name == 'step')",message="podTemplate.spec.containers may hold only a container named step, the base of each step's container; give a sidecar as an init container with restartPolicy Always"
	// +kubebuilder:validation:XValidation:rule="!has(self.spec) || !has(self.spec.restartPolicy) || self.spec.restartPolicy == 'Never'",message="podTemplate.spec.restartPolicy must be Never or left out: retries are the task's, see steps[].retry"
	// +kubebuilder:validation:XValidation:rule="!has(self.spec) || !has(self.spec.containers) || self.spec.containers.all(c, !has(c.restartPolicy) && !has(c.restartPolicyRules))",message="podTemplate.spec.containers must not set restartPolicy or restartPolicyRules: retries are the task's, see steps[].retry"
	// +kubebuilder:validation:XValidation:rule="!has(self.spec) || !has(self.spec.initContainers) || self.spec.initContainers.all(c, !has(c.restartPolicyRules))",message="podTemplate.spec.initContainers must not set restartPolicyRules, which may restart the step; a sidecar has restartPolicy Always"
	// +kubebuilder:validation:XValidation:rule="!has(self.spec) || !has(self.spec.activeDeadlineSeconds)",message="podTemplate.spec.activeDeadlineSeconds is set by the operator; use steps[].timeout"
	PodTemplate *corev1.PodTemplateSpec `json:"podTemplate,omitempty"`

	// verify tests the plan's steps: each that ends well is run a second time with the
	// same idempotency key, and must leave the world and its output as the first run did.
	// It is for test environments; see docs/verify.md.
	// +optional
	Verify *Verify `json:"verify,omitempty"`
}

// VerifyMode is how steps are tested.
// +kubebuilder:validation:Enum=RunTwice
type VerifyMode string

// VerifyRunTwice runs each step twice with the same key and compares.
const VerifyRunTwice VerifyMode = "RunTwice"

// Verify tests that steps may be run twice.
//
// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="verify is immutable; create another AgentTask to test the plan in another way"
type Verify struct {
	// mode is RunTwice: after a step has succeeded the observer looks at the world, the
	// step is run again with the same key and input, and the observer looks again. Where
	// the two views or the two outputs differ, the step fails with reason NotIdempotent
	// and the difference. Steps with effect Once are run once: they promise nothing about a
	// second run.
	// +required
	Mode VerifyMode `json:"mode"`

	// observe is a read-only action whose output is what of the world counts: the rows,
	// files or messages that the steps make, without times and without anything else that
	// changes by itself.
	// +required
	Observe Observe `json:"observe"`
}

// Effect is what running a step a second time would do to the world.
// +kubebuilder:validation:Enum=None;Idempotent;Once
type Effect string

const (
	// EffectNone: the step reads or computes and changes nothing outside.
	EffectNone Effect = "None"
	// EffectIdempotent: the step changes something outside, and running it again
	// with the same idempotency key leaves the world as if it had run once.
	EffectIdempotent Effect = "Idempotent"
	// EffectOnce: the step changes something outside, and running it again might change
	// it again. Each attempt starts at most one process, and an attempt whose outcome is
	// not known is not followed by another before that is settled: see onUnknown.
	EffectOnce Effect = "Once"
)

// OnUnknown is what a step with effect Once does when an attempt may have taken effect
// and left no outcome.
// +kubebuilder:validation:Enum=Pause;Check;Retry;Fail
type OnUnknown string

const (
	// UnknownPause waits for an AgentDecision.
	UnknownPause OnUnknown = "Pause"
	// UnknownCheck runs the step's check: done settles the step, not done leads to
	// another attempt, and a check that fails for good waits for an AgentDecision.
	UnknownCheck OnUnknown = "Check"
	// UnknownRetry makes another attempt with the same key once the pod of the old one
	// is provably dead: what the step calls must then refuse a key that it has seen.
	UnknownRetry OnUnknown = "Retry"
	// UnknownFail ends the step as failed.
	UnknownFail OnUnknown = "Fail"
)

// Step is one step of the plan: a name, exactly one action, and how to run it.
//
// +kubebuilder:validation:XValidation:rule="has(self.run) != has(self.http)",message="a step needs exactly one action: give run with image and command, or http with method and url"
// +kubebuilder:validation:XValidation:rule="!has(self.onUnknown) || (has(self.effect) && self.effect == 'Once')",message="onUnknown is for effect Once; a step of another effect whose outcome is lost is run again with the same key"
// +kubebuilder:validation:XValidation:rule="!has(self.onUnknown) || self.onUnknown != 'Check' || has(self.check)",message="onUnknown: Check needs a check, a read-only action that says whether the step is done"
// +kubebuilder:validation:XValidation:rule="!has(self.check) || (has(self.check.when) && self.check.when == 'Before') || (has(self.onUnknown) && self.onUnknown == 'Check')",message="this check would never run; set onUnknown: Check (with effect Once), or check.when: Before"
type Step struct {
	// name names the step within the task: a DNS label of at most 40 characters
	// (lower-case letters, digits and '-', beginning and ending with a letter or
	// digit). It is part of the Job's name and of the idempotency key, so renaming a
	// step makes it another step.
	// +required
	// +kubebuilder:validation:MaxLength=40
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",message="a step's name must be a DNS label: lower-case letters, digits and '-', beginning and ending with a letter or digit, for example find-order"
	Name string `json:"name"`

	// effect is what running the step a second time would do. None: it changes
	// nothing outside itself. Idempotent (the default): it may change the world, and
	// a second run with the same AGENTTASK_IDEMPOTENCY_KEY changes nothing more. A
	// step of these two whose outcome was lost (its pod was deleted, its node went away)
	// is run again with the same key. Once: a second run might change the world again.
	// Its pod starts only after it stands in the checkpoint by its UID, at most one
	// process is started for each attempt, and an attempt that may have taken effect and
	// left no outcome is unknown: onUnknown says what then.
	// +optional
	Effect Effect `json:"effect,omitempty"`

	// run runs a program in a container, as a Job.
	// +optional
	Run *RunAction `json:"run,omitempty"`

	// http sends one HTTP request, from a Job.
	// +optional
	HTTP *HTTPAction `json:"http,omitempty"`

	// idempotencyKey is the key of the effect itself, where the one that is derived from
	// runID, step and action is too narrow, for example refund-${params.order}: an agent
	// that plans the same refund again under another step's name then means the same
	// effect. It may hold expressions over params, task and steps, is not combined with
	// the runID, and must name the effect whole. 1 to 255 printable ASCII characters
	// without spaces once rendered. A step whose key already stands on a succeeded step
	// of the run takes that step's output and runs nothing; its reason is Reused.
	// Default: derived, see docs/guarantees.md.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	IdempotencyKey string `json:"idempotencyKey,omitempty"`

	// check is a read-only action that says whether the step's effect has happened. It
	// runs where onUnknown is Check, and with when: Before also before the first attempt.
	// +optional
	Check *Check `json:"check,omitempty"`

	// onUnknown is what happens when an attempt of a step with effect Once may have taken
	// effect and left no outcome (its pod was killed, ran into its timeout, vanished).
	// Pause (the default): it waits for an AgentDecision. Check: the step's check settles
	// it. Retry: it is tried again with the same key. Fail: the step fails.
	// +optional
	OnUnknown OnUnknown `json:"onUnknown,omitempty"`

	// input is any JSON value, given to the program as the file
	// /agenttask/input.json. Strings may hold CEL expressions in ${...}:
	// ${params.order}, ${steps['find-order'].output.charge}, ${task.name}. A string
	// that is exactly one expression keeps the type of its value; otherwise the value
	// is put into the text. Write $${ for a literal ${. At most 128 KiB once rendered.
	// The rendered input is part of the idempotency key. It is for run; what an http action
	// sends stands in http.body. Default: an empty object.
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Schemaless
	Input *apiextensionsv1.JSON `json:"input,omitempty"`

	// retry is when and how often a failed attempt is tried again. Retries happen here
	// and in no other layer. What is retried: exit code 75, a lost pod or node, a
	// program killed from outside or for its memory limit, a pod that could not start;
	// a timeout only with onTimeout. Any other exit code is the program's final word. A
	// step with effect Once is retried where its program asks for it (exit code 75) or
	// provably never ran; whatever else ends without an outcome is unknown.
	// Default: 4 retries, waiting at random up to 1s, 2s, 4s, 8s, for at most 15 minutes.
	// +optional
	Retry *RetryPolicy `json:"retry,omitempty"`

	// timeout is how long one attempt's program may run, for example 90s or 2h. Then
	// it gets SIGTERM and, after the pod's terminationGracePeriodSeconds, SIGKILL,
	// and the attempt fails with reason Timeout. More than 0, at most 8760h (a year).
	// Default: 1h.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+(\\\\.[0-9]+)?(ms|s|m|h))+$') && duration(self) > duration('0s') && duration(self) <= duration('8760h')",message="timeout must be a duration such as 90s, 10m or 1h30m, more than 0s and at most 8760h; leave it out for the default of 1h"
	Timeout *metav1.Duration `json:"timeout,omitempty"`

	// startTimeout is how long an attempt's pod may take until its program runs: to
	// be scheduled, and its image pulled. Past it the pod is removed and the attempt
	// fails with reason Unschedulable, ImageUnavailable or StartTimeout; it is then
	// retried. Under about 15s kubelet may not have reported yet that an image cannot be
	// pulled, and the reason is StartTimeout. More than 0, at most 8760h. Default: 10m.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+(\\\\.[0-9]+)?(ms|s|m|h))+$') && duration(self) > duration('0s') && duration(self) <= duration('8760h')",message="startTimeout must be a duration such as 90s, 10m or 1h30m, more than 0s and at most 8760h; leave it out for the default of 10m"
	StartTimeout *metav1.Duration `json:"startTimeout,omitempty"`
}

// RetryPolicy is when and how often a failed attempt is tried again.
type RetryPolicy struct {
	// limit is how many attempts may follow the first. 0: none. At most 100.
	// Default: 4.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	Limit *int32 `json:"limit,omitempty"`

	// backoff is how long to wait before the next attempt: exponential backoff with full
	// jitter. The wait before retry n (from 0) is drawn evenly from 0 to min(cap, base *
	// 2^n), once, and written to the step's nextAttemptTime, so a restart neither shortens
	// nor restarts it. A Retry-After that the program reports is added to it as a floor.
	// +optional
	Backoff *Backoff `json:"backoff,omitempty"`

	// maxElapsed is how long after the end of the first failed attempt another one
	// may still start. More than 0, at most 8760h. Default: 15m.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+(\\\\.[0-9]+)?(ms|s|m|h))+$') && duration(self) > duration('0s') && duration(self) <= duration('8760h')",message="maxElapsed must be a duration such as 90s, 10m or 1h30m, more than 0s and at most 8760h; to retry nothing, set retry.limit to 0"
	MaxElapsed *metav1.Duration `json:"maxElapsed,omitempty"`

	// onTimeout also retries an attempt that ran into the step's timeout.
	// Default: false.
	// +optional
	OnTimeout bool `json:"onTimeout,omitempty"`
}

// Backoff is exponential backoff with full jitter.
//
// +kubebuilder:validation:XValidation:rule="!has(self.base) || !has(self.cap) || [self.base, self.cap].exists(d, !d.matches('^([0-9]+(\\\\.[0-9]+)?(ms|s|m|h))+$')) || duration(self.base) <= duration(self.cap)",message="base must not be more than cap"
type Backoff struct {
	// base is the upper bound of the first wait. From 1ms to 24h. Default: 1s (or
	// cap, where that is less).
	// +optional
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+(\\\\.[0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('1ms') && duration(self) <= duration('24h')",message="base must be a duration such as 500ms, 1s or 1m, from 1ms to 24h"
	Base *metav1.Duration `json:"base,omitempty"`

	// cap is the upper bound of any wait. From 1ms to 24h. Default: 60s (or base,
	// where that is more).
	// +optional
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+(\\\\.[0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('1ms') && duration(self) <= duration('24h')",message="cap must be a duration such as 30s, 1m or 1h, from 1ms to 24h"
	Cap *metav1.Duration `json:"cap,omitempty"`
}
