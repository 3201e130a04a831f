// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
)

// almostOne is the largest number that a random source draws.
var almostOne = math.Nextafter(1, 0)

func TestWaitIsDrawnFromZeroToTheBound(t *testing.T) {
	const year = 365 * 24 * time.Hour
	for _, base := range []time.Duration{0, time.Nanosecond, time.Millisecond, time.Second, time.Minute, 24 * time.Hour} {
		for _, limit := range []time.Duration{base, max(base, time.Minute), 24 * time.Hour} {
			for _, n := range []int32{0, 1, 2, 5, 30, 31, 32, 62, 63, 64, 99, 100, 1100, math.MaxInt32} {
				for _, retryAfter := range []time.Duration{0, time.Second, year} {
					p := policy{base: base, cap: limit}
					bound := limit
					if n < 40 && base < limit>>n {
						bound = base << n
					}
					for _, draw := range []float64{0, 0.25, 0.5, almostOne} {
						got := p.wait(n, retryAfter, draw) - retryAfter
						want := time.Duration(draw * float64(bound))
						if base > 0 && (got < 0 || got > bound || (got-want).Abs() > time.Microsecond) {
							t.Errorf("base %s, cap %s, retry %d, Retry-After %s, draw %v: waits %s more, want %s", base, limit, n, retryAfter, draw, got, want)
						}
						if base == 0 && got != 0 {
							t.Errorf("base 0, cap %s, retry %d: waits %s, want 0", limit, n, got)
						}
					}
				}
			}
		}
	}
}

func TestBackoffDefaults(t *testing.T) {
	d := func(v time.Duration) *metav1.Duration { return &metav1.Duration{Duration: v} }
	tests := map[string]struct {
		backoff           *v1alpha1.Backoff
		wantBase, wantCap time.Duration
	}{
		"nothing given":                        {nil, time.Second, time.Minute},
		"an empty backoff":                     {&v1alpha1.Backoff{}, time.Second, time.Minute},
		"only a base":                          {&v1alpha1.Backoff{Base: d(5 * time.Second)}, 5 * time.Second, time.Minute},
		"only a base, above the default cap":   {&v1alpha1.Backoff{Base: d(2 * time.Hour)}, 2 * time.Hour, 2 * time.Hour},
		"only a cap":                           {&v1alpha1.Backoff{Cap: d(time.Hour)}, time.Second, time.Hour},
		"only a cap, below the default base":   {&v1alpha1.Backoff{Cap: d(10 * time.Millisecond)}, 10 * time.Millisecond, 10 * time.Millisecond},
		"both":                                 {&v1alpha1.Backoff{Base: d(2 * time.Second), Cap: d(3 * time.Second)}, 2 * time.Second, 3 * time.Second},
		"negative ones, from before the rules": {&v1alpha1.Backoff{Base: d(-1), Cap: d(-5)}, 0, 0},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			step := MakeStep("plan").Obj()
			step.Retry = &v1alpha1.RetryPolicy{Backoff: tt.backoff}
			p := policyOf(&step)
			if p.base != tt.wantBase || p.cap != tt.wantCap || p.limit != 4 || p.maxElapsed != 15*time.Minute || p.onTimeout {
				t.Errorf("policy %+v, want base %s, cap %s and the defaults", p, tt.wantBase, tt.wantCap)
			}
		})
	}
}

// nextAttempts runs a step that always asks for another attempt, and returns how long
// after its end each next one was to start.
func nextAttempts(t *testing.T, step v1alpha1.Step, retryAfter int64, draws ...float64) []time.Duration {
	t.Helper()
	var waits []time.Duration
	now := epoch
	task := MakeTask().Step(step).Running(t, step.Name)
	for _, draw := range draws {
		pod := MakePod().Result(75, stepexec.Result{Outcome: stepexec.OutcomeRetry, Reason: v1alpha1.ReasonRetryRequested, RetryAfterSeconds: retryAfter}).Obj()
		d := decide(t, Input{Task: task, World: World{Job: jobOf(task), Pod: pod}, Now: now, Rand: func() float64 { return draw }})
		record := d.Status.Steps[0]
		if record.Phase != v1alpha1.StepRetrying {
			break
		}
		wait := record.NextAttemptTime.Sub(now)
		waits = append(waits, wait)
		if d.RequeueAfter != max(wait, time.Millisecond) {
			t.Errorf("RequeueAfter %s, want %s", d.RequeueAfter, wait)
		}
		task.Status = d.Status
		early := decide(t, Input{Task: task, Now: now.Add(wait - 1), Rand: func() float64 { panic("drawn twice") }})
		if wait > 0 && (kinds(early) != "" || early.Status.Steps[0].Phase != v1alpha1.StepRetrying || early.RequeueAfter != time.Millisecond) {
			t.Errorf("a nanosecond early: %q, RequeueAfter %s", kinds(early), early.RequeueAfter)
		}
		now = now.Add(wait)
		task.Status = decide(t, Input{Task: task, Now: now, Rand: func() float64 { panic("drawn twice") }}).Status
	}
	return waits
}

func TestNextAttemptIsPersisted(t *testing.T) {
	tests := map[string]struct {
		step       v1alpha1.Step
		retryAfter int64
		draws      []float64
		want       []time.Duration
	}{
		"the bound doubles from base up to cap": {
			MakeStep("plan").Limit(9).Backoff(time.Second, 5*time.Second).Obj(), 0, []float64{0.5, 0.5, 0.5, 0.5, 0.5},
			[]time.Duration{500 * time.Millisecond, time.Second, 2 * time.Second, 2500 * time.Millisecond, 2500 * time.Millisecond}},
		"each wait is drawn for itself": {
			MakeStep("plan").Limit(9).Backoff(time.Second, time.Minute).Obj(), 0, []float64{0, 0.25, 0.75},
			[]time.Duration{0, 500 * time.Millisecond, 3 * time.Second}},
		"Retry-After is a floor below the jitter": {
			MakeStep("plan").Limit(9).Backoff(time.Second, time.Minute).Obj(), 10, []float64{0, 0.5, 0.75},
			[]time.Duration{10 * time.Second, 11 * time.Second, 13 * time.Second}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := nextAttempts(t, tt.step, tt.retryAfter, tt.draws...)
			if len(got) != len(tt.want) {
				t.Fatalf("waits %v, want %v", got, tt.want)
			}
			for i := range got {
				if got[i] != tt.want[i] {
					t.Errorf("waits %v, want %v", got, tt.want)
				}
			}
		})
	}
}

func TestMaxElapsedCountsFromTheEndOfTheFirstFailure(t *testing.T) {
	step := MakeStep("plan").Limit(9).Backoff(time.Second, time.Second).MaxElapsed(time.Minute).Obj()
	task := MakeTask().Step(step).Running(t, "plan")
	pod := MakePod().Result(75, again).Obj()
	d := decide(t, Input{Task: task, World: World{Job: jobOf(task), Pod: pod}, Now: epoch.Add(5 * time.Hour)})
	if d.Status.Steps[0].Phase != v1alpha1.StepRetrying {
		t.Fatalf("an attempt that took hours: %s; want its own time not to count", d.Status.Steps[0].Phase)
	}
	task.Status = d.Status
	task.Status = decide(t, Input{Task: task, Now: epoch.Add(5*time.Hour + time.Second)}).Status
	d = decide(t, Input{Task: task, World: World{Job: jobOf(task), Pod: pod}, Now: epoch.Add(5*time.Hour + 59*time.Second + 500*time.Millisecond)})
	if d.Status.Steps[0].Phase != v1alpha1.StepRetrying {
		t.Errorf("the next one would start exactly at the end: %s", d.Status.Steps[0].Phase)
	}
	d = decide(t, Input{Task: task, World: World{Job: jobOf(task), Pod: pod}, Now: epoch.Add(5*time.Hour + 59*time.Second + 501*time.Millisecond)})
	if d.Status.Steps[0].Phase != v1alpha1.StepFailed {
		t.Errorf("the next one would start after the end: %s", d.Status.Steps[0].Phase)
	}
}

func TestSizeOfTheCheckpointIsBounded(t *testing.T) {
	task := MakeTask().Obj()
	for i := range 400 {
		task.Spec.Steps = append(task.Spec.Steps, MakeStep("step-"+string(rune('a'+i/26))+string(rune('a'+i%26))).Obj())
	}
	big, err := json.Marshal(string(make([]byte, 340)))
	if err != nil || len(big) != 2042 {
		t.Fatalf("output of %d bytes, %v", len(big), err)
	}
	err = Simulation{Program: func(Attempt) stepexec.Result {
		return stepexec.Result{Outcome: stepexec.OutcomeSucceeded, Output: big}
	}}.Run(task, epoch)
	last := task.Status.Steps[len(task.Status.Steps)-1]
	if err != nil || last.Phase != v1alpha1.StepFailed || last.Reason != v1alpha1.ReasonOutputTooLarge || last.Output != nil {
		t.Fatalf("ended at step %d with %s %s, error %v", len(task.Status.Steps), last.Phase, last.Reason, err)
	}
	if len(task.Status.Steps) < 150 {
		t.Errorf("only %d steps of 2 KiB fit", len(task.Status.Steps))
	}
	doc, err := json.Marshal(task.Status)
	if err != nil || len(doc) > v1alpha1.MaxStatus {
		t.Errorf("the status has %d bytes, error %v; at most %d are meant", len(doc), err, v1alpha1.MaxStatus)
	}
}

func TestEstimateOfASizeIsNotBelowIt(t *testing.T) {
	text := func(n int) string { return strings.Repeat("x", n) }
	full := v1alpha1.ActionStatus{
		Phase: v1alpha1.StepCancelled, Attempt: 101, JobUID: types.UID(text(36)), PodUID: types.UID(text(36)),
		StartTime: metav1.NewTime(epoch), AttemptTime: new(metav1.NewTime(epoch)), FirstFailureTime: new(metav1.NewTime(epoch)),
		CompletionTime: new(metav1.NewTime(epoch)), NextAttemptTime: new(metav1.NewMicroTime(epoch)),
		Reason: v1alpha1.ReasonCommandNotFound, OutputRef: &v1alpha1.OutputRef{Bytes: v1alpha1.MaxOutput},
	}
	full.IdempotencyKey, full.ActionHash, full.JobName = text(169), text(71), text(63)
	full.OutputRef.SHA256, full.OutputRef.URI = text(64), "configmap:"+text(63)
	step := v1alpha1.StepStatus{Name: "a-step-whose-name-is-as-long-as-may-be-x", SpecHash: "0123456789abcdef", Effect: v1alpha1.EffectIdempotent, ActionStatus: full}
	for _, role := range []v1alpha1.Role{v1alpha1.RoleCheck, v1alpha1.RoleObserve, v1alpha1.RoleAgain, v1alpha1.RoleObserveAgain} {
		step.Actions = append(step.Actions, v1alpha1.RoleStatus{Role: role, ActionStatus: full})
	}
	step.Unknown = &v1alpha1.Unknown{Time: metav1.NewTime(epoch), Attempt: 101, Reason: text(64), Message: text(1024), PodDead: true}
	step.Decision = &v1alpha1.AppliedDecision{Name: text(253), UID: types.UID(text(36)), Decision: v1alpha1.DecisionComplete, Attempt: 101,
		DecidedBy: text(256), Reason: text(1024), Time: metav1.NewTime(epoch)}
	status := &v1alpha1.AgentTaskStatus{}
	for range 500 {
		status.Steps = append(status.Steps, step)
	}
	doc, err := json.Marshal(status)
	if estimate := statusSize(status); err != nil || len(doc) > estimate {
		t.Errorf("500 full records have %d bytes and are estimated as %d, error %v", len(doc), estimate, err)
	}
}

func TestOutputsKeptElsewhereAreAskedFor(t *testing.T) {
	task := MakeTask("plan", "other").Running(t, "other")
	task.Spec.Steps = append(task.Spec.Steps,
		MakeStep("use").Input(`{"n": "${steps.plan.output.n}", "o": "${steps.other.output}"}`).Obj())
	ref := &v1alpha1.OutputRef{URI: "configmap:x", SHA256: "ab", Bytes: 5000}
	task.Status.Steps[0].Output, task.Status.Steps[0].OutputRef = nil, ref
	world := World{Job: jobOf(task), Pod: large().Obj(), Output: ref}

	d := decide(t, Input{Task: task, World: world})
	if len(d.Load) != 2 || d.Load[0] != "plan" || d.Load[1] != "other" {
		t.Fatalf("Load is %v, want both outputs", d.Load)
	}
	outputs := map[string]Loaded{"plan": {Output: json.RawMessage(`{"n":7}`)}}
	if d = decide(t, Input{Task: task, World: world, Outputs: outputs}); len(d.Load) != 1 || d.Load[0] != "other" {
		t.Fatalf("Load is %v, want what is missing", d.Load)
	}
	outputs["other"] = Loaded{Output: json.RawMessage(`[1]`)}
	d = decide(t, Input{Task: task, World: world, Outputs: outputs})
	if a := find(d, MakeJob); a == nil || string(a.Attempt.Input) != `{"n":7,"o":[1]}` {
		t.Errorf("%q: %+v", kinds(d), a)
	}
	outputs["other"] = Loaded{Problem: "ConfigMap x is gone"}
	d = decide(t, Input{Task: task, World: world, Outputs: outputs})
	if got := records(&d.Status); got != "plan:Succeeded/1 other:Succeeded/1 use:Failed/0" || d.Status.Steps[2].Reason != v1alpha1.ReasonInputInvalid {
		t.Errorf("an output that is lost: %s, %s", got, d.Status.Steps[2].Reason)
	}
}
