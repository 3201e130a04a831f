// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
)

// observer is the test of spec.verify, whose view of the world a program takes.
func observer() *v1alpha1.Verify {
	return &v1alpha1.Verify{Mode: v1alpha1.VerifyRunTwice, Observe: v1alpha1.Observe{Run: &v1alpha1.RunAction{Image: "tools:1.4", Command: []string{"observe"}}}}
}

func TestDiffers(t *testing.T) {
	tests := map[string]struct{ first, second, want string }{
		"alike":                        {`{"a":[1,{"b":null}]}`, `{"a":[1,{"b":null}]}`, ""},
		"null":                         {`null`, `null`, ""},
		"another value":                {`1`, `2`, "as a whole: 1, then 2"},
		"another kind":                 {`1`, `"1"`, `as a whole: 1, then "1"`},
		"a value of a field":           {`{"rows":{"n":1}}`, `{"rows":{"n":2}}`, "at .rows.n: 1, then 2"},
		"a new field":                  {`{"a":1}`, `{"a":1,"b":2}`, "at .b: nothing, then 2"},
		"a field that went":            {`{"a":1,"b":null}`, `{"a":1}`, "at .b: null, then nothing"},
		"the first field of several":   {`{"b":1,"a":1}`, `{"b":2,"a":2}`, "at .a: 1, then 2"},
		"an element":                   {`[1,[2,3]]`, `[1,[2,4]]`, "at [1][1]: 3, then 4"},
		"one element more":             {`{"rows":[1]}`, `{"rows":[1,2]}`, "at .rows: [1], then [1,2]"},
		"a list for an object":         {`{"a":[]}`, `{"a":{}}`, "at .a: [], then {}"},
		"values that are cut":          {`"` + strings.Repeat("x", 300) + `"`, `2`, `as a whole: "` + strings.Repeat("x", 199) + "…, then 2"},
		"a number that grew in digits": {`1`, `1.0000001`, "as a whole: 1, then 1.0000001"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			first := &v1alpha1.ActionStatus{Output: doc1(tt.first)}
			second := &v1alpha1.ActionStatus{Output: doc1(tt.second)}
			if got := difference(first, second); got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
	ref := func(sum string) *v1alpha1.ActionStatus {
		return &v1alpha1.ActionStatus{OutputRef: &v1alpha1.OutputRef{SHA256: sum}}
	}
	for name, tt := range map[string]struct {
		first, second *v1alpha1.ActionStatus
		want          bool
	}{
		"large ones alike":       {ref("a"), ref("a"), false},
		"large ones that differ": {ref("a"), ref("b"), true},
		"one that became large":  {&v1alpha1.ActionStatus{}, ref("a"), true},
		"one that is missing":    {nil, &v1alpha1.ActionStatus{}, true},
		"none has any":           {&v1alpha1.ActionStatus{}, &v1alpha1.ActionStatus{}, false},
	} {
		if got := difference(tt.first, tt.second); (got != "") != tt.want {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// sides is what the programs of a plan do to the world.
type sides struct {
	effects map[string]int
	// idempotent says that a program does nothing when it sees its key again.
	idempotent bool
	// output of a step's own program; empty: always the same.
	output func(a Attempt) string
}

func (w *sides) program(a Attempt) stepexec.Result {
	out := `{"ok":true}`
	switch a.Role {
	case v1alpha1.RoleObserve, v1alpha1.RoleObserveAgain:
		out = fmt.Sprintf(`{"rows":{"count":%d}}`, w.effects[a.Step])
	case v1alpha1.RoleMain, v1alpha1.RoleAgain:
		if !w.idempotent || w.effects[a.Step] == 0 {
			w.effects[a.Step]++
		}
		if w.output != nil {
			out = w.output(a)
		}
	}
	return stepexec.Result{Outcome: stepexec.OutcomeSucceeded, Output: json.RawMessage(out)}
}

func verifying(steps ...*stepBuilder) *v1alpha1.AgentTask {
	b := MakeTask()
	for _, step := range steps {
		b.Step(step.Obj())
	}
	b.task.Spec.Verify = observer()
	return b.Obj()
}

func TestStepsAreRunTwice(t *testing.T) {
	t.Run("a step that does its work once passes", func(t *testing.T) {
		w := &sides{effects: map[string]int{}, idempotent: true}
		var roles []string
		task := verifying(MakeStep("a"), MakeStep("b"))
		keys := map[string]bool{}
		s := tell(t, task, func(a Attempt) stepexec.Result {
			roles = append(roles, a.Step+" "+string(a.Role))
			keys[a.Step+a.Key] = true
			return w.program(a)
		}, nil)
		if s.err != nil || task.Status.Phase != v1alpha1.TaskSucceeded {
			t.Fatalf("%q ended as %s, error %v", s, task.Status.Phase, s.err)
		}
		if diff := cmp.Diff(strings.Split("a main,a observe,a again,a observe-again,b main,b observe,b again,b observe-again", ","), roles); diff != "" {
			t.Errorf("programs (-want +got):\n%s", diff)
		}
		if len(keys) != 2 {
			t.Errorf("%d keys for two steps", len(keys))
		}
		if got := string(task.Status.Steps[0].Output.Raw); got != `{"ok":true}` || task.Status.Usage.Attempts != 2 {
			t.Errorf("output %s, %d attempts", got, task.Status.Usage.Attempts)
		}
	})
	t.Run("one that changes the world again does not", func(t *testing.T) {
		task := verifying(MakeStep("a"), MakeStep("b"))
		s := tell(t, task, (&sides{effects: map[string]int{}}).program, nil)
		r := task.Status.Steps[0]
		want := "run a second time with the same key, it changed the world again; the observer's view differs at .rows.count: 1, then 2"
		if s.err != nil || r.Phase != v1alpha1.StepFailed || r.Reason != v1alpha1.ReasonNotIdempotent || r.Message != want || len(task.Status.Steps) != 1 {
			t.Errorf("%s %s: %q, error %v", r.Phase, r.Reason, r.Message, s.err)
		}
	})
	t.Run("one that says something else does not", func(t *testing.T) {
		w := &sides{effects: map[string]int{}, idempotent: true, output: func(a Attempt) string { return fmt.Sprintf(`{"id":%q}`, a.Role) }}
		task := verifying(MakeStep("a"))
		tell(t, task, w.program, nil)
		if r := task.Status.Steps[0]; r.Reason != v1alpha1.ReasonNotIdempotent || r.Message != `run a second time with the same key, its output differs at .id: "main", then "again"` {
			t.Errorf("%s: %q", r.Reason, r.Message)
		}
	})
	t.Run("one that must not run twice does not", func(t *testing.T) {
		w := &sides{effects: map[string]int{}}
		task := verifying(pay())
		s := tell(t, task, w.program, nil)
		if w.effects["pay"] != 1 || task.Status.Phase != v1alpha1.TaskSucceeded || len(task.Status.Steps[0].Actions) != 0 {
			t.Errorf("%q as %s, %d effects", s, task.Status.Phase, w.effects["pay"])
		}
	})
}

func TestTestThatCannotBeMade(t *testing.T) {
	failed := stepexec.Result{Outcome: stepexec.OutcomeFailed, Reason: v1alpha1.ReasonExitCode, Message: "exit code 3"}
	for role, want := range map[v1alpha1.Role]string{
		v1alpha1.RoleObserve:      "step a (observe) ended as Failed: ExitCode: exit code 3",
		v1alpha1.RoleAgain:        "step a (again) ended as Failed: ExitCode: exit code 3",
		v1alpha1.RoleObserveAgain: "step a (observe-again) ended as Failed: ExitCode: exit code 3",
	} {
		t.Run(string(role), func(t *testing.T) {
			w := &sides{effects: map[string]int{}, idempotent: true}
			task := verifying(MakeStep("a"), MakeStep("b"))
			tell(t, task, func(a Attempt) stepexec.Result {
				if a.Role == role {
					return failed
				}
				return w.program(a)
			}, nil)
			if r := task.Status.Steps[0]; r.Phase != v1alpha1.StepFailed || r.Reason != v1alpha1.ReasonVerifyFailed || r.Message != want {
				t.Errorf("%s %s: %q", r.Phase, r.Reason, r.Message)
			}
		})
		t.Run(string(role)+" is tried again", func(t *testing.T) {
			w := &sides{effects: map[string]int{}, idempotent: true}
			task := verifying(MakeStep("a"))
			s := tell(t, task, func(a Attempt) stepexec.Result {
				if a.Role == role && a.Number == 1 {
					return again
				}
				return w.program(a)
			}, nil)
			if task.Status.Phase != v1alpha1.TaskSucceeded || s.err != nil {
				t.Errorf("%q ended as %s, error %v", s, task.Status.Phase, s.err)
			}
		})
	}
}

func TestCancelWhileAStepIsTested(t *testing.T) {
	for _, when := range []v1alpha1.Role{v1alpha1.RoleMain, v1alpha1.RoleObserve, v1alpha1.RoleAgain, v1alpha1.RoleObserveAgain} {
		t.Run(string(when), func(t *testing.T) {
			w := &sides{effects: map[string]int{}, idempotent: true}
			task := verifying(MakeStep("a"), MakeStep("b"))
			s := tell(t, task, w.program, func(task *v1alpha1.AgentTask, d Decision) {
				if n := len(d.Status.Steps); n > 0 {
					if role, _ := atWork(&d.Status.Steps[n-1]); role == when {
						task.Spec.Cancel = true
					}
				}
			})
			r := task.Status.Steps[0]
			if s.err != nil || task.Status.Phase != v1alpha1.TaskCancelled || len(task.Status.Steps) != 1 || r.Phase != v1alpha1.StepCancelled || r.Message != untested {
				t.Errorf("%q ended as %s: %s, error %v", s, task.Status.Phase, r.Message, s.err)
			}
		})
	}
}

// The second run is of the action that ran first, or of none.
func TestParamsChangedWhileAStepIsTested(t *testing.T) {
	w := &sides{effects: map[string]int{}, idempotent: true}
	task := verifying(MakeStep("a").Input(`"${params.n}"`))
	task.Spec.Params = doc1(`{"n":1}`)
	s := tell(t, task, w.program, func(task *v1alpha1.AgentTask, d Decision) {
		if role, _ := atWork(&d.Status.Steps[0]); role == v1alpha1.RoleObserve {
			task.Spec.Params = doc1(`{"n":2}`)
		}
	})
	if r := task.Status.Steps[0]; r.Reason != v1alpha1.ReasonVerifyFailed || !strings.Contains(r.Message, "its action is no longer what its first run was") || len(s.ran) != 2 {
		t.Errorf("%s: %q, ran %v", r.Reason, r.Message, s.ran)
	}
}
