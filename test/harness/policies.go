// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// probe names a policy of the harness's own, and the ConfigMap that it refuses.
const probe = "harness-probe"

// InstallPolicies installs the admission policies of config/policy, and returns when they
// are in force.
func (c *Cluster) InstallPolicies(ctx context.Context) error {
	list, err := c.policies()
	if err != nil {
		return err
	}
	for _, obj := range list {
		if err := client.IgnoreAlreadyExists(c.Client.Create(ctx, obj)); err != nil {
			return fmt.Errorf("config/policy: %s %s: %w", obj.GetObjectKind().GroupVersionKind().Kind, obj.GetName(), err)
		}
	}
	return c.waitForProbe(ctx, true)
}

// RemovePolicies takes them away, and returns when they are out of force.
func (c *Cluster) RemovePolicies(ctx context.Context) error {
	list, err := c.policies()
	if err != nil {
		return err
	}
	for _, obj := range list {
		if err := client.IgnoreNotFound(c.Client.Delete(ctx, obj)); err != nil {
			return err
		}
	}
	return c.waitForProbe(ctx, false)
}

// policies are what config/policy holds, and then the probe: the API server takes policies
// in the order in which they came, so that where the probe is in force all others are.
func (c *Cluster) policies() ([]client.Object, error) {
	files, err := filepath.Glob(filepath.Join(c.root, "config", "policy", "*.yaml"))
	if err != nil {
		return nil, err
	}
	var list []client.Object
	for _, file := range files {
		name := filepath.Base(file)
		if name == "kustomization.yaml" {
			continue
		}
		objects, err := c.manifests("policy", name)
		if err != nil {
			return nil, err
		}
		for _, obj := range objects {
			list = append(list, obj)
		}
	}
	if len(list) == 0 {
		return nil, errors.New("config/policy holds no policies")
	}
	return slices.Concat(list, probePolicy()), nil
}

func probePolicy() []client.Object {
	configMaps := admissionv1.NamedRuleWithOperations{RuleWithOperations: admissionv1.RuleWithOperations{
		Operations: []admissionv1.OperationType{admissionv1.Create},
		Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
	}}
	return []client.Object{
		&admissionv1.ValidatingAdmissionPolicy{
			ObjectMeta: metav1.ObjectMeta{Name: probe},
			Spec: admissionv1.ValidatingAdmissionPolicySpec{
				FailurePolicy:    new(admissionv1.Fail),
				MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{configMaps}},
				Validations:      []admissionv1.Validation{{Expression: "object.metadata.name != '" + probe + "'", Message: "the policies are in force"}},
			},
		},
		&admissionv1.ValidatingAdmissionPolicyBinding{
			ObjectMeta: metav1.ObjectMeta{Name: probe},
			Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
				PolicyName: probe, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
			},
		},
	}
}

// waitForProbe waits until the probe is refused, or is not.
func (c *Cluster) waitForProbe(ctx context.Context, refused bool) error {
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, startTimeout, true, func(ctx context.Context) (bool, error) {
		err := c.Client.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: probe}}, client.DryRunAll)
		denied := apierrors.IsInvalid(err) || apierrors.IsForbidden(err)
		if !denied && err != nil {
			return false, err
		}
		return denied == refused, nil
	})
	if err != nil {
		return fmt.Errorf("admission policies: %w", err)
	}
	return nil
}
