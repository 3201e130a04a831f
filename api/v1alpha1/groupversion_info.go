// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 is the AgentTask API: group agenttask.dev, version v1alpha1.
// +kubebuilder:object:generate=true
// +groupName=agenttask.dev
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var (
	// GroupVersion is the group and version of every type in this package.
	GroupVersion = schema.GroupVersion{Group: "agenttask.dev", Version: "v1alpha1"}

	schemeBuilder = runtime.NewSchemeBuilder(addKnownTypes)

	// AddToScheme adds the types of this package to a scheme.
	AddToScheme = schemeBuilder.AddToScheme
)

func addKnownTypes(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &AgentTask{}, &AgentTaskList{}, &AgentDecision{}, &AgentDecisionList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
