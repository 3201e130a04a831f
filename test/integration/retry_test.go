// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package integration_test

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/test/harness"
)

var _ = Describe("A retry", func() {
	It("follows exit code 75 with the same key, as often as it takes", func() {
		w := newWorld(harness.Plan(map[string][]harness.Behaviour{"one": {harness.TryAgain(0), harness.TryAgain(0), harness.Succeed("third")}}))
		w.create(w.make("task").Step("one").RetryFast(4).Step("two").Obj())
		task := w.reaches("task", v1alpha1.TaskSucceeded)
		Expect(attempts(task)).To(Equal(map[string]int32{"one": 3, "two": 1}))
		Expect(*task.Status.Usage).To(Equal(v1alpha1.Usage{Attempts: 4, Retries: 2}))
		r := record(task, "one")
		Expect(r.Output.Raw).To(MatchJSON(`"third"`))
		Expect(r.FirstFailureTime).NotTo(BeNil())
		Expect(r.NextAttemptTime).To(BeNil())
		Expect(r.Reason).To(BeEmpty())
		for n := 1; n <= 3; n++ {
			Expect(harness.KeyOf(w.pod("task", "one", n, nil))).To(Equal(r.IdempotencyKey))
		}
	})

	It("waits at least as long as the program asks, with jitter on top", func() {
		w := newWorld(harness.Plan(map[string][]harness.Behaviour{"one": {harness.TryAgain(time.Hour)}}),
			harness.ManagerOptions{Rand: func() float64 { return 0.5 }})
		w.create(w.make("task").Step("one").Retry(2, 20*time.Second, 40*time.Second).MaxElapsed(2 * time.Hour).Obj())
		w.stepIs("task", "one", v1alpha1.StepRetrying, v1alpha1.ReasonRetryRequested)
		r := record(w.reaches("task", v1alpha1.TaskWaiting), "one")
		wait := r.NextAttemptTime.Sub(r.FirstFailureTime.Time)
		Expect(wait).To(BeNumerically("~", time.Hour+10*time.Second, 1100*time.Millisecond))
		Expect(kstatus(w.get("task"))).To(Equal("InProgress"))
		Expect(condition(w.get("task"), "Ready").Reason).To(Equal(v1alpha1.ReasonRetrying))
	})

	It("keeps its drawn time over a restart of the operator, and starts at it", func() {
		draws := 0
		rand := func() float64 { draws++; return 0.5 }
		w := emptyWorld(harness.Plan(map[string][]harness.Behaviour{"one": {harness.TryAgain(0), harness.Succeed(1)}}))
		m := w.operator(harness.ManagerOptions{Rand: rand})
		w.create(w.make("task").Step("one").Retry(2, 4*time.Second, 4*time.Second).Obj())
		before := w.stepIs("task", "one", v1alpha1.StepRetrying, v1alpha1.ReasonRetryRequested)
		Expect(m.Stop()).To(Succeed())
		Expect(draws).To(Equal(1))
		version := w.get("task").ResourceVersion
		w.operator(harness.ManagerOptions{Name: "second", Rand: func() float64 { Fail("drawn again"); return 0 }})
		Consistently(func() string { return w.get("task").ResourceVersion }).Should(Equal(version))

		r := record(w.reaches("task", v1alpha1.TaskSucceeded), "one")
		Expect(r.AttemptTime.Time).To(BeTemporally(">=", before.NextAttemptTime.Truncate(time.Second)))
		Expect(r.AttemptTime.Time).To(BeTemporally("<=", before.NextAttemptTime.Add(1500*time.Millisecond)))
		pod := w.pod("task", "one", 2, nil)
		Expect(pod.CreationTimestamp.Time).To(BeTemporally(">=", before.NextAttemptTime.Truncate(time.Second)))
	})

	It("ends when its limit is reached, and says so", func() {
		w := newWorld(harness.Plan(map[string][]harness.Behaviour{"one": {harness.TryAgain(0)}}))
		w.create(w.make("task").Steps("zero", "one").RetryFast(2).Obj())
		task := w.reaches("task", v1alpha1.TaskFailed)
		r := record(task, "one")
		Expect(r.Attempt).To(BeEquivalentTo(3))
		Expect(r.Reason).To(Equal(v1alpha1.ReasonRetryRequested))
		Expect(r.Message).To(ContainSubstring("retry.limit of 2 is reached"))
		Expect(w.pods("task")).To(HaveLen(4))
	})

	It("does not happen past maxElapsed", func() {
		w := newWorld(harness.Plan(map[string][]harness.Behaviour{"one": {harness.TryAgain(time.Minute)}}))
		w.create(w.make("task").Step("one").RetryFast(2).MaxElapsed(30 * time.Second).Obj())
		r := record(w.reaches("task", v1alpha1.TaskFailed), "one")
		Expect(r.Attempt).To(BeEquivalentTo(1))
		Expect(r.Message).To(ContainSubstring("retry.maxElapsed of 30s"))
	})

	It("does not follow a program's own failure", func() {
		w := newWorld(harness.Plan(map[string][]harness.Behaviour{"one": {harness.Fail(2, "wrong")}}))
		w.create(w.make("task").Step("one").RetryFast(4).Obj())
		r := record(w.reaches("task", v1alpha1.TaskFailed), "one")
		Expect(r.Attempt).To(BeEquivalentTo(1))
		Expect(r.Message).To(Equal("wrong"))
	})

	It("follows a timeout only with onTimeout", func() {
		w := newWorld(harness.Plan(map[string][]harness.Behaviour{"one": {harness.TimeOut(), harness.Succeed(1)}}))
		w.create(w.make("without").Step("one").RetryFast(4).Obj())
		w.create(w.make("with").Step("one").RetryFast(4).OnTimeout().Obj())
		r := record(w.reaches("without", v1alpha1.TaskFailed), "one")
		Expect(r.Reason).To(Equal(v1alpha1.ReasonTimeout))
		Expect(r.Attempt).To(BeEquivalentTo(1))
		Expect(attempts(w.reaches("with", v1alpha1.TaskSucceeded))).To(Equal(map[string]int32{"one": 2}))
	})
})

var _ = Describe("The infrastructure's failures", func() {
	unreadable := harness.Garble()
	unreadable.ExitCode = 9

	DescribeTable("each have their own reason, and are tried again",
		func(first harness.Behaviour, reason, message string) {
			w := newWorld(harness.Plan(map[string][]harness.Behaviour{"one": {first, harness.Succeed("again")}}),
				harness.ManagerOptions{Rand: func() float64 { return 0.999 }})
			// The wait is long enough to look at the record.
			w.create(w.make("task").Step("one").Retry(3, time.Second, time.Second).StartTimeout(1500 * time.Millisecond).Step("two").Obj())
			r := w.stepIs("task", "one", v1alpha1.StepRetrying, reason)
			Expect(r.Message).To(ContainSubstring(message))
			task := w.reaches("task", v1alpha1.TaskSucceeded)
			Expect(attempts(task)).To(Equal(map[string]int32{"one": 2, "two": 1}))
			for _, name := range w.created("pods") {
				Expect(name).NotTo(HaveSuffix("-3"))
			}
		},
		Entry("evicted by its node", harness.Evict(), v1alpha1.ReasonEvicted, "evicted"),
		Entry("killed from outside", harness.Kill(), v1alpha1.ReasonKilled, "137"),
		Entry("out of memory", harness.RunOutOfMemory(), v1alpha1.ReasonOutOfMemory, "limits.memory"),
		Entry("a result nobody can read", harness.Garble(), v1alpha1.ReasonResultInvalid, "exit code 0"),
		Entry("a result nobody can read, and an exit code", unreadable, v1alpha1.ReasonResultInvalid, "exit code 9"),
		Entry("an image that cannot be pulled", harness.BadImage(), v1alpha1.ReasonImageUnavailable, "startTimeout of 1.5s"),
		Entry("a Secret that is missing", harness.Behaviour{Waiting: "CreateContainerConfigError", WaitingMessage: `secret "x" not found`}, v1alpha1.ReasonContainerConfig, `secret "x" not found`),
		Entry("a node that takes too long", harness.Behaviour{Waiting: "ContainerCreating"}, v1alpha1.ReasonStartTimeout, "startTimeout of 1.5s"),
		Entry("no node", harness.NoNode(), v1alpha1.ReasonUnschedulable, "Insufficient cpu"),
		Entry("a node that refuses the pod", harness.Behaviour{NoResult: true, ExitCode: 128, ExitReason: "StartError"}, v1alpha1.ReasonContainerConfig, "could not be started"),
	)

	It("include a pod that somebody deletes while it runs", func() {
		w := newWorld(harness.Plan(map[string][]harness.Behaviour{"one": {harness.Hang(), harness.Succeed(1)}}))
		w.create(w.make("task").Step("one").Retry(3, time.Second, time.Second).Obj())
		Expect(cluster.Client.Delete(ctx, w.runningPod("task", "one", 1))).To(Succeed())
		w.stepIs("task", "one", v1alpha1.StepRetrying, v1alpha1.ReasonPodLost)
		Expect(attempts(w.reaches("task", v1alpha1.TaskSucceeded))).To(Equal(map[string]int32{"one": 2}))
	})

	It("include a node that is lost: nothing is tried again until its pod is gone", func() {
		deaf := harness.Hang()
		deaf.Deaf = true
		w := newWorld(harness.Plan(map[string][]harness.Behaviour{"one": {deaf, harness.Succeed(1)}}))
		w.create(w.make("task").Step("one").Retry(3, time.Second, time.Second).Obj())
		pod := w.runningPod("task", "one", 1)

		By("tainting: the pod is marked and deleted, and the node does not answer")
		editPodStatus(pod, func(p *corev1.Pod) {
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{
				Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "DeletionByTaintManager", LastTransitionTime: metav1.Now(), Message: "Taint manager: deleting due to NoExecute taint",
			})
		})
		Expect(cluster.Client.Delete(ctx, pod)).To(Succeed())
		w.waitsFor("task", v1alpha1.ReasonPodLost)
		Consistently(func() int32 { return record(w.get("task"), "one").Attempt }).Should(BeEquivalentTo(1))

		By("removing the pod, as its garbage collector does when the node is gone")
		editPodStatus(pod, func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed })
		Consistently(func() int32 { return record(w.get("task"), "one").Attempt }).Should(BeEquivalentTo(1), "phase Failed alone proves nothing")
		Expect(cluster.Client.Delete(ctx, pod, gracePeriod(0))).To(Succeed())
		w.stepIs("task", "one", v1alpha1.StepRetrying, v1alpha1.ReasonNodeLost)
		Expect(attempts(w.reaches("task", v1alpha1.TaskSucceeded))).To(Equal(map[string]int32{"one": 2}))
	})

	It("show while they last, and go when they pass", func() {
		w := newWorld(harness.Plan(map[string][]harness.Behaviour{"one": {harness.NoNode()}}))
		w.create(w.make("task").Step("one").Obj())
		Expect(w.waitsFor("task", v1alpha1.ReasonUnschedulable)).To(ContainSubstring("Insufficient cpu"))
		Expect(w.get("task").Status.Phase).To(Equal(v1alpha1.TaskWaiting))
		pod := w.pod("task", "one", 1, nil)
		editPodStatus(pod, func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}}
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "step", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
		})
		w.waitsFor("task", v1alpha1.ReasonRunning)
		Expect(record(w.get("task"), "one").Reason).To(BeEmpty())
	})
})
