// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"sync"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/controllers"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
)

// bareLoop makes the four writes of a step and nothing else: status, Job, pod, end of
// the Job. It decides nothing, checks nothing and would survive nothing: it is the floor
// that the operator is measured against.
type bareLoop struct {
	client.Client
	mu    sync.Mutex
	ended map[string]chan struct{}
	seen  map[types.UID]bool
}

// runLoop drives every AgentTask that it sees, each in a goroutine, until it is told to stop.
func runLoop(config *rest.Config) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	config.QPS = -1
	config.UserAgent = loopAgent
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return err
		}
	}
	c, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return err
	}
	l := &bareLoop{Client: c, ended: map[string]chan struct{}{}, seen: map[types.UID]bool{}}
	informers, err := cache.New(config, cache.Options{Scheme: scheme, ByObject: controllers.CacheByObject()})
	if err != nil {
		return err
	}
	if err := hear(ctx, informers, &corev1.Pod{}, l.podChanged); err != nil {
		return err
	}
	tasks := &metav1.PartialObjectMetadata{}
	tasks.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("AgentTask"))
	if err := hear(ctx, informers, tasks, func(obj any) { l.taskChanged(ctx, obj) }); err != nil {
		return err
	}
	return informers.Start(ctx)
}

// hear calls f with each object of a kind that is new or was changed.
func hear(ctx context.Context, informers cache.Cache, kind client.Object, f func(obj any)) error {
	informer, err := informers.GetInformer(ctx, kind, cache.BlockUntilSynced(false))
	if err != nil {
		return err
	}
	_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{AddFunc: f, UpdateFunc: func(_, obj any) { f(obj) }})
	return err
}

func (l *bareLoop) podChanged(obj any) {
	pod, ok := obj.(*corev1.Pod)
	if !ok || pod.Status.Phase != corev1.PodSucceeded {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if done := l.ended[pod.Name]; done != nil {
		close(done)
		delete(l.ended, pod.Name)
	}
}

func (l *bareLoop) taskChanged(ctx context.Context, obj any) {
	seen, ok := obj.(*metav1.PartialObjectMetadata)
	if !ok || l.seen[seen.UID] {
		return
	}
	l.seen[seen.UID] = true
	go func() {
		task := &v1alpha1.AgentTask{}
		err := l.Get(ctx, client.ObjectKeyFromObject(seen), task)
		if err == nil && !task.Status.Phase.Finished() {
			err = l.run(ctx, task)
		}
		if err != nil && ctx.Err() == nil {
			fmt.Fprintf(os.Stderr, "loop: %s: %v\n", seen.Name, err)
		}
	}()
}

func (l *bareLoop) run(ctx context.Context, task *v1alpha1.AgentTask) error {
	var last *batchv1.Job
	for i := range task.Spec.Steps {
		record := l.record(task, i)
		if i > 0 {
			task.Status.Steps[i-1].Phase = v1alpha1.StepSucceeded
			task.Status.Steps[i-1].Output = &apiextensionsv1.JSON{Raw: []byte(`{"n":1}`)}
		}
		task.Status.RunID = string(task.UID)
		task.Status.Phase = v1alpha1.TaskRunning
		task.Status.Steps = append(task.Status.Steps, record)
		if err := l.Status().Update(ctx, task); err != nil {
			return err
		}
		done := make(chan struct{})
		l.mu.Lock()
		l.ended[record.JobName] = done
		l.mu.Unlock()
		job := stepexec.Render(task, stepexec.Attempt{
			Step: record.Name, Role: v1alpha1.RoleMain, Record: &record.ActionStatus, Run: task.Spec.Steps[i].Run, Input: []byte("{}"),
			Timeout: task.Spec.Steps[i].RunTimeout(), StartTimeout: task.Spec.Steps[i].StartDeadline(),
		}, "runner")
		if err := l.Create(ctx, job); err != nil {
			return err
		}
		if err := l.Create(ctx, stepexec.PodOf(job)); err != nil {
			return err
		}
		if err := l.finish(ctx, last); err != nil {
			return err
		}
		last = job
		select {
		case <-done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	task.Status.Phase = v1alpha1.TaskSucceeded
	task.Status.Steps[len(task.Status.Steps)-1].Phase = v1alpha1.StepSucceeded
	if err := l.Status().Update(ctx, task); err != nil {
		return err
	}
	return l.finish(ctx, last)
}

func (l *bareLoop) record(task *v1alpha1.AgentTask, i int) v1alpha1.StepStatus {
	step := &task.Spec.Steps[i]
	action := stepexec.RunActionOf(step.Name, v1alpha1.RoleMain, step.Run, []byte("{}"))
	return v1alpha1.StepStatus{
		Name: step.Name, SpecHash: stepexec.SpecHash(step),
		ActionStatus: v1alpha1.ActionStatus{
			Phase: v1alpha1.StepRunning, Attempt: 1, StartTime: task.CreationTimestamp,
			IdempotencyKey: action.Key(string(task.UID)), ActionHash: action.Hash(),
			JobName: stepexec.JobName(task.Name, task.UID, step.Name, v1alpha1.RoleMain, 1),
		},
	}
}

func (l *bareLoop) finish(ctx context.Context, job *batchv1.Job) error {
	if job == nil {
		return nil
	}
	now := metav1.Now()
	body, err := json.Marshal(map[string]any{"status": batchv1.JobStatus{
		StartTime: &job.CreationTimestamp, CompletionTime: &now, Succeeded: 1,
		Conditions: []batchv1.JobCondition{
			{Type: batchv1.JobSuccessCriteriaMet, Status: corev1.ConditionTrue, LastTransitionTime: now},
			{Type: batchv1.JobComplete, Status: corev1.ConditionTrue, LastTransitionTime: now},
		},
	}})
	if err != nil {
		return err
	}
	return l.Status().Patch(ctx, job, client.RawPatch(types.MergePatchType, body))
}
