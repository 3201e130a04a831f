// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package integration_test

import (
	"fmt"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/test/harness"
)

// unknownWorld is a world with an operator and a task whose step pay has left no outcome;
// any later attempt succeeds.
func unknownWorld() (*world, *v1alpha1.AgentTask) {
	GinkgoHelper()
	w := newWorld(lostOnce())
	w.create(w.make("task").Step("pay").Once().RetryFast(2).Step("tell").Obj())
	return w, w.reaches("task", v1alpha1.TaskUnknown)
}

// expectRefused looks at a decision that was not applied: the answer, and the event.
func (w *world) expectRefused(d *v1alpha1.AgentDecision, reason string, words ...string) {
	GinkgoHelper()
	got := answer(d)
	Expect(got.Status).To(Equal(metav1.ConditionFalse), got.Message)
	Expect(got.Reason).To(Equal(reason), got.Message)
	Expect(got.Message).To(containsAll(words))
	Expect(got.ObservedGeneration).To(Equal(d.Generation))
}

func jsonOf(doc string) *apiextensionsv1.JSON { return &apiextensionsv1.JSON{Raw: []byte(doc)} }

var _ = Describe("An AgentDecision that is refused", func() {
	It("says why in its condition, in its columns and in an event of the task", func() {
		w, task := unknownWorld()
		d := w.decision(task, v1alpha1.DecisionSkip, func(s *v1alpha1.AgentDecisionSpec) { s.ActionHash = "sha256:other" })
		hash := record(task, "pay").ActionHash
		w.expectRefused(d, v1alpha1.ReasonOtherAction, "step pay has the actionHash "+hash, "look at it again")
		w.told("task", v1alpha1.EventDecisionRefused, "AgentDecision "+d.Name+" by somebody was not applied", hash)
		out, err := cluster.Kubectl(ctx, "-n", w.ns, "get", "agd", "-o", "wide")
		Expect(err).NotTo(HaveOccurred())
		Expect(out).To(MatchRegexp(`NAME +TASK +STEP +DECISION +BY +APPLIED +AGE +REASON\n` + d.Name + ` +task +pay +Skip +somebody +False +\d+s +step pay has the actionHash`))
		Expect(w.get("task").Status.Phase).To(Equal(v1alpha1.TaskUnknown))
	})

	DescribeTable("says what it should have been about",
		func(reason, words string, kind v1alpha1.DecisionKind, change func(*v1alpha1.AgentDecisionSpec)) {
			w, task := unknownWorld()
			w.expectRefused(w.decision(task, kind, change), reason, strings.Split(words, "|")...)
			task = w.get("task")
			Expect(task.Status.Phase).To(Equal(v1alpha1.TaskUnknown))
			Expect(record(task, "pay").Decision).To(BeNil())

			By("deciding again, rightly")
			Expect(answer(w.decision(task, v1alpha1.DecisionSkip, nil)).Reason).To(Equal(v1alpha1.ReasonApplied))
			w.reaches("task", v1alpha1.TaskSucceeded)
		},
		Entry("another task of the name", v1alpha1.ReasonOtherTask, "AgentTask task has the UID|the decision is on another of that name",
			v1alpha1.DecisionSkip, func(s *v1alpha1.AgentDecisionSpec) { s.TaskUID = "another" }),
		Entry("no task of the name", v1alpha1.ReasonOtherTask, "there is no AgentTask nobody",
			v1alpha1.DecisionSkip, func(s *v1alpha1.AgentDecisionSpec) { s.Task = "nobody" }),
		Entry("another attempt", v1alpha1.ReasonOtherAction, "step pay is at attempt 1|decide on that",
			v1alpha1.DecisionSkip, func(s *v1alpha1.AgentDecisionSpec) { s.Attempt = 2 }),
		Entry("a step that has not been started", v1alpha1.ReasonNothingToDecide, "step tell has not been started",
			v1alpha1.DecisionSkip, func(s *v1alpha1.AgentDecisionSpec) { s.Step = "tell" }),
		Entry("a step that the plan does not have", v1alpha1.ReasonNothingToDecide, "step other has not been started",
			v1alpha1.DecisionSkip, func(s *v1alpha1.AgentDecisionSpec) { s.Step = "other" }),
		Entry("an output of what is not done", v1alpha1.ReasonBadOutput, "spec.output is for decision Complete, and this is Retry; leave it out",
			v1alpha1.DecisionRetry, func(s *v1alpha1.AgentDecisionSpec) { s.Output = jsonOf(`1`) }),
		Entry("an output that is too large", v1alpha1.ReasonBadOutput, "at most 2048 are kept|give a reference instead",
			v1alpha1.DecisionComplete, func(s *v1alpha1.AgentDecisionSpec) { s.Output = jsonOf(`"` + strings.Repeat("x", 2047) + `"`) }),
	)

	It("is about a step whose outcome is known, while it runs and when the task has ended", func() {
		end := make(chan struct{})
		w := newWorld(harness.Plan(map[string][]harness.Behaviour{"pay": {harness.HangUntil(end)}}))
		w.create(w.make("task").Step("pay").Once().Obj())
		w.runningPod("task", "pay", 1)
		w.stepIs("task", "pay", v1alpha1.StepRunning, "")
		w.expectRefused(w.decision(w.get("task"), v1alpha1.DecisionAbort, nil), v1alpha1.ReasonNothingToDecide, "step pay is Running", "nothing to decide")
		close(end)
		w.reaches("task", v1alpha1.TaskSucceeded)
		w.expectRefused(w.decision(w.get("task"), v1alpha1.DecisionRetry, nil), v1alpha1.ReasonNothingToDecide, "step pay is Succeeded")
		Expect(w.startsOf("pay")).To(HaveLen(1))
	})

	It("is about a task that has been deleted in the meantime, or made again", func() {
		w := emptyWorld(lostOnce())
		first := w.operator(harness.ManagerOptions{Name: "first"})
		w.create(w.make("task").Step("pay").Once().Obj())
		task := w.reaches("task", v1alpha1.TaskUnknown)
		Expect(first.Stop()).To(Succeed())
		d := w.decision(task, v1alpha1.DecisionRetry, nil)
		_, err := cluster.Outsider().RecreateTask(ctx, client.ObjectKeyFromObject(task))
		Expect(err).NotTo(HaveOccurred())
		w.operator(harness.ManagerOptions{Name: "second"})
		w.expectRefused(d, v1alpha1.ReasonOtherTask, "the decision is on another of that name")
		Expect(record(w.reaches("task", v1alpha1.TaskUnknown), "pay").Decision).To(BeNil())

		again := w.get("task")
		Expect(cluster.Client.Delete(ctx, again)).To(Succeed())
		w.waitGone(again)
		w.expectRefused(w.decision(task, v1alpha1.DecisionRetry, nil), v1alpha1.ReasonOtherTask, "there is no AgentTask task")
	})

	It("is one of two on the same attempt: the older one counts", func() {
		w := emptyWorld(lostOnce())
		first := w.operator(harness.ManagerOptions{Name: "first"})
		w.create(w.make("task").Step("pay").Once().Obj())
		task := w.reaches("task", v1alpha1.TaskUnknown)
		Expect(first.Stop()).To(Succeed())
		older := w.decision(task, v1alpha1.DecisionSkip, func(s *v1alpha1.AgentDecisionSpec) { s.DecidedBy = "ann" })
		younger := &v1alpha1.AgentDecision{}
		Eventually(func(g Gomega) { // creation times have whole seconds
			younger = w.decision(task, v1alpha1.DecisionAbort, func(s *v1alpha1.AgentDecisionSpec) { s.DecidedBy = "ben" })
			if younger.CreationTimestamp.Equal(&older.CreationTimestamp) {
				g.Expect(cluster.Client.Delete(ctx, younger)).To(Succeed())
			}
			g.Expect(younger.CreationTimestamp).NotTo(Equal(older.CreationTimestamp))
		}).WithPolling(200 * time.Millisecond).Should(Succeed())
		w.operator(harness.ManagerOptions{Name: "second"})
		Expect(answer(older).Status).To(Equal(metav1.ConditionTrue))
		w.expectRefused(younger, v1alpha1.ReasonAlreadyDecided, "ann has decided", older.Name, "Skip")
		r := record(w.reaches("task", v1alpha1.TaskSucceeded), "pay")
		Expect(r.Decision).To(And(HaveField("Name", older.Name), HaveField("DecidedBy", "ann")))
	})

	It("is the second on an attempt that still waits for its pod to go", func() {
		w := newWorld(harness.Plan(map[string][]harness.Behaviour{"pay": {silentNode(), harness.Succeed("paid")}}))
		w.create(w.make("task").Step("pay").Once().RetryFast(2).Obj())
		pod := w.runningPod("task", "pay", 1)
		editPodStatus(pod, func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }) // by somebody who does not know
		task := w.reaches("task", v1alpha1.TaskUnknown)
		first := w.decision(task, v1alpha1.DecisionRetry, nil)
		Expect(answer(first).Reason).To(Equal(v1alpha1.ReasonApplied))
		w.expectRefused(w.decision(task, v1alpha1.DecisionSkip, nil), v1alpha1.ReasonAlreadyDecided, "somebody has decided", first.Name, "Retry")

		By("deleting the pod by force, as the message says")
		Consistently(func() []harness.ContainerStart { return w.startsOf("pay") }).Should(HaveLen(1))
		Expect(cluster.Outsider().DeletePod(ctx, client.ObjectKeyFromObject(pod), 0)).To(Succeed())
		Expect(attempts(w.reaches("task", v1alpha1.TaskSucceeded))).To(Equal(map[string]int32{"pay": 2}))
		w.waitGone(pod)
		w.expectNothingHeld()
	})

	It("has been changed since it was made, which its generation tells", func() {
		w := emptyWorld(lostOnce())
		first := w.operator(harness.ManagerOptions{Name: "first"})
		w.create(w.make("task").Step("pay").Once().Obj())
		task := w.reaches("task", v1alpha1.TaskUnknown)
		Expect(first.Stop()).To(Succeed())
		d := w.decision(task, v1alpha1.DecisionSkip, nil)
		edit(w.ns, d.Name, d, func(d *v1alpha1.AgentDecision) { d.Finalizers = []string{"example.com/hold"} })
		Expect(cluster.Client.Delete(ctx, d)).To(Succeed()) // which counts as a change of it
		w.operator(harness.ManagerOptions{Name: "second"})
		w.expectRefused(d, v1alpha1.ReasonChanged, "create another")
		Expect(w.get("task").Status.Phase).To(Equal(v1alpha1.TaskUnknown))
		edit(w.ns, d.Name, d, func(d *v1alpha1.AgentDecision) { d.Finalizers = nil })
	})
})

var _ = Describe("An AgentDecision that is applied", func() {
	It("stands in the status with who, why and when, and is answered in its own", func() {
		w, task := unknownWorld()
		d := w.decision(task, v1alpha1.DecisionComplete, func(s *v1alpha1.AgentDecisionSpec) {
			s.Output, s.DecidedBy = jsonOf(`{"b":1, "a":2}`), "jane@example.com"
		})
		got := answer(d)
		Expect(got.Status).To(Equal(metav1.ConditionTrue))
		Expect(got.Reason).To(Equal(v1alpha1.ReasonApplied))
		Expect(got.Message).To(Equal("applied to step pay, attempt 1"))
		task = w.reaches("task", v1alpha1.TaskSucceeded)
		r := record(task, "pay")
		Expect(r.Decision).To(And(HaveField("Name", d.Name), HaveField("UID", d.UID), HaveField("DecidedBy", "jane@example.com"),
			HaveField("Reason", "looked at the account"), HaveField("Decision", v1alpha1.DecisionComplete), HaveField("Attempt", int32(1))))
		Expect(r.Decision.Time.IsZero()).To(BeFalse())
		Expect(r.Reason).To(Equal(v1alpha1.ReasonDecided))
		Expect(r.Message).To(Equal("jane@example.com decided to take it as done: looked at the account"))
		Expect(r.Output.Raw).To(MatchJSON(`{"a":2,"b":1}`))
		w.told("task", v1alpha1.EventStepDecided, "step pay ended as Succeeded", "jane@example.com decided to take it as done: looked at the account")
		out, err := cluster.Kubectl(ctx, "-n", w.ns, "get", "agd")
		Expect(err).NotTo(HaveOccurred())
		Expect(out).To(MatchRegexp(d.Name + ` +task +pay +Complete +jane@example.com +True +\d+s`))
	})

	It("as Skip goes on with the output null, counts as done and says that it was skipped", func() {
		w := newWorld(lostOnce())
		w.create(w.make("task").Step("pay").Once().Step("tell").Input(`{"paid": "${steps.pay.output}", "phase": "${steps.pay.phase}"}`).Obj())
		w.decision(w.reaches("task", v1alpha1.TaskUnknown), v1alpha1.DecisionSkip, nil)
		task := w.reaches("task", v1alpha1.TaskSucceeded)
		Expect(task.Status.Progress).To(Equal("2/2"))
		Expect(condition(task, "Ready").Message).To(Equal("1 steps succeeded and 1 were skipped by decision"))
		Expect(harness.InputOf(w.pod("task", "tell", 1, nil))).To(MatchJSON(`{"paid": null, "phase": "Skipped"}`))
		Expect(kstatus(task)).To(Equal("Current"))
	})

	It("as Abort ends the task as failed, by whom and why", func() {
		w, task := unknownWorld()
		w.decision(task, v1alpha1.DecisionAbort, nil)
		task = w.reaches("task", v1alpha1.TaskFailed)
		Expect(condition(task, "Ready").Message).To(ContainSubstring("somebody decided to end it as failed: looked at the account"))
		Expect(record(task, "tell")).To(BeNil())
		Expect(kstatus(task)).To(Equal("Failed"))
	})

	It("as Retry makes another attempt with the same key, whatever retry.limit says", func() {
		w := newWorld(lostOnce())
		w.create(w.make("task").Step("pay").Once().RetryFast(0).Obj())
		w.decision(w.reaches("task", v1alpha1.TaskUnknown), v1alpha1.DecisionRetry, nil)
		task := w.reaches("task", v1alpha1.TaskSucceeded)
		Expect(attempts(task)).To(Equal(map[string]int32{"pay": 2}))
		Expect(record(task, "pay").Decision.Attempt).To(BeEquivalentTo(1), "it was on the first")
		for _, s := range w.startsOf("pay") {
			Expect(s.Key).To(Equal(record(task, "pay").IdempotencyKey))
		}
	})

	It("as Retry may be needed for each attempt anew", func() {
		w := newWorld(harness.Plan(map[string][]harness.Behaviour{"pay": {harness.Kill(), harness.Kill(), harness.Succeed("paid")}}))
		w.create(w.make("task").Step("pay").Once().Obj())
		for attempt := int32(1); attempt <= 2; attempt++ {
			task := w.eventually("task", func(g Gomega, task *v1alpha1.AgentTask) {
				g.Expect(task.Status.Phase).To(Equal(v1alpha1.TaskUnknown), "%s", summary(task))
				g.Expect(record(task, "pay").Attempt).To(Equal(attempt), "%s", summary(task))
			})
			Expect(answer(w.decision(task, v1alpha1.DecisionRetry, nil)).Message).To(Equal(fmt.Sprintf("applied to step pay, attempt %d", attempt)))
		}
		Expect(attempts(w.reaches("task", v1alpha1.TaskSucceeded))).To(Equal(map[string]int32{"pay": 3}))
	})

	It("as Retry lets go of a pod that was given up, and starts when it is gone", func() {
		w, pod := givenUp(asItIs, harness.Succeed("paid"))
		w.decision(w.get("task"), v1alpha1.DecisionRetry, nil)
		task := w.reaches("task", v1alpha1.TaskSucceeded)
		Expect(attempts(task)).To(Equal(map[string]int32{"pay": 2}))
		w.waitGone(pod)
		w.expectNothingHeld()
	})

	It("counts while the task is suspended, too", func() {
		w, task := unknownWorld()
		w.edit("task", func(s *v1alpha1.AgentTaskSpec) { s.Suspend = true })
		Expect(answer(w.decision(task, v1alpha1.DecisionComplete, nil)).Status).To(Equal(metav1.ConditionTrue))
		task = w.reaches("task", v1alpha1.TaskSuspended)
		Expect(record(task, "pay").Phase).To(Equal(v1alpha1.StepSucceeded))
		Expect(record(task, "tell")).To(BeNil())
		w.edit("task", func(s *v1alpha1.AgentTaskSpec) { s.Suspend = false })
		w.reaches("task", v1alpha1.TaskSucceeded)
	})

	It("settles the step though its check still runs", func() {
		w := newWorld(byRole(lostOnce(), map[v1alpha1.Role]harness.Behaviour{v1alpha1.RoleCheck: harness.Hang()}))
		w.create(w.make("task").Step("pay").Once().OnUnknown(v1alpha1.UnknownCheck).Check("look", "").Obj())
		w.stepIs("task", "pay", v1alpha1.StepChecking, v1alpha1.ReasonKilled)
		Expect(answer(w.decision(w.get("task"), v1alpha1.DecisionComplete, nil)).Status).To(Equal(metav1.ConditionTrue))
		task := w.reaches("task", v1alpha1.TaskSucceeded)
		Expect(record(task, "pay").Reason).To(Equal(v1alpha1.ReasonDecided))
		w.expectNothingHeld()
	})

	// Status, answer; for Retry then the next attempt.
	for at := int64(1); at <= 2; at++ {
		for kind, what := range map[harness.FaultKind]string{harness.DieBefore: "before", harness.DieAfter: "after"} {
			It(fmt.Sprintf("is applied once though the operator dies %s write %d of it", what, at), func() {
				w := emptyWorld(lostOnce())
				setup := w.operator(harness.ManagerOptions{Name: "setup"})
				w.create(w.make("task").Step("pay").Once().Obj())
				task := w.reaches("task", v1alpha1.TaskUnknown)
				w.expectNothingHeld()
				Expect(setup.Stop()).To(Succeed())

				d := w.decision(task, v1alpha1.DecisionRetry, nil)
				faults := harness.NewFaults(harness.Fault{At: at, Kind: kind})
				first := w.operator(harness.ManagerOptions{Name: "first", Faults: faults})
				Eventually(faults.Hit()).Should(BeClosed())
				Expect(first.Stop()).To(Succeed())
				w.operator(harness.ManagerOptions{Name: "second"})
				Expect(answer(d).Status).To(Equal(metav1.ConditionTrue))
				task = w.reaches("task", v1alpha1.TaskSucceeded)
				Expect(attempts(task)).To(Equal(map[string]int32{"pay": 2}))
				Expect(w.startsOf("pay")).To(HaveLen(2))
				w.expectNothingHeld()
			})
		}
	}

	It("is applied once by two operators", func() {
		w := newWorld(harness.Plan(map[string][]harness.Behaviour{"pay": {harness.Kill(), harness.Hang()}}), harness.ManagerOptions{Name: "first"})
		w.operator(harness.ManagerOptions{Name: "second"})
		w.create(w.make("task").Step("pay").Once().Obj())
		d := w.decision(w.reaches("task", v1alpha1.TaskUnknown), v1alpha1.DecisionRetry, nil)
		Expect(answer(d).Status).To(Equal(metav1.ConditionTrue))
		w.runningPod("task", "pay", 2)
		Consistently(func() []harness.ContainerStart { return w.startsOf("pay") }).Should(HaveLen(2))
		Expect(answer(d).Status).To(Equal(metav1.ConditionTrue))
	})
})

var _ = Describe("The manifest of an AgentDecision", func() {
	good := func() map[string]any {
		return map[string]any{
			"task": "task", "taskUID": "uid", "step": "pay", "attempt": int64(1), "actionHash": "sha256:x", "decision": "Skip", "decidedBy": "jane",
		}
	}
	try := func(spec map[string]any) error {
		d := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
		d.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("AgentDecision"))
		d.SetNamespace("default")
		d.SetName("validated")
		return client.WithFieldValidation(cluster.Client, metav1.FieldValidationStrict).Create(ctx, d, client.DryRunAll)
	}

	DescribeTable("that is wrong is refused with what is wrong", func(change string, message string) {
		spec, changes := good(), map[string]any{}
		Expect(yaml.Unmarshal([]byte(change), &changes)).To(Succeed())
		for field, value := range changes {
			if value == "none" {
				delete(spec, field)
				continue
			}
			spec[field] = value
		}
		Expect(try(spec)).To(MatchError(ContainSubstring(message)))
	},
		Entry("no task", "task: none", "spec.task: Required value"),
		Entry("no taskUID", "taskUID: none", "spec.taskUID: Required value"),
		Entry("no step", "step: none", "spec.step: Required value"),
		Entry("no attempt", "attempt: none", "spec.attempt: Required value"),
		Entry("attempt 0", "attempt: 0", "spec.attempt: Invalid value: 0"),
		Entry("no actionHash", "actionHash: none", "spec.actionHash: Required value"),
		Entry("no decision", "decision: none", "spec.decision: Required value"),
		Entry("the decision of the command as it stands", "decision: Retry|Complete|Skip|Abort", `supported values: "Retry", "Complete", "Skip", "Abort"`),
		Entry("nobody's", "decidedBy: none", "spec.decidedBy: Required value"),
		Entry("by an empty name", "decidedBy: ''", "spec.decidedBy"),
		Entry("a reason of more than 1024 characters", "reason: "+strings.Repeat("a", 1025), "spec.reason: Too long"),
		Entry("a field that there is not", "note: x", `unknown field "spec.note"`),
	)

	It("that is right is taken, with any output", func() {
		Expect(try(good())).To(Succeed())
		for _, output := range []any{"text", nil, []any{true, map[string]any{"a": "b"}}} {
			spec := good()
			spec["decision"], spec["output"] = "Complete", output
			Expect(try(spec)).To(Succeed())
		}
	})

	DescribeTable("cannot be changed", func(change func(*v1alpha1.AgentDecisionSpec)) {
		d := &v1alpha1.AgentDecision{ObjectMeta: metav1.ObjectMeta{Namespace: "default", GenerateName: "fixed-"}, Spec: v1alpha1.AgentDecisionSpec{
			Task: "task", TaskUID: "uid", Step: "pay", Attempt: 1, ActionHash: "sha256:x", Decision: v1alpha1.DecisionComplete, DecidedBy: "jane", Output: jsonOf(`{"a":1}`),
		}}
		Expect(cluster.Client.Create(ctx, d)).To(Succeed())
		DeferCleanup(func() { Expect(cluster.Client.Delete(ctx, d)).To(Succeed()) })
		changed := d.DeepCopy()
		change(&changed.Spec)
		Expect(cluster.Client.Update(ctx, changed)).To(MatchError(ContainSubstring("a decision cannot be changed; delete it if it has not been applied, and create another")))
	},
		Entry("what is decided", func(s *v1alpha1.AgentDecisionSpec) { s.Decision = v1alpha1.DecisionAbort }),
		Entry("on which attempt", func(s *v1alpha1.AgentDecisionSpec) { s.Attempt = 2 }),
		Entry("by whom", func(s *v1alpha1.AgentDecisionSpec) { s.DecidedBy = "john" }),
		Entry("why, where nothing was said", func(s *v1alpha1.AgentDecisionSpec) { s.Reason = "because" }),
		Entry("the output", func(s *v1alpha1.AgentDecisionSpec) { s.Output = jsonOf(`{"a":2}`) }),
		Entry("the output, taken away", func(s *v1alpha1.AgentDecisionSpec) { s.Output = nil }),
	)
})
