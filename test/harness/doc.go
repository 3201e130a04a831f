// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

// Package harness runs the operator against a real API server without a node: etcd,
// kube-apiserver and kube-controller-manager as processes, the operator's manager in
// this process, and a small kubelet that plays pods from a script. It wires and builds;
// it asserts nothing.
//
//	cluster, err := harness.Start(harness.Options{})         // etcd, API server, controllers, CRDs, rights
//	defer cluster.Stop()
//	ns, err := cluster.NewNamespace(ctx, "plan", nil)
//	kubelet, err := cluster.StartKubelet(harness.KubeletOptions{Namespace: ns, Script: script})
//	manager, err := cluster.StartManager(harness.ManagerOptions{Namespaces: []string{ns}})
//	task := harness.MakeTask(ns, "refund").Step("find").Step("pay").Retry(2, "10ms", "1s").Obj()
//
// Where to look: cluster.go and process.go for the control plane, manager.go for the
// operator, transport.go for faults between it and the API server, kubelet.go and
// behaviour.go for pods, audit.go for what was written, builders.go for objects.
package harness
