// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
)

// messageOf is what people are told of a record whose outcome is unknown.
func messageOf(record *v1alpha1.StepStatus) string {
	d := fencedDecider(record, World{})
	return d.unknownMessage(&d.Status.Steps[0])
}

func unknownRecord(dead bool) *v1alpha1.StepStatus {
	r := fencedRecord()
	r.Phase, r.JobName, r.IdempotencyKey, r.ActionHash = v1alpha1.StepUnknown, "report-pay-yjnaewad4b-1", "run-7.pay.ab12", "sha256:cd34"
	r.Unknown = &v1alpha1.Unknown{Time: metav1.NewTime(epoch), Attempt: 1, Reason: v1alpha1.ReasonNodeLost, Message: "its node went away", PodDead: dead}
	return r
}

const command = `echo '{"apiVersion":"agenttask.dev/v1alpha1","kind":"AgentDecision","metadata":{"generateName":"report-pay-yjnaewad4b-1-"},` +
	`"spec":{"task":"report","taskUID":"5f3a2c1e-8d47-4b6a-9c0e-2b1d3f4a5c6d","step":"pay","attempt":1,"actionHash":"sha256:cd34",` +
	`"decision":"Retry|Complete|Skip|Abort","decidedBy":"'"$(kubectl auth whoami -o jsonpath='{.status.userInfo.username}')"'","reason":"WHY"}}' | kubectl -n team create -f -`

func TestWhatPeopleAreToldOfAnUnknownOutcome(t *testing.T) {
	const happened = "step pay, attempt 1, may have taken effect, and its outcome is not known: NodeLost: its node went away. "
	const stake = "To run it again may do it twice, to go on without it may leave it undone. " +
		"Look whether the effect with idempotency key run-7.pay.ab12 has happened, then choose one of Retry, Complete (add an output), Skip and Abort, and why: "
	tests := map[string]struct {
		dead   bool
		change func(*v1alpha1.StepStatus)
		want   string
	}{
		"its pod is dead":       {true, nil, happened + stake + command},
		"its pod may still act": {false, nil, happened + "Pod report-pay-yjnaewad4b-1 is not provably dead and may still act. " + stake + command},
		"its check failed": {true, func(r *v1alpha1.StepStatus) {
			r.Actions = []v1alpha1.RoleStatus{{Role: v1alpha1.RoleCheck, ActionStatus: v1alpha1.ActionStatus{Phase: v1alpha1.StepFailed, Reason: v1alpha1.ReasonExitCode, Message: "exit code 3"}}}
		}, happened + "Its check did not settle it: exit code 3. " + stake + command},
		"its check runs":       {true, func(r *v1alpha1.StepStatus) { r.Phase = v1alpha1.StepChecking }, happened + "Its check runs, which settles it."},
		"it is tried again":    {true, func(r *v1alpha1.StepStatus) { r.Phase = v1alpha1.StepRetrying }, happened + "It is tried again with the same key."},
		"a later attempt runs": {true, func(r *v1alpha1.StepStatus) { r.Phase, r.Attempt = v1alpha1.StepRunning, 2 }, happened + "It is tried again with the same key."},
		"its task has ended": {true, func(r *v1alpha1.StepStatus) { r.Phase = v1alpha1.StepCancelled },
			happened + "The task has ended. Look whether the effect with idempotency key run-7.pay.ab12 has happened, and mend what is to be mended by hand."},
		"its output is lost": {true, func(r *v1alpha1.StepStatus) {
			r.Unknown.Reason, r.Unknown.Message = v1alpha1.ReasonOutputLost, "its log is gone"
		},
			"step pay, attempt 1, says that it succeeded, and its output is lost: its log is gone. " + stake + command},
		"somebody decided to try again": {false, func(r *v1alpha1.StepStatus) {
			r.Decision = &v1alpha1.AppliedDecision{Decision: v1alpha1.DecisionRetry, Attempt: 1, DecidedBy: "ann"}
		}, happened + "ann decided to try again, which waits until pod report-pay-yjnaewad4b-1 is gone: it may still run. Delete it, by force if its node is gone for good."},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			record := unknownRecord(tt.dead)
			if tt.change != nil {
				tt.change(record)
			}
			if diff := cmp.Diff(tt.want, messageOf(record)); diff != "" {
				t.Errorf("message (-want +got):\n%s", diff)
			}
		})
	}
}

// manifest is the document that a command gives to kubectl, with a user put in.
func manifest(t *testing.T, message string) *v1alpha1.AgentDecision {
	t.Helper()
	_, rest, found := strings.Cut(message, "echo '")
	doc, tail, more := strings.Cut(rest, "' | kubectl")
	if !found || !more || !strings.HasSuffix(tail, " create -f -") {
		t.Fatalf("no command in %q", message)
	}
	doc = strings.Replace(doc, `'"$(kubectl auth whoami -o jsonpath='{.status.userInfo.username}')"'`, "ann", 1)
	if strings.Contains(doc, "'") {
		t.Errorf("a quote ends the document early: %s", doc)
	}
	decision := &v1alpha1.AgentDecision{}
	if err := json.Unmarshal([]byte(doc), decision); err != nil {
		t.Fatalf("%v in %s", err, doc)
	}
	return decision
}

func TestCommandThatSettlesAnUnknownOutcome(t *testing.T) {
	s := paused(t)
	decision := manifest(t, condition(&s.task.Status, v1alpha1.ConditionOutcomeUnknown).Message)
	if decision.Kind != "AgentDecision" || decision.APIVersion != v1alpha1.GroupVersion.String() || decision.GenerateName == "" {
		t.Errorf("it makes %s %s %q", decision.APIVersion, decision.Kind, decision.GenerateName)
	}
	decision.UID, decision.Generation = "decision", 1
	decision.Spec.Decision = v1alpha1.DecisionComplete // which one is to be chosen
	s.decisions = []*v1alpha1.AgentDecision{decision}
	s.see(World{}).want("pay:Succeeded/1", "AnswerDecision", v1alpha1.ReasonDecided)
	if d := s.record().Decision; d.DecidedBy != "ann" || d.Reason != "WHY" {
		t.Errorf("recorded is %+v", d)
	}
}

func TestMessageOfAnUnknownOutcomeFitsWhateverStandsInIt(t *testing.T) {
	text := func(n int) string { return strings.Repeat("<", n) }
	r := unknownRecord(false)
	r.Name, r.JobName, r.ActionHash = strings.Repeat("s", 40), strings.Repeat("j", 63), "sha256:"+strings.Repeat("a", 64)
	r.Attempt, r.IdempotencyKey = 101, text(255)
	r.Unknown.Attempt, r.Unknown.Reason, r.Unknown.Message = 101, strings.Repeat("R", 64), text(v1alpha1.MaxMessage)
	r.Actions = []v1alpha1.RoleStatus{{Role: v1alpha1.RoleCheck, ActionStatus: v1alpha1.ActionStatus{Phase: v1alpha1.StepFailed, Message: text(v1alpha1.MaxMessage)}}}
	d := fencedDecider(r, World{})
	d.Task.Name, d.Task.Namespace = strings.Repeat("t", 253), strings.Repeat("n", 63)
	message := d.unknownMessage(&d.Status.Steps[0])
	if len(message) > 4096 {
		t.Errorf("%d bytes", len(message))
	}
	if decision := manifest(t, message); decision.Spec.Attempt != 101 || decision.Spec.Task != d.Task.Name {
		t.Errorf("the command is cut: %+v", decision.Spec)
	}
}

func TestWhichOutcomeIsUnknown(t *testing.T) {
	s := paused(t)
	c, ready := condition(&s.task.Status, v1alpha1.ConditionOutcomeUnknown), condition(&s.task.Status, v1alpha1.ConditionReady)
	if c.Status != metav1.ConditionTrue || c.Reason != v1alpha1.ReasonOutcomeUnknown {
		t.Errorf("OutcomeUnknown %s %s", c.Status, c.Reason)
	}
	if want := "step pay, attempt 1, may have taken effect, and its outcome is not known; condition OutcomeUnknown says what settles it"; ready.Message != want {
		t.Errorf("Ready: %s", ready.Message)
	}
	if got := line(s.task, &s.task.Status); got != "Unknown Failed: Ready=F(OutcomeUnknown) Succeeded=U(OutcomeUnknown) Reconciling=F(OutcomeUnknown) Stalled=T(OutcomeUnknown) Suspended=F(NotSuspended) OutcomeUnknown=T(OutcomeUnknown)" {
		t.Error(got)
	}
	if diff := cmp.Diff([]string{v1alpha1.EventStepUnknown, v1alpha1.EventTaskStalled}, reasonsOf(s.last.Events)); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	before := s.task.Status
	s.see(World{})
	if diff := cmp.Diff(before, s.task.Status); diff != "" || s.last.RequeueAfter != 0 || len(s.last.Events) != 0 {
		t.Errorf("looked at again: again after %s, events %v:\n%s", s.last.RequeueAfter, reasonsOf(s.last.Events), diff)
	}
}
