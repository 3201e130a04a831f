// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/engine"
	"github.com/agenttask-dev/agenttask/internal/metrics"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
)

// finding is what an action found that is no fault on the way, but something to decide
// upon: at most one trouble, or the Job and pod that were made of an attempt whose pod
// must be named in the checkpoint before it may start.
type finding struct {
	refusal           *engine.Refusal
	conflict, blocked *engine.Problem
	job               *batchv1.Job
	pod               *corev1.Pod
	// started says that it is about the attempt that was to be made, and not about the one
	// that was observed.
	started bool
}

func (f finding) trouble() bool { return f.refusal != nil || f.conflict != nil || f.blocked != nil }
func (f finding) news() bool    { return f.trouble() || f.pod != nil }

// addTo adds it to what was observed.
func (f finding) addTo(world *engine.World) {
	if f.started {
		*world = engine.World{Job: f.job, Pod: f.pod, Unguarded: world.Unguarded}
	}
	world.Refusal, world.Conflict, world.Blocked = f.refusal, f.conflict, f.blocked
	world.Ended, world.Held, world.Decisions = nil, nil, nil // dealt with
}

// act does a decision's actions. Each may be done again: dying before, between or after
// them leaves what the next reconcile finds and completes.
func (r *Reconciler) act(ctx context.Context, task *v1alpha1.AgentTask, actions []engine.Action) (finding, error) {
	var found finding
	var errs []error
	for _, a := range actions {
		var err error
		switch a.Kind {
		case engine.MakeJob:
			found, err = r.makeAttempt(ctx, task, a)
			found.started = true
		case engine.StopPod:
			err = r.deleteObject(ctx, a.Pod)
		case engine.FinishJob:
			err = r.finishJob(ctx, task, a)
		case engine.OpenFence:
			found, err = r.openFence(ctx, task, a.Pod)
		case engine.ReleasePod:
			err = r.releasePod(ctx, task, a)
		case engine.AnswerDecision:
			err = r.answerDecision(ctx, task, a)
		case engine.DeleteTask:
			err = r.deleteTask(ctx, task)
		default:
			err = fmt.Errorf("unknown action %q", a.Kind)
		}
		switch {
		case errors.Is(err, errStale):
			return found, err
		case err != nil: // the others do not wait for it
			errs = append(errs, fmt.Errorf("%s: %w", a.Kind, err))
		}
	}
	return found, errors.Join(errs...)
}

// makeAttempt makes the attempt's Job, and its pod unless the Job is suspended.
func (r *Reconciler) makeAttempt(ctx context.Context, task *v1alpha1.AgentTask, a engine.Action) (finding, error) {
	job, found, err := a.Job, finding{}, error(nil)
	if job != nil && outdated(job, task, a.Attempt.Record) {
		r.settled(task, job)
		if err := r.deleteObject(ctx, job); err != nil {
			return found, err
		}
		job = nil
	}
	if job == nil {
		job, found, err = r.makeJob(ctx, task, a)
	}
	if err != nil {
		return found, err
	}
	if !found.trouble() && !ptr.Deref(job.Spec.Suspend, false) {
		// Before the pod can end, so that its end is known to be the task's.
		r.memory.own(job.UID, client.ObjectKeyFromObject(task))
		found, err = r.makePod(ctx, task, job, a.Attempt)
	}
	if err != nil {
		return found, err
	}
	r.remember(task, found)
	if found.refusal != nil {
		found.refusal.Retry = r.refusalBackoff(task)
	}
	return found, nil
}

// outdated says whether a Job whose pod the API server refused was made before the task
// was last changed, perhaps to mend just that. There is no pod of it.
func outdated(job *batchv1.Job, task *v1alpha1.AgentTask, record *v1alpha1.ActionStatus) bool {
	return record.Reason == v1alpha1.ReasonRefused &&
		job.Annotations[v1alpha1.AnnotationGeneration] != strconv.FormatInt(task.Generation, 10)
}

// remember notes the attempt that was made.
func (r *Reconciler) remember(task *v1alpha1.AgentTask, found finding) {
	now := r.Clock.Now()
	r.memory.with(client.ObjectKeyFromObject(task), task.UID, func(m *taskMemory) {
		m.looked, m.unseen = now, false
		if !found.trouble() {
			m.refusals = 0
		}
	})
}

// makeJob makes the attempt's Job. Where one of that name exists already, it is taken
// if it is this attempt's, whoever of us made it.
func (r *Reconciler) makeJob(ctx context.Context, task *v1alpha1.AgentTask, a engine.Action) (*batchv1.Job, finding, error) {
	job := stepexec.Render(task, *a.Attempt, r.RunnerImage)
	unsupported := finding{conflict: &engine.Problem{Reason: v1alpha1.ReasonManagedByUnsupported, Message: "the API server drops spec.managedBy of Jobs, " +
		"so its own Job controller would run this step too; Kubernetes 1.35 or later is needed"}}
	if r.managedByDropped.Load() {
		probe := job.DeepCopy()
		if err := r.Create(ctx, probe, client.DryRunAll); err == nil && !managedByUs(probe) {
			return nil, unsupported, nil
		}
	}
	err := r.Create(ctx, job)
	switch {
	case err == nil && !managedByUs(job):
		r.managedByDropped.Store(true)
		r.settled(task, job)
		return nil, unsupported, r.deleteObject(ctx, job)
	case err == nil:
		return job, finding{}, nil
	case !apierrors.IsAlreadyExists(err):
		return nil, findingOf(err, "make the step's Job"), unlessRefused(err)
	}
	if err := r.Live.Get(ctx, client.ObjectKeyFromObject(job), job); err != nil {
		return nil, finding{}, err
	}
	if conflict := jobConflict(job, task, a.Attempt.Record); conflict != nil || job.DeletionTimestamp.IsZero() {
		return job, finding{conflict: conflict}, nil
	}
	return job, finding{blocked: &engine.Problem{Reason: v1alpha1.ReasonJobDeleted, Message: fmt.Sprintf(
		"the former Job %s is still being deleted; the step goes on when it is gone", job.Name)}}, nil
}

// makePod makes the Job's pod, from the Job's template as it stands. That of an attempt
// which must not start twice is fenced, and is told of.
func (r *Reconciler) makePod(ctx context.Context, task *v1alpha1.AgentTask, job *batchv1.Job, a *stepexec.Attempt) (finding, error) {
	pod := stepexec.PodOf(job)
	if a.Once {
		stepexec.Fence(pod, task)
	}
	err := r.Create(ctx, pod)
	switch {
	case err == nil:
		metrics.AttemptStarted(a.Record.Attempt)
	case !apierrors.IsAlreadyExists(err):
		return findingOf(err, "make the step's pod"), unlessRefused(err)
	default:
		if err := r.Live.Get(ctx, client.ObjectKeyFromObject(pod), pod); err != nil {
			return finding{}, err
		}
		if !podOf(pod, job, "") {
			blocked, conflict := foreignPod(pod, a.Record, nil)
			return finding{blocked: blocked, conflict: conflict}, nil
		}
	}
	if !a.Once {
		return finding{}, nil
	}
	return finding{job: job, pod: pod}, nil
}

func findingOf(err error, what string) finding {
	switch reason := refusal(err); reason {
	case "":
		return finding{}
	case v1alpha1.ReasonUnavailable:
		return finding{refusal: &engine.Refusal{Reason: reason, Message: fmt.Sprintf("the API server cannot %s just now: %v", what, err)}}
	default:
		return finding{refusal: &engine.Refusal{Reason: reason, Message: fmt.Sprintf("the API server refused to %s: %v", what, err)}}
	}
}

func unlessRefused(err error) error {
	if refused(err) {
		return nil
	}
	return err
}

// refusalBackoff doubles from 1s to 60s with each refusal in a row.
func (r *Reconciler) refusalBackoff(task *v1alpha1.AgentTask) time.Duration {
	count := 0
	r.memory.with(client.ObjectKeyFromObject(task), task.UID, func(m *taskMemory) {
		count = m.refusals
		m.refusals++
	})
	return min(time.Second<<min(count, 6), time.Minute)
}

// finishJob gives an ended attempt's Job its final status, or deletes it.
func (r *Reconciler) finishJob(ctx context.Context, task *v1alpha1.AgentTask, a engine.Action) error {
	// Noted before the write, whose event may come before its answer.
	r.settled(task, a.Job)
	var err error
	if a.Keep {
		err = r.patchJobStatus(ctx, a.Job, a.Verdict)
	} else {
		err = r.deleteObject(ctx, a.Job)
	}
	if err != nil {
		r.memory.seenSettled(client.ObjectKeyFromObject(task), a.Job.UID)
	}
	return err
}

// settled remembers that nothing is left to do for a Job, until the cache shows it.
func (r *Reconciler) settled(task *v1alpha1.AgentTask, job *batchv1.Job) {
	r.memory.settle(job.UID, client.ObjectKeyFromObject(task))
}

// patchJobStatus writes the end of a Job as kubectl and other tools read it. A Job that
// changed since it was read is read again, once.
func (r *Reconciler) patchJobStatus(ctx context.Context, job *batchv1.Job, v engine.Verdict) error {
	err := r.patchJobStatusOf(ctx, job, v)
	if !apierrors.IsConflict(err) {
		return err
	}
	live := &batchv1.Job{}
	if err := r.Live.Get(ctx, client.ObjectKeyFromObject(job), live); err != nil || live.UID != job.UID || jobFinished(live) {
		return client.IgnoreNotFound(err)
	}
	return r.patchJobStatusOf(ctx, live, v)
}

func (r *Reconciler) patchJobStatusOf(ctx context.Context, job *batchv1.Job, v engine.Verdict) error {
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": job.UID, "resourceVersion": job.ResourceVersion},
		"status":   finalJobStatus(job, v, metav1.NewTime(r.Clock.Now())),
	})
	if err != nil {
		return err
	}
	target := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: job.Namespace, Name: job.Name}}
	err = r.Status().Patch(ctx, target, client.RawPatch(types.MergePatchType, body))
	if apierrors.IsInvalid(err) {
		logf.FromContext(ctx).Info("the API server does not take the Job's final status", "job", job.Name, "error", err.Error())
		return nil
	}
	return client.IgnoreNotFound(err)
}

func finalJobStatus(job *batchv1.Job, v engine.Verdict, now metav1.Time) batchv1.JobStatus {
	start := job.CreationTimestamp
	if now.Before(&start) {
		now = start
	}
	condition := func(kind batchv1.JobConditionType, reason, message string) batchv1.JobCondition {
		return batchv1.JobCondition{Type: kind, Status: corev1.ConditionTrue, Reason: reason, Message: message, LastProbeTime: now, LastTransitionTime: now}
	}
	if v.Class == engine.Success {
		return batchv1.JobStatus{StartTime: &start, CompletionTime: &now, Succeeded: 1, Conditions: []batchv1.JobCondition{
			condition(batchv1.JobSuccessCriteriaMet, batchv1.JobReasonCompletionsReached, "the step succeeded"),
			condition(batchv1.JobComplete, batchv1.JobReasonCompletionsReached, "the step succeeded"),
		}}
	}
	return batchv1.JobStatus{StartTime: &start, Failed: 1, Conditions: []batchv1.JobCondition{
		condition(batchv1.JobFailureTarget, v.Reason, v.Message),
		condition(batchv1.JobFailed, v.Reason, v.Message),
	}}
}

// deleteObject deletes one object and what it owns: that very one, by its UID.
func (r *Reconciler) deleteObject(ctx context.Context, obj client.Object) error {
	err := r.Delete(ctx, obj, client.Preconditions{UID: ptr.To(obj.GetUID())}, client.PropagationPolicy(metav1.DeletePropagationBackground))
	if apierrors.IsConflict(err) {
		return nil
	}
	return client.IgnoreNotFound(err)
}

// deleteTask deletes the task as it was read: not one that was changed since.
func (r *Reconciler) deleteTask(ctx context.Context, task *v1alpha1.AgentTask) error {
	err := r.Delete(ctx, task, client.PropagationPolicy(metav1.DeletePropagationBackground),
		client.Preconditions{UID: ptr.To(task.UID), ResourceVersion: ptr.To(task.ResourceVersion)})
	return client.IgnoreNotFound(err)
}
