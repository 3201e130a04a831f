// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

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
	switch t.IntN(8) {
	case 0:
		step.Run = nil
	case 1, 2:
		step.Run, step.HTTP = nil, anyRequest(t)
	}
	if t.yes() {
		step.Input = doc1(pick(t, `null`, `"${params.a}"`, `"${steps.a.output}"`, `"${steps['b'].output.x}"`, `"${"`, `"${steps}"`, `{"a":"${1/0}"}`))
	}
	if t.yes() {
		step.Retry = &v1alpha1.RetryPolicy{Limit: pick(t, nil, new(int32(-1)), new(int32(0)), new(int32(100)), new(int32(1<<31-1))), MaxElapsed: anyDuration(t), OnTimeout: t.yes()}
		step.Retry.Backoff = &v1alpha1.Backoff{Base: anyDuration(t), Cap: anyDuration(t)}
	}
	step.Timeout, step.StartTimeout = anyDuration(t), anyDuration(t)
	step.Effect = pick(t, "", v1alpha1.EffectNone, v1alpha1.EffectIdempotent, v1alpha1.EffectOnce, v1alpha1.EffectOnce, "Odd")
	step.OnUnknown = pick(t, "", v1alpha1.UnknownPause, v1alpha1.UnknownCheck, v1alpha1.UnknownRetry, v1alpha1.UnknownFail, "Odd")
	step.IdempotencyKey = pick(t, "", "", "key", "key-${params.a}", "${steps.a.output}", "${")
	if t.yes() {
		step.Check = &v1alpha1.Check{When: pick(t, "", v1alpha1.CheckBefore, "Odd"), Done: pick(t, "", "${result.done}", "${result}", "x"), Timeout: anyDuration(t)}
		step.Check.Run, step.Check.HTTP = pick(t, nil, &v1alpha1.RunAction{Command: []string{"look"}}), pick(t, nil, anyRequest(t))
		step.Check.Input, step.Check.Output = pick(t, nil, doc1(`"${key}"`), doc1(`"${"`)), pick(t, nil, doc1(`"${result.x}"`), doc1(`"${"`))
	}
	return step
}

func anyRequest(t *tape) *v1alpha1.HTTPAction {
	h := &v1alpha1.HTTPAction{Method: pick(t, "POST", "GET", ""), URL: pick(t, "https://api.test/${params.a}", "https://api.test/?${key}", "", "${"), Timeout: anyDuration(t)}
	h.Body = pick(t, nil, doc1(`{"a":"${steps.a.output}"}`), doc1(`null`))
	h.Headers = pick(t, nil, []v1alpha1.HTTPHeader{{Name: "A", Value: "${key}"}, {Name: "B", SecretKeyRef: &corev1.SecretKeySelector{}}}, []v1alpha1.HTTPHeader{{}})
	h.TLS, h.KeyHeader = pick(t, nil, &v1alpha1.HTTPTLS{}, &v1alpha1.HTTPTLS{CA: &v1alpha1.CASource{}}), pick(t, nil, &v1alpha1.KeyHeader{})
	return h
}

func anyAction(t *tape) v1alpha1.ActionStatus {
	a := v1alpha1.ActionStatus{
		Phase: pick(t, v1alpha1.StepRunning, v1alpha1.StepRetrying, v1alpha1.StepStopping, v1alpha1.StepChecking, v1alpha1.StepVerifying, v1alpha1.StepUnknown,
			v1alpha1.StepSucceeded, v1alpha1.StepSkipped, v1alpha1.StepFailed, v1alpha1.StepCancelled, "", "Odd"),
		Attempt: pick[int32](t, 0, 1, 2, 3, -7, 1<<31-1, -1<<31),
		JobName: pick(t, "", "job", "x"), IdempotencyKey: pick(t, "", "key"), ActionHash: pick(t, "", "sha256:00"), PodUID: pick[types.UID](t, "", "pod", "other"),
		StartTime: metav1.NewTime(anyTime(t)), AttemptTime: anyTimePtr(t), FirstFailureTime: anyTimePtr(t), CompletionTime: anyTimePtr(t),
		Reason: pick(t, "", v1alpha1.ReasonCancelled, v1alpha1.ReasonDeadlineExceeded, v1alpha1.ReasonRefused, v1alpha1.ReasonImageUnavailable, v1alpha1.ReasonOutputLost, "Odd"),
	}
	if t.yes() {
		a.NextAttemptTime = new(metav1.NewMicroTime(anyTime(t)))
	}
	switch t.IntN(4) {
	case 0:
		a.Output = doc1(pick(t, `null`, `{"x":1}`, `[`, ``))
	case 1:
		a.OutputRef = &v1alpha1.OutputRef{URI: "configmap:x"}
	}
	return a
}

func anyRecord(t *tape) v1alpha1.StepStatus {
	r := v1alpha1.StepStatus{Name: pick(t, "a", "b", "c", "nobody", ""), SpecHash: pick(t, "", "0123456789abcdef"), ActionStatus: anyAction(t)}
	r.Effect = pick(t, "", v1alpha1.EffectOnce, v1alpha1.EffectOnce, "Odd")
	for range t.IntN(3) {
		r.Actions = append(r.Actions, v1alpha1.RoleStatus{
			Role: pick(t, v1alpha1.RoleCheck, v1alpha1.RoleObserve, v1alpha1.RoleAgain, v1alpha1.RoleObserveAgain, v1alpha1.RoleMain, "odd"), ActionStatus: anyAction(t)})
	}
	if t.yes() {
		r.Unknown = &v1alpha1.Unknown{Time: metav1.NewTime(anyTime(t)), Attempt: pick[int32](t, 0, 1, -7), PodDead: t.yes()}
	}
	if t.IntN(4) == 0 {
		r.Decision = &v1alpha1.AppliedDecision{UID: "d1", Attempt: pick[int32](t, 0, 1, -7), Decision: pick(t, v1alpha1.DecisionRetry, v1alpha1.DecisionSkip, "Odd")}
	}
	return r
}

func anyDecision(t *tape) *v1alpha1.AgentDecision {
	d := &v1alpha1.AgentDecision{ObjectMeta: metav1.ObjectMeta{UID: pick[types.UID](t, "d1", "d2", ""), Generation: pick[int64](t, 1, 0, 2), CreationTimestamp: metav1.NewTime(anyTime(t))}}
	d.Spec = v1alpha1.AgentDecisionSpec{TaskUID: pick(t, string(MakeTask().Obj().UID), ""), Step: pick(t, "a", "b", ""), Attempt: pick[int32](t, 0, 1, 2, -7), ActionHash: pick(t, "", "sha256:00"),
		Decision: pick(t, v1alpha1.DecisionRetry, v1alpha1.DecisionComplete, v1alpha1.DecisionSkip, v1alpha1.DecisionAbort, "Odd"), Output: pick(t, nil, doc1(`1`), doc1(`[`))}
	return d
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
	switch t.IntN(8) {
	case 0, 1:
		b.Deleting()
	case 2:
		b.Forced()
	case 3:
		b.Gated()
	}
	b.UID(pick[types.UID](t, "pod", "other")).Node(pick(t, "", "n1"))
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
	for range t.IntN(3) {
		if pod := anyPod(t); pod != nil {
			w.Held = append(w.Held, pod)
		}
		w.Decisions = append(w.Decisions, anyDecision(t))
	}
	w.LastPodFinal, w.Unguarded = t.yes(), pick(t, "", "missing")
	draw := float64(t.IntN(256)) / 256
	in := Input{Task: task, World: w, Now: anyTime(t), Rand: func() float64 { return draw }}
	if t.yes() {
		in.Outputs = map[string]Loaded{"a": {Output: json.RawMessage(`1`)}, "b": {Problem: "gone"}, "c": {}, "": {}, "nobody": {}}
	}
	return in
}

// decideAnything decides upon an input of any shape, and says which invariants break.
func decideAnything(luck *tape) (Input, problems) {
	in := anyInput(luck)
	before := copyInput(in)
	return before, brokenAlways(before, in, Decide(in))
}

func TestDecideTakesAnything(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	for range 3000 {
		bytes := make([]byte, 600)
		for i := range bytes {
			bytes[i] = byte(random.IntN(256))
		}
		if in, problems := decideAnything(&tape{bytes}); len(problems) > 0 {
			t.Fatalf("invariants: %v\ninput: %+v", problems, in)
		}
	}
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
		if in, problems := decideAnything(luck); len(problems) > 0 {
			t.Errorf("invariants: %v\ninput: %+v", problems, in)
		}
	})
}
