// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
)

// storedBefore is a task whose last step has the input, and each of whose n steps before
// it has an output of a size in a ConfigMap; the n-th of them ends in the world that is
// returned.
func storedBefore(t *testing.T, n int, size int64, input string) (*v1alpha1.AgentTask, World) {
	t.Helper()
	b := MakeTask()
	for i := range n {
		b.Step(MakeStep(fmt.Sprintf("s%d", i)).Obj())
	}
	task := b.Step(MakeStep("last").Input(input).Obj()).Params(`{"which":"s0"}`).Running(t, fmt.Sprintf("s%d", n-1))
	ref := &v1alpha1.OutputRef{URI: "configmap:x", SHA256: "ab", Bytes: size}
	for i := range n - 1 {
		task.Status.Steps[i].Output, task.Status.Steps[i].OutputRef = nil, ref
	}
	return task, World{Job: jobOf(task), Pod: large().Obj(), Output: ref}
}

func TestOutputsOfOneInputAreBounded(t *testing.T) {
	const most = v1alpha1.MaxLoaded
	dynamic, named := `"${steps[params.which].output[0]}"`, `"${steps.s0.output[0] + steps.s3.output[0]}"`
	tests := map[string]struct {
		input    string
		size     int64
		wantLoad int
	}{
		"any step, at the limit":              {dynamic, most / 4, 4},
		"any step, over it":                   {dynamic, most/4 + 1, 0},
		"named steps, at the limit":           {named, most / 2, 2},
		"named steps, over it":                {named, most/2 + 1, 0},
		"no step, whatever there is":          {`"${params.which}"`, most, 0},
		"one named step, whatever there is":   {`"${steps.s1.output[0]}"`, most, 1},
		"the step that has just ended counts": {`"${steps.s3.output[0] + steps.s2.output[0]}"`, most/2 + 1, 0},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			task, world := storedBefore(t, 4, tt.size, tt.input)
			d := decide(t, Input{Task: task, World: world})
			if len(d.Load) != tt.wantLoad {
				t.Errorf("Load is %v, want %d outputs", d.Load, tt.wantLoad)
			}
			if tt.wantLoad > 0 || strings.HasPrefix(name, "no step") {
				return
			}
			last := d.Status.Steps[len(d.Status.Steps)-1]
			if last.Name != "last" || last.Phase != v1alpha1.StepFailed || last.Reason != v1alpha1.ReasonInputTooLarge || kinds(d) != "FinishJob" {
				t.Errorf("%s, %s, %q", records(&d.Status), last.Reason, kinds(d))
			}
			for _, want := range []string{fmt.Sprint(int64(most)), fmt.Sprint(max(tt.size*2, tt.size*int64(strings.Count(tt.input, "which")*4))), "name the steps you need: steps['a'], or return less"} {
				if !strings.Contains(last.Message, want) {
					t.Errorf("message %q does not say %q", last.Message, want)
				}
			}
		})
	}
}

// What cannot be read just now costs no attempt and no step; it is tried again, and the
// task says so and can be ended.
func TestAnOutputThatCannotBeReadJustNow(t *testing.T) {
	away := map[string]Loaded{"s0": {Unavailable: "connection refused from port 1"}}
	input := `"${steps.s0.output.n}"`
	begin := func(t *testing.T) (*v1alpha1.AgentTask, Decision) {
		task, world := storedBefore(t, 2, 5000, input)
		d := decide(t, Input{Task: task, World: world, Outputs: away})
		task.Status = d.Status
		return task, d
	}
	t.Run("its step is not started", func(t *testing.T) {
		task, d := begin(t)
		ready := condition(&d.Status, v1alpha1.ConditionReady)
		if records(&d.Status) != "s0:Succeeded/1 s1:Succeeded/1" || kinds(d) != "FinishJob" || d.Status.Phase != v1alpha1.TaskWaiting || d.RequeueAfter != unavailableRecheck {
			t.Errorf("%s, %q, %s, again after %s", records(&d.Status), kinds(d), d.Status.Phase, d.RequeueAfter)
		}
		if want := "step last: the output of step s0 cannot be read just now: connection refused from port 1"; ready.Reason != v1alpha1.ReasonUnavailable || ready.Message != want {
			t.Errorf("%s: %q, want %q", ready.Reason, ready.Message, want)
		}
		again := decide(t, Input{Task: task, Now: epoch.Add(time.Minute), Outputs: map[string]Loaded{"s0": {Unavailable: "connection refused from port 2"}}})
		if line(task, &again.Status) != line(task, &d.Status) || !again.Status.CheckpointTime.Equal(d.Status.CheckpointTime) || len(again.Events) != 0 || again.RequeueAfter != unavailableRecheck {
			t.Errorf("looked at again it changes: %s, %d events, again after %s", line(task, &again.Status), len(again.Events), again.RequeueAfter)
		}
		d = decide(t, Input{Task: task, Outputs: map[string]Loaded{"s0": {Output: json.RawMessage(`{"n":7}`)}}})
		if a := find(d, MakeJob); a == nil || string(a.Attempt.Input) != "7" || d.Status.Phase != v1alpha1.TaskRunning {
			t.Errorf("read at last: %q, %s", kinds(d), d.Status.Phase)
		}
	})
	t.Run("cancel wins", func(t *testing.T) {
		task, _ := begin(t)
		task.Spec.Cancel, task.Generation = true, 2
		if d := decide(t, Input{Task: task, Outputs: away}); d.Status.Phase != v1alpha1.TaskCancelled {
			t.Errorf("phase %s", d.Status.Phase)
		}
	})
	t.Run("the deadline wins", func(t *testing.T) {
		task, _ := begin(t)
		task.Spec.ActiveDeadlineSeconds = new(int64(60))
		if d := decide(t, Input{Task: task, Outputs: away, Now: epoch.Add(time.Hour)}); d.Status.Phase != v1alpha1.TaskFailed {
			t.Errorf("phase %s", d.Status.Phase)
		}
	})
}

func TestARetryWhoseInputCannotBeReadJustNow(t *testing.T) {
	away := map[string]Loaded{"s0": {Unavailable: "timeout"}}
	whole := map[string]Loaded{"s0": {Output: json.RawMessage(`{"n":7}`)}}
	task, world := storedBefore(t, 2, 5000, `"${steps.s0.output.n}"`)
	task.Status = decide(t, Input{Task: task, World: world, Outputs: whole}).Status
	started := task.DeepCopy()
	task.Status = decide(t, Input{Task: task, World: World{Job: jobOf(task), Pod: MakePod().Result(75, again).Obj()}}).Status

	for name, begun := range map[string]*v1alpha1.AgentTask{"last:Retrying/1": task, "last:Running/1": started} {
		t.Run(name, func(t *testing.T) {
			now := epoch.Add(time.Minute)
			d := decide(t, Input{Task: begun, Outputs: away, Now: now})
			last := d.Status.Steps[2]
			if !strings.HasSuffix(records(&d.Status), name) || kinds(d) != "" || d.RequeueAfter != unavailableRecheck || last.Reason != v1alpha1.ReasonUnavailable {
				t.Fatalf("%s, %q, %s, again after %s", records(&d.Status), kinds(d), last.Reason, d.RequeueAfter)
			}
			ready, stalled := condition(&d.Status, v1alpha1.ConditionReady), condition(&d.Status, v1alpha1.ConditionStalled)
			if d.Status.Phase != v1alpha1.TaskWaiting || ready.Reason != v1alpha1.ReasonUnavailable || !strings.HasPrefix(ready.Message, "step last: the output of step s0 ") || stalled.Status != "False" {
				t.Errorf("%s %s: %q, Stalled %s", d.Status.Phase, ready.Reason, ready.Message, stalled.Status)
			}
			waits := begun.DeepCopy()
			waits.Status = d.Status
			if d = decide(t, Input{Task: waits, Outputs: whole, Now: now}); kinds(d) != "MakeJob" {
				t.Errorf("read at last: %q", kinds(d))
			}
			waits.Spec.Cancel, waits.Generation = true, 2
			if d = decide(t, Input{Task: waits, Outputs: away, Now: now}); d.Status.Steps[2].Reason != v1alpha1.ReasonCancelled {
				t.Errorf("cancelled: %s, %s", records(&d.Status), d.Status.Steps[2].Reason)
			}
		})
	}
}
