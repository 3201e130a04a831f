// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package integration_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
	"github.com/agenttask-dev/agenttask/test/harness"
)

// shell runs a line as a person does who has kubectl and is an administrator.
func shell(line string) (string, error) {
	command := exec.CommandContext(ctx, "bash", "-c", line)
	command.Env = append(os.Environ(), "KUBECONFIG="+cluster.Kubeconfig,
		"PATH="+os.Getenv("KUBEBUILDER_ASSETS")+string(filepath.ListSeparator)+os.Getenv("PATH"))
	out, err := command.CombinedOutput()
	return string(out), err
}

// unknownMessage is what the condition OutcomeUnknown of a task says, where it is True.
func unknownMessage(task *v1alpha1.AgentTask) string {
	c := condition(task, v1alpha1.ConditionOutcomeUnknown)
	if c.Status != metav1.ConditionTrue {
		return ""
	}
	return c.Message
}

// saysUnknown waits until the condition OutcomeUnknown says something.
func (w *world) saysUnknown(name string, what OmegaMatcher) *v1alpha1.AgentTask {
	GinkgoHelper()
	return w.eventually(name, func(g Gomega, task *v1alpha1.AgentTask) {
		g.Expect(unknownMessage(task)).To(what, "%s", summary(task))
	})
}

// silentNode does not report how the program ended that it runs: it does not answer.
func silentNode() harness.Behaviour {
	b := harness.Hang()
	b.Deaf = true
	return b
}

// givenUp is a world whose task has a step pay, which runs on a node that does not answer,
// and whose pod the garbage collector has given up.
func givenUp(build func(*harness.Task) *harness.Task, later ...harness.Behaviour) (*world, *corev1.Pod) {
	GinkgoHelper()
	w := newWorld(harness.Plan(map[string][]harness.Behaviour{"pay": append([]harness.Behaviour{silentNode()}, later...)}))
	w.create(build(w.make("task").Step("pay").Once().RetryFast(2)).Obj())
	pod := w.runningPod("task", "pay", 1)
	Expect(cluster.Outsider().CollectPod(ctx, client.ObjectKeyFromObject(pod))).To(Succeed())
	w.saysUnknown("task", ContainSubstring("NodeLost"))
	return w, pod
}

func asItIs(t *harness.Task) *harness.Task { return t }

// vanishes lets a pod be gone for good, as an administrator does it whose node is gone.
func vanishes(pod *corev1.Pod) {
	GinkgoHelper()
	Expect(cluster.Outsider().StripAndDeletePod(ctx, client.ObjectKeyFromObject(pod))).To(Succeed())
}

var _ = Describe("What people see of an unknown outcome", func() {
	It("is in the columns, the conditions and the events", func() {
		w := newWorld(lostOnce())
		before := metric("agenttask_outcomes_unknown_total")
		w.create(w.make("task").RunID("order-1").Steps("find").Step("pay").Once().Step("tell").Obj())
		task := w.reaches("task", v1alpha1.TaskUnknown)
		expectConditions(task, map[string]metav1.ConditionStatus{
			"Ready": "False", "Succeeded": "Unknown", "Reconciling": "False", "Stalled": "True", "Suspended": "False", "OutcomeUnknown": "True",
		})
		Expect(metric("agenttask_outcomes_unknown_total")).To(Equal(before + 1))
		out, err := cluster.Kubectl(ctx, "-n", w.ns, "get", "agt", "task")
		Expect(err).NotTo(HaveOccurred())
		Expect(out).To(MatchRegexp(`\ntask +Unknown +pay +1/3 +0 +\d+s`))
		out, err = cluster.Kubectl(ctx, "-n", w.ns, "get", "agt", "task", "-o", "wide")
		Expect(err).NotTo(HaveOccurred())
		Expect(out).To(MatchRegexp(`order-1 +OutcomeUnknown +\d+s`))
		w.told("task", v1alpha1.EventStepUnknown, "step pay attempt 1 may have taken effect", "Killed", "exit code 137")
		w.told("task", v1alpha1.EventTaskStalled, "condition OutcomeUnknown says what settles it")
	})

	It("is said by kubectl describe in full: what happened, what is at stake, where to look and what to do", func() {
		w := newWorld(lostOnce())
		w.create(w.make("task").Step("pay").Once().Obj())
		r := record(w.reaches("task", v1alpha1.TaskUnknown), "pay")
		w.told("task", v1alpha1.EventTaskStalled)
		out, err := cluster.Kubectl(ctx, "-n", w.ns, "describe", "agt", "task")
		Expect(err).NotTo(HaveOccurred())
		for _, sentence := range []string{
			"step pay, attempt 1, may have taken effect, and its outcome is not known: Killed: the container was killed from outside (exit code 137).",
			"To run it again may do it twice, to go on without it may leave it undone.",
			"Look whether the effect with idempotency key " + r.IdempotencyKey + " has happened",
			"choose one of Retry, Complete (add an output), Skip and Abort, and why: echo '{",
			`"actionHash":"` + r.ActionHash + `"`,
			"| kubectl -n " + w.ns + " create -f -",
		} {
			Expect(out).To(ContainSubstring(sentence))
		}
		Expect(out).NotTo(ContainSubstring("not provably dead"))
	})

	It("warns of a pod that may still act", func() {
		w, pod := givenUp(asItIs)
		w.saysUnknown("task", And(ContainSubstring("its pod was given up"), ContainSubstring("node "+pod.Spec.NodeName+" does not say how the program ended"),
			ContainSubstring("Pod "+pod.Name+" is not provably dead and may still act.")))
		vanishes(pod)
	})

	DescribeTable("is settled by the command that stands there, with one word chosen",
		func(word, more string, phase v1alpha1.TaskPhase, check func(r *v1alpha1.StepStatus)) {
			w := newWorld(lostOnce())
			w.create(w.make("task").Step("pay").Once().Step("tell").Input(`{"paid": "${steps.pay.output}"}`).Obj())
			_, command, found := strings.Cut(unknownMessage(w.reaches("task", v1alpha1.TaskUnknown)), "and why: ")
			Expect(found).To(BeTrue())
			command = strings.Replace(command, `"Retry|Complete|Skip|Abort"`, `"`+word+`"`+more, 1)
			out, err := shell(strings.Replace(command, "WHY", "the bank says so", 1))
			Expect(err).NotTo(HaveOccurred(), out)
			r := record(w.reaches("task", phase), "pay")
			who, err := shell("kubectl auth whoami -o jsonpath='{.status.userInfo.username}'")
			Expect(err).NotTo(HaveOccurred())
			Expect(r.Decision).To(And(HaveField("DecidedBy", who), HaveField("Reason", "the bank says so"), HaveField("Decision", v1alpha1.DecisionKind(word))))
			w.told("task", v1alpha1.EventStepDecided, who+" decided to", "the bank says so")
			check(r)
			w.expectNothingHeld()
		},
		Entry("Complete, and an output added", "Complete", `,"output":{"refund":7}`, v1alpha1.TaskSucceeded, func(r *v1alpha1.StepStatus) {
			Expect(r.Phase).To(Equal(v1alpha1.StepSucceeded))
			Expect(r.Output.Raw).To(MatchJSON(`{"refund":7}`))
		}),
		Entry("Complete", "Complete", "", v1alpha1.TaskSucceeded, func(r *v1alpha1.StepStatus) {
			Expect(r.Phase).To(Equal(v1alpha1.StepSucceeded))
			Expect(r.Output).To(BeNil())
		}),
		Entry("Skip", "Skip", "", v1alpha1.TaskSucceeded, func(r *v1alpha1.StepStatus) { Expect(r.Phase).To(Equal(v1alpha1.StepSkipped)) }),
		Entry("Abort", "Abort", "", v1alpha1.TaskFailed, func(r *v1alpha1.StepStatus) { Expect(r.Phase).To(Equal(v1alpha1.StepFailed)) }),
	)

	It("costs nothing while it waits, and outlives the operator", func() {
		w := emptyWorld(lostOnce())
		first := w.operator(harness.ManagerOptions{Name: "first"})
		w.create(w.make("task").Step("pay").Once().Obj())
		w.reaches("task", v1alpha1.TaskUnknown)
		w.expectNothingHeld()
		Expect(first.Stop()).To(Succeed())
		list, err := w.writes()
		Expect(err).NotTo(HaveOccurred())
		w.operator(harness.ManagerOptions{Name: "second"})
		Consistently(func() ([]harness.Request, error) { return w.writes() }).WithTimeout(time.Second).Should(HaveLen(len(list)))
		Expect(w.get("task").Status.Phase).To(Equal(v1alpha1.TaskUnknown))
		Expect(w.startsOf("pay")).To(HaveLen(1))
	})
})

var _ = Describe("onUnknown", func() {
	It("Pause waits for a person, however good the plan's retries", func() {
		w := newWorld(lostOnce())
		w.create(w.make("task").Step("pay").Once().OnUnknown(v1alpha1.UnknownPause).RetryFast(5).Obj())
		w.reaches("task", v1alpha1.TaskUnknown)
		Consistently(func() []harness.ContainerStart { return w.startsOf("pay") }).Should(HaveLen(1))
	})

	It("Retry makes another attempt with the same key, and the outcome is known when that succeeds", func() {
		w := newWorld(lostOnce(), harness.ManagerOptions{Rand: func() float64 { return 0.999 }})
		w.create(w.make("task").Step("pay").Once().OnUnknown(v1alpha1.UnknownRetry).Retry(2, time.Second, time.Second).Obj())
		w.stepIs("task", "pay", v1alpha1.StepRetrying, v1alpha1.ReasonKilled)
		task := w.saysUnknown("task", ContainSubstring("It is tried again with the same key."))
		Expect(kstatus(task)).To(Equal("InProgress"), "nobody need act")
		task = w.reaches("task", v1alpha1.TaskSucceeded)
		Expect(attempts(task)).To(Equal(map[string]int32{"pay": 2}))
		Expect(record(task, "pay").Unknown).To(BeNil())
		Expect(unknownMessage(task)).To(BeEmpty())
		for _, s := range w.startsOf("pay") {
			Expect(s.Key).To(Equal(record(task, "pay").IdempotencyKey))
		}
		Expect(w.startsOf("pay")).To(HaveLen(2))
	})

	It("Retry starts nothing while the pod may still act, and goes on when its node says that it is over", func() {
		w, pod := givenUp(func(t *harness.Task) *harness.Task { return t.OnUnknown(v1alpha1.UnknownRetry) }, harness.Succeed("paid"))
		w.saysUnknown("task", ContainSubstring("Pod "+pod.Name+" is not provably dead"))
		Consistently(func() []harness.ContainerStart { return w.startsOf("pay") }).Should(HaveLen(1))
		reports(pod, stepexec.Result{Outcome: stepexec.OutcomeInterrupted, Reason: v1alpha1.ReasonKilled, Message: "stopped", ExitCode: 143})
		task := w.reaches("task", v1alpha1.TaskSucceeded)
		Expect(attempts(task)).To(Equal(map[string]int32{"pay": 2}))
		w.expectNothingHeld()
	})

	It("Retry ends at retry.limit, and the outcome stays unknown", func() {
		w := newWorld(harness.Plan(map[string][]harness.Behaviour{"pay": {harness.Kill()}}))
		w.create(w.make("task").Step("pay").Once().OnUnknown(v1alpha1.UnknownRetry).RetryFast(1).Obj())
		task := w.reaches("task", v1alpha1.TaskFailed)
		Expect(record(task, "pay").Message).To(ContainSubstring("retry.limit of 1 is reached"))
		Expect(unknownMessage(task)).To(And(ContainSubstring("attempt 2, may have taken effect"), ContainSubstring("The task has ended.")))
		Expect(w.startsOf("pay")).To(HaveLen(2))
		w.expectNothingHeld()
	})

	It("Fail ends the task at once, and says that the outcome is not known", func() {
		w := newWorld(lostOnce())
		w.create(w.make("task").Step("pay").Once().OnUnknown(v1alpha1.UnknownFail).RetryFast(5).Step("tell").Obj())
		task := w.reaches("task", v1alpha1.TaskFailed)
		Expect(condition(task, "Ready").Message).To(And(ContainSubstring("OutcomeUnknown"), ContainSubstring("whether it has taken effect is not known: Killed")))
		Expect(unknownMessage(task)).To(ContainSubstring(record(task, "pay").IdempotencyKey))
		w.told("task", v1alpha1.EventStepFailed, "whether it has taken effect is not known")
		Expect(w.kubelet.Starts(w.ns)).To(HaveLen(1))
	})

	It("does nothing while the task is suspended, and goes on afterwards", func() {
		end := make(chan struct{})
		killed := harness.Kill()
		killed.Until = end
		w := newWorld(harness.Plan(map[string][]harness.Behaviour{"pay": {killed, harness.Succeed("paid")}}))
		w.create(w.make("task").Step("pay").Once().OnUnknown(v1alpha1.UnknownRetry).RetryFast(2).Obj())
		w.runningPod("task", "pay", 1)
		w.edit("task", func(s *v1alpha1.AgentTaskSpec) { s.Suspend = true })
		w.eventually("task", func(g Gomega, task *v1alpha1.AgentTask) {
			g.Expect(condition(task, "Suspended").Status).To(Equal(metav1.ConditionTrue))
		})
		close(end)
		w.reaches("task", v1alpha1.TaskUnknown)
		Consistently(func() []harness.ContainerStart { return w.startsOf("pay") }).Should(HaveLen(1))
		w.edit("task", func(s *v1alpha1.AgentTaskSpec) { s.Suspend = false })
		Expect(attempts(w.reaches("task", v1alpha1.TaskSucceeded))).To(Equal(map[string]int32{"pay": 2}))
	})
})

var _ = Describe("An unknown outcome that waits", func() {
	It("ends with the task when that is cancelled, and stays unknown", func() {
		w := newWorld(lostOnce())
		w.create(w.make("task").Step("pay").Once().Obj())
		w.reaches("task", v1alpha1.TaskUnknown)
		w.edit("task", func(s *v1alpha1.AgentTaskSpec) { s.Cancel = true })
		expectUnknownEnd(w.reaches("task", v1alpha1.TaskCancelled), v1alpha1.StepCancelled, v1alpha1.ReasonCancelled)
		w.told("task", v1alpha1.EventStepCancelled, "whether it has taken effect is not known")
	})

	It("ends with the task at its deadline, and stays unknown", func() {
		w := newWorld(lostOnce())
		w.create(w.make("task").Step("pay").Once().Deadline(3).Obj())
		expectUnknownEnd(w.reaches("task", v1alpha1.TaskFailed), v1alpha1.StepFailed, v1alpha1.ReasonDeadlineExceeded)
	})

	It("is still shown where the plan is changed under it, and can be decided when that is taken back", func() {
		w := newWorld(lostOnce())
		w.create(w.make("task").Step("pay").Once().Step("tell").Obj())
		w.reaches("task", v1alpha1.TaskUnknown)
		w.edit("task", func(s *v1alpha1.AgentTaskSpec) { s.Steps[0].OnUnknown = v1alpha1.UnknownRetry })
		Expect(w.waitsFor("task", v1alpha1.ReasonPlanChanged)).To(ContainSubstring("step pay has started and was changed"))
		Expect(unknownMessage(w.get("task"))).To(ContainSubstring("may have taken effect"))
		Consistently(func() []harness.ContainerStart { return w.startsOf("pay") }).Should(HaveLen(1))
		w.edit("task", func(s *v1alpha1.AgentTaskSpec) { s.Steps[0].OnUnknown = "" })
		w.decision(w.reaches("task", v1alpha1.TaskUnknown), v1alpha1.DecisionSkip, nil)
		w.reaches("task", v1alpha1.TaskSucceeded)
	})

	It("with a pod that may still act lets go of it when the task is cancelled", func() {
		w, pod := givenUp(asItIs)
		w.edit("task", func(s *v1alpha1.AgentTaskSpec) { s.Cancel = true })
		expectUnknownEnd(w.reaches("task", v1alpha1.TaskCancelled), v1alpha1.StepCancelled, v1alpha1.ReasonCancelled)
		w.waitGone(pod)
	})

	It("ends the step for good when its node says late that the program failed", func() {
		w, pod := givenUp(asItIs)
		reports(pod, stepexec.Result{Outcome: stepexec.OutcomeFailed, Reason: v1alpha1.ReasonExitCode, Message: "no such charge", ExitCode: 3})
		task := w.reaches("task", v1alpha1.TaskFailed)
		Expect(record(task, "pay").Message).To(Equal("no such charge"))
		Expect(unknownMessage(task)).To(BeEmpty())
		w.expectNothingHeld()
	})

	It("is tried again when its node says late that the program asked for it", func() {
		w, pod := givenUp(asItIs, harness.Succeed("paid"))
		reports(pod, stepexec.Result{Outcome: stepexec.OutcomeRetry, Reason: v1alpha1.ReasonRetryRequested, Message: "busy", ExitCode: stepexec.ExitRetry})
		Expect(attempts(w.reaches("task", v1alpha1.TaskSucceeded))).To(Equal(map[string]int32{"pay": 2}))
		w.expectNothingHeld()
	})

	It("is known by the program's late word though somebody has decided to try again", func() {
		w := newWorld(harness.Plan(map[string][]harness.Behaviour{"pay": {silentNode()}}))
		w.create(w.make("task").Step("pay").Once().RetryFast(2).Obj())
		pod := w.runningPod("task", "pay", 1)
		editPodStatus(pod, func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }) // by somebody who does not know
		w.reaches("task", v1alpha1.TaskUnknown)
		d := w.decision(w.get("task"), v1alpha1.DecisionRetry, nil)
		Expect(answer(d).Status).To(Equal(metav1.ConditionTrue))
		w.saysUnknown("task", And(ContainSubstring("somebody decided to try again, which waits until pod "+pod.Name+" is gone"), ContainSubstring("Delete it, by force")))
		Consistently(func() []harness.ContainerStart { return w.startsOf("pay") }).Should(HaveLen(1))
		reports(pod, stepexec.Result{Outcome: stepexec.OutcomeSucceeded, Output: []byte(`"paid"`)})
		task := w.reaches("task", v1alpha1.TaskSucceeded)
		Expect(attempts(task)).To(Equal(map[string]int32{"pay": 1}))
		Expect(string(record(task, "pay").Output.Raw)).To(Equal(`"paid"`))
		Expect(w.startsOf("pay")).To(HaveLen(1))
		w.expectNothingHeld()
	})

	It("says so where the program succeeded and its large output is lost, and does not run it again", func() {
		lost := harness.SucceedLarge(strings.Repeat("x", 4000))
		lost.Log = "nothing"
		w := newWorld(harness.Plan(map[string][]harness.Behaviour{"pay": {lost}}))
		w.create(w.make("task").Step("pay").Once().OnUnknown(v1alpha1.UnknownRetry).RetryFast(3).Obj())
		task := w.saysUnknown("task", And(ContainSubstring("step pay, attempt 1, says that it succeeded, and its output is lost"), ContainSubstring("does not hold it whole")))
		Expect(task.Status.Phase).To(Equal(v1alpha1.TaskUnknown))
		Consistently(func() []harness.ContainerStart { return w.startsOf("pay") }).Should(HaveLen(1))
		w.decision(task, v1alpha1.DecisionComplete, nil)
		w.reaches("task", v1alpha1.TaskSucceeded)
		w.expectNothingHeld()
	})
})
