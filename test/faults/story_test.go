// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
	"github.com/agenttask-dev/agenttask/test/harness"
)

// story is a history that is written by hand, move by move.
type story struct {
	h    History
	task *v1alpha1.AgentTask
	jobs map[string]*batchv1.Job
	pods map[string]*corev1.Pod
}

// move is one thing that happens, under a name by which a test finds it.
type move struct {
	name string
	do   func(*story)
}

const (
	look = "look" // effect None
	pay  = "pay"  // effect Once
	tell = "tell" // effect Idempotent
)

// plain is the undisturbed story of a plan of three steps.
func plain() []move {
	return slices.Concat(attemptOf(look, 1), attemptOf(pay, 1), attemptOf(tell, 1), []move{{"finish", func(s *story) {
		s.succeed(tell)
		s.task.Status.Phase = v1alpha1.TaskSucceeded
		s.keepTask()
	}}})
}

// attemptOf is one attempt of a step, from its intent to its pod's end. The first one's
// intent also records the success of the step before.
func attemptOf(step string, n int32) []move {
	id := fmt.Sprintf("%s-%d", step, n)
	moves := []move{
		{"intent " + id, func(s *story) { s.intend(step, n) }},
		{"job " + id, func(s *story) { s.makeJob(id, step, n) }},
		{"pod " + id, func(s *story) { s.makePod(id, step) }},
	}
	if step == pay {
		moves = append(moves,
			move{"bind " + id, func(s *story) {
				r := record(s.task, step)
				r.JobUID, r.PodUID = s.jobs[id].UID, s.pods[id].UID
				s.keepTask()
			}},
			move{"open " + id, func(s *story) { s.changePod(id, func(p *corev1.Pod) { p.Spec.SchedulingGates = nil }) }},
		)
	}
	return append(moves,
		move{"schedule " + id, func(s *story) { s.changePod(id, func(p *corev1.Pod) { p.Spec.NodeName = "node" }) }},
		move{"run " + id, func(s *story) { s.effect(id, step, n) }},
		move{"end " + id, func(s *story) {
			s.endPod(id, stepexec.Result{Outcome: stepexec.OutcomeSucceeded, Output: json.RawMessage(`"` + step + `"`)})
		}},
	)
}

// again is an attempt whose program asks for another one, and that other one.
func again(step string) []move {
	moves := change(attemptOf(step, 1), "end "+step+"-1", func(s *story) {
		s.endPod(step+"-1", stepexec.Result{Outcome: stepexec.OutcomeRetry})
	})
	moves = change(moves, "run "+step+"-1", func(*story) {})
	moves = append(moves, move{"retrying " + step, func(s *story) {
		record(s.task, step).Phase = v1alpha1.StepRetrying
		s.keepTask()
	}})
	return slices.Concat(attemptOf(look, 1), moves, attemptOf(step, 2))
}

// play plays moves and returns the history.
func play(moves []move) *History {
	task := &v1alpha1.AgentTask{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "task", UID: "task-uid", Generation: 1}}
	for name, effect := range map[string]v1alpha1.Effect{look: v1alpha1.EffectNone, pay: v1alpha1.EffectOnce, tell: v1alpha1.EffectIdempotent} {
		task.Spec.Steps = append(task.Spec.Steps, v1alpha1.Step{Name: name, Effect: effect})
	}
	slices.SortFunc(task.Spec.Steps, func(a, b v1alpha1.Step) int { return order(a.Name) - order(b.Name) })
	s := &story{task: task, jobs: map[string]*batchv1.Job{}, pods: map[string]*corev1.Pod{}}
	s.keepTask()
	for _, m := range moves {
		m.do(s)
	}
	s.h.Rests = []Rest{{}}
	return &s.h
}

func order(step string) int { return slices.Index([]string{look, pay, tell}, step) }

func (s *story) keep(r harness.Revision) {
	r.RV = int64(len(s.h.Revisions) + 1)
	s.h.Revisions = append(s.h.Revisions, r)
}

func (s *story) keepTask()         { s.keep(harness.Revision{Task: s.task.DeepCopy()}) }
func (s *story) keepPod(id string) { s.keep(harness.Revision{Pod: s.pods[id].DeepCopy()}) }

func (s *story) intend(step string, n int32) {
	if s.task.Status.Usage == nil {
		s.task.Status.Usage = &v1alpha1.Usage{}
	}
	s.task.Status.Usage.Attempts++
	if n > 1 {
		s.task.Status.Usage.Retries++
		r := record(s.task, step)
		r.Phase, r.Attempt, r.JobUID, r.PodUID = v1alpha1.StepRunning, n, "", ""
		s.keepTask()
		return
	}
	if count := len(s.task.Status.Steps); count > 0 {
		s.succeed(s.task.Status.Steps[count-1].Name)
	}
	r := v1alpha1.StepStatus{Name: step}
	r.Phase, r.Attempt, r.IdempotencyKey, r.ActionHash = v1alpha1.StepRunning, n, "key-"+step, "hash-"+step
	s.task.Status.Steps = append(s.task.Status.Steps, r)
	s.task.Status.Phase = v1alpha1.TaskRunning
	s.keepTask()
}

func (s *story) succeed(step string) {
	r := record(s.task, step)
	r.Phase, r.Output = v1alpha1.StepSucceeded, &apiextensionsv1.JSON{Raw: []byte(`"` + step + `"`)}
}

func (s *story) makeJob(id, step string, n int32) {
	name := stepexec.JobName(s.task.Name, s.task.UID, step, v1alpha1.RoleMain, n)
	s.jobs[id] = &batchv1.Job{ObjectMeta: metav1.ObjectMeta{
		Name: name, UID: types.UID("job-" + id), OwnerReferences: controlledBy(s.task.UID)}}
	s.keep(harness.Revision{Job: s.jobs[id].DeepCopy()})
}

func (s *story) makePod(id, step string) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: s.jobs[id].Name, UID: types.UID("pod-" + id), OwnerReferences: controlledBy(s.jobs[id].UID)}}
	if step == pay {
		stepexec.Fence(pod, s.task)
	}
	s.pods[id] = pod
	s.keepPod(id)
}

// makeTwin makes another pod under an attempt's Job.
func (s *story) makeTwin(id string) {
	twin := s.pods[id].DeepCopy()
	twin.Name, twin.UID = twin.Name+"-twin", twin.UID+"-twin"
	s.pods[id+"-twin"] = twin
	s.keepPod(id + "-twin")
}

func (s *story) changePod(id string, change func(*corev1.Pod)) {
	change(s.pods[id])
	s.keepPod(id)
}

func (s *story) endPod(id string, result stepexec.Result) {
	result.Version = stepexec.ResultVersion
	text, _ := json.Marshal(result)
	s.changePod(id, func(p *corev1.Pod) {
		p.Status.Phase = corev1.PodFailed
		if result.Outcome == stepexec.OutcomeSucceeded {
			p.Status.Phase = corev1.PodSucceeded
		}
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: stepexec.ContainerStep,
			State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: string(text)}}}}
	})
}

func (s *story) dropPod(id string) {
	s.keep(harness.Revision{Deleted: true, Pod: s.pods[id].DeepCopy()})
}

func (s *story) effect(id, step string, n int32) {
	s.h.Effects = append(s.h.Effects, Effect{Pod: s.pods[id].UID, Step: step, Attempt: n, Key: "key-" + step, Done: true})
}

func controlledBy(uid types.UID) []metav1.OwnerReference {
	return []metav1.OwnerReference{{UID: uid, Controller: new(true)}}
}

// change puts something else in a move's place.
func change(moves []move, name string, do func(*story)) []move {
	next := slices.Clone(moves)
	next[index(moves, name)].do = do
	return next
}

// without leaves a move out.
func without(moves []move, name string) []move {
	i := index(moves, name)
	return slices.Delete(slices.Clone(moves), i, i+1)
}

// after puts something after a move.
func after(moves []move, name string, do func(*story)) []move {
	return slices.Insert(slices.Clone(moves), index(moves, name)+1, move{"", do})
}

// sooner puts a move before another one.
func sooner(moves []move, name, than string) []move {
	m := moves[index(moves, name)]
	moves = without(moves, name)
	return slices.Insert(moves, index(moves, than), m)
}

func index(moves []move, name string) int {
	i := slices.IndexFunc(moves, func(m move) bool { return m.name == name })
	if i < 0 {
		panic("there is no move " + name)
	}
	return i
}

// expectBroken checks which invariants a history breaks.
func expectBroken(t *testing.T, h *History, want ...string) {
	t.Helper()
	found := Check(h)
	var have []string
	for _, v := range found {
		if !slices.Contains(have, v.Invariant) {
			have = append(have, v.Invariant)
		}
	}
	if !slices.Equal(have, want) {
		t.Errorf("want violations of %v, have of %v:", want, have)
		for _, v := range found {
			t.Log(v)
		}
	}
}
