// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

// Command crdtrim makes the CRDs that controller-gen writes small enough for a plain
// client-side kubectl apply, and the schema of embedded Kubernetes types fit for our
// rules. It rewrites the files that are named as arguments; see trim.go for what it
// changes.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"reflect"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
)

// maxBytes is how large a CRD may be as JSON. The annotation that kubectl apply keeps
// it in may hold 262,144 bytes together with all others.
const maxBytes = 200_000

func main() {
	for _, file := range os.Args[1:] {
		if err := rewrite(file); err != nil {
			fmt.Fprintf(os.Stderr, "crdtrim: %s: %v\n", file, err)
			os.Exit(1)
		}
	}
}

func rewrite(file string) error {
	in, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict(in, crd); err != nil {
		return err
	}
	if err := trimVersions(crd); err != nil {
		return err
	}
	out, err := encode(crd)
	if err != nil {
		return err
	}
	fmt.Printf("%s: %d bytes as JSON (limit %d)\n", crd.Name, len(out), maxBytes)
	if len(out) >= maxBytes {
		return fmt.Errorf("%d bytes as JSON are too many for kubectl apply: drop descriptions or use fewer embedded types", len(out))
	}
	text, err := yaml.JSONToYAML(out)
	if err != nil {
		return err
	}
	return os.WriteFile(file, append([]byte("---\n"), text...), 0o644)
}

// trimVersions trims the schema of each version by the Go type it was made from.
func trimVersions(crd *apiextensionsv1.CustomResourceDefinition) error {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return err
	}
	for i := range crd.Spec.Versions {
		version := &crd.Spec.Versions[i]
		obj, err := scheme.New(schema.GroupVersionKind{Group: crd.Spec.Group, Version: version.Name, Kind: crd.Spec.Names.Kind})
		if err != nil {
			return err
		}
		trim(version.Schema.OpenAPIV3Schema, reflect.TypeOf(obj))
	}
	return nil
}

// encode writes a CRD as JSON without the fields that only a server sets.
func encode(crd *apiextensionsv1.CustomResourceDefinition) ([]byte, error) {
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(crd)
	if err != nil {
		return nil, err
	}
	delete(object, "status")
	if meta, ok := object["metadata"].(map[string]any); ok {
		delete(meta, "creationTimestamp")
	}
	return json.Marshal(object)
}
