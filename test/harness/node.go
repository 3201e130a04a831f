// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// heartbeat is how often the kubelet says that its node is well.
const heartbeat = 10 * time.Second

// join serves pods' logs, makes the Node and keeps it alive.
func (k *Kubelet) join() error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", k.serveLog)
	k.server = httptest.NewTLSServer(mux)
	host, port, err := net.SplitHostPort(k.server.Listener.Addr().String())
	if err != nil {
		return err
	}
	number, err := strconv.ParseInt(port, 10, 32)
	if err != nil {
		return err
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: k.Node}}
	node, err = k.client.CoreV1().Nodes().Create(k.ctx, node, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("node %s: %w", k.Node, err)
	}
	for {
		node.Status = nodeStatus(host, int32(number))
		_, err = k.client.CoreV1().Nodes().UpdateStatus(k.ctx, node, metav1.UpdateOptions{})
		if !apierrors.IsConflict(err) {
			break
		}
		if node, err = k.client.CoreV1().Nodes().Get(k.ctx, k.Node, metav1.GetOptions{}); err != nil {
			return err
		}
	}
	if err != nil {
		return err
	}
	k.running.Go(k.beat)
	return nil
}

func nodeStatus(host string, port int32) corev1.NodeStatus {
	now := metav1.Now()
	room := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("1000"), corev1.ResourceMemory: resource.MustParse("1Ti"), corev1.ResourcePods: resource.MustParse("100000"),
	}
	return corev1.NodeStatus{
		Capacity: room, Allocatable: room,
		Addresses:       []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: host}},
		DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: port}},
		Conditions: []corev1.NodeCondition{{
			Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", LastHeartbeatTime: now, LastTransitionTime: now,
		}},
	}
}

// beat renews the node's Lease, so that the node counts as alive.
func (k *Kubelet) beat() {
	leases := k.client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	ticks := time.NewTicker(heartbeat)
	defer ticks.Stop()
	for {
		lease := &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: k.Node},
			Spec: coordinationv1.LeaseSpec{
				HolderIdentity: &k.Node, LeaseDurationSeconds: new(int32(4 * heartbeat / time.Second)), RenewTime: new(metav1.NowMicro()),
			},
		}
		if _, err := leases.Create(k.ctx, lease, metav1.CreateOptions{}); apierrors.IsAlreadyExists(err) {
			if old, err := leases.Get(k.ctx, k.Node, metav1.GetOptions{}); err == nil {
				old.Spec = lease.Spec
				_, _ = leases.Update(k.ctx, old, metav1.UpdateOptions{}) // a lost beat is made up by the next
			}
		}
		select {
		case <-ticks.C:
		case <-k.ctx.Done():
			return
		}
	}
}

// serveLog answers the API server's request for a pod's log.
func (k *Kubelet) serveLog(w http.ResponseWriter, r *http.Request) {
	k.mu.Lock()
	log, ok := k.logs[types.NamespacedName{Namespace: r.PathValue("namespace"), Name: r.PathValue("pod")}]
	k.mu.Unlock()
	if !ok {
		log = "nothing was logged\n"
	}
	_, _ = io.WriteString(w, log)
}

// SetLog changes what a pod's log is.
func (k *Kubelet) SetLog(namespace, pod, log string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.logs[types.NamespacedName{Namespace: namespace, Name: pod}] = log
}
