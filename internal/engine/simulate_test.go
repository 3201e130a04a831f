// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
)

// story runs a whole plan and remembers what happened.
type story struct {
	task *v1alpha1.AgentTask
	// trace holds, for each decision that changed records, those that changed:
	// "plan:Running/1", "plan:Succeeded/1 gather:Running/1".
	trace []string
	// ran is each program that was started: "plan/1 {}".
	ran []string
	// events are the reasons of all events.
	events []string
	err    error
}

func (s *story) String() string { return strings.Join(s.trace, ", ") }

// tell runs a plan with a program, and an edit of the spec where that is not nil. Every
// decision is held against the invariants.
func tell(t *testing.T, task *v1alpha1.AgentTask, program func(Attempt) stepexec.Result, edit func(*v1alpha1.AgentTask, Decision)) *story {
	t.Helper()
	s := &story{task: task}
	expected := task.DeepCopy()
	sim := Simulation{MaxDecisions: 2000}
	sim.Program = func(a Attempt) stepexec.Result {
		s.ran = append(s.ran, fmt.Sprintf("%s/%d %s", a.Step, a.Number, a.Input))
		if program == nil {
			return stepexec.Result{Outcome: stepexec.OutcomeSucceeded}
		}
		return program(a)
	}
	sim.OnDecision = func(task *v1alpha1.AgentTask, d Decision) {
		if !equality.Semantic.DeepEqual(expected, task) {
			t.Errorf("the decision changed its input: %s", cmp.Diff(expected, task))
		}
		if len(d.Load) == 0 {
			for _, p := range slices.Concat(brokenStep(task, d), brokenActions(task, d), brokenStatus(task, d)) {
				t.Errorf("invariant after %q: %s", s, p)
			}
		}
		if entry := changes(&task.Status, &d.Status); entry != "" {
			s.trace = append(s.trace, entry)
		}
		for _, e := range d.Events {
			s.events = append(s.events, e.Reason)
		}
		if edit != nil {
			spec := task.Spec.DeepCopy()
			edit(task, d)
			if !equality.Semantic.DeepEqual(*spec, task.Spec) {
				task.Generation++
			}
		}
		expected = task.DeepCopy()
		expected.Status = *d.Status.DeepCopy()
	}
	s.err = sim.Run(task, epoch)
	return s
}

// changes is what of the records changed.
func changes(old, now *v1alpha1.AgentTaskStatus) string {
	var out []string
	for i := range now.Steps {
		n := &now.Steps[i]
		if i < len(old.Steps) && old.Steps[i].Phase == n.Phase && old.Steps[i].Attempt == n.Attempt {
			continue
		}
		out = append(out, fmt.Sprintf("%s:%s/%d", n.Name, n.Phase, n.Attempt))
	}
	return strings.Join(out, " ")
}

// after makes an edit once, at the decision after which the records read so.
func after(when string, edit func(spec *v1alpha1.AgentTaskSpec)) func(*v1alpha1.AgentTask, Decision) {
	done := false
	return func(task *v1alpha1.AgentTask, d Decision) {
		if !done && records(&d.Status) == when {
			done = true
			edit(&task.Spec)
		}
	}
}

// failsTimes is a program of which one step ends with an outcome so many times first.
func failsTimes(step string, times int32, r stepexec.Result) func(Attempt) stepexec.Result {
	return func(a Attempt) stepexec.Result {
		if a.Step == step && a.Number <= times {
			return r
		}
		return stepexec.Result{Outcome: stepexec.OutcomeSucceeded, Output: json.RawMessage(`"done"`)}
	}
}

var again = stepexec.Result{Outcome: stepexec.OutcomeRetry, Reason: v1alpha1.ReasonRetryRequested, Message: "not yet", ExitCode: 75}

func TestWholePlans(t *testing.T) {
	timeout := stepexec.Result{Outcome: stepexec.OutcomeTimeout, Reason: v1alpha1.ReasonTimeout, Message: "ran longer than 1h0m0s"}
	failed := stepexec.Result{Outcome: stepexec.OutcomeFailed, Reason: v1alpha1.ReasonExitCode, Message: "exit code 3: no such order", ExitCode: 3}
	tests := map[string]struct {
		task        *taskBuilder
		program     func(Attempt) stepexec.Result
		wantTrace   string
		wantPhase   v1alpha1.TaskPhase
		wantMessage string
	}{
		"a plan whose steps all succeed takes one decision for each end and start": {
			task:        MakeTask("plan", "gather", "draft"),
			wantTrace:   "plan:Running/1, plan:Succeeded/1 gather:Running/1, gather:Succeeded/1 draft:Running/1, draft:Succeeded/1",
			wantPhase:   v1alpha1.TaskSucceeded,
			wantMessage: "all 3 steps succeeded",
		},
		"a step that asks for another attempt twice gets it": {
			task:      MakeTask("plan", "gather"),
			program:   failsTimes("plan", 2, again),
			wantTrace: "plan:Running/1, plan:Retrying/1, plan:Running/2, plan:Retrying/2, plan:Running/3, plan:Succeeded/3 gather:Running/1, gather:Succeeded/1",
			wantPhase: v1alpha1.TaskSucceeded, wantMessage: "all 2 steps succeeded",
		},
		"a step that fails for good ends the plan, and nothing after it runs": {
			task:      MakeTask("plan", "gather", "draft"),
			program:   failsTimes("gather", 9, failed),
			wantTrace: "plan:Running/1, plan:Succeeded/1 gather:Running/1, gather:Failed/1",
			wantPhase: v1alpha1.TaskFailed, wantMessage: "step gather failed in attempt 1: ExitCode: exit code 3: no such order",
		},
		"attempts end with the limit, and the message names it": {
			task:      MakeTask().Step(MakeStep("plan").Limit(2).Obj()),
			program:   failsTimes("plan", 9, again),
			wantTrace: "plan:Running/1, plan:Retrying/1, plan:Running/2, plan:Retrying/2, plan:Running/3, plan:Failed/3",
			wantPhase: v1alpha1.TaskFailed, wantMessage: "not yet; no retry left: retry.limit of 2 is reached",
		},
		"a limit of 0 retries nothing": {
			task:      MakeTask().Step(MakeStep("plan").Limit(0).Obj()),
			program:   failsTimes("plan", 9, again),
			wantTrace: "plan:Running/1, plan:Failed/1",
			wantPhase: v1alpha1.TaskFailed, wantMessage: "retry.limit of 0 is reached",
		},
		"attempts end with maxElapsed, and the message names it": {
			task:      MakeTask().Step(MakeStep("plan").Limit(50).Backoff(time.Minute, time.Minute).MaxElapsed(70 * time.Second).Obj()),
			program:   failsTimes("plan", 99, again),
			wantTrace: "plan:Running/1, plan:Retrying/1, plan:Running/2, plan:Retrying/2, plan:Running/3, plan:Failed/3",
			wantPhase: v1alpha1.TaskFailed, wantMessage: "no retry left: the next one would start after retry.maxElapsed of 1m10s",
		},
		"a Retry-After past maxElapsed ends the step at once": {
			task:      MakeTask("plan"),
			program:   failsTimes("plan", 9, stepexec.Result{Outcome: stepexec.OutcomeRetry, Reason: v1alpha1.ReasonRetryRequested, RetryAfterSeconds: 901}),
			wantTrace: "plan:Running/1, plan:Failed/1",
			wantPhase: v1alpha1.TaskFailed, wantMessage: "retry.maxElapsed of 15m0s",
		},
		"a timeout is final": {
			task:      MakeTask("plan"),
			program:   failsTimes("plan", 1, timeout),
			wantTrace: "plan:Running/1, plan:Failed/1",
			wantPhase: v1alpha1.TaskFailed, wantMessage: "step plan failed in attempt 1: Timeout: ran longer than 1h0m0s",
		},
		"a timeout is tried again with onTimeout": {
			task:      MakeTask().Step(MakeStep("plan").OnTimeout().Obj()),
			program:   failsTimes("plan", 1, timeout),
			wantTrace: "plan:Running/1, plan:Retrying/1, plan:Running/2, plan:Succeeded/2",
			wantPhase: v1alpha1.TaskSucceeded, wantMessage: "all 1 steps succeeded",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := tell(t, tt.task.Obj(), tt.program, nil)
			if s.err != nil {
				t.Fatal(s.err)
			}
			if diff := cmp.Diff(tt.wantTrace, s.String()); diff != "" {
				t.Errorf("trace (-want +got):\n%s", diff)
			}
			ready := condition(&s.task.Status, v1alpha1.ConditionReady)
			if s.task.Status.Phase != tt.wantPhase || !strings.Contains(ready.Message, tt.wantMessage) {
				t.Errorf("ended as %s: %q; want %s: %q", s.task.Status.Phase, ready.Message, tt.wantPhase, tt.wantMessage)
			}
			if s.task.Status.CompletionTime == nil {
				t.Error("no completionTime")
			}
		})
	}
}

func TestOutputsFlowOn(t *testing.T) {
	task := MakeTask().Params(`{"order": "123", "big": {"b": 1, "a": 2.50}}`).
		Step(MakeStep("plan").Input(`{"order": "${params.order}"}`).Obj()).
		Step(MakeStep("gather").Input(`{"from": "${steps.plan.output.sources}", "text": "order ${params.order}, ${steps.plan.output.sources.size()} sources"}`).Obj()).
		Step(MakeStep("draft").Input(`{"all": "${params.big}", "by": "${task.runID}", "n": "${steps.gather.attempt}"}`).Obj()).RunID("run-7").Obj()
	s := tell(t, task, func(a Attempt) stepexec.Result {
		if a.Step == "plan" {
			return stepexec.Result{Outcome: stepexec.OutcomeSucceeded, Output: json.RawMessage(`{"sources":["a","b"]}`)}
		}
		return stepexec.Result{Outcome: stepexec.OutcomeSucceeded}
	}, nil)
	want := []string{
		`plan/1 {"order":"123"}`,
		`gather/1 {"from":["a","b"],"text":"order 123, 2 sources"}`,
		`draft/1 {"all":{"a":2.5,"b":1},"by":"run-7","n":1}`,
	}
	if diff := cmp.Diff(want, s.ran); diff != "" || s.err != nil {
		t.Errorf("programs (-want +got), error %v:\n%s", s.err, diff)
	}
	if got := string(task.Status.Steps[0].Output.Raw); got != `{"sources":["a","b"]}` {
		t.Errorf("output of plan is %s", got)
	}
	if got := task.Status.Steps[1].Output; got != nil {
		t.Errorf("output of a program that wrote none is %s, want it absent, as null is once the status was written", got.Raw)
	}
	if diff := cmp.Diff([]string{"StepStarted", "StepSucceeded", "StepSucceeded", "StepSucceeded", "TaskSucceeded"}, s.events); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

func TestKeyStaysThroughRetriesAndRunsUnderOneRunID(t *testing.T) {
	keys := map[string]map[string]bool{}
	program := func(a Attempt) stepexec.Result {
		if keys[a.Step] == nil {
			keys[a.Step] = map[string]bool{}
		}
		keys[a.Step][a.Key] = true
		return failsTimes("plan", 2, again)(a)
	}
	for _, uid := range []string{"first", "second"} {
		task := MakeTask("plan", "gather").RunID("run-7").Obj()
		task.UID = "uid-" + task.UID[:8] + "-" + task.UID[9:10]
		task.Name += uid
		if s := tell(t, task, program, nil); s.err != nil {
			t.Fatal(s.err)
		}
	}
	for step, set := range keys {
		if len(set) != 1 {
			t.Errorf("step %s had %d keys in two runs of one runID", step, len(set))
		}
	}
}

func TestFinishedTaskIsDeletedWhenItsTTLHasPassed(t *testing.T) {
	task := MakeTask("plan").TTL(60).Obj()
	if s := tell(t, task, nil, nil); s.err != nil {
		t.Fatal(s.err)
	}
	end := task.Status.CompletionTime.Time
	d := decide(t, Input{Task: task, Now: end.Add(59 * time.Second)})
	if kinds(d) != "" || d.RequeueAfter != time.Second {
		t.Errorf("a second before: %q, RequeueAfter %s", kinds(d), d.RequeueAfter)
	}
	if d = decide(t, Input{Task: task, Now: end.Add(time.Minute)}); kinds(d) != "DeleteTask" {
		t.Errorf("at its end: %q", kinds(d))
	}

	task = MakeTask("plan").TTL(0).Cancel().Obj()
	if d = decide(t, Input{Task: task}); kinds(d) != "DeleteTask" || d.Status.Phase != v1alpha1.TaskCancelled {
		t.Errorf("a TTL of 0: %s, %q; want it gone with its end", d.Status.Phase, kinds(d))
	}
}

func TestSimulationSaysWhenItIsStuck(t *testing.T) {
	task := MakeTask("plan").Suspend().Obj()
	if err := (Simulation{}).Run(task, epoch); !errors.Is(err, ErrStuck) {
		t.Errorf("a suspended task: %v", err)
	}
	task = MakeTask("plan").Obj()
	sim := Simulation{Program: failsTimes("plan", 99, again), MaxDecisions: 3}
	if err := sim.Run(task, epoch); err == nil || errors.Is(err, ErrStuck) {
		t.Errorf("too few decisions: %v", err)
	}
}

func TestInputThatCannotBeRendered(t *testing.T) {
	big := strings.Repeat("x", 70<<10)
	tests := map[string]struct {
		input, params, wantReason, wantMessage string
	}{
		"an output that lacks the field fails the step": {
			input: `{"a": "${steps.plan.output.nope}"}`, params: `{}`, wantReason: v1alpha1.ReasonInputInvalid, wantMessage: "nope"},
		"an input of more than 128 KiB fails the step": {
			input: `{"a": "${params.big}", "b": "${params.big}"}`, params: `{"big":"` + big + `"}`, wantReason: v1alpha1.ReasonInputTooLarge, wantMessage: "at most 131072"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			task := MakeTask("plan").Params(tt.params).Step(MakeStep("use").Input(tt.input).Obj()).Obj()
			s := tell(t, task, nil, nil)
			if s.err != nil || s.String() != "plan:Running/1, plan:Succeeded/1 use:Failed/0" {
				t.Fatalf("trace %q, error %v", s, s.err)
			}
			record := task.Status.Steps[1]
			if record.Reason != tt.wantReason || !strings.Contains(record.Message, tt.wantMessage) {
				t.Errorf("record: %s: %s", record.Reason, record.Message)
			}
			if task.Status.Usage.Attempts != 1 || len(s.ran) != 1 {
				t.Errorf("%d attempts counted, %d ran; want 1", task.Status.Usage.Attempts, len(s.ran))
			}
			if strings.Contains(condition(&task.Status, v1alpha1.ConditionReady).Message, "kubectl logs") {
				t.Error("the message points to the log of a Job that was never made")
			}
		})
	}
}
