// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
)

// Attempt is what a simulated program is told.
type Attempt struct {
	Step, Key string
	// Role is what the program is for its step.
	Role   v1alpha1.Role
	Number int32
	Input  json.RawMessage
}

// Simulation runs a whole plan without a cluster: Jobs and pods are values, and time
// passes only where the task waits.
type Simulation struct {
	// Program is what each attempt does. Nil: every program succeeds with output null, and
	// each check says that the effect has not happened.
	Program func(Attempt) stepexec.Result
	// OnDecision, if set, sees the task before each decision, and the decision. It may
	// change the task's spec, as a user would.
	OnDecision func(task *v1alpha1.AgentTask, d Decision)
	// Rand is the random source of backoff. Nil: always 0.5.
	Rand func() float64
	// MaxDecisions bounds the run. 0: 100 for each step.
	MaxDecisions int
}

// ErrStuck says that a simulated task neither ended nor waits for a time.
var ErrStuck = errors.New("the task waits for something that does not come")

// Run drives the task until it ends. The task's status is changed.
func (s Simulation) Run(task *v1alpha1.AgentTask, start time.Time) error {
	w := &simulated{task: task, now: start, jobs: map[string]*batchv1.Job{}, pods: map[string]*corev1.Pod{},
		attempts: map[string]*stepexec.Attempt{}, program: s.Program}
	limit := s.MaxDecisions
	if limit == 0 {
		limit = 100 * (len(task.Spec.Steps) + 1)
	}
	random := s.Rand
	if random == nil {
		random = func() float64 { return 0.5 }
	}
	for range limit {
		d := Decide(Input{Task: task, World: w.world(), Now: w.now, Rand: random})
		if s.OnDecision != nil {
			s.OnDecision(task, d)
		}
		task.Status = d.Status
		changed := w.act(d.Actions)
		if task.Status.Phase.Finished() {
			return nil
		}
		if changed {
			continue
		}
		if d.RequeueAfter == 0 {
			return ErrStuck
		}
		w.now = w.now.Add(d.RequeueAfter)
	}
	return fmt.Errorf("the task has not ended after %d decisions", limit)
}

type simulated struct {
	task *v1alpha1.AgentTask
	now  time.Time
	jobs map[string]*batchv1.Job
	pods map[string]*corev1.Pod
	// attempts are what the pods were made for, by name.
	attempts map[string]*stepexec.Attempt
	program  func(Attempt) stepexec.Result
}

func (w *simulated) world() World {
	world := World{}
	if current := CurrentOf(w.task); current != nil {
		world.Job, world.Pod = w.jobs[current.JobName], w.pods[current.JobName]
	}
	return world
}

// act does the actions, and says whether there is something new to decide upon.
func (w *simulated) act(actions []Action) bool {
	changed := false
	for _, a := range actions {
		switch a.Kind {
		case MakeJob:
			w.makeJob(a)
			changed = true
		case OpenFence:
			w.run(w.pods[a.Pod.Name])
			changed = true
		case StopPod:
			delete(w.pods, a.Pod.Name)
			changed = true
		case FinishJob:
			delete(w.jobs, a.Job.Name)
			delete(w.pods, a.Job.Name)
		case ReleasePod, AnswerDecision, DeleteTask:
		}
	}
	return changed
}

// makeJob makes the Job and its pod, whose program ends at once, unless the fence keeps
// it.
func (w *simulated) makeJob(a Action) {
	job := stepexec.Render(w.task, *a.Attempt, "runner")
	job.UID = types.UID("job-" + job.Name)
	job.CreationTimestamp = metav1.NewTime(w.now)
	pod := stepexec.PodOf(job)
	pod.UID = types.UID("pod-" + pod.Name)
	pod.CreationTimestamp = metav1.NewTime(w.now)
	w.jobs[job.Name], w.pods[pod.Name], w.attempts[pod.Name] = job, pod, a.Attempt
	if !stepexec.Gated(pod) {
		w.run(pod)
	}
}

// run lets a pod's program run to its end.
func (w *simulated) run(pod *corev1.Pod) {
	attempt := w.attempts[pod.Name]
	pod.Spec.SchedulingGates = nil
	result := stepexec.Result{Outcome: stepexec.OutcomeSucceeded}
	switch {
	case w.program != nil:
		result = w.program(Attempt{
			Step: attempt.Step, Key: attempt.Record.IdempotencyKey, Role: attempt.Role, Number: attempt.Record.Attempt, Input: attempt.Input,
		})
	case attempt.Role == v1alpha1.RoleCheck:
		result.Output = json.RawMessage(`{"done":false}`)
	}
	result.Version = stepexec.ResultVersion
	message, err := json.Marshal(result)
	if err != nil {
		message = []byte(err.Error())
	}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name:  stepexec.ContainerStep,
		State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: string(message), FinishedAt: metav1.NewTime(w.now)}},
	}}
}
