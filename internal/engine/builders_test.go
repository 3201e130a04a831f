// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
)

// epoch is when every test's story begins.
var epoch = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// half is a random source that always draws the middle.
func half() float64 { return 0.5 }

// taskBuilder makes a task: MakeTask("plan", "draft").Suspend().Obj().
type taskBuilder struct{ task *v1alpha1.AgentTask }

// MakeTask makes a task whose steps have these names.
func MakeTask(steps ...string) *taskBuilder {
	b := &taskBuilder{&v1alpha1.AgentTask{ObjectMeta: metav1.ObjectMeta{
		Name: "report", Namespace: "team", UID: "5f3a2c1e-8d47-4b6a-9c0e-2b1d3f4a5c6d", Generation: 1,
	}}}
	for _, name := range steps {
		b.Step(MakeStep(name).Obj())
	}
	return b
}

func (b *taskBuilder) Step(step v1alpha1.Step) *taskBuilder {
	b.task.Spec.Steps = append(b.task.Spec.Steps, step)
	return b
}
func (b *taskBuilder) Params(doc string) *taskBuilder { b.task.Spec.Params = doc1(doc); return b }
func (b *taskBuilder) RunID(id string) *taskBuilder   { b.task.Spec.RunID = id; return b }
func (b *taskBuilder) Suspend() *taskBuilder          { b.task.Spec.Suspend = true; return b }
func (b *taskBuilder) Cancel() *taskBuilder           { b.task.Spec.Cancel = true; return b }
func (b *taskBuilder) History(h v1alpha1.JobHistory) *taskBuilder {
	b.task.Spec.JobHistory = h
	return b
}
func (b *taskBuilder) Deadline(seconds int64) *taskBuilder {
	b.task.Spec.ActiveDeadlineSeconds = &seconds
	return b
}
func (b *taskBuilder) TTL(seconds int32) *taskBuilder {
	b.task.Spec.TTLSecondsAfterFinished = &seconds
	return b
}
func (b *taskBuilder) Obj() *v1alpha1.AgentTask { return b.task }

// Running takes the task through its first decisions until the named step's first
// attempt is meant to run and has no Job yet; the steps before it succeed.
func (b *taskBuilder) Running(t *testing.T, step string) *v1alpha1.AgentTask {
	t.Helper()
	sim := Simulation{}
	task := b.task
	saved := task.DeepCopy()
	sim.OnDecision = func(_ *v1alpha1.AgentTask, d Decision) {
		last := len(d.Status.Steps) - 1
		if last >= 0 && d.Status.Steps[last].Name == step && d.Status.Steps[last].Attempt == 1 &&
			d.Status.Steps[last].Phase == v1alpha1.StepRunning && len(saved.Status.Steps) == 0 {
			saved.Status = *d.Status.DeepCopy()
		}
	}
	if err := sim.Run(task, epoch); err != nil {
		t.Fatalf("the plan up to step %s: %v", step, err)
	}
	if len(saved.Status.Steps) == 0 {
		t.Fatalf("step %s has not started: %+v", step, task.Status.Steps)
	}
	return saved
}

// stepBuilder makes a step: MakeStep("draft").Retry(2).Obj().
type stepBuilder struct{ step v1alpha1.Step }

// MakeStep makes a step that runs a program of its own name.
func MakeStep(name string) *stepBuilder {
	return &stepBuilder{v1alpha1.Step{Name: name, Effect: v1alpha1.EffectIdempotent,
		Run: &v1alpha1.RunAction{Image: "tools:1.4", Command: []string{name}}}}
}

func (b *stepBuilder) policy() *v1alpha1.RetryPolicy {
	if b.step.Retry == nil {
		b.step.Retry = &v1alpha1.RetryPolicy{}
	}
	return b.step.Retry
}
func (b *stepBuilder) Input(doc string) *stepBuilder   { b.step.Input = doc1(doc); return b }
func (b *stepBuilder) Limit(n int32) *stepBuilder      { b.policy().Limit = &n; return b }
func (b *stepBuilder) OnTimeout() *stepBuilder         { b.policy().OnTimeout = true; return b }
func (b *stepBuilder) Image(image string) *stepBuilder { b.step.Run.Image = image; return b }
func (b *stepBuilder) MaxElapsed(d time.Duration) *stepBuilder {
	b.policy().MaxElapsed = &metav1.Duration{Duration: d}
	return b
}
func (b *stepBuilder) Backoff(base, limit time.Duration) *stepBuilder {
	b.policy().Backoff = &v1alpha1.Backoff{Base: &metav1.Duration{Duration: base}, Cap: &metav1.Duration{Duration: limit}}
	return b
}
func (b *stepBuilder) StartTimeout(d time.Duration) *stepBuilder {
	b.step.StartTimeout = &metav1.Duration{Duration: d}
	return b
}
func (b *stepBuilder) Once() *stepBuilder          { b.step.Effect = v1alpha1.EffectOnce; return b }
func (b *stepBuilder) Key(key string) *stepBuilder { b.step.IdempotencyKey = key; return b }
func (b *stepBuilder) OnUnknown(what v1alpha1.OnUnknown) *stepBuilder {
	b.step.OnUnknown = what
	return b
}

// HTTP lets the step send a request instead of running a program. body is JSON, or empty.
func (b *stepBuilder) HTTP(method, url, body string) *stepBuilder {
	b.step.Run, b.step.HTTP = nil, &v1alpha1.HTTPAction{Method: method, URL: url}
	if body != "" {
		b.step.HTTP.Body = doc1(body)
	}
	return b
}

func (b *stepBuilder) check() *v1alpha1.Check {
	if b.step.Check == nil {
		b.step.Check = &v1alpha1.Check{Run: &v1alpha1.RunAction{Image: "tools:1.4", Command: []string{"look"}}}
	}
	return b.step.Check
}

// Check gives the step a check that runs a program.
func (b *stepBuilder) Check(when v1alpha1.CheckWhen) *stepBuilder { b.check().When = when; return b }

// Done says by an expression when the effect has happened; output is JSON, or empty.
func (b *stepBuilder) Done(done, output string) *stepBuilder {
	b.check().Done = done
	if output != "" {
		b.check().Output = doc1(output)
	}
	return b
}
func (b *stepBuilder) Obj() v1alpha1.Step { return b.step }

func doc1(doc string) *apiextensionsv1.JSON { return &apiextensionsv1.JSON{Raw: []byte(doc)} }

// podBuilder makes the pod of an attempt: MakePod().Running().Obj().
type podBuilder struct{ pod *corev1.Pod }

// MakePod makes a pod that was just created.
func MakePod() *podBuilder {
	return &podBuilder{&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "pod", UID: "pod", CreationTimestamp: metav1.NewTime(epoch)},
		Status:     corev1.PodStatus{Phase: corev1.PodPending},
	}}
}

func (b *podBuilder) step(state corev1.ContainerState) *podBuilder {
	b.pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: stepexec.ContainerStep, Image: "tools:1.4", State: state}}
	return b
}
func (b *podBuilder) Running() *podBuilder {
	b.pod.Status.Phase = corev1.PodRunning
	return b.step(corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(epoch)}})
}
func (b *podBuilder) Waiting(reason, message string) *podBuilder {
	return b.step(corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}})
}

// Ended ends the step's container without a result.
func (b *podBuilder) Ended(code int32, reason, message string) *podBuilder {
	b.pod.Status.Phase = corev1.PodFailed
	if code == 0 {
		b.pod.Status.Phase = corev1.PodSucceeded
	}
	return b.step(corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: reason, Message: message}})
}

// Result ends the step's container with a result of the runner.
func (b *podBuilder) Result(code int32, r stepexec.Result) *podBuilder {
	r.Version = stepexec.ResultVersion
	message, err := json.Marshal(r)
	if err != nil {
		panic(err)
	}
	return b.Ended(code, map[bool]string{true: "Completed", false: "Error"}[code == 0], string(message))
}

// Succeeded ends it well with an output.
func (b *podBuilder) Succeeded(output string) *podBuilder {
	return b.Result(0, stepexec.Result{Outcome: stepexec.OutcomeSucceeded, Output: json.RawMessage(output)})
}

// OOM says that the kernel killed the container.
func (b *podBuilder) OOM() *podBuilder {
	b.pod.Status.ContainerStatuses[0].State.Terminated.Reason = "OOMKilled"
	return b
}
func (b *podBuilder) Init(name string, code int32, reason, message string) *podBuilder {
	b.pod.Status.InitContainerStatuses = append(b.pod.Status.InitContainerStatuses, corev1.ContainerStatus{Name: name,
		State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: reason, Message: message}}})
	return b
}
func (b *podBuilder) InitWaiting(name, reason, message string) *podBuilder {
	b.pod.Status.InitContainerStatuses = append(b.pod.Status.InitContainerStatuses, corev1.ContainerStatus{Name: name, Image: "runner:1",
		State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}})
	return b
}
func (b *podBuilder) Phase(phase corev1.PodPhase, reason, message string) *podBuilder {
	b.pod.Status.Phase, b.pod.Status.Reason, b.pod.Status.Message = phase, reason, message
	return b
}
func (b *podBuilder) Disrupted(reason string) *podBuilder {
	return b.Condition(corev1.DisruptionTarget, corev1.ConditionTrue, reason, "")
}
func (b *podBuilder) Condition(kind corev1.PodConditionType, status corev1.ConditionStatus, reason, message string) *podBuilder {
	b.pod.Status.Conditions = append(b.pod.Status.Conditions, corev1.PodCondition{Type: kind, Status: status, Reason: reason, Message: message})
	return b
}
func (b *podBuilder) Gates(names ...string) *podBuilder {
	b.pod.Spec.SchedulingGates = nil
	for _, name := range names {
		b.pod.Spec.SchedulingGates = append(b.pod.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: name})
	}
	return b
}
func (b *podBuilder) Deleting() *podBuilder {
	b.pod.DeletionTimestamp = &metav1.Time{Time: epoch}
	return b
}

// Forced says that it is being deleted without any wait for its node.
func (b *podBuilder) Forced() *podBuilder {
	b.pod.DeletionGracePeriodSeconds = new(int64(0))
	return b.Deleting()
}
func (b *podBuilder) UID(uid types.UID) *podBuilder { b.pod.UID = uid; return b }
func (b *podBuilder) Node(name string) *podBuilder  { b.pod.Spec.NodeName = name; return b }
func (b *podBuilder) Held() *podBuilder {
	b.pod.Finalizers = []string{v1alpha1.FenceFinalizer}
	return b
}
func (b *podBuilder) Gated() *podBuilder { return b.Held().Gates(v1alpha1.FenceGate) }

// Of makes it the pod of a task's current attempt, and of its Job.
func (b *podBuilder) Of(task *v1alpha1.AgentTask) *podBuilder {
	job := jobOf(task)
	b.pod.Name = job.Name
	b.pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(job, batchv1.SchemeGroupVersion.WithKind("Job"))}
	return b
}

// StartedTwice says that kubelet started the container a second time, which the runner
// refused. How it is now becomes how it ended before.
func (b *podBuilder) StartedTwice() *podBuilder {
	first := b.pod.Status.ContainerStatuses[0].State
	b.Result(143, stepexec.Result{Outcome: stepexec.OutcomeInterrupted, Reason: v1alpha1.ReasonStartedTwice, Message: "it was started before"})
	b.pod.Status.ContainerStatuses[0].LastTerminationState = first
	return b
}
func (b *podBuilder) Obj() *corev1.Pod { return b.pod }

// jobOf is the Job of a task's current attempt.
func jobOf(task *v1alpha1.AgentTask) *batchv1.Job {
	record := &task.Status.Steps[len(task.Status.Steps)-1]
	return &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: record.JobName, UID: types.UID("job-" + record.JobName)}}
}

func suspendedJobOf(task *v1alpha1.AgentTask) *batchv1.Job {
	job := jobOf(task)
	job.Spec.Suspend = new(true)
	return job
}

// decide decides once, and holds the decision against the invariants.
func decide(t *testing.T, in Input) Decision {
	t.Helper()
	if in.Rand == nil {
		in.Rand = half
	}
	if in.Now.IsZero() {
		in.Now = epoch
	}
	before := copyInput(in)
	d := Decide(in)
	for _, problem := range broken(before, in, d) {
		t.Errorf("invariant: %s", problem)
	}
	return d
}

// records is a status in short: "plan:Succeeded/1 gather:Running/2".
func records(status *v1alpha1.AgentTaskStatus) string {
	out := ""
	for i := range status.Steps {
		out += fmt.Sprintf(" %s:%s/%d", status.Steps[i].Name, status.Steps[i].Phase, status.Steps[i].Attempt)
	}
	if out == "" {
		return ""
	}
	return out[1:]
}

// kinds is a decision's actions in short: "FinishJob MakeJob".
func kinds(d Decision) string {
	out := ""
	for _, a := range d.Actions {
		out += " " + string(a.Kind)
	}
	if out == "" {
		return ""
	}
	return out[1:]
}

func jobNamed(name string) *batchv1.Job {
	return &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("job-" + name)}}
}
