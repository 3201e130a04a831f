// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

type schemas = map[string]apiextensionsv1.JSONSchemaProps

func described(text string, fields schemas) apiextensionsv1.JSONSchemaProps {
	return apiextensionsv1.JSONSchemaProps{Description: text, Properties: fields}
}

func TestDescriptionsOfOwnTypesStayAndThoseOfEmbeddedTypesEndBelowTheirFields(t *testing.T) {
	type own struct {
		Env     []corev1.EnvVar  `json:"env"`
		Timeout *metav1.Duration `json:"timeout"`
	}
	item := described("EnvVar represents ...", schemas{
		"name":      described("its name", nil),
		"value":     described("its value", nil),
		"valueFrom": described("its source", schemas{"fieldRef": described("a field", nil)}),
	})
	env := described("env sets\nvariables.\n\n- one\n- two", nil)
	env.Items = &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &item}
	root := described("own\ntype", schemas{"env": env, "timeout": described("how long", nil)})

	trim(&root, reflect.TypeFor[own]())

	got := map[string]string{
		"":              root.Description,
		"env":           root.Properties["env"].Description,
		"env[]":         item.Description,
		"env.name":      item.Properties["name"].Description,
		"env.valueFrom": item.Properties["valueFrom"].Description,
		"env.valueFrom.fieldRef": item.Properties["valueFrom"].
			Properties["fieldRef"].Description,
		"timeout": root.Properties["timeout"].Description,
	}
	want := map[string]string{
		"":                       "own type",
		"env":                    "env sets variables.\n\n- one\n- two",
		"env[]":                  "",
		"env.name":               "its name",
		"env.valueFrom":          "its source",
		"env.valueFrom.fieldRef": "",
		"timeout":                "how long",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("descriptions (-want +got):\n%s", diff)
	}
	if got := root.Properties["timeout"].MaxLength; got == nil || *got != maxDuration {
		t.Errorf("a duration's longest value is %v, want %d", got, maxDuration)
	}
}

func TestAPodTemplateMayLeaveOutContainersAndKeepsItsLabels(t *testing.T) {
	containers := apiextensionsv1.JSONSchemaProps{Items: &apiextensionsv1.JSONSchemaPropsOrArray{
		Schema: &apiextensionsv1.JSONSchemaProps{Properties: schemas{"name": {}}},
	}}
	spec := described("", schemas{"containers": containers, "ephemeralContainers": {}})
	spec.Required = []string{"containers"}
	template := described("podTemplate", schemas{"metadata": {}, "spec": spec})

	trim(&template, reflect.TypeFor[*corev1.PodTemplateSpec]())

	spec = template.Properties["spec"]
	if len(spec.Required) > 0 {
		t.Errorf("required fields of the pod's spec: %v, want none", spec.Required)
	}
	if _, ok := spec.Properties["ephemeralContainers"]; ok {
		t.Error("ephemeralContainers are still there")
	}
	if got := spec.Properties["containers"]; !got.Nullable || got.MaxItems == nil {
		t.Error("containers are not nullable, or have no bound")
	}
	for _, name := range []string{"labels", "annotations"} {
		if _, ok := template.Properties["metadata"].Properties[name]; !ok {
			t.Errorf("metadata.%s is not in the schema: the API server would drop it", name)
		}
	}
}
