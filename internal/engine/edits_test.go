// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
)

func suspend(spec *v1alpha1.AgentTaskSpec) { spec.Suspend = true }
func cancel(spec *v1alpha1.AgentTaskSpec)  { spec.Cancel = true }

func TestCancelAtEachPoint(t *testing.T) {
	tests := map[string]struct {
		when      string
		program   func(Attempt) stepexec.Result
		wantTrace string
		wantPhase v1alpha1.TaskPhase
	}{
		"before anything: nothing runs": {
			when: "", wantTrace: "", wantPhase: v1alpha1.TaskCancelled},
		"while a step runs that ends well all the same: its result is kept, the next does not start": {
			when: "plan:Running/1", wantTrace: "plan:Running/1, plan:Succeeded/1", wantPhase: v1alpha1.TaskCancelled},
		"while a step runs that then fails: it ends as cancelled": {
			when: "plan:Running/1", program: failsTimes("plan", 9, again),
			wantTrace: "plan:Running/1, plan:Cancelled/1", wantPhase: v1alpha1.TaskCancelled},
		"while a step waits for its next attempt: there is none": {
			when: "plan:Retrying/1", program: failsTimes("plan", 9, again),
			wantTrace: "plan:Running/1, plan:Retrying/1, plan:Cancelled/1", wantPhase: v1alpha1.TaskCancelled},
		"while the last step runs that ends well: the plan is completed": {
			when:      "plan:Succeeded/1 gather:Running/1",
			wantTrace: "plan:Running/1, plan:Succeeded/1 gather:Running/1, gather:Succeeded/1", wantPhase: v1alpha1.TaskSucceeded},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			task := MakeTask("plan", "gather").Obj()
			edit := after(tt.when, cancel)
			if tt.when == "" {
				task.Spec.Cancel, edit = true, nil
			}
			s := tell(t, task, tt.program, edit)
			if s.err != nil || s.String() != tt.wantTrace || task.Status.Phase != tt.wantPhase {
				t.Errorf("%q ended as %s, error %v; want %q as %s", s, task.Status.Phase, s.err, tt.wantTrace, tt.wantPhase)
			}
		})
	}
}

func TestSuspendAndResumeAtEachPoint(t *testing.T) {
	const whole = "plan:Running/1, plan:Retrying/1, plan:Running/2, plan:Succeeded/2 gather:Running/1, gather:Succeeded/1"
	tests := map[string]struct{ when, wantHeld, wantRest string }{
		"before anything": {"", "", whole},
		"while an attempt runs that then fails: the next one waits": {
			"plan:Running/1", "plan:Running/1, plan:Retrying/1", "plan:Running/2, plan:Succeeded/2 gather:Running/1, gather:Succeeded/1"},
		"while a step waits for its next attempt": {
			"plan:Retrying/1", "plan:Running/1, plan:Retrying/1", "plan:Running/2, plan:Succeeded/2 gather:Running/1, gather:Succeeded/1"},
		"while an attempt runs that then succeeds: its result is kept": {
			"plan:Running/2", "plan:Running/1, plan:Retrying/1, plan:Running/2, plan:Succeeded/2", "gather:Running/1, gather:Succeeded/1"},
		"while the last step runs: the plan is completed": {
			"plan:Succeeded/2 gather:Running/1", whole, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			task := MakeTask("plan", "gather").Obj()
			edit := after(tt.when, suspend)
			if tt.when == "" {
				task.Spec.Suspend, edit = true, nil
			}
			program := failsTimes("plan", 1, again)
			held := tell(t, task, program, edit)
			if held.String() != tt.wantHeld {
				t.Fatalf("until it is held: %q, want %q", held, tt.wantHeld)
			}
			if tt.wantRest == "" {
				return
			}
			if !errors.Is(held.err, ErrStuck) || task.Status.Phase != v1alpha1.TaskSuspended {
				t.Fatalf("held: phase %s, error %v; want it suspended and waiting for nobody but a person", task.Status.Phase, held.err)
			}
			task.Spec.Suspend, task.Generation = false, task.Generation+1
			rest := tell(t, task, program, nil)
			if rest.err != nil || rest.String() != tt.wantRest || task.Status.Phase != v1alpha1.TaskSucceeded {
				t.Errorf("resumed: %q, error %v, %s; want %q", rest, rest.err, task.Status.Phase, tt.wantRest)
			}
		})
	}
}

func TestDeadlineAtEachPoint(t *testing.T) {
	slow := stepexec.Result{Outcome: stepexec.OutcomeRetry, Reason: v1alpha1.ReasonRetryRequested, Message: "not yet", RetryAfterSeconds: 100}

	t.Run("a step that waits for its next attempt fails when the deadline comes", func(t *testing.T) {
		task := MakeTask("plan", "gather").Deadline(60).Obj()
		s := tell(t, task, failsTimes("plan", 9, slow), nil)
		if s.err != nil || s.String() != "plan:Running/1, plan:Retrying/1, plan:Failed/1" {
			t.Fatalf("%q, error %v", s, s.err)
		}
		ready := condition(&task.Status, v1alpha1.ConditionReady)
		if ready.Reason != v1alpha1.ReasonDeadlineExceeded || !strings.Contains(ready.Message, "activeDeadlineSeconds of 60") {
			t.Errorf("Ready: %s: %s", ready.Reason, ready.Message)
		}
		if got := task.Status.CompletionTime.Sub(epoch); got < time.Minute || got > time.Minute+time.Second {
			t.Errorf("it ended after %s, want a minute", got)
		}
	})
	t.Run("a suspended task fails when the deadline comes", func(t *testing.T) {
		task := MakeTask("plan").Deadline(60).Suspend().Obj()
		s := tell(t, task, nil, nil)
		if s.err != nil || s.String() != "" || task.Status.Phase != v1alpha1.TaskFailed {
			t.Errorf("%q ended as %s, error %v", s, task.Status.Phase, s.err)
		}
	})
	t.Run("the next step does not start past the deadline", func(t *testing.T) {
		task := MakeTask("plan", "gather").Deadline(60).Running(t, "plan")
		d := decide(t, Input{Task: task, World: World{Job: jobOf(task), Pod: MakePod().Succeeded("1").Obj()}, Now: epoch.Add(time.Minute)})
		if records(&d.Status) != "plan:Succeeded/1" || d.Status.Phase != v1alpha1.TaskFailed {
			t.Errorf("%s, %s; want the result kept and the task failed", records(&d.Status), d.Status.Phase)
		}
	})
	t.Run("the last step's result that comes after the deadline completes the plan", func(t *testing.T) {
		task := MakeTask("plan").Deadline(60).Running(t, "plan")
		d := decide(t, Input{Task: task, World: World{Job: jobOf(task), Pod: MakePod().Succeeded("1").Obj()}, Now: epoch.Add(time.Hour)})
		if d.Status.Phase != v1alpha1.TaskSucceeded {
			t.Errorf("%s, want Succeeded", d.Status.Phase)
		}
	})
	t.Run("a running step is stopped, and fails with the deadline's reason", func(t *testing.T) {
		task := MakeTask("plan").Deadline(60).Running(t, "plan")
		d := decide(t, Input{Task: task, World: World{Job: jobOf(task), Pod: MakePod().Running().Obj()}, Now: epoch.Add(time.Minute)})
		if records(&d.Status) != "plan:Stopping/1" || kinds(d) != "StopPod" {
			t.Fatalf("%s, %q", records(&d.Status), kinds(d))
		}
		task.Status = d.Status
		d = decide(t, Input{Task: task, World: World{Job: jobOf(task), Pod: MakePod().Ended(137, "Error", "").Deleting().Obj()}, Now: epoch.Add(2 * time.Minute)})
		if records(&d.Status) != "plan:Failed/1" || d.Status.Steps[0].Reason != v1alpha1.ReasonDeadlineExceeded || d.Status.Phase != v1alpha1.TaskFailed {
			t.Errorf("%s %s, %s", records(&d.Status), d.Status.Steps[0].Reason, d.Status.Phase)
		}
	})
}

func TestPlanChanges(t *testing.T) {
	moved := MakeStep("first").Obj()
	tests := map[string]struct {
		change      func(steps []v1alpha1.Step) []v1alpha1.Step
		wantFrozen  bool
		wantMessage string
	}{
		"a started step's image is changed": {func(s []v1alpha1.Step) []v1alpha1.Step { s[0].Run.Image = "tools:2"; return s },
			true, "step plan has started and was changed"},
		"a started step is removed": {func(s []v1alpha1.Step) []v1alpha1.Step { return s[1:] },
			true, "step plan has started and is no longer number 1 of the plan, where gather stands now"},
		"all steps but one that has not started are removed": {func(s []v1alpha1.Step) []v1alpha1.Step { return s[2:] },
			true, "step plan has started and is no longer number 1 of the plan, where draft stands now"},
		"a step is put before a started one": {func(s []v1alpha1.Step) []v1alpha1.Step { return append([]v1alpha1.Step{moved}, s...) },
			true, "where first stands now"},
		"a started step is renamed": {func(s []v1alpha1.Step) []v1alpha1.Step { s[0].Name = "think"; return s },
			true, "where think stands now"},
		"a step that has not started is changed": {func(s []v1alpha1.Step) []v1alpha1.Step { s[2].Run.Image = "tools:2"; return s },
			false, ""},
		"a step is put behind":                   {func(s []v1alpha1.Step) []v1alpha1.Step { return append(s, moved) }, false, ""},
		"the last step, not started, is removed": {func(s []v1alpha1.Step) []v1alpha1.Step { return s[:2] }, false, ""},
		"a step that has not started refers to one that is not before it": {func(s []v1alpha1.Step) []v1alpha1.Step {
			s[2].Input = doc1(`"${steps.nobody.output}"`)
			return s
		}, true, "spec.steps[2] (draft)"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			task := MakeTask("plan", "gather", "draft").Obj()
			before := task.DeepCopy().Spec.Steps
			change := after("plan:Succeeded/1 gather:Running/1", func(spec *v1alpha1.AgentTaskSpec) { spec.Steps = tt.change(spec.Steps) })
			s := tell(t, task, nil, change)
			if !tt.wantFrozen {
				if s.err != nil || task.Status.Phase != v1alpha1.TaskSucceeded || len(task.Status.Steps) != len(task.Spec.Steps) {
					t.Fatalf("%q ended as %s, error %v", s, task.Status.Phase, s.err)
				}
				return
			}
			stalled := condition(&task.Status, v1alpha1.ConditionStalled)
			if !errors.Is(s.err, ErrStuck) || records(&task.Status) != "plan:Succeeded/1 gather:Succeeded/1" {
				t.Fatalf("%q, error %v; want the running step's result and nothing after it", s, s.err)
			}
			if stalled.Status != metav1.ConditionTrue || !strings.Contains(stalled.Message, tt.wantMessage) || task.Status.Phase != v1alpha1.TaskWaiting {
				t.Errorf("Stalled %s: %q, phase %s", stalled.Status, stalled.Message, task.Status.Phase)
			}
			again := decide(t, Input{Task: task, Now: epoch.Add(time.Hour)})
			if diff := cmp.Diff(task.Status, again.Status); diff != "" || kinds(again) != "" {
				t.Errorf("looked at again it changes, %q:\n%s", kinds(again), diff)
			}
			task.Spec.Steps, task.Generation = before, task.Generation+1
			rest := tell(t, task, nil, nil)
			if rest.err != nil || rest.String() != "draft:Running/1, draft:Succeeded/1" || task.Status.Phase != v1alpha1.TaskSucceeded {
				t.Errorf("taken back: %q as %s, error %v", rest, task.Status.Phase, rest.err)
			}
		})
	}
}

func TestPlanChangedWhileAStepWaitsForItsRetry(t *testing.T) {
	task := MakeTask().Params(`{"a": 1}`).Step(MakeStep("plan").Input(`"${params.a}"`).Obj()).Obj()
	program := failsTimes("plan", 1, again)
	s := tell(t, task, program, after("plan:Retrying/1", func(spec *v1alpha1.AgentTaskSpec) { spec.Params = doc1(`{"a": 2}`) }))
	stalled := condition(&task.Status, v1alpha1.ConditionStalled)
	if !errors.Is(s.err, ErrStuck) || records(&task.Status) != "plan:Retrying/1" || stalled.Reason != v1alpha1.ReasonPlanChanged {
		t.Fatalf("%q, Stalled %s, error %v; want no attempt under a key that means another action", s, stalled.Reason, s.err)
	}
	if !strings.Contains(stalled.Message, "params changed?") {
		t.Errorf("Stalled: %s", stalled.Message)
	}
	task.Spec.Params, task.Generation = doc1(`{"a": 1.0, "b": "not used"}`), task.Generation+1
	rest := tell(t, task, program, nil)
	if rest.err != nil || rest.String() != "plan:Running/2, plan:Succeeded/2" {
		t.Errorf("taken back, spelled otherwise: %q, error %v", rest, rest.err)
	}
}

func TestParamsChangedBeforeTheJobIsMade(t *testing.T) {
	task := MakeTask().Params(`{"a": 1}`).Step(MakeStep("plan").Input(`"${params.a}"`).Obj()).Running(t, "plan")
	task.Spec.Params, task.Generation = doc1(`{"a": 2}`), 2
	d := decide(t, Input{Task: task})
	if kinds(d) != "" || condition(&d.Status, v1alpha1.ConditionStalled).Reason != v1alpha1.ReasonPlanChanged {
		t.Errorf("%q, Stalled %+v", kinds(d), condition(&d.Status, v1alpha1.ConditionStalled))
	}
}

func TestInvalidPlanIsFoundBeforeAnythingRuns(t *testing.T) {
	tests := map[string]struct {
		steps       []v1alpha1.Step
		wantMessage string
	}{
		"an expression that cannot be compiled": {[]v1alpha1.Step{MakeStep("plan").Obj(), MakeStep("use").Input(`{"a": "${1 +}"}`).Obj()}, "spec.steps[1] (use): input.a"},
		"a reference to a later step":           {[]v1alpha1.Step{MakeStep("plan").Input(`"${steps.use.output}"`).Obj(), MakeStep("use").Obj()}, "spec.steps[0] (plan)"},
		"a reference to the step itself":        {[]v1alpha1.Step{MakeStep("plan").Input(`"${steps.plan.output}"`).Obj()}, "spec.steps[0] (plan)"},
		"a step without an action":              {[]v1alpha1.Step{MakeStep("plan").Obj(), {Name: "use"}}, "spec.steps[1] (use)"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			task := MakeTask().Obj()
			task.Spec.Steps = tt.steps
			s := tell(t, task, nil, nil)
			stalled := condition(&task.Status, v1alpha1.ConditionStalled)
			if !errors.Is(s.err, ErrStuck) || len(task.Status.Steps) != 0 {
				t.Fatalf("%q, error %v; want nothing to run", s, s.err)
			}
			if stalled.Reason != v1alpha1.ReasonInvalidPlan || !strings.Contains(stalled.Message, tt.wantMessage) {
				t.Errorf("Stalled: %s: %s", stalled.Reason, stalled.Message)
			}
			if diff := cmp.Diff([]string{v1alpha1.EventTaskStalled}, s.events); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
			task.Spec.Steps, task.Generation = MakeTask("plan").Obj().Spec.Steps, 2
			if rest := tell(t, task, nil, nil); rest.err != nil || task.Status.Phase != v1alpha1.TaskSucceeded {
				t.Errorf("mended: %q as %s, error %v", rest, task.Status.Phase, rest.err)
			}
		})
	}
}

// A plan written by a newer version may hold a kind of action that this one does not know.
func TestStepWithoutAnActionNeverPanics(t *testing.T) {
	task := MakeTask("plan", "gather").Running(t, "plan")
	task.Spec.Steps[1].Run = nil
	d := decide(t, Input{Task: task, World: World{Job: jobOf(task), Pod: MakePod().Succeeded("1").Obj()}})
	if records(&d.Status) != "plan:Succeeded/1" || d.Status.Phase != v1alpha1.TaskWaiting || kinds(d) != "FinishJob" {
		t.Errorf("%s, %s, %q; want the task to wait, stalled", records(&d.Status), d.Status.Phase, kinds(d))
	}
}

// A tool that follows kstatus reads a status that is behind the generation as in progress.
func TestEditOfAFinishedTaskIsObserved(t *testing.T) {
	task := MakeTask("plan").Obj()
	if s := tell(t, task, nil, nil); s.err != nil {
		t.Fatal(s.err)
	}
	task.Spec.Suspend, task.Spec.Description, task.Generation = true, "edited", 2
	d := decide(t, Input{Task: task, Now: epoch.Add(time.Hour)})
	if got := kstatus(task.Generation, &d.Status); got != "Current" || d.Status.Phase != v1alpha1.TaskSucceeded {
		t.Errorf("it reads as %s, %s; want Current, Succeeded", got, d.Status.Phase)
	}
	task.Status = d.Status
	if d = decide(t, Input{Task: task, Now: epoch.Add(2 * time.Hour)}); cmp.Diff(task.Status, d.Status) != "" {
		t.Errorf("looked at again it changes:\n%s", cmp.Diff(task.Status, d.Status))
	}
}
