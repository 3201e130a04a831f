// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"errors"
	"maps"
	"net/http/httptest"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
)

// KubeletOptions of a Kubelet.
type KubeletOptions struct {
	// Namespace whose pods it runs. Default: all.
	Namespace string
	// Node is its name. Default: node, or node-NAMESPACE.
	Node string
	// Script says what becomes of each pod. Default: Plan(nil).
	Script Script
	// Quick makes a pod whose program ends at once known in one write after the bind,
	// instead of two: nobody sees it run.
	Quick bool
}

// ContainerStart is a container that was started: the moment from which on its program may have
// changed the world, whatever is told of it.
type ContainerStart struct {
	Namespace, Pod  string
	UID             types.UID
	Task, Step, Key string
	Attempt         int
	// Fenced says that the pod held the fence's finalizer.
	Fenced bool
	Time   time.Time
}

// Kubelet plays pods: it takes every pod that has no node, or its own, and does what
// the script says, as kubelet and runner would.
type Kubelet struct {
	Node string

	quick    bool
	client   kubernetes.Interface
	server   *httptest.Server
	cancel   context.CancelFunc
	ctx      context.Context
	running  sync.WaitGroup
	informer informers.SharedInformerFactory

	mu      sync.Mutex
	script  Script
	scripts map[string]Script // by namespace
	starts  map[string][]ContainerStart
	pods    map[types.UID]*played
	logs    map[types.NamespacedName]string
}

// played is a pod that is being played.
type played struct {
	deleted chan struct{}
	told    bool
}

// StartKubelet starts a Kubelet.
func (c *Cluster) StartKubelet(o KubeletOptions) (*Kubelet, error) {
	config := rest.CopyConfig(c.Config)
	config.QPS, config.UserAgent = -1, "kubelet"
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	k := &Kubelet{
		Node: o.Node, quick: o.Quick, client: client, script: o.Script,
		scripts: map[string]Script{}, starts: map[string][]ContainerStart{}, pods: map[types.UID]*played{}, logs: map[types.NamespacedName]string{},
	}
	if k.Node == "" {
		k.Node = "node"
		if o.Namespace != "" {
			k.Node += "-" + o.Namespace
		}
	}
	if k.script == nil {
		k.script = Plan(nil)
	}
	k.ctx, k.cancel = context.WithCancel(context.Background())
	if err := k.join(); err != nil {
		return nil, errors.Join(err, k.Stop())
	}
	k.informer = informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(o.Namespace))
	_, err = k.informer.Core().V1().Pods().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { k.see(obj) },
		UpdateFunc: func(_, obj any) { k.see(obj) },
		DeleteFunc: func(obj any) { k.miss(obj) },
	})
	if err != nil {
		return nil, errors.Join(err, k.Stop())
	}
	k.informer.Start(k.ctx.Done())
	k.informer.WaitForCacheSync(k.ctx.Done())
	return k, nil
}

// SetScript changes what becomes of pods that are made from now on.
func (k *Kubelet) SetScript(script Script) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.script = script
}

// Play says what becomes of the pods of a namespace that are made from now on.
func (k *Kubelet) Play(namespace string, script Script) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.scripts[namespace] = script
}

// Starts are the containers that were started in a namespace, in order. A pod that ends
// instantly has no node and starts none.
func (k *Kubelet) Starts(namespace string) []ContainerStart {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.starts[namespace])
}

// Forget drops what is known about a namespace.
func (k *Kubelet) Forget(namespace string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.scripts, namespace)
	delete(k.starts, namespace)
	maps.DeleteFunc(k.logs, func(name types.NamespacedName, _ string) bool { return name.Namespace == namespace })
}

// start notes that a pod's container is started.
func (k *Kubelet) start(pod *corev1.Pod) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.starts[pod.Namespace] = append(k.starts[pod.Namespace], ContainerStart{
		Namespace: pod.Namespace, Pod: pod.Name, UID: pod.UID, Task: env(pod, stepexec.EnvTask), Step: StepOf(pod), Key: KeyOf(pod),
		Attempt: AttemptOf(pod), Fenced: slices.Contains(pod.Finalizers, v1alpha1.FenceFinalizer), Time: time.Now(),
	})
}

// Stop stops the kubelet, and takes its node away. What its pods are, they stay.
func (k *Kubelet) Stop() error {
	k.cancel()
	if k.informer != nil {
		k.informer.Shutdown()
	}
	k.running.Wait()
	if k.server != nil {
		k.server.Close()
	}
	err := k.client.CoreV1().Nodes().Delete(context.Background(), k.Node, metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// see takes notice of a pod, and starts to play it where it is new.
func (k *Kubelet) see(obj any) {
	pod, ok := obj.(*corev1.Pod)
	if !ok || (pod.Spec.NodeName != "" && pod.Spec.NodeName != k.Node) || len(pod.Spec.SchedulingGates) > 0 {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	p := k.pods[pod.UID]
	if p == nil {
		if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
			return
		}
		p = &played{deleted: make(chan struct{})}
		k.pods[pod.UID] = p
		script := k.script
		if of := k.scripts[pod.Namespace]; of != nil {
			script = of
		}
		b := script(pod)
		if b.Log != "" {
			k.logs[types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}] = b.Log
		}
		k.running.Go(func() { k.play(pod.DeepCopy(), b, p.deleted) })
	}
	if pod.DeletionTimestamp != nil {
		p.tell()
	}
}

func (p *played) tell() {
	if !p.told {
		p.told = true
		close(p.deleted)
	}
}

// miss takes notice of a pod that is gone.
func (k *Kubelet) miss(obj any) {
	if unknown, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = unknown.Obj
	}
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if p := k.pods[pod.UID]; p != nil {
		p.tell()
		delete(k.pods, pod.UID)
	}
}
