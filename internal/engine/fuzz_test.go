// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
)

// tape is luck that is read from bytes; when they are used up it is always 0.
type tape struct{ bytes []byte }

func (t *tape) IntN(n int) int {
	if len(t.bytes) == 0 {
		return 0
	}
	b := t.bytes[0]
	t.bytes = t.bytes[1:]
	return int(b) % n
}

func (t *tape) yes() bool { return t.IntN(2) == 1 }

func pick[T any](t *tape, values ...T) T { return values[t.IntN(len(values))] }

// anyTime is a time near the epoch, or far from it, or none.
func anyTime(t *tape) time.Time {
	return pick(t, time.Time{}, epoch, epoch.Add(time.Duration(t.IntN(256))*time.Minute), epoch.AddDate(-300, 0, 0), epoch.AddDate(300, 0, 0))
}

func anyTimePtr(t *tape) *metav1.Time {
	if t.yes() {
		return nil
	}
	return new(metav1.NewTime(anyTime(t)))
}

func anyDuration(t *tape) *metav1.Duration {
	return pick(t, nil, &metav1.Duration{}, &metav1.Duration{Duration: -time.Second}, &metav1.Duration{Duration: time.Second}, &metav1.Duration{Duration: 1<<63 - 1})
}

func anyStep(t *tape) v1alpha1.Step {
	step := MakeStep(pick(t, "a", "b", "c", "")).Obj()
	if t.IntN(8) == 0 {
		step.Run = nil
	}
	if t.yes() {
		step.Input = doc1(pick(t, `null`, `"${params.a}"`, `"${steps.a.output}"`, `"${steps['b'].output.x}"`, `"${"`, `"${steps}"`, `{"a":"${1/0}"}`))
	}
	if t.yes() {
		step.Retry = &v1alpha1.RetryPolicy{Limit: pick(t, nil, new(int32(-1)), new(int32(0)), new(int32(100)), new(int32(1<<31-1))), MaxElapsed: anyDuration(t), OnTimeout: t.yes()}
		step.Retry.Backoff = &v1alpha1.Backoff{Base: anyDuration(t), Cap: anyDuration(t)}
	}
	step.Timeout, step.StartTimeout = anyDuration(t), anyDuration(t)
	return step
}

func anyRecord(t *tape) v1alpha1.StepStatus {
	r := v1alpha1.StepStatus{Name: pick(t, "a", "b", "c", "nobody", ""), SpecHash: pick(t, "", "0123456789abcdef"), ActionStatus: v1alpha1.ActionStatus{
		Phase:   pick(t, v1alpha1.StepRunning, v1alpha1.StepRetrying, v1alpha1.StepStopping, v1alpha1.StepSucceeded, v1alpha1.StepFailed, v1alpha1.StepCancelled, "", "Odd"),
		Attempt: pick[int32](t, 0, 1, 2, -7, 1<<31-1, -1<<31),
		JobName: pick(t, "", "job", "x"), IdempotencyKey: pick(t, "", "key"),
		StartTime: metav1.NewTime(anyTime(t)), AttemptTime: anyTimePtr(t), FirstFailureTime: anyTimePtr(t), CompletionTime: anyTimePtr(t),
		Reason: pick(t, "", v1alpha1.ReasonCancelled, v1alpha1.ReasonDeadlineExceeded, v1alpha1.ReasonRefused, v1alpha1.ReasonImageUnavailable, "Odd"),
	}}
	if t.yes() {
		r.NextAttemptTime = new(metav1.NewMicroTime(anyTime(t)))
	}
	switch t.IntN(4) {
	case 0:
		r.Output = doc1(pick(t, `null`, `{"x":1}`, `[`, ``))
	case 1:
		r.OutputRef = &v1alpha1.OutputRef{URI: "configmap:x"}
	}
	return r
}

func anyPod(t *tape) *corev1.Pod {
	if t.IntN(3) == 0 {
		return nil
	}
	b := MakePod()
	b.pod.CreationTimestamp = metav1.NewTime(anyTime(t))
	switch t.IntN(6) {
	case 0:
		b.Running()
	case 1:
		b.Waiting(pick(t, "", "ImagePullBackOff", "CreateContainerError", "Odd"), "why")
	case 2:
		b.Ended(int32(t.IntN(256)), pick(t, "", "OOMKilled", "StartError"), pick(t, "", "null", "[]", `{"v":1}`, `{"v":1,"outcome":"Succeeded","output":7}`, `{"v":1,"outcome":"Retry","retryAfterSeconds":9223372036854775807}`))
	case 3:
		b.Result(0, stepexec.Result{Outcome: pick(t, stepexec.OutcomeSucceeded, stepexec.OutcomeRetry, stepexec.OutcomeFailed, stepexec.OutcomeTimeout, stepexec.OutcomeInterrupted, "Odd"),
			Reason: strings.Repeat("r", t.IntN(256)), RetryAfterSeconds: int64(t.IntN(256)) - 128, Output: json.RawMessage(pick(t, `null`, `{"x":1}`))})
	case 4:
		b.Init("prepare", int32(t.IntN(3)), "Error", "")
	}
	b.Phase(pick(t, b.pod.Status.Phase, corev1.PodFailed, corev1.PodSucceeded, corev1.PodUnknown, ""), pick(t, "", "Evicted", "DeadlineExceeded", "NodeLost", "OutOfcpu"), "")
	if t.yes() {
		b.Disrupted(pick(t, "", "DeletionByPodGC", "DeletionByTaintManager", "PreemptionByScheduler"))
	}
	if t.yes() {
		b.Deleting()
	}
	return b.Obj()
}

func anyJob(t *tape) *batchv1.Job {
	if t.IntN(3) == 0 {
		return nil
	}
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: pick(t, "", "job", "x")}}
	job.Spec.Suspend = pick(t, nil, new(true), new(false))
	if t.IntN(4) == 0 {
		job.DeletionTimestamp = new(metav1.NewTime(epoch))
	}
	return job
}

// anyInput is an input of any shape, most of which no operator ever wrote.
func anyInput(t *tape) Input {
	b := MakeTask().Params(pick(t, `{}`, `{"a":1}`, `[`, ``))
	task := b.Obj()
	for range t.IntN(4) {
		b.Step(anyStep(t))
	}
	task.Generation = int64(t.IntN(3))
	task.Spec.Suspend, task.Spec.Cancel = t.yes(), t.yes()
	task.Spec.ActiveDeadlineSeconds = pick(t, nil, new(int64(0)), new(int64(-1)), new(int64(60)), new(int64(1<<63-1)))
	task.Spec.TTLSecondsAfterFinished = pick(t, nil, new(int32(0)), new(int32(-1)), new(int32(1<<31-1)))
	task.Spec.JobHistory = pick(t, "", v1alpha1.JobHistoryNone, v1alpha1.JobHistoryFailed, "Odd")
	s := &task.Status
	s.Phase = pick(t, "", v1alpha1.TaskRunning, v1alpha1.TaskSucceeded, v1alpha1.TaskFailed, "Odd")
	s.RunID, s.PlanHash, s.ObservedGeneration = pick(t, "", "run"), pick(t, "", "odd"), int64(t.IntN(3))
	s.StartTime, s.CompletionTime = anyTimePtr(t), anyTimePtr(t)
	for range t.IntN(4) {
		s.Steps = append(s.Steps, anyRecord(t))
	}
	if t.yes() {
		s.Conditions = []metav1.Condition{{Type: pick(t, v1alpha1.ConditionStalled, "Odd"), Status: "True", Reason: pick(t, "", v1alpha1.ReasonPlanChanged)}}
	}
	w := World{Job: anyJob(t), Pod: anyPod(t), JobVanished: t.yes(), PodVanished: t.yes(), LastPod: anyPod(t)}
	w.OutputProblem = pick(t, "", "", "lost")
	w.Blocked, w.Conflict = pick(t, nil, nil, &Problem{"Blocked", "b"}), pick(t, nil, nil, &Problem{"Conflict", "c"})
	w.Refusal = pick(t, nil, nil, &Refusal{v1alpha1.ReasonRefused, "refused", -time.Second})
	w.Output = pick(t, nil, &v1alpha1.OutputRef{URI: "configmap:x"})
	if job := anyJob(t); job != nil {
		w.Ended = append(w.Ended, job)
	}
	draw := float64(t.IntN(256)) / 256
	in := Input{Task: task, World: w, Now: anyTime(t), Rand: func() float64 { return draw }}
	if t.yes() {
		in.Outputs = map[string]Loaded{"a": {Output: json.RawMessage(`1`)}, "b": {Problem: "gone"}, "c": {}, "": {}, "nobody": {}}
	}
	return in
}

// FuzzDecide reads its bytes as luck: either as that of a whole cluster, whose statuses
// the engine made itself, so that every invariant must hold; or as an input of any
// shape, with which Decide must not panic, nor touch what is finished.
func FuzzDecide(f *testing.F) {
	for _, seed := range []string{"", "\x01", "\x00cluster of one step", "\x01any input, two records", strings.Repeat("\x00\x07\x03\x0b", 80), strings.Repeat("\x01\x02\x05\x04\x03", 60), "\x01" + strings.Repeat("\xff\x01", 100)} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, bytes []byte) {
		luck := &tape{bytes}
		if luck.IntN(2) == 0 {
			c := newCluster(luck)
			for i := 0; i < 60 && len(luck.bytes) > 0; i++ {
				c.walk(1)
			}
			if !c.quiet() {
				c.problem("it does not come to rest")
			}
			for _, p := range c.problems {
				t.Errorf("after %s:\n%s", strings.Join(c.history, "\n"), p)
			}
			return
		}
		in := anyInput(luck)
		before := copyInput(in)
		for _, p := range brokenAlways(before, in, Decide(in)) {
			t.Errorf("invariant: %s\ninput: %+v", p, before)
		}
	})
}
