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
// To see what a fault does, put it on the manager's line, record all that happens in the
// namespace, and look at that when it is over:
//
//	recorder, err := cluster.Record(ctx, ns)                 // before anything is made in it
//	faults := harness.NewFaults(harness.Fault{At: 4, Kind: harness.DieAfter})
//	manager, err := cluster.StartManager(harness.ManagerOptions{Namespaces: []string{ns}, Faults: faults})
//	<-faults.Hit()
//	manager.Kill()
//	history, err := recorder.History(ctx)                    // every revision, every request
//
// Where to look: cluster.go, process.go and rights.go for the control plane, policies.go
// for admission policies, snapshot.go for etcd's way back; manager.go for the operator;
// faults.go, write.go and gate.go for faults between it and the API server, watches.go for
// what it is told and when, transport.go for simpler ones; outsider.go for what others do;
// kubelet.go, play.go and behaviour.go for pods; history.go for what happened, from
// follower.go and etcd.go, and audit.go for what was asked; builders.go for objects.
package harness
