// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

// Package controllers talks to the API server: it reads what engine.Decide needs,
// writes the status that it returns, and then does the actions that the written
// status calls for. What is next is decided in internal/engine and nowhere else.
package controllers

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/engine"
	"github.com/agenttask-dev/agenttask/internal/metrics"
)

// Reconciler drives AgentTasks. Each field is required but those that say otherwise.
type Reconciler struct {
	// Client reads from caches and writes.
	client.Client
	// Live reads from the API server itself.
	Live client.Reader
	// Logs reads pods' logs, for outputs that are too large for a pod's status.
	Logs kubernetes.Interface
	// Events records what a person wants to know.
	Events events.EventRecorder
	// RunnerImage holds the runner, which an init container copies into a step's pod.
	RunnerImage string
	// Clock tells the time. Default: the system's.
	Clock clock.Clock
	// Rand gives numbers from 0 up to but not including 1. Default: math/rand/v2.
	Rand func() float64
	// RecheckInterval is how often a running attempt is looked at though nothing was
	// heard of it, at the API server itself. Default: DefaultRecheckInterval.
	RecheckInterval time.Duration
	// MaxConcurrent is how many tasks are worked on at once. Default: DefaultMaxConcurrent.
	MaxConcurrent int

	memory      *memory
	guard       guard
	checkpoints rest.Interface
	// managedByDropped says that the API server was seen to drop spec.managedBy. From then
	// on it is asked by a dry run first, so that its own Job controller starts nothing.
	managedByDropped atomic.Bool
}

// Defaults of a Reconciler.
const (
	DefaultRecheckInterval = 5 * time.Minute
	DefaultMaxConcurrent   = 16
)

// Each verb is needed for what stands behind it.
//
// agenttasks: get, list, watch to read plans; delete for ttlSecondsAfterFinished.
// +kubebuilder:rbac:groups=agenttask.dev,resources=agenttasks,verbs=get;list;watch;delete
// agenttasks/status: update writes the checkpoint.
// +kubebuilder:rbac:groups=agenttask.dev,resources=agenttasks/status,verbs=update
// agenttasks/finalizers, jobs/finalizers: a Job names its task, and a pod its Job, as an
// owner that deletion waits for; OwnerReferencesPermissionEnforcement asks for this right.
// +kubebuilder:rbac:groups=agenttask.dev,resources=agenttasks/finalizers,verbs=update
// +kubebuilder:rbac:groups=batch,resources=jobs/finalizers,verbs=update
// jobs: get, list, watch to see them; create for a step's attempt; delete for jobHistory.
// +kubebuilder:rbac:groups=batch,resources=jobs,verbs=get;list;watch;create;delete
// jobs/status: patch writes the end of a Job.
// +kubebuilder:rbac:groups=batch,resources=jobs/status,verbs=patch
// pods: get, list, watch to see how attempts end; create for an attempt; delete to stop
// one; patch to open the fence of a step with effect Once, and to let its pod go.
// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch;create;delete;patch
// agentdecisions: get, list, watch to read them; their status: patch to answer them.
// +kubebuilder:rbac:groups=agenttask.dev,resources=agentdecisions,verbs=get;list;watch
// +kubebuilder:rbac:groups=agenttask.dev,resources=agentdecisions/status,verbs=patch
// validatingadmissionpolicies and their bindings: get to see whether the fence is guarded.
// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=validatingadmissionpolicies;validatingadmissionpolicybindings,verbs=get
// pods/log: get reads outputs of more than 2 KiB.
// +kubebuilder:rbac:groups="",resources=pods/log,verbs=get
// configmaps: create keeps such an output, get reads it for a later step.
// +kubebuilder:rbac:groups="",resources=configmaps,verbs=get;create
// events: create and patch tell people what happens.
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Reconcile takes a task one step on:
//
//  1. read the task, from memory where nothing newer was seen;
//  2. observe the current attempt's Job and pod;
//  3. decide, which is pure;
//  4. write the status by compare-and-swap, if it changed: a conflict ends it here;
//  5. do the actions, each of which is safe to repeat.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	task, err := r.read(ctx, req)
	if task == nil || err != nil {
		return result(err)
	}
	world, err := r.observe(ctx, task)
	if err != nil {
		return result(err)
	}
	// What the actions find or make may be decided upon at once: a refusal, or the pod that
	// must be named in the checkpoint before it may start.
	for range maxRounds {
		decision, err := r.decideAndWrite(ctx, task, world)
		if err != nil {
			return result(err)
		}
		found, err := r.act(ctx, task, decision.Actions)
		if err != nil {
			return result(err)
		}
		if !found.news() {
			return ctrl.Result{RequeueAfter: r.nextLook(task, decision.RequeueAfter)}, nil
		}
		found.addTo(&world)
	}
	return ctrl.Result{RequeueAfter: time.Millisecond}, nil
}

// maxRounds is how often one reconcile decides: for what was observed, for what it made,
// and for what became of that.
const maxRounds = 3

// read gets the task as it was last written, by us or by somebody else. The cache holds
// only the metadata of tasks, since each event would otherwise bring a whole plan and all
// its results: the task itself is what we last read or wrote, as long as the metadata
// shows nothing newer, and else what the API server holds. It is nil where there is
// nothing to do. Its fields may be replaced, but nothing below them changed.
func (r *Reconciler) read(ctx context.Context, req ctrl.Request) (*v1alpha1.AgentTask, error) {
	seen := taskMetadata()
	err := r.Get(ctx, req.NamespacedName, seen)
	if err == nil {
		if task := r.memory.taskSince(req.NamespacedName, seen.UID, seen.ResourceVersion); task != nil {
			return task, nil
		}
		task := &v1alpha1.AgentTask{}
		if err = r.Live.Get(ctx, req.NamespacedName, task); err == nil {
			task.ManagedFields = nil
			r.memory.keepTask(task)
			return task, nil
		}
	}
	if apierrors.IsNotFound(err) {
		r.memory.forget(req.NamespacedName)
		return nil, r.sweep(ctx, req.NamespacedName)
	}
	return nil, err
}

// taskMetadata is an empty AgentTask of which only the metadata is read.
func taskMetadata() *metav1.PartialObjectMetadata {
	seen := &metav1.PartialObjectMetadata{}
	seen.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("AgentTask"))
	return seen
}

// decideAndWrite decides, reading outputs as far as they are asked for, and writes
// the status. The task then is as written.
func (r *Reconciler) decideAndWrite(ctx context.Context, task *v1alpha1.AgentTask, world engine.World) (engine.Decision, error) {
	in := engine.Input{Task: task, World: world, Now: r.Clock.Now(), Rand: r.Rand}
	decision := engine.Decide(in)
	for len(decision.Load) > 0 {
		loaded, err := r.loadOutputs(ctx, task, world, decision.Load, in.Outputs)
		if err != nil {
			return decision, err
		}
		in.Outputs = loaded
		decision = engine.Decide(in)
	}
	if !equality.Semantic.DeepEqual(decision.Status, task.Status) {
		before := task.Status
		if err := r.writeStatus(ctx, task, decision.Status); err != nil {
			return decision, err
		}
		metrics.Checkpoint(&before, &task.Status)
	}
	r.tell(ctx, task, decision.Events)
	return decision, nil
}

// tell records events, which follow the write that they speak of.
func (r *Reconciler) tell(ctx context.Context, task *v1alpha1.AgentTask, list []engine.Event) {
	for _, e := range list {
		kind := "Normal"
		if e.Warning {
			kind = "Warning"
		}
		r.Events.Eventf(task, nil, kind, e.Reason, "Reconcile", "%s", e.Message)
		logf.FromContext(ctx).Info(e.Message, "reason", e.Reason, "step", task.Status.CurrentStep)
	}
}

// nextLook is when to look again: when the decision says, and while an attempt runs at
// least every RecheckInterval, in case an event was never delivered, or every
// unseenRecheck where the cache does not show it (its labels were removed).
func (r *Reconciler) nextLook(task *v1alpha1.AgentTask, wait time.Duration) time.Duration {
	if engine.CurrentOf(task) == nil {
		return wait
	}
	most := r.RecheckInterval
	r.memory.with(client.ObjectKeyFromObject(task), task.UID, func(m *taskMemory) {
		if m.unseen {
			most = min(most, unseenRecheck)
		}
	})
	if wait == 0 {
		return most
	}
	return min(wait, most)
}

const unseenRecheck = 10 * time.Second

func (r *Reconciler) defaults() {
	if r.Clock == nil {
		r.Clock = clock.RealClock{}
	}
	if r.Rand == nil {
		r.Rand = rand.Float64
	}
	if r.RecheckInterval == 0 {
		r.RecheckInterval = DefaultRecheckInterval
	}
	if r.MaxConcurrent == 0 {
		r.MaxConcurrent = DefaultMaxConcurrent
	}
	r.memory = newMemory()
}
