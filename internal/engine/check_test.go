// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
)

func TestAnswerOfACheck(t *testing.T) {
	tests := map[string]struct {
		done, output, answer string
		wantDone             bool
		want, wantError      string
	}{
		"done, with an output":               {"", "", `{"done":true,"output":{"b":1.0,"a":2}}`, true, `{"a":2,"b":1}`, ""},
		"done, without one":                  {"", "", `{"done":true}`, true, `null`, ""},
		"not done":                           {"", "", `{"done":false,"output":1}`, false, ``, ""},
		"done with an output as it is":       {"${result.status == 200}", "", `{"body":[1],"status":200}`, true, `{"body":[1],"status":200}`, ""},
		"done with a chosen output":          {"${result.status == 200}", `{"id":"${result.body.id}","by":"${task.name}"}`, `{"body":{"id":7},"status":200}`, true, `{"by":"report","id":7}`, ""},
		"not done by an expression":          {"${result.status == 200}", `"${result.nope}"`, `{"status":404}`, false, ``, ""},
		"neither":                            {"", "", `{"output":1}`, false, ``, `its output must be {"done": true or false, "output": anything}`},
		"null":                               {"", "", `null`, false, ``, "its output must be"},
		"a text":                             {"", "", `"done"`, false, ``, "its output must be"},
		"done is a text":                     {"", "", `{"done":"true"}`, false, ``, "its output must be"},
		"a number that no JSON reader keeps": {"", "", `{"done":true,"output":1e400}`, false, ``, "1e400"},
		"an expression that is no bool":      {"${result.status}", "", `{"status":200}`, false, ``, "check.done"},
		"an expression that fails":           {"${result.nope == 1}", "", `{"status":200}`, false, ``, "nope"},
		"an output that cannot be made":      {"${true}", `"${result.nope}"`, `{}`, false, ``, "nope"},
		"an output that is too large":        {"", "", `{"done":true,"output":"` + strings.Repeat("x", 2047) + `"}`, true, ``, "2049 bytes, and at most 2048 are kept"},
		"an answer that is too large":        {"${true}", "", `"` + strings.Repeat("x", 2047) + `"`, true, ``, "choose what is needed by check.done and check.output"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			step := pay().Check("").Done(tt.done, tt.output).Obj()
			d := &decider{Input: Input{Task: MakeTask().Step(step).Obj(), Now: epoch}}
			done, output, err := d.answerOf(step.Check, []byte(tt.answer))
			switch {
			case tt.wantError != "":
				if err == nil || !strings.Contains(err.Error(), tt.wantError) {
					t.Errorf("error %v, want %q", err, tt.wantError)
				}
			case err != nil || done != tt.wantDone || done && string(output) != tt.want:
				t.Errorf("done %v, output %s, error %v; want %v, %s", done, output, err, tt.wantDone, tt.want)
			}
		})
	}
	d := &decider{Input: Input{Task: MakeTask("pay").Obj()}}
	if _, _, err := d.answerOf(nil, []byte(`{"done":true}`)); err == nil {
		t.Error("a check that the plan no longer has is answered")
	}
}

// checked is a scene whose step is checked before its first attempt.
func checked(t *testing.T, step *stepBuilder) *scene {
	t.Helper()
	return play(t, step.Check(v1alpha1.CheckBefore)).want("pay:Checking/0", "MakeJob", "")
}

// checkPod decides upon the pod of the check that runs.
func (s *scene) checkPod(b *podBuilder) *scene {
	s.t.Helper()
	_, work := atWork(s.record())
	return s.see(World{Job: jobNamed(work.JobName), Pod: b.Obj()})
}

func TestCheckBeforeTheFirstAttempt(t *testing.T) {
	failed := stepexec.Result{Outcome: stepexec.OutcomeFailed, Reason: v1alpha1.ReasonExitCode, Message: "exit code 3"}
	t.Run("the effect has happened: nothing runs", func(t *testing.T) {
		s := checked(t, pay()).checkPod(MakePod().Succeeded(`{"done":true,"output":{"id":7}}`)).want("pay:Succeeded/0", "FinishJob", v1alpha1.ReasonCheckedDone)
		if got := string(s.record().Output.Raw); got != `{"id":7}` || s.record().JobName != "" || s.task.Status.Usage.Attempts != 0 {
			t.Errorf("output %s, Job %q, %d attempts", got, s.record().JobName, s.task.Status.Usage.Attempts)
		}
	})
	t.Run("it has not: the first attempt starts in the same write", func(t *testing.T) {
		s := checked(t, pay()).checkPod(MakePod().Succeeded(`{"done":false}`)).want("pay:Running/1", "MakeJob FinishJob", "")
		if a := find(s.last, MakeJob); a.Attempt.Role != v1alpha1.RoleMain || !a.Attempt.Once || a.Attempt.Run.Command[0] != "pay" {
			t.Errorf("made is %+v", a.Attempt)
		}
		if check := roleOf(s.record(), v1alpha1.RoleCheck); check.Phase != v1alpha1.StepSucceeded || check.Message != "the effect has not happened" {
			t.Errorf("the check's record is %+v", check)
		}
	})
	t.Run("it is tried again like the step", func(t *testing.T) {
		s := checked(t, pay().Limit(1)).checkPod(MakePod().Result(75, again)).want("pay:Checking/0", "FinishJob", "")
		s.later(time.Minute).see(World{}).want("pay:Checking/0", "MakeJob", "").checkPod(MakePod().Result(75, again))
		s.want("pay:Failed/0", "FinishJob", v1alpha1.ReasonCheckFailed)
		if m := s.record().Message; !strings.HasPrefix(m, "its check failed, so that it did not start: RetryRequested: not yet; no retry left") {
			t.Errorf("message %q", m)
		}
	})
	t.Run("it fails, and the step did not start", func(t *testing.T) {
		s := checked(t, pay()).checkPod(MakePod().Result(3, failed)).want("pay:Failed/0", "FinishJob", v1alpha1.ReasonCheckFailed)
		if ready := condition(&s.task.Status, v1alpha1.ConditionReady); !strings.HasPrefix(ready.Message, "step pay failed before its first attempt: CheckFailed: ") {
			t.Errorf("Ready: %s", ready.Message)
		}
	})
	t.Run("it says nothing of use", func(t *testing.T) {
		checked(t, pay()).checkPod(MakePod().Succeeded(`7`)).want("pay:Failed/0", "FinishJob", v1alpha1.ReasonCheckFailed)
	})
	t.Run("any effect may be checked", func(t *testing.T) {
		checked(t, MakeStep("pay")).checkPod(MakePod().Succeeded(`{"done":false}`)).want("pay:Running/1", "MakeJob FinishJob", "")
	})
}

// What holds or ends the task holds or ends a step that has only been checked.
func TestNothingStartsAfterACheckThatMustNot(t *testing.T) {
	undone := func() *podBuilder { return MakePod().Succeeded(`{"done":false}`) }
	t.Run("cancelled", func(t *testing.T) {
		checked(t, pay()).edit(cancel).checkPod(undone()).want("pay:Cancelled/0", "FinishJob", v1alpha1.ReasonCancelled)
	})
	t.Run("cancelled, and the effect has happened", func(t *testing.T) {
		checked(t, pay()).edit(cancel).checkPod(MakePod().Succeeded(`{"done":true}`)).want("pay:Succeeded/0", "FinishJob", v1alpha1.ReasonCheckedDone)
	})
	t.Run("past its deadline", func(t *testing.T) {
		s := checked(t, pay()).edit(func(spec *v1alpha1.AgentTaskSpec) { spec.ActiveDeadlineSeconds = new(int64(1)) }).later(time.Minute)
		s.checkPod(undone()).want("pay:Failed/0", "FinishJob", v1alpha1.ReasonDeadlineExceeded)
	})
	t.Run("suspended: it is checked anew when it goes on", func(t *testing.T) {
		s := checked(t, pay()).edit(suspend).checkPod(undone()).want("pay:Retrying/0", "FinishJob", "")
		first := roleOf(s.record(), v1alpha1.RoleCheck).JobName
		s.later(time.Hour).see(World{}).want("pay:Retrying/0", "", "")
		if s.task.Status.Phase != v1alpha1.TaskSuspended || s.last.RequeueAfter != 0 {
			t.Errorf("%s, again after %s", s.task.Status.Phase, s.last.RequeueAfter)
		}
		s.edit(func(spec *v1alpha1.AgentTaskSpec) { spec.Suspend = false }).see(World{}).want("pay:Checking/0", "MakeJob", "")
		if second := roleOf(s.record(), v1alpha1.RoleCheck).JobName; first == second {
			t.Errorf("both checks run as Job %s", first)
		}
		s.checkPod(MakePod().Succeeded(`{"done":true}`)).want("pay:Succeeded/0", "FinishJob", v1alpha1.ReasonCheckedDone)
	})
	t.Run("its params changed: nothing runs under a key that means another action", func(t *testing.T) {
		params := func(doc string) func(*v1alpha1.AgentTaskSpec) {
			return func(spec *v1alpha1.AgentTaskSpec) { spec.Params = doc1(doc) }
		}
		s := &scene{t: t, task: MakeTask().Params(`{"n":1}`).Step(pay().Input(`"${params.n}"`).Check(v1alpha1.CheckBefore).Obj()).Obj(), now: epoch}
		s.see(World{}).edit(params(`{"n":2}`)).checkPod(undone()).want("pay:Retrying/0", "FinishJob", "")
		for range 3 {
			s.later(time.Minute).see(World{}).want("pay:Retrying/0", "", "")
			if got := reasonOfStalled(s.task.Status); got != v1alpha1.ReasonPlanChanged {
				t.Errorf("stalled by %q", got)
			}
		}
		s.edit(params(`{"n":1}`)).see(World{}).want("pay:Checking/0", "MakeJob", "")
		s.checkPod(undone()).want("pay:Running/1", "MakeJob FinishJob", "")
	})
}

func TestCheckOfAnUnknownOutcome(t *testing.T) {
	begin := func(t *testing.T) *scene {
		t.Helper()
		return play(t, pay().OnUnknown(v1alpha1.UnknownCheck).Check("").Limit(1)).through().pod(killed()).see(World{}).want("pay:Checking/1", "MakeJob", v1alpha1.ReasonKilled)
	}
	failed := stepexec.Result{Outcome: stepexec.OutcomeFailed, Reason: v1alpha1.ReasonExitCode, Message: "exit code 3"}
	t.Run("its program has the step's key and the input of its own", func(t *testing.T) {
		s := play(t, pay().Input(`{"order":"7"}`).OnUnknown(v1alpha1.UnknownCheck).Check("")).through().pod(killed()).see(World{})
		a := find(s.last, MakeJob).Attempt
		if a.Role != v1alpha1.RoleCheck || a.Once || a.Record.IdempotencyKey != s.record().IdempotencyKey || string(a.Input) != `{"order":"7"}` || a.Timeout != v1alpha1.DefaultCheckTimeout {
			t.Errorf("made is %+v with the record %+v", a, a.Record)
		}
		if a.Record.ActionHash == s.record().ActionHash {
			t.Error("the check has the action hash of the step: its Job could be taken for the step's")
		}
	})
	t.Run("done", func(t *testing.T) {
		s := begin(t).checkPod(MakePod().Succeeded(`{"done":true,"output":3}`)).want("pay:Succeeded/1", "FinishJob", v1alpha1.ReasonCheckedDone)
		if string(s.record().Output.Raw) != "3" || s.record().Unknown != nil {
			t.Errorf("output %s, unknown %v", s.record().Output.Raw, s.record().Unknown)
		}
	})
	t.Run("not done: tried again, within the limit", func(t *testing.T) {
		s := begin(t).checkPod(MakePod().Succeeded(`{"done":false}`)).want("pay:Retrying/1", "FinishJob", v1alpha1.ReasonKilled)
		if s.record().Unknown != nil || !strings.HasSuffix(s.record().Message, "; its check says that the effect has not happened") {
			t.Errorf("unknown %v, message %q", s.record().Unknown, s.record().Message)
		}
		s.later(time.Minute).see(World{}).want("pay:Running/2", "MakeJob", "").pod(MakePod().UID("pod-2").Gated()).pod(killed().UID("pod-2")).see(World{})
		s.want("pay:Checking/2", "MakeJob", v1alpha1.ReasonKilled)
		s.checkPod(MakePod().Succeeded(`{"done":false}`)).want("pay:Failed/2", "FinishJob", v1alpha1.ReasonKilled)
		if !strings.Contains(s.record().Message, "no retry left: retry.limit of 1 is reached") || s.record().Unknown != nil {
			t.Errorf("message %q, unknown %v", s.record().Message, s.record().Unknown)
		}
	})
	for name, pod := range map[string]*podBuilder{"it fails": MakePod().Result(3, failed), "it says nothing of use": MakePod().Succeeded(`[]`)} {
		t.Run(name+": a person is waited for", func(t *testing.T) {
			s := begin(t).checkPod(pod).want("pay:Unknown/1", "FinishJob", v1alpha1.ReasonKilled)
			s.see(World{}).want("pay:Unknown/1", "", v1alpha1.ReasonKilled)
			c := condition(&s.task.Status, v1alpha1.ConditionOutcomeUnknown)
			if s.last.RequeueAfter != 0 || reasonOfStalled(s.task.Status) == "" || !strings.Contains(c.Message, "Its check did not settle it: ") {
				t.Errorf("again after %s, OutcomeUnknown: %s", s.last.RequeueAfter, c.Message)
			}
		})
	}
}

// A success whose output is lost has happened all the same: no other attempt follows it.
func TestASuccessWhoseOutputIsLost(t *testing.T) {
	lostOutput := func(s *scene) *scene {
		return s.see(World{Job: jobOf(s.task), Pod: named(bound(), s.record().JobName).Result(0, announced()).Obj(), OutputProblem: "sha256 differs"})
	}
	for _, policy := range []v1alpha1.OnUnknown{v1alpha1.UnknownPause, v1alpha1.UnknownRetry, v1alpha1.UnknownFail} {
		s := lostOutput(play(t, pay().OnUnknown(policy)).through()).see(World{}).want("pay:Unknown/1", "", v1alpha1.ReasonOutputLost)
		if c := condition(&s.task.Status, v1alpha1.ConditionOutcomeUnknown); !strings.HasPrefix(c.Message, "step pay, attempt 1, says that it succeeded, and its output is lost: ") {
			t.Errorf("%s: %s", policy, c.Message)
		}
	}
	s := lostOutput(play(t, pay().OnUnknown(v1alpha1.UnknownCheck).Check("")).through()).see(World{}).want("pay:Checking/1", "MakeJob", v1alpha1.ReasonOutputLost)
	s.checkPod(MakePod().Succeeded(`{"done":false}`)).want("pay:Unknown/1", "FinishJob", v1alpha1.ReasonOutputLost)
	if c := condition(&s.task.Status, v1alpha1.ConditionOutcomeUnknown); !strings.Contains(c.Message, "Its check did not settle it: it says that the effect has not happened, and the program that it has. ") {
		t.Errorf("OutcomeUnknown: %s", c.Message)
	}
	s.see(World{}).want("pay:Unknown/1", "", v1alpha1.ReasonOutputLost)
}

// announced is the result of a program whose output stands in its log.
func announced() stepexec.Result {
	return stepexec.Result{Outcome: stepexec.OutcomeSucceeded, LogOutput: &stepexec.LogOutput{SHA256: stepexec.SHA256Hex(nil), Bytes: 5000, Lines: 4}}
}

func TestAnswerThatIsKeptElsewhere(t *testing.T) {
	s := checked(t, pay().Done("${result.found}", `"${result.id}"`))
	_, work := atWork(s.record())
	w := World{Job: jobNamed(work.JobName), Pod: MakePod().Result(0, announced()).Obj(), Output: &v1alpha1.OutputRef{URI: "configmap:x", SHA256: stepexec.SHA256Hex(nil), Bytes: 5000}}
	in := Input{Task: s.task, World: w, Now: epoch}
	if d := decide(t, in); len(d.Load) != 1 || d.Load[0] != "pay" {
		t.Fatalf("Load is %v", d.Load)
	}
	in.Outputs = map[string]Loaded{"pay": {Unavailable: "connection refused"}}
	d := decide(t, in)
	if got := records(&d.Status); got != "pay:Checking/0" || kinds(d) != "" || d.RequeueAfter != unavailableRecheck || d.Status.Phase != v1alpha1.TaskWaiting {
		t.Errorf("it cannot be read just now: %s, %q, %s, again after %s", got, kinds(d), d.Status.Phase, d.RequeueAfter)
	}
	in.Outputs = map[string]Loaded{"pay": {Problem: "ConfigMap x is gone"}}
	if d = decide(t, in); records(&d.Status) != "pay:Failed/0" || d.Status.Steps[0].Reason != v1alpha1.ReasonCheckFailed {
		t.Errorf("it is lost: %s, %s", records(&d.Status), d.Status.Steps[0].Reason)
	}
	in.Outputs = map[string]Loaded{"pay": {Output: json.RawMessage(`{"found":true,"id":"r-7"}`)}}
	if d = decide(t, in); records(&d.Status) != "pay:Succeeded/0" || string(d.Status.Steps[0].Output.Raw) != `"r-7"` || d.Status.Steps[0].OutputRef != nil {
		t.Errorf("it is read: %s, %+v", records(&d.Status), d.Status.Steps[0])
	}
}

// What a check reads may be out of reach: then it waits, and no step fails for that.
func TestCheckWhoseInputCannotBeReadJustNow(t *testing.T) {
	ref := &v1alpha1.OutputRef{URI: "configmap:x", SHA256: "ab", Bytes: 5000}
	away, whole := map[string]Loaded{"read": {Unavailable: "timeout"}}, map[string]Loaded{"read": {Output: json.RawMessage(`{"n":7}`)}}
	start := func(step *stepBuilder, when v1alpha1.CheckWhen) *v1alpha1.AgentTask {
		step.Check(when)
		step.step.Check.Input = doc1(`"${steps.read.output.n}"`)
		task := MakeTask("read").Step(step.Obj()).Running(t, "pay")
		task.Status.Steps[0].Output, task.Status.Steps[0].OutputRef = nil, ref
		return task
	}
	t.Run("before the first attempt", func(t *testing.T) {
		task := start(pay(), "") // to have read done
		task.Spec.Steps[1].Check.When = v1alpha1.CheckBefore
		task.Status.Steps = task.Status.Steps[:1]
		d := decide(t, Input{Task: task, Outputs: away})
		if records(&d.Status) != "read:Succeeded/1" || kinds(d) != "" || d.RequeueAfter != unavailableRecheck || d.Status.Phase != v1alpha1.TaskWaiting {
			t.Errorf("%s, %q, %s, again after %s", records(&d.Status), kinds(d), d.Status.Phase, d.RequeueAfter)
		}
		d = decide(t, Input{Task: task, Outputs: whole})
		if a := find(d, MakeJob); a == nil || string(a.Attempt.Input) != "7" {
			t.Errorf("read at last: %q", kinds(d))
		}
	})
	t.Run("of an unknown outcome", func(t *testing.T) {
		s := &scene{t: t, task: start(pay().OnUnknown(v1alpha1.UnknownCheck), ""), now: epoch}
		s.pod(MakePod().UID("pod-1").Gated()).pod(killed())
		d := decide(t, Input{Task: s.task, Outputs: away})
		if records(&d.Status) != "read:Succeeded/1 pay:Unknown/1" || d.RequeueAfter != unavailableRecheck || reasonOfStalled(d.Status) != "" {
			t.Errorf("%s, again after %s, stalled by %q", records(&d.Status), d.RequeueAfter, reasonOfStalled(d.Status))
		}
		s.task.Status = d.Status
		d = decide(t, Input{Task: s.task, Outputs: away})
		if d.RequeueAfter != unavailableRecheck || len(d.Events) != 0 {
			t.Errorf("looked at again: again after %s, events %v", d.RequeueAfter, reasonsOf(d.Events))
		}
		if d = decide(t, Input{Task: s.task, Outputs: whole}); records(&d.Status) != "read:Succeeded/1 pay:Checking/1" || kinds(d) != "MakeJob" {
			t.Errorf("read at last: %s, %q", records(&d.Status), kinds(d))
		}
	})
}

func TestJobsOfChecks(t *testing.T) {
	task := MakeTask().Step(pay().Check(v1alpha1.CheckBefore).Obj()).Running(t, "pay")
	name := func(role v1alpha1.Role, attempt int32) string {
		return stepexec.JobName(task.Name, task.UID, "pay", role, attempt)
	}
	names := map[string]bool{}
	for _, attempt := range []int32{0, 1, 2, 11} {
		for _, dead := range []bool{false, true} {
			for _, number := range []int32{1, 2} {
				names[name(jobRole(v1alpha1.RoleCheck, attempt, dead), number)] = true
			}
		}
	}
	if len(names) != 16 {
		t.Errorf("16 attempts of checks have %d names", len(names))
	}
	for _, role := range []v1alpha1.Role{v1alpha1.RoleMain, v1alpha1.RoleObserve, v1alpha1.RoleAgain, v1alpha1.RoleObserveAgain} {
		if got := jobRole(role, 7, true); got != role {
			t.Errorf("the Jobs of %s are named as %s", role, got)
		}
	}

	record := &task.Status.Steps[0]
	tests := map[string]struct {
		phase v1alpha1.StepPhase
		job   string
		want  string
	}{
		"the check before the first attempt":        {v1alpha1.StepRunning, name("check-0", 1), "FinishJob"},
		"a check of an earlier attempt":             {v1alpha1.StepRunning, name("check-2", 4), "FinishJob"},
		"one of an earlier attempt that was dead":   {v1alpha1.StepRunning, name("check-2-dead", 1), "FinishJob"},
		"one of this attempt":                       {v1alpha1.StepRunning, name("check-3", 1), ""},
		"one of a later attempt":                    {v1alpha1.StepRunning, name("check-4", 1), ""},
		"one of this attempt, of a step that ended": {v1alpha1.StepFailed, name("check-3-dead", 2), "FinishJob"},
	}
	for what, tt := range tests {
		t.Run(what, func(t *testing.T) {
			record.Attempt, record.Phase = 3, tt.phase
			d := fencedDecider(record, World{Ended: []*batchv1.Job{jobNamed(tt.job)}})
			d.Task = task
			d.finishJobs()
			if got := kinds(d.Decision); got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}

func TestSuspendWhileACheckWaitsForItsNextAttempt(t *testing.T) {
	s := checked(t, pay().Limit(3)).edit(suspend).checkPod(MakePod().Result(75, again)).want("pay:Checking/0", "FinishJob", "")
	s.later(time.Hour).see(World{}).want("pay:Checking/0", "", "")
	if s.task.Status.Phase != v1alpha1.TaskSuspended || s.last.RequeueAfter != 0 {
		t.Errorf("%s, again after %s", s.task.Status.Phase, s.last.RequeueAfter)
	}
	s.edit(func(spec *v1alpha1.AgentTaskSpec) { spec.Suspend = false }).see(World{}).want("pay:Checking/0", "MakeJob", "")
}
