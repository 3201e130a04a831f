// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// AgentDecision is one person's decision on one exact attempt of one task's step: what
// became of an effect whose outcome is unknown, and how to go on. Who may create one is a
// matter of RBAC. It is applied once; the task's status records by whom, when and why.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=agd,categories=all
// +kubebuilder:printcolumn:name="Task",type=string,JSONPath=`.spec.task`
// +kubebuilder:printcolumn:name="Step",type=string,JSONPath=`.spec.step`
// +kubebuilder:printcolumn:name="Decision",type=string,JSONPath=`.spec.decision`
// +kubebuilder:printcolumn:name="By",type=string,JSONPath=`.spec.decidedBy`
// +kubebuilder:printcolumn:name="Applied",type=string,JSONPath=`.status.conditions[?(@.type=="Applied")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Applied")].message`,priority=1
type AgentDecision struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the decision. It cannot be changed.
	// +required
	Spec AgentDecisionSpec `json:"spec"`

	// status says what became of it. Only the operator writes it.
	// +optional
	Status AgentDecisionStatus `json:"status,omitempty"`
}

// AgentDecisionList is a list of AgentDecision.
//
// +kubebuilder:object:root=true
type AgentDecisionList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []AgentDecision `json:"items"`
}

// DecisionKind is how a step goes on.
// +kubebuilder:validation:Enum=Retry;Complete;Skip;Abort
type DecisionKind string

const (
	// DecisionRetry makes another attempt with the same key: the effect has not happened,
	// or may happen again. It starts when the old pod is dead or gone.
	DecisionRetry DecisionKind = "Retry"
	// DecisionComplete ends the step as succeeded with the output given here: the effect
	// has happened.
	DecisionComplete DecisionKind = "Complete"
	// DecisionSkip goes on with the next step; this one's output is null.
	DecisionSkip DecisionKind = "Skip"
	// DecisionAbort ends the step as failed.
	DecisionAbort DecisionKind = "Abort"
)

// AgentDecisionSpec is a decision and what it is about. One that was changed after its
// creation is refused.
//
// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="a decision cannot be changed; delete it if it has not been applied, and create another"
type AgentDecisionSpec struct {
	// task is the name of the AgentTask, in the same namespace.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Task string `json:"task"`

	// taskUID is its metadata.uid, so that the decision is not taken for one on a later
	// task of the same name.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	TaskUID string `json:"taskUID"`

	// step is the step's name.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=40
	Step string `json:"step"`

	// attempt is which attempt of the step is decided upon: the record's attempt.
	// +required
	// +kubebuilder:validation:Minimum=1
	Attempt int32 `json:"attempt"`

	// actionHash is the record's actionHash: the exact action that was looked at.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	ActionHash string `json:"actionHash"`

	// decision is how the step goes on: Retry makes another attempt with the same key,
	// Complete takes it as done with the output given here, Skip goes on without it,
	// Abort ends it as failed.
	// +required
	Decision DecisionKind `json:"decision"`

	// output is the step's output, any JSON of at most 2 KiB, with decision Complete.
	// Default: null.
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Schemaless
	Output *apiextensionsv1.JSON `json:"output,omitempty"`

	// decidedBy is who decides: the name by which the API server knows the user that
	// creates this (kubectl auth whoami). An admission policy refuses any other.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	DecidedBy string `json:"decidedBy"`

	// reason is why, for those who read the task later. At most 1024 characters.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Reason string `json:"reason,omitempty"`
}

// AgentDecisionStatus says what became of a decision.
type AgentDecisionStatus struct {
	// conditions has one, Applied. True: the decision was applied. False: it was refused,
	// reason and message say why.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}
