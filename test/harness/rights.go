// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// serviceAccount is who the operator is to the API server where it is installed.
const serviceAccount = "system:serviceaccount:agenttask-system:agenttask-operator"

// manifests reads the objects of a file of config, with the operator's user in the place
// of its service account.
func (c *Cluster) manifests(path ...string) ([]*unstructured.Unstructured, error) {
	file := filepath.Join(append([]string{c.root, "config"}, path...)...)
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	text = bytes.ReplaceAll(text, []byte(serviceAccount), []byte(OperatorUser))
	documents := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096)
	var list []*unstructured.Unstructured
	for {
		obj := &unstructured.Unstructured{}
		err := documents.Decode(&obj.Object)
		if errors.Is(err, io.EOF) {
			return list, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		if len(obj.Object) > 0 {
			list = append(list, obj)
		}
	}
}

// role reads the Role or ClusterRole of a file of config/rbac.
func (c *Cluster) role(file, kind string) (*unstructured.Unstructured, error) {
	list, err := c.manifests("rbac", file)
	if err != nil {
		return nil, err
	}
	for _, obj := range list {
		if obj.GetKind() == kind {
			return obj, nil
		}
	}
	return nil, fmt.Errorf("config/rbac/%s has no %s", file, kind)
}

// giveRights makes the operator's user and binds the operator's own ClusterRole to it.
func (c *Cluster) giveRights() error {
	rules, err := c.role("role.yaml", "ClusterRole")
	if err != nil {
		return err
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: OperatorUser},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: rules.GetName()},
		Subjects:   operatorSubject(),
	}
	for _, obj := range []client.Object{rules, binding} {
		if err := c.Client.Create(context.Background(), obj); err != nil {
			return err
		}
	}
	user, err := c.env.AddUser(envtest.User{Name: OperatorUser}, &rest.Config{QPS: -1})
	if err != nil {
		return err
	}
	c.operator = user.Config()
	return nil
}

// allowLeases gives the operator the rights of its own namespace in another one: those
// that leader election needs.
func (c *Cluster) allowLeases(namespace string) error {
	rules, err := c.role("leader_election.yaml", "Role")
	if err != nil {
		return err
	}
	rules.SetNamespace(namespace)
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: rules.GetName()},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: rules.GetName()},
		Subjects:   operatorSubject(),
	}
	for _, obj := range []client.Object{rules, binding} {
		if err := client.IgnoreAlreadyExists(c.Client.Create(context.Background(), obj)); err != nil {
			return err
		}
	}
	return nil
}

func operatorSubject() []rbacv1.Subject {
	return []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: OperatorUser}}
}
