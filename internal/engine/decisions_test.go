// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
)

// paused is a task whose step's outcome is unknown, and which waits for a person.
func paused(t *testing.T) *scene {
	t.Helper()
	return play(t, pay()).through().pod(killed()).want("pay:Unknown/1", "ReleasePod", v1alpha1.ReasonKilled)
}

// answers are what the last decision told those who decided.
func (s *scene) answers() []string {
	var out []string
	for _, a := range s.last.Actions {
		if a.Kind == AnswerDecision {
			out = append(out, fmt.Sprintf("%s %s: %s", a.Decision.UID, a.Answer.Reason, a.Answer.Message))
		}
	}
	return out
}

func TestDecisionIsApplied(t *testing.T) {
	tests := map[v1alpha1.DecisionKind]struct {
		output, wantRecords, wantMessage, wantOutput string
		wantPhase                                    v1alpha1.TaskPhase
	}{
		v1alpha1.DecisionComplete: {`{"b": 2.0, "a": "\u00e9"}`, "pay:Succeeded/1", "ann decided to take it as done: looked at the bank", `{"a":"é","b":2}`, v1alpha1.TaskSucceeded},
		v1alpha1.DecisionSkip:     {"", "pay:Skipped/1", "ann decided to go on without it: looked at the bank", "", v1alpha1.TaskSucceeded},
		v1alpha1.DecisionAbort:    {"", "pay:Failed/1", "ann decided to end it as failed: looked at the bank", "", v1alpha1.TaskFailed},
	}
	for kind, tt := range tests {
		t.Run(string(kind), func(t *testing.T) {
			s := paused(t).decide(kind, func(d *v1alpha1.AgentDecision) {
				if tt.output != "" {
					d.Spec.Output = doc1(tt.output)
				}
			}).later(time.Minute).see(World{Job: jobNamed(jobOf(play(t, pay()).task).Name)})
			s.want(tt.wantRecords, "FinishJob AnswerDecision", v1alpha1.ReasonDecided)
			r := s.record()
			output := ""
			if r.Output != nil {
				output = string(r.Output.Raw)
			}
			if r.Message != tt.wantMessage || output != tt.wantOutput || s.task.Status.Phase != tt.wantPhase || r.Unknown != nil {
				t.Errorf("%s, %q, output %s, unknown %v", s.task.Status.Phase, r.Message, output, r.Unknown)
			}
			want := &v1alpha1.AppliedDecision{Name: "decision-1", UID: "decision-1", Decision: kind, Attempt: 1, DecidedBy: "ann", Reason: "looked at the bank", Time: metav1.NewTime(epoch.Add(time.Minute))}
			if diff := cmp.Diff(want, r.Decision); diff != "" {
				t.Errorf("recorded (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff([]string{"decision-1 Applied: applied to step pay, attempt 1"}, s.answers()); diff != "" {
				t.Errorf("answers (-want +got):\n%s", diff)
			}
			if c := condition(&s.task.Status, v1alpha1.ConditionOutcomeUnknown); c.Status != "False" {
				t.Errorf("OutcomeUnknown is %s", c.Status)
			}
		})
	}
}

func TestDecisionToTryAgain(t *testing.T) {
	t.Run("the pod is dead: it is tried again at once, whatever the limit", func(t *testing.T) {
		s := play(t, pay().Limit(0)).through().pod(killed()).decide(v1alpha1.DecisionRetry).see(World{})
		s.want("pay:Retrying/1", "AnswerDecision", v1alpha1.ReasonKilled)
		if s.last.RequeueAfter != time.Millisecond || s.record().Unknown != nil {
			t.Errorf("again after %s, unknown %v", s.last.RequeueAfter, s.record().Unknown)
		}
		s.decisions = nil
		s.see(World{}).want("pay:Running/2", "MakeJob", "")
		if s.record().Decision == nil {
			t.Error("who decided is forgotten")
		}
	})
	alive := func() *podBuilder { return bound().Running().Forced() }
	t.Run("the pod may still run: it is let go, and waited for", func(t *testing.T) {
		s := play(t, pay()).through().pod(alive()).decide(v1alpha1.DecisionRetry)
		s.pod(alive()).want("pay:Unknown/1", "ReleasePod AnswerDecision", v1alpha1.ReasonNodeLost)
		s.decisions = nil
		s.pod(alive()).want("pay:Unknown/1", "ReleasePod", v1alpha1.ReasonNodeLost)
		c := condition(&s.task.Status, v1alpha1.ConditionOutcomeUnknown)
		if s.last.RequeueAfter != goneRecheck || !strings.HasSuffix(c.Message, "ann decided to try again, which waits until pod "+s.record().JobName+" is gone: it may still run. Delete it, by force if its node is gone for good.") {
			t.Errorf("again after %s: %s", s.last.RequeueAfter, c.Message)
		}
		s.gone(nil).want("pay:Retrying/1", "FinishJob", v1alpha1.ReasonNodeLost)
	})
	t.Run("the pod's own word comes in while it is waited for", func(t *testing.T) {
		s := play(t, pay()).through().pod(alive()).decide(v1alpha1.DecisionRetry).pod(alive())
		s.decisions = nil
		s.pod(bound().Succeeded("1").Forced()).want("pay:Succeeded/1", "FinishJob ReleasePod", "")
	})
	t.Run("another that decides otherwise comes too late", func(t *testing.T) {
		s := play(t, pay()).through().pod(alive()).decide(v1alpha1.DecisionRetry).pod(alive()).decide(v1alpha1.DecisionSkip).pod(alive())
		s.want("pay:Unknown/1", "ReleasePod AnswerDecision AnswerDecision", v1alpha1.ReasonNodeLost)
		if got := s.answers()[1]; got != "decision-2 AlreadyDecided: ann has decided (AgentDecision decision-1, Retry)" {
			t.Errorf("answered %q", got)
		}
	})
}

func TestDecisionThatCannotBeApplied(t *testing.T) {
	spec := func(f func(*v1alpha1.AgentDecisionSpec)) func(*v1alpha1.AgentDecision) {
		return func(d *v1alpha1.AgentDecision) { f(&d.Spec) }
	}
	tests := map[string]struct {
		kind                    v1alpha1.DecisionKind
		change                  func(*v1alpha1.AgentDecision)
		wantReason, wantMessage string
	}{
		"on an earlier task of that name": {v1alpha1.DecisionSkip, spec(func(s *v1alpha1.AgentDecisionSpec) { s.TaskUID = "old" }),
			v1alpha1.ReasonOtherTask, "AgentTask report has the UID 5f3a2c1e-8d47-4b6a-9c0e-2b1d3f4a5c6d"},
		"changed after it was made": {v1alpha1.DecisionSkip, func(d *v1alpha1.AgentDecision) { d.Generation = 2 }, v1alpha1.ReasonChanged, "create another"},
		"on a step that was not started": {v1alpha1.DecisionSkip, spec(func(s *v1alpha1.AgentDecisionSpec) { s.Step = "tell" }),
			v1alpha1.ReasonNothingToDecide, "step tell has not been started"},
		"on another action": {v1alpha1.DecisionSkip, spec(func(s *v1alpha1.AgentDecisionSpec) { s.ActionHash = "sha256:00" }),
			v1alpha1.ReasonOtherAction, "step pay has the actionHash sha256:"},
		"on a later attempt": {v1alpha1.DecisionSkip, spec(func(s *v1alpha1.AgentDecisionSpec) { s.Attempt = 2 }), v1alpha1.ReasonOtherAction, "step pay is at attempt 1"},
		"an output where none belongs": {v1alpha1.DecisionRetry, spec(func(s *v1alpha1.AgentDecisionSpec) { s.Output = doc1("1") }),
			v1alpha1.ReasonBadOutput, "spec.output is for decision Complete, and this is Retry"},
		"an output that is no JSON reader's": {v1alpha1.DecisionComplete, spec(func(s *v1alpha1.AgentDecisionSpec) { s.Output = doc1("1e400") }),
			v1alpha1.ReasonBadOutput, "spec.output: "},
		"an output that is too large": {v1alpha1.DecisionComplete, spec(func(s *v1alpha1.AgentDecisionSpec) { s.Output = doc1(`"` + strings.Repeat("x", 2047) + `"`) }),
			v1alpha1.ReasonBadOutput, "spec.output has 2049 bytes, and at most 2048 are kept"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := paused(t)
			before := s.task.Status
			s.decide(tt.kind, tt.change).see(World{}).want("pay:Unknown/1", "AnswerDecision", v1alpha1.ReasonKilled)
			if got := s.answers(); !strings.HasPrefix(got[0], "decision-1 "+tt.wantReason+": ") || !strings.Contains(got[0], tt.wantMessage) {
				t.Errorf("answered %q, want %s: %q", got, tt.wantReason, tt.wantMessage)
			}
			if diff := cmp.Diff(before, s.task.Status); diff != "" {
				t.Errorf("the status changes:\n%s", diff)
			}
			if got := reasonsOf(s.last.Events); len(got) != 1 || got[0] != v1alpha1.EventDecisionRefused {
				t.Errorf("events %v", got)
			}
			s.decide(v1alpha1.DecisionComplete).see(World{})
			if got := records(&s.task.Status); got != "pay:Succeeded/1" {
				t.Errorf("a right one beside it: %s", got)
			}
		})
	}
}

func TestDecisionAtTheWrongTime(t *testing.T) {
	tests := map[string]struct {
		world       func(*scene) *podBuilder
		wantMessage string
	}{
		"while it runs":    {func(*scene) *podBuilder { return bound().Running() }, "step pay is Running; there is nothing to decide"},
		"when it is done":  {func(*scene) *podBuilder { return bound().Succeeded("1") }, "step pay is Succeeded; there is nothing to decide"},
		"when it is tried": {func(*scene) *podBuilder { return bound().Result(75, again) }, "step pay is Retrying; there is nothing to decide"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := play(t, pay()).through().decide(v1alpha1.DecisionSkip)
			s.pod(tt.world(s))
			if diff := cmp.Diff([]string{"decision-1 NothingToDecide: " + tt.wantMessage}, s.answers()); diff != "" {
				t.Errorf("answers (-want +got):\n%s", diff)
			}
		})
	}
	t.Run("when its task has ended", func(t *testing.T) {
		s := paused(t).edit(cancel).see(World{}).decide(v1alpha1.DecisionSkip).see(World{}).want("pay:Cancelled/1", "AnswerDecision", v1alpha1.ReasonCancelled)
		if got := s.answers(); !strings.HasPrefix(got[0], "decision-1 NothingToDecide: ") {
			t.Errorf("answered %q", got)
		}
	})
	t.Run("on an attempt that somebody has decided upon", func(t *testing.T) {
		s := paused(t).decide(v1alpha1.DecisionComplete).see(World{}).decide(v1alpha1.DecisionSkip).see(World{})
		want := []string{"decision-1 Applied: applied to step pay, attempt 1", "decision-2 AlreadyDecided: ann has decided (AgentDecision decision-1, Complete)"}
		if diff := cmp.Diff(want, s.answers()); diff != "" || records(&s.task.Status) != "pay:Succeeded/1" {
			t.Errorf("%s, answers (-want +got):\n%s", records(&s.task.Status), diff)
		}
	})
}

// Nobody tells of a decision twice: one that comes in the very moment in which the outcome
// turns out to be unknown is not to be left lying.
func TestDecisionThatIsThereWhenTheOutcomeTurnsOutToBeUnknown(t *testing.T) {
	s := play(t, pay()).through().decide(v1alpha1.DecisionSkip).pod(killed()).want("pay:Unknown/1", "ReleasePod", v1alpha1.ReasonKilled)
	if s.last.RequeueAfter != time.Millisecond {
		t.Errorf("again after %s, want at once", s.last.RequeueAfter)
	}
	s.see(World{}).want("pay:Skipped/1", "AnswerDecision", v1alpha1.ReasonDecided)
}

func TestTheOldestDecisionCounts(t *testing.T) {
	s := paused(t).decide(v1alpha1.DecisionSkip, func(d *v1alpha1.AgentDecision) { d.CreationTimestamp = metav1.NewTime(epoch.Add(time.Second)) })
	s.decide(v1alpha1.DecisionAbort).decide(v1alpha1.DecisionComplete) // of the same second: by UID
	s.see(World{}).want("pay:Failed/1", "AnswerDecision AnswerDecision AnswerDecision", v1alpha1.ReasonDecided)
	if got := s.answers(); !strings.HasPrefix(got[0], "decision-2 Applied") || !strings.HasPrefix(got[1], "decision-3 AlreadyDecided") || !strings.HasPrefix(got[2], "decision-1 AlreadyDecided") {
		t.Errorf("answers %q", got)
	}
}

// A person need not wait for a check that takes its time, or goes on failing.
func TestDecisionWhileTheCheckRuns(t *testing.T) {
	s := play(t, pay().OnUnknown(v1alpha1.UnknownCheck).Check("")).through().pod(killed()).see(World{}).want("pay:Checking/1", "MakeJob", v1alpha1.ReasonKilled)
	check := World{Job: jobNamed(find(s.last, MakeJob).Attempt.Record.JobName), Pod: MakePod().Running().Obj()}
	s.decide(v1alpha1.DecisionRetry, func(d *v1alpha1.AgentDecision) { d.Spec.Attempt = 2 }).see(check).want("pay:Checking/1", "AnswerDecision", v1alpha1.ReasonKilled)
	s.decisions = nil
	s.decide(v1alpha1.DecisionComplete).see(check).want("pay:Unknown/1", "", v1alpha1.ReasonKilled)
	if s.last.RequeueAfter != time.Millisecond || len(s.record().Actions) != 0 {
		t.Errorf("again after %s, actions %+v", s.last.RequeueAfter, s.record().Actions)
	}
	s.see(World{}).want("pay:Succeeded/1", "AnswerDecision", v1alpha1.ReasonDecided)
}

func TestAPlanThatChangedDoesNotKeepAPersonFromDeciding(t *testing.T) {
	s := paused(t).edit(func(spec *v1alpha1.AgentTaskSpec) { spec.Steps[0].Run.Image = "tools:2" }).see(World{})
	if got := reasonOfStalled(s.task.Status); got != v1alpha1.ReasonPlanChanged {
		t.Errorf("stalled by %s", got)
	}
	s.decide(v1alpha1.DecisionAbort).see(World{}).want("pay:Failed/1", "AnswerDecision", v1alpha1.ReasonDecided)
}

// What people and checks give a step counts as much as what its program does.
func TestOutputsThatWereDecidedNeedRoomToo(t *testing.T) {
	s := paused(t).decide(v1alpha1.DecisionComplete, func(d *v1alpha1.AgentDecision) { d.Spec.Output = doc1(`"` + strings.Repeat("y", 2000) + `"`) })
	d := &decider{Input: Input{Task: s.task, World: World{Decisions: s.decisions}, Now: epoch, Rand: half}, Decision: Decision{Status: *s.task.Status.DeepCopy()}}
	done := v1alpha1.StepStatus{Name: "big", ActionStatus: v1alpha1.ActionStatus{Phase: v1alpha1.StepSucceeded, Output: doc1(`"` + strings.Repeat("x", 2000) + `"`)}}
	for size, limit, _ := d.tooLarge(); size+2000 < limit; size, limit, _ = d.tooLarge() {
		d.Status.Steps = append([]v1alpha1.StepStatus{done}, d.Status.Steps...)
	}
	d.settle(d.current())
	if r := d.current(); r.Phase != v1alpha1.StepFailed || r.Reason != v1alpha1.ReasonOutputTooLarge || r.Output != nil || r.Decision == nil {
		t.Errorf("%s %s with decision %v", r.Phase, r.Reason, r.Decision)
	}
}
