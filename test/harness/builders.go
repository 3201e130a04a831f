// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
)

// Task builds an AgentTask. What concerns a step concerns the step that was named last.
type Task struct{ task v1alpha1.AgentTask }

// MakeTask begins a task without steps.
func MakeTask(namespace, name string) *Task {
	return &Task{v1alpha1.AgentTask{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "AgentTask"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
	}}
}

// Obj is a copy of the task as built so far.
func (t *Task) Obj() *v1alpha1.AgentTask { return t.task.DeepCopy() }

// With changes the task in a way for which there is no method.
func (t *Task) With(change func(*v1alpha1.AgentTask)) *Task {
	change(&t.task)
	return t
}

// RunID sets spec.runID.
func (t *Task) RunID(id string) *Task {
	t.task.Spec.RunID = id
	return t
}

// Params sets spec.params, a JSON object.
func (t *Task) Params(doc string) *Task {
	t.task.Spec.Params = &apiextensionsv1.JSON{Raw: []byte(doc)}
	return t
}

// JobHistory sets spec.jobHistory.
func (t *Task) JobHistory(history v1alpha1.JobHistory) *Task {
	t.task.Spec.JobHistory = history
	return t
}

// Suspend sets spec.suspend.
func (t *Task) Suspend() *Task {
	t.task.Spec.Suspend = true
	return t
}

// Cancel sets spec.cancel.
func (t *Task) Cancel() *Task {
	t.task.Spec.Cancel = true
	return t
}

// Deadline sets spec.activeDeadlineSeconds.
func (t *Task) Deadline(seconds int64) *Task {
	t.task.Spec.ActiveDeadlineSeconds = &seconds
	return t
}

// TTL sets spec.ttlSecondsAfterFinished.
func (t *Task) TTL(seconds int32) *Task {
	t.task.Spec.TTLSecondsAfterFinished = &seconds
	return t
}

// PodTemplate sets spec.podTemplate.
func (t *Task) PodTemplate(template corev1.PodTemplateSpec) *Task {
	t.task.Spec.PodTemplate = &template
	return t
}

// Step adds a step that runs a program of its own name.
func (t *Task) Step(name string) *Task {
	t.task.Spec.Steps = append(t.task.Spec.Steps, v1alpha1.Step{
		Name: name,
		Run:  &v1alpha1.RunAction{Image: "tools.invalid/tools:1", Command: []string{name}},
	})
	return t
}

// Steps adds several.
func (t *Task) Steps(names ...string) *Task {
	for _, name := range names {
		t.Step(name)
	}
	return t
}

// Request adds a step that sends a request.
func (t *Task) Request(name, method, url string) *Task {
	t.task.Spec.Steps = append(t.task.Spec.Steps, v1alpha1.Step{Name: name, HTTP: &v1alpha1.HTTPAction{Method: method, URL: url}})
	return t
}

// HTTP changes the step's request.
func (t *Task) HTTP(change func(*v1alpha1.HTTPAction)) *Task {
	return t.Last(func(s *v1alpha1.Step) { change(s.HTTP) })
}

// Last changes the last step in a way for which there is no method.
func (t *Task) Last(change func(*v1alpha1.Step)) *Task {
	change(&t.task.Spec.Steps[len(t.task.Spec.Steps)-1])
	return t
}

// Input sets the step's input, a JSON document.
func (t *Task) Input(doc string) *Task {
	return t.Last(func(s *v1alpha1.Step) { s.Input = &apiextensionsv1.JSON{Raw: []byte(doc)} })
}

// Command sets the step's command.
func (t *Task) Command(command ...string) *Task {
	return t.Last(func(s *v1alpha1.Step) { s.Run.Command = command })
}

// Timeout sets the step's timeout.
func (t *Task) Timeout(d time.Duration) *Task {
	return t.Last(func(s *v1alpha1.Step) { s.Timeout = &metav1.Duration{Duration: d} })
}

// StartTimeout sets the step's startTimeout.
func (t *Task) StartTimeout(d time.Duration) *Task {
	return t.Last(func(s *v1alpha1.Step) { s.StartTimeout = &metav1.Duration{Duration: d} })
}

// Retry sets how often the step is tried again, and the bounds of the wait.
func (t *Task) Retry(limit int32, base, most time.Duration) *Task {
	return t.policy(func(r *v1alpha1.RetryPolicy) {
		r.Limit, r.Backoff = &limit, &v1alpha1.Backoff{Base: &metav1.Duration{Duration: base}, Cap: &metav1.Duration{Duration: most}}
	})
}

// RetryFast tries the step again, up to limit times and almost at once.
func (t *Task) RetryFast(limit int32) *Task {
	return t.Retry(limit, 10*time.Millisecond, 20*time.Millisecond)
}

// MaxElapsed sets retry.maxElapsed.
func (t *Task) MaxElapsed(d time.Duration) *Task {
	return t.policy(func(r *v1alpha1.RetryPolicy) { r.MaxElapsed = &metav1.Duration{Duration: d} })
}

// OnTimeout sets retry.onTimeout.
func (t *Task) OnTimeout() *Task {
	return t.policy(func(r *v1alpha1.RetryPolicy) { r.OnTimeout = true })
}

func (t *Task) policy(change func(*v1alpha1.RetryPolicy)) *Task {
	return t.Last(func(s *v1alpha1.Step) {
		if s.Retry == nil {
			s.Retry = &v1alpha1.RetryPolicy{}
		}
		change(s.Retry)
	})
}

// Once gives the step effect Once.
func (t *Task) Once() *Task { return t.Effect(v1alpha1.EffectOnce) }

// Effect sets the step's effect.
func (t *Task) Effect(effect v1alpha1.Effect) *Task {
	return t.Last(func(s *v1alpha1.Step) { s.Effect = effect })
}

// OnUnknown sets the step's onUnknown.
func (t *Task) OnUnknown(policy v1alpha1.OnUnknown) *Task {
	return t.Last(func(s *v1alpha1.Step) { s.OnUnknown = policy })
}

// Key sets the step's idempotencyKey.
func (t *Task) Key(key string) *Task {
	return t.Last(func(s *v1alpha1.Step) { s.IdempotencyKey = key })
}

// Check gives the step a check that runs a program of that name.
func (t *Task) Check(name string, when v1alpha1.CheckWhen) *Task {
	return t.Last(func(s *v1alpha1.Step) {
		s.Check = &v1alpha1.Check{Run: &v1alpha1.RunAction{Image: "tools.invalid/tools:1", Command: []string{name}}, When: when}
	})
}

// Verify runs each step twice, and observes by a program of that name.
func (t *Task) Verify(name string) *Task {
	t.task.Spec.Verify = &v1alpha1.Verify{Mode: v1alpha1.VerifyRunTwice, Observe: v1alpha1.Observe{
		Run: &v1alpha1.RunAction{Image: "tools.invalid/tools:1", Command: []string{name}},
	}}
	return t
}
