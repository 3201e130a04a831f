// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
	"github.com/agenttask-dev/agenttask/test/harness"
)

func TestNothingIsFoundInAStoryWithoutFault(t *testing.T) {
	for name, moves := range map[string][]move{
		"each step once":            plain(),
		"a step that asks for more": again(pay),
		"a step that may run again": again(tell),
	} {
		t.Run(name, func(t *testing.T) { expectBroken(t, play(moves)) })
	}
}

// end is how a program ends.
func end(id string, outcome stepexec.Outcome) func(*story) {
	return func(s *story) { s.endPod(id, stepexec.Result{Outcome: outcome}) }
}

// drop removes a pod while it runs.
func drop(id string) func(*story) { return func(s *story) { s.dropPod(id) } }

// settle notes a decision on an unknown attempt.
func settle(decision v1alpha1.DecisionKind, n int32) func(*story) {
	return func(s *story) {
		r := record(s.task, pay)
		r.Phase = v1alpha1.StepUnknown
		r.Decision = &v1alpha1.AppliedDecision{Decision: decision, Attempt: n}
		s.keepTask()
	}
}

func TestGateIsLostTooSoonOrTwice(t *testing.T) {
	for name, c := range map[string]struct {
		moves []move
		want  []string
	}{
		"it was made without the gate": {change(plain(), "pod pay-1", func(s *story) {
			s.makePod("pay-1", look)
		}), []string{"I1"}},
		"the gate goes before the status names the pod": {sooner(plain(), "open pay-1", "bind pay-1"), []string{"I1"}},
		"the status names another pod": {change(plain(), "bind pay-1", func(s *story) {
			r := record(s.task, pay)
			r.JobUID, r.PodUID = s.jobs["pay-1"].UID, "another"
			s.keepTask()
		}), []string{"I1", "I4"}},
		"the status names another Job": {change(plain(), "bind pay-1", func(s *story) {
			r := record(s.task, pay)
			r.JobUID, r.PodUID = "another", s.pods["pay-1"].UID
			s.keepTask()
		}), []string{"I1"}},
		"a second pod of the Job loses its gate too": {after(after(plain(), "pod pay-1", func(s *story) {
			s.makeTwin("pay-1")
		}), "open pay-1", func(s *story) {
			s.changePod("pay-1-twin", func(p *corev1.Pod) { p.Spec.SchedulingGates = nil })
		}), []string{"I1"}},
	} {
		t.Run(name, func(t *testing.T) { expectBroken(t, play(c.moves), c.want...) })
	}
}

func TestASecondPodThatKeepsItsGateIsNoHarm(t *testing.T) {
	expectBroken(t, play(after(plain(), "pod pay-1", func(s *story) { s.makeTwin("pay-1") })))
	expectBroken(t, play(after(again(pay), "pod pay-1", func(s *story) { s.makeTwin("pay-1") })))
}

func TestGateIsLostTooLate(t *testing.T) {
	late := func(s *story) { s.changePod("pay-1", func(p *corev1.Pod) { p.Spec.SchedulingGates = nil }) }
	t.Run("the step had failed", func(t *testing.T) {
		moves := slices.Concat(attemptOf(look, 1), attemptOf(pay, 1))
		moves = after(without(moves, "open pay-1"), "bind pay-1", func(s *story) {
			record(s.task, pay).Phase = v1alpha1.StepFailed
			s.keepTask()
			late(s)
		})
		expectBroken(t, play(moves), "I2")
	})
	t.Run("a later attempt existed", func(t *testing.T) {
		moves := without(again(pay), "open pay-1")
		expectBroken(t, play(after(moves, "intent pay-2", late)), "I2")
	})
}

func TestNextAttemptComesTooSoon(t *testing.T) {
	for name, c := range map[string]struct {
		moves []move
		want  []string
	}{
		"while the pod runs":                      {sooner(again(tell), "intent tell-2", "end tell-1"), []string{"I3", "I4"}},
		"while the pod of a fenced step runs":     {without(again(pay), "end pay-1"), []string{"I3"}},
		"a pod that failed by word of podGC only": {change(again(pay), "end pay-1", func(s *story) { s.changePod("pay-1", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }) }), []string{"I3"}},
		"a fenced pod was removed while it ran":   {change(again(pay), "end pay-1", drop("pay-1")), []string{"I3"}},
		"an attempt is left out": {change(again(tell), "intent tell-2", func(s *story) { s.intend(tell, 3) }),
			[]string{"I3"}},
		"a decision said so of an earlier attempt": {after(change(again(pay), "end pay-1", drop("pay-1")), "retrying pay", settle(v1alpha1.DecisionRetry, 0)), []string{"I3"}},
		"a decision said so, and the pod is there": {after(without(again(pay), "end pay-1"), "retrying pay", settle(v1alpha1.DecisionRetry, 1)), []string{"I3"}},
	} {
		t.Run(name, func(t *testing.T) { expectBroken(t, play(c.moves), c.want...) })
	}
}

func TestNextAttemptMayCome(t *testing.T) {
	for name, moves := range map[string][]move{
		"a pod that may run again is gone": change(again(tell), "end tell-1", drop("tell-1")),
		"a fenced pod never had a node and is being deleted": change(without(again(pay), "schedule pay-1"), "end pay-1", func(s *story) {
			s.changePod("pay-1", func(p *corev1.Pod) { p.DeletionTimestamp = new(metav1.Now()) })
		}),
		"a fenced pod never had a node and is gone":    change(without(again(pay), "schedule pay-1"), "end pay-1", drop("pay-1")),
		"a fenced pod is gone, and a decision said so": after(change(again(pay), "end pay-1", drop("pay-1")), "retrying pay", settle(v1alpha1.DecisionRetry, 1)),
	} {
		t.Run(name, func(t *testing.T) { expectBroken(t, play(moves)) })
	}
}

// edit writes the task's status once more.
func edit(change func(*v1alpha1.AgentTaskStatus)) func(*story) {
	return func(s *story) {
		change(&s.task.Status)
		s.keepTask()
	}
}

// editStep is an edit of a step's record.
func editStep(step string, change func(*v1alpha1.StepStatus)) func(*story) {
	return func(s *story) {
		change(record(s.task, step))
		s.keepTask()
	}
}

func TestStatusGoesBack(t *testing.T) {
	for name, moves := range map[string][]move{
		"the task ran again":    after(plain(), "finish", edit(func(s *v1alpha1.AgentTaskStatus) { s.Phase = v1alpha1.TaskRunning })),
		"a record is forgotten": after(plain(), "finish", edit(func(s *v1alpha1.AgentTaskStatus) { s.Steps = s.Steps[:2] })),
		"a record changes place": after(plain(), "end tell-1", edit(func(s *v1alpha1.AgentTaskStatus) {
			slices.Reverse(s.Steps[:2])
		})),
		"a key changes":           after(plain(), "end tell-1", editStep(tell, func(s *v1alpha1.StepStatus) { s.IdempotencyKey = "other" })),
		"an action changes":       after(plain(), "end tell-1", editStep(tell, func(s *v1alpha1.StepStatus) { s.ActionHash = "other" })),
		"a result changes":        after(plain(), "finish", editStep(pay, func(s *v1alpha1.StepStatus) { s.Output = &apiextensionsv1.JSON{Raw: []byte(`1`)} })),
		"a result is lost":        after(plain(), "finish", editStep(pay, func(s *v1alpha1.StepStatus) { s.Output = nil })),
		"a step is not done more": after(plain(), "finish", editStep(tell, func(s *v1alpha1.StepStatus) { s.Phase = v1alpha1.StepFailed })),
		"an attempt goes back":    after(again(tell), "end tell-2", editStep(tell, func(s *v1alpha1.StepStatus) { s.Attempt = 1 })),
		"a phase goes back": after(after(plain(), "schedule tell-1", editStep(tell, func(s *v1alpha1.StepStatus) { s.Phase = v1alpha1.StepStopping })),
			"end tell-1", editStep(tell, func(s *v1alpha1.StepStatus) { s.Phase = v1alpha1.StepRunning })),
		"a pod is bound in place of another": after(plain(), "open pay-1", editStep(pay, func(s *v1alpha1.StepStatus) { s.PodUID = "other" })),
		"an attempt follows one that runs":   without(again(tell), "retrying tell"),
		"an attempt begins with a pod":       change(again(pay), "intent pay-2", editStep(pay, func(s *v1alpha1.StepStatus) { s.Phase, s.Attempt = v1alpha1.StepRunning, 2 })),
	} {
		t.Run(name, func(t *testing.T) {
			if !slices.ContainsFunc(Check(play(moves)), func(v Violation) bool { return v.Invariant == "I4" }) {
				t.Error("I4 finds nothing")
			}
		})
	}
}

func TestSuccessIsNotEarned(t *testing.T) {
	refer := func(s *story) {
		s.succeed(tell)
		r := record(s.task, tell)
		r.Output, r.OutputRef = nil, &v1alpha1.OutputRef{URI: "configmap:kept", SHA256: stepexec.SHA256Hex([]byte("1"))}
		s.keepTask()
	}
	large := change(plain(), "end tell-1", func(s *story) {
		s.endPod("tell-1", stepexec.Result{Outcome: stepexec.OutcomeSucceeded, LogOutput: &stepexec.LogOutput{SHA256: stepexec.SHA256Hex([]byte("1"))}})
	})
	keep := func(data string) func(*story) {
		return func(s *story) {
			s.keep(harness.Revision{ConfigMap: &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kept"}, Data: map[string]string{"output.json": data}}})
		}
	}
	stranger := func(s *story) {
		s.jobs["tell-1"].OwnerReferences = controlledBy("stranger")
		s.keep(harness.Revision{Job: s.jobs["tell-1"].DeepCopy()})
	}
	for name, c := range map[string]struct {
		moves []move
		want  []string
	}{
		"no pod had ended":   {without(plain(), "end tell-1"), []string{"I4"}},
		"its pod had failed": {change(plain(), "end tell-1", end("tell-1", stepexec.OutcomeFailed)), []string{"I4"}},
		"its pod's Job is a stranger's": {change(plain(), "job tell-1", func(s *story) {
			s.makeJob("tell-1", tell, 1)
			s.h.Revisions = s.h.Revisions[:len(s.h.Revisions)-1]
			stranger(s)
		}), []string{"I4", "I6"}},
		"its pod said something else":       {change(plain(), "end tell-1", end("tell-1", stepexec.OutcomeSucceeded)), []string{"I4"}},
		"its output is missing":             {change(plain(), "finish", editStep(tell, func(s *v1alpha1.StepStatus) { s.Phase = v1alpha1.StepSucceeded })), []string{"I4"}},
		"its large output was never kept":   {change(large, "finish", refer), []string{"I4"}},
		"its large output is another":       {change(after(large, "end tell-1", keep("2")), "finish", refer), []string{"I4"}},
		"its large output is not named":     {after(large, "end tell-1", keep("1")), []string{"I4"}},
		"its large output was kept":         {change(after(large, "end tell-1", keep("1")), "finish", refer), nil},
		"a decision said so, and it counts": {change(without(plain(), "end tell-1"), "finish", editStep(tell, func(s *v1alpha1.StepStatus) { s.Phase, s.Reason = v1alpha1.StepSucceeded, v1alpha1.ReasonDecided })), nil},
	} {
		t.Run(name, func(t *testing.T) { expectBroken(t, play(c.moves), c.want...) })
	}
}

func TestStepComesTooSoon(t *testing.T) {
	running := func(s *story) {
		s.intend(tell, 1)
		r := record(s.task, pay)
		r.Phase, r.Output = v1alpha1.StepRunning, nil
		s.h.Revisions[len(s.h.Revisions)-1].Task = s.task.DeepCopy()
	}
	t.Run("the step before is not done", func(t *testing.T) {
		moves := change(plain(), "intent tell-1", running)
		moves = after(moves, "end tell-1", func(s *story) { s.succeed(pay); s.keepTask() })
		expectBroken(t, play(moves), "I5")
	})
	t.Run("its Job is made before its record", func(t *testing.T) {
		expectBroken(t, play(sooner(plain(), "job tell-1", "intent tell-1")), "I5")
	})
	t.Run("its Job and pod are made before its record", func(t *testing.T) {
		expectBroken(t, play(sooner(sooner(plain(), "job tell-1", "intent tell-1"), "pod tell-1", "intent tell-1")), "I5")
	})
	t.Run("the next attempt's Job is made before its record", func(t *testing.T) {
		expectBroken(t, play(sooner(again(tell), "job tell-2", "intent tell-2")), "I5")
	})
}

func TestEffectsAreCounted(t *testing.T) {
	for name, c := range map[string]struct {
		moves []move
		want  []string
	}{
		"a fenced effect twice":                {after(plain(), "run pay-1", func(s *story) { s.effect("pay-1", pay, 1) }), []string{"I6"}},
		"an idempotent effect twice, one key":  {after(plain(), "run tell-1", func(s *story) { s.effect("tell-1", tell, 1) }), nil},
		"an idempotent effect under two keys":  {after(plain(), "run tell-1", func(s *story) { s.effect("tell-1", tell, 1); s.h.Effects[len(s.h.Effects)-1].Key = "other" }), []string{"I6"}},
		"a step that is done without effect":   {without(plain(), "run pay-1"), []string{"I6"}},
		"a reader that is done without effect": {without(plain(), "run look-1"), nil},
		"an effect of a pod that is nobody's":  {after(plain(), "run pay-1", func(s *story) { s.effect("pay-1", pay, 1); s.h.Effects[len(s.h.Effects)-1].Pod = "other" }), nil},
	} {
		t.Run(name, func(t *testing.T) { expectBroken(t, play(c.moves), c.want...) })
	}
}

func TestWritesSayWhatTheyAreFor(t *testing.T) {
	const metadata = `{"metadata":{"uid":"u","resourceVersion":"7"},"status":{}}`
	for name, c := range map[string]struct {
		verb, resource, body string
		ok                   bool
	}{
		"a status":                        {"update", "agenttasks/status", metadata, true},
		"a status without revision":       {"update", "agenttasks/status", `{"metadata":{"uid":"u"},"status":{}}`, false},
		"a status without UID":            {"update", "agenttasks/status", `{"metadata":{"resourceVersion":"7"},"status":{}}`, false},
		"a status by a bare patch":        {"patch", "agenttasks/status", `{"status":{}}`, false},
		"a Job's status":                  {"patch", "jobs/status", metadata, true},
		"a Job's status by a bare patch":  {"patch", "jobs/status", `{"status":{}}`, false},
		"a pod, its UID tested":           {"patch", "pods", `[{"op":"test","path":"/metadata/uid","value":"u"},{"op":"remove","path":"/spec/schedulingGates/0"}]`, true},
		"a pod, another thing tested":     {"patch", "pods", `[{"op":"test","path":"/metadata/name","value":"u"},{"op":"remove","path":"/spec/schedulingGates/0"}]`, false},
		"a pod, an empty UID tested":      {"patch", "pods", `[{"op":"test","path":"/metadata/uid","value":""}]`, false},
		"a pod, by a merge":               {"patch", "pods", `{"metadata":{"uid":"u"}}`, false},
		"a pod, replaced":                 {"update", "pods", metadata, false},
		"a deletion":                      {"delete", "pods", `{"preconditions":{"uid":"u"}}`, true},
		"a deletion of whatever is there": {"delete", "jobs", `{"propagationPolicy":"Background"}`, false},
		"a deletion without options":      {"delete", "jobs", ``, false},
		"a deletion of many":              {"deletecollection", "pods", `{"preconditions":{"uid":"u"}}`, false},
		"a pod that is made":              {"create", "pods", `{}`, true},
	} {
		t.Run(name, func(t *testing.T) {
			h := play(plain())
			resource, subresource, _ := strings.Cut(c.resource, "/")
			h.Requests = []harness.Request{
				{User: harness.OperatorUser, Verb: c.verb, Resource: resource, Subresource: subresource, Body: []byte(c.body)},
				{User: "somebody", Verb: "deletecollection", Resource: "pods"},
			}
			var want []string
			if !c.ok {
				want = []string{"I7"}
			}
			expectBroken(t, h, want...)
		})
	}
}

func TestItDoesNotComeToRest(t *testing.T) {
	for name, rests := range map[string][]Rest{
		"something is missing": {{Missing: "the task is Running"}},
		"it writes on":         {{}, {Late: []string{"create pods x"}}},
		"nobody looked":        nil,
	} {
		t.Run(name, func(t *testing.T) {
			h := play(plain())
			h.Rests = rests
			expectBroken(t, h, "I8")
		})
	}
}
