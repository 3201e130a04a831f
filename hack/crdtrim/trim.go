// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"reflect"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Bounds of types that are not ours. They are far above what anybody writes; the API server
// needs them to estimate what our CEL rules cost.
const (
	maxContainers     = 8
	maxInitContainers = 16
	maxVolumes        = 64
	maxTolerations    = 64
	maxPullSecrets    = 16
	maxMetadata       = 64
	maxEnvName        = 256
	maxEnvValue       = 32768
	maxPath           = 4096
	maxDuration       = 32
)

// trim walks a schema together with the Go type it was made from. Descriptions of our
// own types stay whole, a paragraph a line. Where a type of Kubernetes begins, its fields keep their
// descriptions and whatever lies deeper loses them.
func trim(s *apiextensionsv1.JSONSchemaProps, t reflect.Type) {
	t = element(t)
	switch t {
	case reflect.TypeFor[corev1.PodTemplateSpec]():
		trimPodTemplate(s)
		return
	case reflect.TypeFor[metav1.Duration]():
		s.MaxLength = new(int64(maxDuration))
	case reflect.TypeFor[corev1.EnvVar]():
		bound(s, "name", maxEnvName)
		bound(s, "value", maxEnvValue)
	case reflect.TypeFor[corev1.VolumeMount]():
		bound(s, "mountPath", maxPath)
	}
	if isCore(t) {
		dropDescriptions(s, 1)
		return
	}
	s.Description = joinLines(s.Description)
	for _, field := range reflect.VisibleFields(structOf(t)) {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if child, ok := s.Properties[name]; ok {
			trimField(&child, field.Type)
			s.Properties[name] = child
		}
	}
}

// trimField trims a field's schema, that of its items where it is a list.
func trimField(s *apiextensionsv1.JSONSchemaProps, t reflect.Type) {
	s.Description = joinLines(s.Description)
	if s.Items != nil && s.Items.Schema != nil {
		s = s.Items.Schema
		if isCore(element(t)) {
			s.Description = "" // the list's own says it
		}
	}
	trim(s, t)
}

// lineBreak is a line break inside a paragraph; lists and indented lines keep theirs.
var lineBreak = regexp.MustCompile(`([^\n])\n([^\n\s-])`)

// joinLines makes each paragraph one line, which kubectl explain breaks as it likes.
func joinLines(text string) string { return lineBreak.ReplaceAllString(text, "$1 $2") }

// trimPodTemplate fits the pod template to what the operator does with it: the
// template may leave out containers, and its metadata is labels and annotations.
func trimPodTemplate(s *apiextensionsv1.JSONSchemaProps) {
	s.Properties["metadata"] = podMetadata()
	spec := s.Properties["spec"]
	spec.Description = "spec of the pod. The step's container is added to it."
	spec.Required = nil
	dropDescriptions(&spec, 1)
	delete(spec.Properties, "ephemeralContainers") // no pod is created with them
	for name, items := range map[string]int64{
		"containers":       maxContainers,
		"initContainers":   maxInitContainers,
		"volumes":          maxVolumes,
		"tolerations":      maxTolerations,
		"imagePullSecrets": maxPullSecrets,
	} {
		list := spec.Properties[name]
		list.MaxItems = &items
		// Go programs write a list that is not set as null.
		list.Nullable = name == "containers"
		spec.Properties[name] = list
	}
	containers := spec.Properties["containers"]
	containers.Description = `At most one container, named step: the base of each step's container. Fields of steps[].run take its place.`
	bound(containers.Items.Schema, "name", 63)
	spec.Properties["containers"] = containers
	s.Properties["spec"] = spec
}

func podMetadata() apiextensionsv1.JSONSchemaProps {
	values := func(description string) apiextensionsv1.JSONSchemaProps {
		return apiextensionsv1.JSONSchemaProps{
			Description:          description,
			Type:                 "object",
			MaxProperties:        new(int64(maxMetadata)),
			AdditionalProperties: &apiextensionsv1.JSONSchemaPropsOrBool{Schema: &apiextensionsv1.JSONSchemaProps{Type: "string"}},
		}
	}
	return apiextensionsv1.JSONSchemaProps{
		Description: "metadata of the pod: labels and annotations.",
		Type:        "object",
		Properties: map[string]apiextensionsv1.JSONSchemaProps{
			"labels":      values("labels of each step's pod. Those that begin with agenttask.dev/ are the operator's. At most 64."),
			"annotations": values("annotations of each step's pod. Those that begin with agenttask.dev/ are the operator's. At most 64."),
		},
	}
}

// bound sets the longest value of a string field.
func bound(s *apiextensionsv1.JSONSchemaProps, name string, length int64) {
	field := s.Properties[name]
	field.MaxLength = &length
	s.Properties[name] = field
}

// dropDescriptions drops the descriptions of all that lies more than keep levels of
// fields below s. Items of a list are on the list's own level, and say nothing that
// the list does not.
func dropDescriptions(s *apiextensionsv1.JSONSchemaProps, keep int) {
	if s.Items != nil && s.Items.Schema != nil {
		s.Items.Schema.Description = ""
		dropDescriptions(s.Items.Schema, keep)
	}
	if s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil {
		dropDescriptions(s.AdditionalProperties.Schema, keep)
	}
	for name, child := range s.Properties {
		if keep <= 0 {
			child.Description = ""
		}
		dropDescriptions(&child, keep-1)
		s.Properties[name] = child
	}
}

// element is the type that a pointer, list or map is of.
func element(t reflect.Type) reflect.Type {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice || t.Kind() == reflect.Map {
		t = t.Elem()
	}
	return t
}

func isCore(t reflect.Type) bool { return strings.HasPrefix(t.PkgPath(), "k8s.io/api/") }

// structOf is t, or an empty struct where t has no fields.
func structOf(t reflect.Type) reflect.Type {
	if t.Kind() == reflect.Struct {
		return t
	}
	return reflect.TypeFor[struct{}]()
}
