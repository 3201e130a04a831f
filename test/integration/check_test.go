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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
	"github.com/agenttask-dev/agenttask/test/harness"
)

// checking scripts the attempts of a step's check: the n-th behaviour is the n-th
// attempt's, and the last one every later attempt's.
func checking(main harness.Script, checks ...harness.Behaviour) harness.Script {
	return func(pod *corev1.Pod) harness.Behaviour {
		if roleOf(pod) != v1alpha1.RoleCheck {
			return main(pod)
		}
		return checks[min(harness.AttemptOf(pod), len(checks))-1]
	}
}

func roleOf(pod *corev1.Pod) v1alpha1.Role { return v1alpha1.Role(pod.Labels[v1alpha1.LabelRole]) }

// ofRole are a task's pods whose action has a role, in the order in which they were named.
func (w *world) ofRole(name string, role v1alpha1.Role) []corev1.Pod {
	GinkgoHelper()
	var list []corev1.Pod
	for _, pod := range w.pods(name) {
		if roleOf(&pod) == role {
			list = append(list, pod)
		}
	}
	return list
}

// actionOf is the record of one of a step's other actions.
func actionOf(r *v1alpha1.StepStatus, role v1alpha1.Role) *v1alpha1.ActionStatus {
	for i := range r.Actions {
		if r.Actions[i].Role == role {
			return &r.Actions[i].ActionStatus
		}
	}
	return nil
}

// asking gives the step a check on unknown outcomes, which answers in its own way.
func asking(t *harness.Task, more func(*v1alpha1.Check)) *harness.Task {
	return t.OnUnknown(v1alpha1.UnknownCheck).Check("look", "").Last(func(s *v1alpha1.Step) { more(s.Check) })
}

func answersPlainly(*v1alpha1.Check) {}

var _ = Describe("A check before the first attempt", func() {
	It("is a Job of its own, with the step's key and input, and leaves a record", func() {
		w := newWorld(checking(harness.Plan(nil), done(false, nil)))
		w.create(w.make("task").Step("pay").Once().Input(`{"eur": 5}`).Check("look", v1alpha1.CheckBefore).Obj())
		task := w.reaches("task", v1alpha1.TaskSucceeded)
		r := record(task, "pay")
		look := actionOf(r, v1alpha1.RoleCheck)
		Expect(look.Phase).To(Equal(v1alpha1.StepSucceeded))
		Expect(look.Message).To(Equal("the effect has not happened"))
		Expect(look.JobName).NotTo(Equal(r.JobName))
		Expect(look.IdempotencyKey).To(Equal(r.IdempotencyKey))
		Expect(look.ActionHash).NotTo(Equal(r.ActionHash))
		pods := w.ofRole("task", v1alpha1.RoleCheck)
		Expect(pods).To(HaveLen(1))
		Expect(pods[0].Name).To(Equal(look.JobName))
		Expect(harness.InputOf(&pods[0])).To(MatchJSON(`{"eur": 5}`))
		Expect(harness.KeyOf(&pods[0])).To(Equal(r.IdempotencyKey))
		Expect(stepexec.Held(&pods[0])).To(BeFalse(), "it only looks")
		Expect(pods[0].Spec.Containers[0].Command).To(And(ContainElement("--timeout=1m0s"), ContainElement("look"), Not(ContainElement("--once"))))
		Expect(task.Status.Usage.Attempts).To(BeEquivalentTo(1), "a check is no attempt of the step")
		w.told("task", v1alpha1.EventStepStarted, "step pay (check) attempt 1 started as Job "+look.JobName)
		expectStartedOnce(w, task)
	})

	It("may have an input and a timeout of its own, with the key in it", func() {
		w := newWorld(checking(harness.Plan(nil), done(false, nil)))
		w.create(w.make("task").Params(`{"order": "123"}`).Step("pay").Check("look", v1alpha1.CheckBefore).Last(func(s *v1alpha1.Step) {
			s.Check.Input, s.Check.Timeout = jsonOf(`{"find": "${key}", "order": "${params.order}"}`), &metav1.Duration{Duration: 7 * time.Second}
		}).Obj())
		key := record(w.reaches("task", v1alpha1.TaskSucceeded), "pay").IdempotencyKey
		look := w.ofRole("task", v1alpha1.RoleCheck)[0]
		Expect(harness.InputOf(&look)).To(MatchJSON(fmt.Sprintf(`{"find": %q, "order": "123"}`, key)))
		Expect(look.Spec.Containers[0].Command).To(ContainElement("--timeout=7s"))
	})

	It("that says done gives the step its output, for later steps too", func() {
		w := newWorld(checking(harness.Plan(nil), done(true, map[string]any{"id": 7})))
		w.create(w.make("task").Step("pay").Once().Check("look", v1alpha1.CheckBefore).Step("tell").Input(`"${steps.pay.output.id}"`).Obj())
		task := w.reaches("task", v1alpha1.TaskSucceeded)
		r := record(task, "pay")
		Expect(r.Message).To(ContainSubstring("its check says that the effect has happened"))
		Expect(r.JobName).To(BeEmpty())
		Expect(harness.InputOf(w.pod("task", "tell", 1, nil))).To(Equal("7"))
		Expect(w.startsOf("pay")).To(BeEmpty())
		w.told("task", v1alpha1.EventStepSucceeded, "step pay succeeded")
		Expect(task.Status.Progress).To(Equal("2/2"))
	})

	It("is tried again by the step's retry", func() {
		w := newWorld(checking(harness.Plan(nil), harness.TryAgain(0), harness.Kill(), done(true, "there")))
		w.create(w.make("task").Step("pay").Once().RetryFast(2).Check("look", v1alpha1.CheckBefore).Obj())
		r := record(w.reaches("task", v1alpha1.TaskSucceeded), "pay")
		Expect(r.Reason).To(Equal(v1alpha1.ReasonCheckedDone))
		Expect(actionOf(r, v1alpha1.RoleCheck).Attempt).To(BeEquivalentTo(3))
		w.told("task", v1alpha1.EventStepRetrying, "step pay (check) attempt 1")
		w.told("task", v1alpha1.EventStepRetrying, "step pay (check) attempt 2", "Killed")
	})

	It("that fails for good fails the step with its words, before it has run", func() {
		w := newWorld(checking(harness.Plan(nil), harness.Fail(1, "no access to the ledger")))
		w.create(w.make("task").Step("pay").Once().Check("look", v1alpha1.CheckBefore).Step("tell").Obj())
		task := w.reaches("task", v1alpha1.TaskFailed)
		r := record(task, "pay")
		Expect(r.Reason).To(Equal(v1alpha1.ReasonCheckFailed))
		Expect(r.Message).To(Equal("its check failed, so that it did not start: ExitCode: no access to the ledger"))
		Expect(condition(task, "Ready").Message).To(ContainSubstring("step pay failed before its first attempt"))
		Expect(unknownMessage(task)).To(BeEmpty())
		Expect(w.startsOf("pay")).To(BeEmpty())
	})

	DescribeTable("whose answer cannot be understood fails the step and says what it should be",
		func(answer harness.Behaviour, more func(*v1alpha1.Check), words string) {
			w := newWorld(checking(harness.Plan(nil), answer))
			w.create(w.make("task").Step("pay").Once().Check("look", v1alpha1.CheckBefore).Last(func(s *v1alpha1.Step) { more(s.Check) }).Obj())
			r := record(w.reaches("task", v1alpha1.TaskFailed), "pay")
			Expect(r.Reason).To(Equal(v1alpha1.ReasonCheckFailed))
			Expect(r.Message).To(ContainSubstring(words))
			Expect(actionOf(r, v1alpha1.RoleCheck).Reason).To(Equal(v1alpha1.ReasonOutputInvalid))
			Expect(w.startsOf("pay")).To(BeEmpty())
		},
		Entry("no answer at all", harness.Succeed(nil), answersPlainly, `its output must be {"done": true or false, "output": anything}`),
		Entry("done as text", harness.Succeed(map[string]any{"done": "yes"}), answersPlainly, `its output must be {"done": true or false, "output": anything}`),
		Entry("an output for the step that is too large", harness.SucceedLarge(map[string]any{"done": true, "output": strings.Repeat("x", 2047)}), answersPlainly, "at most 2048 are kept"),
		Entry("an expression that is neither true nor false", harness.Succeed(map[string]any{"status": 200}), func(c *v1alpha1.Check) { c.Done = "${result.status}" }, "check.done"),
		Entry("an expression that finds nothing", harness.Succeed(map[string]any{}), func(c *v1alpha1.Check) { c.Done = "${result.status == 200}" }, "status"),
	)

	It("is not made again once an attempt was made", func() {
		w := newWorld(checking(harness.Plan(map[string][]harness.Behaviour{"pay": {harness.TryAgain(0), harness.Succeed("paid")}}), done(false, nil)))
		w.create(w.make("task").Step("pay").Once().RetryFast(2).Check("look", v1alpha1.CheckBefore).Obj())
		Expect(attempts(w.reaches("task", v1alpha1.TaskSucceeded))).To(Equal(map[string]int32{"pay": 2}))
		Expect(w.ofRole("task", v1alpha1.RoleCheck)).To(HaveLen(1))
	})

	It("is made again where the task was suspended between it and the step", func() {
		end := make(chan struct{})
		answer := done(false, nil)
		answer.Until = end
		w := newWorld(checking(harness.Plan(nil), answer, done(true, "done by hand meanwhile")))
		w.create(w.make("task").Step("pay").Once().Check("look", v1alpha1.CheckBefore).Obj())
		w.runningPod("task", "pay", 1)
		w.edit("task", func(s *v1alpha1.AgentTaskSpec) { s.Suspend = true })
		w.eventually("task", func(g Gomega, task *v1alpha1.AgentTask) {
			g.Expect(condition(task, "Suspended").Status).To(Equal(metav1.ConditionTrue))
		})
		close(end)
		w.reaches("task", v1alpha1.TaskSuspended)
		w.edit("task", func(s *v1alpha1.AgentTaskSpec) { s.Suspend = false })
		r := record(w.reaches("task", v1alpha1.TaskSucceeded), "pay")
		Expect(r.Reason).To(Equal(v1alpha1.ReasonCheckedDone))
		Expect(w.startsOf("pay")).To(BeEmpty())
	})

	It("is stopped by cancel, and the step has not run", func() {
		w := newWorld(checking(harness.Plan(nil), harness.Hang()))
		w.create(w.make("task").Step("pay").Once().Check("look", v1alpha1.CheckBefore).Obj())
		pod := w.runningPod("task", "pay", 1)
		Expect(w.waitsFor("task", v1alpha1.ReasonChecking)).To(Equal("the check of step pay runs"))
		w.edit("task", func(s *v1alpha1.AgentTaskSpec) { s.Cancel = true })
		task := w.reaches("task", v1alpha1.TaskCancelled)
		Expect(record(task, "pay").Phase).To(Equal(v1alpha1.StepCancelled))
		Expect(unknownMessage(task)).To(BeEmpty())
		w.waitGone(pod)
		Expect(w.startsOf("pay")).To(BeEmpty())
	})

	// The check: status, Job, pod; then the step's intent in one write with the check's answer,
	// its Job, its pod, their names, the gate, the outcome, the finalizer, and two Jobs' status.
	const writes = 3 + 7 + 2
	for at := int64(1); at <= writes; at++ {
		It(fmt.Sprintf("is only a pause longer where the operator dies after write %d of %d", at, writes), func() {
			w := emptyWorld(checking(harness.Plan(nil), done(false, nil)))
			faults := harness.NewFaults(harness.Fault{At: at, Kind: harness.DieAfter})
			first := w.operator(harness.ManagerOptions{Name: "first", Faults: faults})
			w.create(w.make("task").Step("pay").Once().Check("look", v1alpha1.CheckBefore).Obj())
			Eventually(faults.Hit()).Should(BeClosed(), func() string { return summary(w.get("task")) })
			Expect(first.Stop()).To(Succeed())
			w.operator(harness.ManagerOptions{Name: "second"})
			task := w.reaches("task", v1alpha1.TaskSucceeded)
			Expect(attempts(task)).To(Equal(map[string]int32{"pay": 1}))
			Expect(w.ofRole("task", v1alpha1.RoleCheck)).To(HaveLen(1))
			expectStartedOnce(w, task)
			w.expectNothingHeld()
		})
	}
})

var _ = Describe("A check of an unknown outcome", func() {
	It("says so while it runs, and nobody need act", func() {
		end := make(chan struct{})
		answer := done(true, "found")
		answer.Until = end
		w := newWorld(checking(lostOnce(), answer))
		w.create(asking(w.make("task").Step("pay").Once(), answersPlainly).Obj())
		w.waitsFor("task", v1alpha1.ReasonChecking)
		task := w.saysUnknown("task", And(ContainSubstring("may have taken effect"), HaveSuffix("Its check runs, which settles it.")))
		Expect(task.Status.Phase).To(Equal(v1alpha1.TaskRunning))
		Expect(record(task, "pay").Phase).To(Equal(v1alpha1.StepChecking))
		Expect(kstatus(task)).To(Equal("InProgress"))
		close(end)
		task = w.reaches("task", v1alpha1.TaskSucceeded)
		Expect(record(task, "pay").Reason).To(Equal(v1alpha1.ReasonCheckedDone))
		Expect(unknownMessage(task)).To(BeEmpty())
		Expect(w.startsOf("pay")).To(HaveLen(1))
		w.expectNothingHeld()
	})

	DescribeTable("is read by expressions over its result",
		func(result map[string]any, output, want string, starts int) {
			w := newWorld(checking(lostOnce(), harness.Succeed(result)))
			w.create(asking(w.make("task").Step("pay").Once().RetryFast(1), func(c *v1alpha1.Check) {
				c.Done = "${result.status == 200}"
				if output != "" {
					c.Output = jsonOf(output)
				}
			}).Obj())
			r := record(w.reaches("task", v1alpha1.TaskSucceeded), "pay")
			Expect(r.Output.Raw).To(MatchJSON(want))
			Expect(w.startsOf("pay")).To(HaveLen(starts))
		},
		Entry("done, with the whole result", map[string]any{"status": 200, "id": "r-1"}, "", `{"id":"r-1","status":200}`, 1),
		Entry("done, with a part of it", map[string]any{"status": 200, "id": "r-1"}, `{"refund": "${result.id}"}`, `{"refund":"r-1"}`, 1),
		Entry("not done, and so tried again", map[string]any{"status": 404}, `{"refund": "${result.id}"}`, `"paid"`, 2),
	)

	It("may choose from an answer of more than 2 KiB", func() {
		w := newWorld(checking(lostOnce(), harness.SucceedLarge(map[string]any{"status": 200, "id": "r-1", "text": strings.Repeat("x", 5000)})))
		w.create(asking(w.make("task").Step("pay").Once(), func(c *v1alpha1.Check) {
			c.Done, c.Output = "${result.status == 200}", jsonOf(`{"refund": "${result.id}"}`)
		}).Obj())
		r := record(w.reaches("task", v1alpha1.TaskSucceeded), "pay")
		Expect(r.Output.Raw).To(MatchJSON(`{"refund":"r-1"}`))
		Expect(r.OutputRef).To(BeNil())
	})

	It("whose answer is too large to be the step's output leaves it unknown, and says what to set", func() {
		w := newWorld(checking(lostOnce(), harness.SucceedLarge(map[string]any{"status": 200, "text": strings.Repeat("x", 5000)})))
		w.create(asking(w.make("task").Step("pay").Once(), func(c *v1alpha1.Check) { c.Done = "${result.status == 200}" }).Obj())
		w.saysUnknown("task", And(ContainSubstring("Its check did not settle it"), ContainSubstring("at most 2048 are kept; choose what is needed by check.done and check.output"), ContainSubstring("kubectl")))
		Expect(w.startsOf("pay")).To(HaveLen(1))
	})

	It("is tried again by the step's retry, and leaves it unknown when that is exhausted", func() {
		w := newWorld(checking(lostOnce(), harness.TryAgain(0)))
		w.create(asking(w.make("task").Step("pay").Once().RetryFast(2), answersPlainly).Obj())
		task := w.saysUnknown("task", And(ContainSubstring("Its check did not settle it"), ContainSubstring("retry.limit of 2 is reached")))
		Expect(task.Status.Phase).To(Equal(v1alpha1.TaskUnknown))
		Expect(kstatus(task)).To(Equal("Failed"), "a person must act")
		Expect(w.ofRole("task", v1alpha1.RoleCheck)).To(HaveLen(3))
		w.told("task", v1alpha1.EventStepUnknown, "the check of step pay did not settle it")
		Expect(answer(w.decision(task, v1alpha1.DecisionSkip, nil)).Status).To(Equal(metav1.ConditionTrue))
		w.reaches("task", v1alpha1.TaskSucceeded)
	})

	It("is made anew for each attempt, as another Job", func() {
		w := newWorld(checking(harness.Plan(map[string][]harness.Behaviour{"pay": {harness.Kill(), harness.Kill(), harness.Succeed("paid")}}), done(false, nil)))
		w.create(asking(w.make("task").Step("pay").Once().RetryFast(2), answersPlainly).Obj())
		task := w.reaches("task", v1alpha1.TaskSucceeded)
		Expect(attempts(task)).To(Equal(map[string]int32{"pay": 3}))
		names := map[string]bool{}
		for _, pod := range w.ofRole("task", v1alpha1.RoleCheck) {
			names[pod.Name] = true
		}
		Expect(names).To(HaveLen(2))
		Expect(w.startsOf("pay")).To(HaveLen(3))
		w.expectNothingHeld()
	})

	It("that says not done starts nothing while the pod may still act, and is asked again when it is dead", func() {
		asked := 0
		w := newWorld(func(pod *corev1.Pod) harness.Behaviour {
			if roleOf(pod) == v1alpha1.RoleCheck {
				asked++
				return done(asked > 1, "found the second time")
			}
			return silentNode()
		})
		w.create(asking(w.make("task").Step("pay").Once().RetryFast(2), answersPlainly).Obj())
		pod := w.runningPod("task", "pay", 1)
		editPodStatus(pod, func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }) // by somebody who does not know
		w.saysUnknown("task", And(ContainSubstring("Its check did not settle it: the effect has not happened"), ContainSubstring("Pod "+pod.Name+" is not provably dead and may still act")))
		Consistently(func() []harness.ContainerStart { return w.startsOf("pay") }).Should(HaveLen(1))
		reports(pod, stepexec.Result{Outcome: stepexec.OutcomeInterrupted, Reason: v1alpha1.ReasonKilled, ExitCode: 143})
		r := record(w.reaches("task", v1alpha1.TaskSucceeded), "pay")
		Expect(r.Reason).To(Equal(v1alpha1.ReasonCheckedDone))
		Expect(string(r.Output.Raw)).To(Equal(`"found the second time"`))
		Expect(w.startsOf("pay")).To(HaveLen(1))
		w.expectNothingHeld()
	})

	It("that says done settles it though the pod may still act", func() {
		w := newWorld(checking(func(*corev1.Pod) harness.Behaviour { return silentNode() }, done(true, "found")))
		w.create(asking(w.make("task").Step("pay").Once(), answersPlainly).Obj())
		pod := w.runningPod("task", "pay", 1)
		editPodStatus(pod, func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }) // by somebody who does not know
		Expect(record(w.reaches("task", v1alpha1.TaskSucceeded), "pay").Reason).To(Equal(v1alpha1.ReasonCheckedDone))
		w.expectNothingHeld()
	})

	It("is not believed against the program that says it succeeded, whose output is lost", func() {
		lost := harness.SucceedLarge(strings.Repeat("x", 4000))
		lost.Log = "nothing"
		w := newWorld(checking(harness.Plan(map[string][]harness.Behaviour{"pay": {lost}}), done(false, nil)))
		w.create(asking(w.make("task").Step("pay").Once().RetryFast(2), answersPlainly).Obj())
		w.saysUnknown("task", And(ContainSubstring("says that it succeeded, and its output is lost"), ContainSubstring("it says that the effect has not happened, and the program that it has")))
		Expect(w.startsOf("pay")).To(HaveLen(1))
	})

	It("is stopped by cancel, and the task ends with the outcome unknown", func() {
		w := newWorld(checking(lostOnce(), harness.Hang()))
		w.create(asking(w.make("task").Step("pay").Once(), answersPlainly).Obj())
		w.waitsFor("task", v1alpha1.ReasonChecking)
		w.edit("task", func(s *v1alpha1.AgentTaskSpec) { s.Cancel = true })
		expectUnknownEnd(w.reaches("task", v1alpha1.TaskCancelled), v1alpha1.StepCancelled, v1alpha1.ReasonCancelled)
		Eventually(func() []corev1.Pod { return w.ofRole("task", v1alpha1.RoleCheck) }).Should(BeEmpty())
		w.expectNothingHeld()
	})
})

var _ = Describe("A plan whose check is wrong", func() {
	DescribeTable("is not begun, and the task says what is wrong with it", func(more func(*v1alpha1.Check), words string) {
		w := newWorld(nil)
		w.create(w.make("task").Steps("find").Step("pay").Check("look", v1alpha1.CheckBefore).Last(func(s *v1alpha1.Step) { more(s.Check) }).Obj())
		Expect(w.waitsFor("task", v1alpha1.ReasonInvalidPlan)).To(And(ContainSubstring("spec.steps[1] (pay)"), ContainSubstring(words)))
		Expect(kstatus(w.get("task"))).To(Equal("Failed"))
		Expect(w.created("jobs")).To(BeEmpty())
	},
		Entry("an output without done", func(c *v1alpha1.Check) { c.Output = jsonOf(`1`) }, "check.output needs check.done"),
		Entry("done that is no expression", func(c *v1alpha1.Check) { c.Done = "result.status == 200" }, "check.done"),
		Entry("done over a variable that it has not", func(c *v1alpha1.Check) { c.Done = "${steps.find.output}" }, "check.done"),
		Entry("a later step in its input", func(c *v1alpha1.Check) { c.Input = jsonOf(`"${steps.pay.output}"`) }, "check.input"),
		Entry("an expression in its environment", func(c *v1alpha1.Check) { c.Run.Env = []corev1.EnvVar{{Name: "A", Value: "x${key}"}} }, "check.run.env A"),
	)
})
