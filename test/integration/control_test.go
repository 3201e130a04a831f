// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package integration_test

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/test/harness"
)

var _ = Describe("suspend", func() {
	It("lets the running step finish, starts nothing, and is taken back", func() {
		done := make(chan struct{})
		w := newWorld(harness.Plan(map[string][]harness.Behaviour{"one": {harness.HangUntil(done)}}))
		w.create(w.make("task").Steps("one", "two").Obj())
		w.runningPod("task", "one", 1)
		w.edit("task", func(s *v1alpha1.AgentTaskSpec) { s.Suspend = true })
		task := w.eventually("task", func(g Gomega, task *v1alpha1.AgentTask) {
			g.Expect(condition(task, "Suspended").Status).To(Equal(metav1.ConditionTrue))
		})
		Expect(task.Status.Phase).To(Equal(v1alpha1.TaskRunning), "a step still runs")
		close(done)
		task = w.reaches("task", v1alpha1.TaskSuspended)
		Expect(task.Status.Progress).To(Equal("1/2"))
		Consistently(func() []corev1.Pod { return w.pods("task") }).Should(HaveLen(1))
		expectConditions(w.get("task"), map[string]metav1.ConditionStatus{
			"Ready": "False", "Succeeded": "Unknown", "Reconciling": "False", "Stalled": "False", "Suspended": "True", "OutcomeUnknown": "False",
		})
		w.edit("task", func(s *v1alpha1.AgentTaskSpec) { s.Suspend = false })
		task = w.reaches("task", v1alpha1.TaskSucceeded)
		Expect(condition(task, "Suspended").Status).To(Equal(metav1.ConditionFalse))
		Expect(attempts(task)).To(Equal(map[string]int32{"one": 1, "two": 1}))
	})

	It("holds a retry", func() {
		w := newWorld(harness.Plan(map[string][]harness.Behaviour{"one": {harness.TryAgain(0), harness.Succeed(1)}}), harness.ManagerOptions{Rand: func() float64 { return 0.999 }})
		w.create(w.make("task").Step("one").Retry(3, time.Second, time.Second).Obj())
		w.stepIs("task", "one", v1alpha1.StepRetrying, v1alpha1.ReasonRetryRequested)
		w.edit("task", func(s *v1alpha1.AgentTaskSpec) { s.Suspend = true })
		w.reaches("task", v1alpha1.TaskSuspended)
		Consistently(func() []corev1.Pod { return w.pods("task") }).WithTimeout(1500 * time.Millisecond).Should(HaveLen(1))
		w.edit("task", func(s *v1alpha1.AgentTaskSpec) { s.Suspend = false })
		Expect(attempts(w.reaches("task", v1alpha1.TaskSucceeded))).To(Equal(map[string]int32{"one": 2}))
	})
})

var _ = Describe("cancel", func() {
	cancel := func(w *world) { w.edit("task", func(s *v1alpha1.AgentTaskSpec) { s.Cancel = true }) }
	expectCancelled := func(w *world) *v1alpha1.AgentTask {
		GinkgoHelper()
		task := w.reaches("task", v1alpha1.TaskCancelled)
		expectConditions(task, map[string]metav1.ConditionStatus{
			"Ready": "False", "Succeeded": "False", "Reconciling": "False", "Stalled": "True", "Suspended": "False", "OutcomeUnknown": "False",
		})
		Expect(condition(task, "Stalled").Reason).To(Equal(v1alpha1.ReasonCancelled))
		Expect(task.Status.CompletionTime).NotTo(BeNil())
		return task
	}

	It("stops the running step's pod and starts nothing more", func() {
		w := newWorld(harness.Plan(map[string][]harness.Behaviour{"two": {harness.Hang()}}))
		w.create(w.make("task").Steps("one", "two", "three").Obj())
		pod := w.runningPod("task", "two", 1)
		cancel(w)
		task := expectCancelled(w)
		w.waitGone(pod)
		Expect(record(task, "one").Phase).To(Equal(v1alpha1.StepSucceeded))
		Expect(record(task, "two").Phase).To(Equal(v1alpha1.StepCancelled))
		Expect(record(task, "three")).To(BeNil())
		Expect(condition(task, "Ready").Message).To(ContainSubstring("1 of 3 steps had succeeded"))
		Expect(w.created("pods")).To(HaveLen(2))
	})

	It("before anything has run runs nothing", func() {
		w := newWorld(nil)
		w.create(w.make("task").Step("one").Suspend().Obj())
		w.reaches("task", v1alpha1.TaskSuspended)
		cancel(w)
		task := expectCancelled(w)
		Expect(task.Status.Steps).To(BeEmpty())
		Expect(w.created("jobs")).To(BeEmpty())
	})

	It("at creation runs nothing", func() {
		w := newWorld(nil)
		w.create(w.make("task").Step("one").Cancel().Obj())
		Expect(expectCancelled(w).Status.Steps).To(BeEmpty())
		Expect(w.created("jobs")).To(BeEmpty())
	})

	It("ends a wait for the next attempt", func() {
		w := newWorld(harness.Plan(map[string][]harness.Behaviour{"one": {harness.TryAgain(10 * time.Minute)}}))
		w.create(w.make("task").Step("one").RetryFast(3).Obj())
		w.stepIs("task", "one", v1alpha1.StepRetrying, v1alpha1.ReasonRetryRequested)
		cancel(w)
		Expect(record(expectCancelled(w), "one").Phase).To(Equal(v1alpha1.StepCancelled))
		Expect(w.created("pods")).To(HaveLen(1))
	})

	It("stops a pod that has not started", func() {
		w := newWorld(harness.Plan(map[string][]harness.Behaviour{"one": {harness.NoNode()}}))
		w.create(w.make("task").Step("one").Obj())
		w.waitsFor("task", v1alpha1.ReasonUnschedulable)
		pod := w.pod("task", "one", 1, nil)
		cancel(w)
		expectCancelled(w)
		w.waitGone(pod)
	})

	It("of a suspended Job ends it without a pod", func() {
		w := newWorld(nil, harness.ManagerOptions{Wrap: harness.Each(suspendJobs)})
		w.create(w.make("task").Step("one").Obj())
		w.waitsFor("task", v1alpha1.ReasonJobSuspended)
		cancel(w)
		expectCancelled(w)
		Expect(w.created("pods")).To(BeEmpty())
	})
})

var _ = Describe("activeDeadlineSeconds", func() {
	It("stops the running step and fails the task", func() {
		w := newWorld(harness.Plan(map[string][]harness.Behaviour{"one": {harness.Hang()}}))
		w.create(w.make("task").Steps("one", "two").Deadline(2).Obj())
		pod := w.runningPod("task", "one", 1)
		task := w.reaches("task", v1alpha1.TaskFailed)
		Expect(condition(task, "Stalled").Reason).To(Equal(v1alpha1.ReasonDeadlineExceeded))
		Expect(condition(task, "Stalled").Message).To(ContainSubstring("activeDeadlineSeconds of 2 passed"))
		Expect(record(task, "one").Reason).To(Equal(v1alpha1.ReasonDeadlineExceeded))
		Expect(task.Status.CompletionTime.Sub(task.Status.StartTime.Time)).To(BeNumerically("<=", 5*time.Second))
		w.waitGone(pod)
	})

	It("ends a wait for the next attempt", func() {
		w := newWorld(harness.Plan(map[string][]harness.Behaviour{"one": {harness.TryAgain(10 * time.Minute)}}))
		w.create(w.make("task").Step("one").RetryFast(3).Deadline(2).Obj())
		task := w.reaches("task", v1alpha1.TaskFailed)
		Expect(record(task, "one").Reason).To(Equal(v1alpha1.ReasonDeadlineExceeded))
		Expect(record(task, "one").Message).To(ContainSubstring("last failure"))
	})

	It("counts while the task is suspended", func() {
		w := newWorld(nil)
		w.create(w.make("task").Step("one").Suspend().Deadline(1).Obj())
		task := w.reaches("task", v1alpha1.TaskFailed)
		Expect(condition(task, "Ready").Reason).To(Equal(v1alpha1.ReasonDeadlineExceeded))
	})
})

var _ = Describe("ttlSecondsAfterFinished", func() {
	It("of 0 deletes the task at once, with its Jobs and pods", func() {
		w := newWorld(nil)
		task := w.make("task").Steps("one", "two").TTL(0).Obj()
		w.create(task)
		w.waitGone(task)
		Eventually(func(g Gomega) {
			g.Expect(w.jobs()).To(BeEmpty())
			g.Expect(w.pods("task")).To(BeEmpty())
		}).WithTimeout(later).Should(Succeed())
		Expect(w.created("pods")).To(HaveLen(2))
	})

	It("keeps the task that long, over a restart of the operator", func() {
		w := emptyWorld(nil)
		m := w.operator()
		w.create(w.make("task").Step("one").TTL(3).Obj())
		task := w.reaches("task", v1alpha1.TaskSucceeded)
		Expect(m.Stop()).To(Succeed())
		w.operator(harness.ManagerOptions{Name: "second"})
		Consistently(func() *v1alpha1.AgentTask { return w.get("task") }).Should(HaveField("DeletionTimestamp", BeNil()))
		w.waitGone(task)
		list, err := w.writes()
		Expect(err).NotTo(HaveOccurred())
		for _, r := range list {
			if r.Is("delete", "agenttasks") {
				Expect(r.Start).To(BeTemporally(">=", task.Status.CompletionTime.Add(3*time.Second)))
			}
		}
	})

	It("of a task that fails counts as well", func() {
		w := newWorld(harness.Plan(map[string][]harness.Behaviour{"one": {harness.Fail(1, "broken")}}))
		task := w.make("task").Step("one").TTL(0).Obj()
		w.create(task)
		w.waitGone(task)
	})
})

var _ = Describe("An edit of the plan", func() {
	setInput := func(w *world, step int, doc string) {
		w.edit("task", func(s *v1alpha1.AgentTaskSpec) { s.Steps[step].Input = &apiextensionsv1.JSON{Raw: []byte(doc)} })
	}

	It("may change and add steps that have not started", func() {
		done := make(chan struct{})
		w := newWorld(harness.Plan(map[string][]harness.Behaviour{"one": {harness.HangUntil(done)}}))
		w.create(w.make("task").Steps("one", "two").Obj())
		w.runningPod("task", "one", 1)
		before := w.get("task").Status.PlanHash
		w.edit("task", func(s *v1alpha1.AgentTaskSpec) {
			s.Steps[1].Run.Command = []string{"mended"}
			s.Steps = append(s.Steps, w.make("x").Step("three").Obj().Spec.Steps...)
		})
		close(done)
		task := w.reaches("task", v1alpha1.TaskSucceeded)
		Expect(task.Status.Progress).To(Equal("3/3"))
		Expect(task.Status.PlanHash).NotTo(Equal(before))
		Expect(w.pod("task", "two", 1, nil).Spec.Containers[0].Command).To(ContainElement("mended"))
	})

	DescribeTable("of a step that has started stops the task until it is taken back",
		func(change func(*v1alpha1.AgentTaskSpec), message string) {
			done := make(chan struct{})
			w := newWorld(harness.Plan(map[string][]harness.Behaviour{"two": {harness.HangUntil(done)}}))
			w.create(w.make("task").Steps("one", "two", "three").Obj())
			w.runningPod("task", "two", 1)
			kept := w.get("task").Spec.DeepCopy().Steps
			w.edit("task", change)
			Expect(w.waitsFor("task", v1alpha1.ReasonPlanChanged)).To(And(ContainSubstring(message), ContainSubstring("take the change back")))
			Expect(kstatus(w.get("task"))).To(Equal("Failed"))

			By("recording what the running step gives, and starting nothing")
			close(done)
			w.eventually("task", func(g Gomega, task *v1alpha1.AgentTask) {
				g.Expect(record(task, "two").Phase).To(Equal(v1alpha1.StepSucceeded))
			})
			Consistently(func() []corev1.Pod { return w.pods("task") }).Should(HaveLen(2))
			Expect(w.get("task").Status.Phase).To(Equal(v1alpha1.TaskWaiting))

			w.edit("task", func(s *v1alpha1.AgentTaskSpec) { s.Steps = kept })
			task := w.reaches("task", v1alpha1.TaskSucceeded)
			Expect(attempts(task)).To(Equal(map[string]int32{"one": 1, "two": 1, "three": 1}))
		},
		Entry("changed", func(s *v1alpha1.AgentTaskSpec) { s.Steps[1].Run.Command = []string{"other"} }, "step two has started and was changed"),
		Entry("changed, though it has succeeded", func(s *v1alpha1.AgentTaskSpec) { s.Steps[0].Run.Args = []string{"more"} }, "step one has started and was changed"),
		Entry("removed, at the end", func(s *v1alpha1.AgentTaskSpec) { s.Steps = s.Steps[:1] }, "step two has started and was removed"),
		Entry("moved", func(s *v1alpha1.AgentTaskSpec) { s.Steps[0], s.Steps[1] = s.Steps[1], s.Steps[0] }, "is no longer number 1"),
	)

	It("that leaves an invalid expression is found before anything runs, and mended by another", func() {
		w := newWorld(nil)
		w.create(w.make("task").Step("one").Step("two").Input(`{"x": "${steps['three'].output.y}"}`).Step("three").Obj())
		Expect(w.waitsFor("task", v1alpha1.ReasonInvalidPlan)).To(And(ContainSubstring("spec.steps[1] (two)"), ContainSubstring("three")))
		Expect(kstatus(w.get("task"))).To(Equal("Failed"))
		Expect(w.get("task").Status.Steps).To(BeEmpty())
		setInput(w, 1, `{"x": "${syntax error"}`)
		w.eventually("task", func(g Gomega, task *v1alpha1.AgentTask) {
			g.Expect(task.Status.ObservedGeneration).To(Equal(task.Generation))
		})
		Expect(w.waitsFor("task", v1alpha1.ReasonInvalidPlan)).To(ContainSubstring("spec.steps[1] (two)"))
		Expect(w.created("jobs")).To(BeEmpty())
		setInput(w, 1, `{"x": "${steps['one'].output.step}"}`)
		w.reaches("task", v1alpha1.TaskSucceeded)
	})

	It("of params that a started step has used does not run it with others", func() {
		w := newWorld(harness.Plan(map[string][]harness.Behaviour{"one": {harness.TryAgain(0), harness.Succeed(1)}}), harness.ManagerOptions{Rand: func() float64 { return 0.999 }})
		w.create(w.make("task").Params(`{"order": 1}`).Step("one").Input(`{"order": "${params.order}"}`).Retry(3, 2*time.Second, 2*time.Second).Obj())
		w.stepIs("task", "one", v1alpha1.StepRetrying, v1alpha1.ReasonRetryRequested)
		w.edit("task", func(s *v1alpha1.AgentTaskSpec) { s.Params.Raw = []byte(`{"order": 2}`) })
		Expect(w.waitsFor("task", v1alpha1.ReasonPlanChanged)).To(ContainSubstring("params changed?"))
		Consistently(func() []corev1.Pod { return w.pods("task") }).Should(HaveLen(1))
		w.edit("task", func(s *v1alpha1.AgentTaskSpec) { s.Params.Raw = []byte(`{"order": 1}`) })
		task := w.reaches("task", v1alpha1.TaskSucceeded)
		Expect(attempts(task)).To(Equal(map[string]int32{"one": 2}))
		Expect(harness.InputOf(w.pod("task", "one", 2, nil))).To(MatchJSON(`{"order": 1}`))
	})
})

var _ = Describe("The smallest waits", func() {
	It("do not make the operator spin", func() {
		w := newWorld(harness.Plan(map[string][]harness.Behaviour{"one": {harness.TryAgain(0)}}), harness.ManagerOptions{Rand: func() float64 { return 0 }})
		w.create(w.make("task").Step("one").Retry(5, time.Millisecond, time.Millisecond).Timeout(time.Millisecond).Obj())
		w.reaches("task", v1alpha1.TaskFailed)
		list, err := w.writes()
		Expect(err).NotTo(HaveOccurred())
		// Six attempts: for each its start and end, Job, pod and the Job's end.
		Expect(len(list)).To(BeNumerically("<=", 6*5+2), harness.List(list))
	})

	It("that are zero get past no door, even one that validates nothing", func() {
		w := newWorld(nil)
		task := w.make("task").Step("one").Retry(0, 0, 0).Timeout(0).StartTimeout(0).Obj()
		Expect(cluster.Client.Create(ctx, task)).To(MatchError(And(
			ContainSubstring("base must be a duration"), ContainSubstring("cap must be a duration"),
			ContainSubstring("timeout must be a duration"), ContainSubstring("startTimeout must be a duration"))))
	})
})
