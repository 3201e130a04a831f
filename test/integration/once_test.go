// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package integration_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/controllers"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
	"github.com/agenttask-dev/agenttask/test/harness"
)

// startsOf are the starts of the program of a step, its checks apart, in order.
func (w *world) startsOf(step string) []harness.ContainerStart {
	var list []harness.ContainerStart
	for _, s := range w.kubelet.Starts(w.ns) {
		if s.Step == step && s.Fenced {
			list = append(list, s)
		}
	}
	return list
}

// told waits for an event of a task that has a reason, and words that its text holds.
func (w *world) told(name, reason string, words ...string) {
	GinkgoHelper()
	Eventually(func(g Gomega) { g.Expect(w.events(name, reason)).To(ContainElement(containsAll(words))) }).Should(Succeed())
}

func containsAll(words []string) OmegaMatcher {
	all := []OmegaMatcher{Not(BeEmpty())}
	for _, word := range words {
		all = append(all, ContainSubstring(word))
	}
	return And(all...)
}

// events are the texts of a task's events of a reason.
func (w *world) events(name, reason string) []string {
	GinkgoHelper()
	list := &eventsv1.EventList{}
	Expect(cluster.Client.List(ctx, list, client.InNamespace(w.ns))).To(Succeed())
	var texts []string
	for _, e := range list.Items {
		if e.Regarding.Name == name && e.Reason == reason {
			texts = append(texts, e.Note)
		}
	}
	return texts
}

// metric is the value of one of the operators' metrics that has no labels.
func metric(name string) float64 {
	GinkgoHelper()
	families, err := ctrlmetrics.Registry.Gather()
	Expect(err).NotTo(HaveOccurred())
	for _, family := range families {
		if family.GetName() == name {
			m := family.GetMetric()[0]
			return m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	Fail("there is no metric " + name)
	return 0
}

// firstOf is what the first attempt of a task's step is called.
func firstOf(task *v1alpha1.AgentTask, step string) client.ObjectKey {
	return client.ObjectKey{Namespace: task.Namespace, Name: stepexec.JobName(task.Name, task.UID, step, v1alpha1.RoleMain, 1)}
}

// goes waits until a pod is gone or being deleted. It may be called outside of a spec's
// goroutine.
func goes(key client.ObjectKey) error {
	return wait.PollUntilContextTimeout(ctx, 5*time.Millisecond, soon, true, func(ctx context.Context) (bool, error) {
		pod := &corev1.Pod{}
		err := cluster.Client.Get(ctx, key, pod)
		return apierrors.IsNotFound(err) || err == nil && !pod.DeletionTimestamp.IsZero(), client.IgnoreNotFound(err)
	})
}

// actAt lets somebody act on the first attempt of the task's step pay after the operator's
// n-th write was done, and before the operator hears of it.
func (w *world) actAt(n int64, act func(key client.ObjectKey) error) harness.ManagerOptions {
	return harness.ManagerOptions{Faults: harness.NewFaults(harness.Fault{At: n, Kind: harness.ActAfter, Act: func(harness.Write) {
		defer GinkgoRecover()
		Expect(act(firstOf(w.get("task"), "pay"))).To(Succeed())
	}})}
}

// The writes of a step that must not start twice: the intent, its Job, its pod, the names
// of both, the gate, the outcome, the finalizer and the Job's status.
const (
	writeOfPod  = 3
	writeOfGate = 5
)

var _ = Describe("The fence", func() {
	It("stands around a pod from its making, opens when the status names the pod, and lets it go when its outcome is recorded", func() {
		w := emptyWorld(nil)
		recorder, err := cluster.Record(ctx, w.ns)
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(recorder.Close)
		w.operator()
		w.create(w.make("task").Step("pay").Once().Obj())
		w.reaches("task", v1alpha1.TaskSucceeded)
		w.expectNothingHeld()

		history, err := recorder.History(ctx)
		Expect(err).NotTo(HaveOccurred())
		order := []string{"intent", "Job", "pod", "named", "opened", "outcome", "let go"}
		when := map[string]int64{}
		note := func(what string, at harness.Revision, is bool) {
			if is && when[what] == 0 {
				when[what] = at.RV
			}
		}
		for _, at := range history.Revisions {
			switch {
			case at.Task != nil && record(at.Task, "pay") != nil:
				r := record(at.Task, "pay")
				note("intent", at, r.Phase == v1alpha1.StepRunning && r.PodUID == "")
				note("named", at, r.PodUID != "" && r.JobUID != "")
				note("outcome", at, r.Phase == v1alpha1.StepSucceeded)
			case at.Job != nil:
				note("Job", at, true)
				Expect(at.Job.Spec.Template.Finalizers).To(ConsistOf(v1alpha1.FenceFinalizer))
				Expect(at.Job.Spec.Template.Spec.SchedulingGates).To(ConsistOf(HaveField("Name", v1alpha1.FenceGate)))
			case at.Pod != nil:
				note("pod", at, stepexec.Gated(at.Pod) && stepexec.Held(at.Pod))
				note("opened", at, !stepexec.Gated(at.Pod))
				note("let go", at, !stepexec.Held(at.Pod))
				Expect(at.Pod.Annotations).To(HaveKeyWithValue(v1alpha1.AnnotationTask, "task"))
			}
		}
		var times []int64
		for _, what := range order {
			Expect(when).To(HaveKey(what))
			times = append(times, when[what])
		}
		Expect(slices.IsSorted(times)).To(BeTrue(), "%v: %v", order, times)
		Expect(w.startsOf("pay")).To(HaveLen(1))
	})

	const writes = 2*7 + 1
	for at := int64(1); at <= writes; at++ {
		for kind, what := range map[harness.FaultKind]string{harness.DieBefore: "before", harness.DieAfter: "after"} {
			It(fmt.Sprintf("lets each program start once though the operator dies %s write %d of %d was done", what, at, writes), func() {
				w := emptyWorld(nil)
				faults := harness.NewFaults(harness.Fault{At: at, Kind: kind})
				first := w.operator(harness.ManagerOptions{Name: "first", Faults: faults})
				w.create(w.make("task").Step("pay").Once().Step("tell").Once().Obj())
				Eventually(faults.Hit()).Should(BeClosed(), func() string { return summary(w.get("task")) })
				Expect(first.Stop()).To(Succeed())

				w.operator(harness.ManagerOptions{Name: "second"})
				task := w.reaches("task", v1alpha1.TaskSucceeded)
				Expect(attempts(task)).To(Equal(map[string]int32{"pay": 1, "tell": 1}))
				Expect(condition(task, v1alpha1.ConditionOutcomeUnknown).Status).To(Equal(metav1.ConditionFalse))
				expectStartedOnce(w, task)
				w.expectNothingHeld()
				for _, job := range w.jobs() {
					Eventually(func() int32 { return w.job(job.Name).Status.Succeeded }).Should(BeEquivalentTo(1), job.Name)
				}
			})
		}
	}

	It("lets each program start once though two operators work at once, without leader election", func() {
		w := newWorld(nil, harness.ManagerOptions{Name: "first"})
		w.operator(harness.ManagerOptions{Name: "second"})
		for i := range 4 {
			w.create(w.make(fmt.Sprintf("task%d", i)).Step("pay").Once().Step("tell").Once().Obj())
		}
		for i := range 4 {
			task := w.reaches(fmt.Sprintf("task%d", i), v1alpha1.TaskSucceeded)
			Expect(attempts(task)).To(Equal(map[string]int32{"pay": 1, "tell": 1}))
		}
		Expect(w.startsOf("pay")).To(HaveLen(4))
		Expect(w.startsOf("tell")).To(HaveLen(4))
		w.expectNothingHeld()
	})

	DescribeTable("keeps in the pod that an operator makes after a long pause, which is then cleared away", func(deleteTask bool) {
		w := emptyWorld(nil)
		paused := harness.NewFaults(harness.Fault{At: writeOfPod, Kind: harness.FreezeBefore})
		w.operator(harness.ManagerOptions{Name: "paused", Faults: paused})
		DeferCleanup(paused.Thaw)
		w.create(w.make("task").JobHistory(v1alpha1.JobHistoryNone).Step("pay").Once().Obj())
		Eventually(paused.Hit()).Should(BeClosed())

		w.operator(harness.ManagerOptions{Name: "other"})
		task := w.reaches("task", v1alpha1.TaskSucceeded)
		Eventually(func() []batchv1.Job { return w.jobs() }).Should(BeEmpty())
		Eventually(func() []corev1.Pod { return w.pods("task") }).Should(BeEmpty())
		if deleteTask {
			Expect(cluster.Client.Delete(ctx, task)).To(Succeed())
			w.waitGone(task)
		}
		paused.Thaw()
		Eventually(func() []string { return w.created("pods") }).Should(HaveLen(2), "one by each operator")
		Eventually(func() []corev1.Pod { return w.pods("task") }).Should(BeEmpty())
		Expect(w.startsOf("pay")).To(HaveLen(1))
	},
		Entry("when the task has ended", false),
		Entry("when the task is gone", true),
	)

	It("does not hold what jobHistory does not keep", func() {
		for history, kept := range map[v1alpha1.JobHistory][]string{
			v1alpha1.JobHistoryAll: {"pay", "tell"}, v1alpha1.JobHistoryFailed: {"tell"}, v1alpha1.JobHistoryNone: {},
		} {
			w := newWorld(harness.Plan(map[string][]harness.Behaviour{"tell": {harness.Fail(1, "broken")}}))
			w.create(w.make("task").JobHistory(history).Step("pay").Once().Step("tell").Once().Obj())
			w.reaches("task", v1alpha1.TaskFailed)
			Eventually(func(g Gomega) {
				steps := []string{}
				for _, pod := range w.pods("task") {
					g.Expect(stepexec.Held(&pod)).To(BeFalse())
					steps = append(steps, pod.Labels[v1alpha1.LabelStep])
				}
				g.Expect(steps).To(ConsistOf(kept), string(history))
			}).Should(Succeed())
		}
	})
})

// expectStartedOnce looks at what the kubelet started: each step of a task that has ended
// well once, in the pod that its record names.
func expectStartedOnce(w *world, task *v1alpha1.AgentTask) {
	GinkgoHelper()
	for _, r := range task.Status.Steps {
		started := w.startsOf(r.Name)
		Expect(started).To(HaveLen(1), r.Name)
		Expect(started[0].UID).To(Equal(r.PodUID), r.Name)
		Expect(started[0].Key).To(Equal(r.IdempotencyKey), r.Name)
	}
}

var _ = Describe("A step that must not start twice and has not started", func() {
	o := func() *harness.Outsider { return cluster.Outsider() }
	deleteJob := func(policy metav1.DeletionPropagation) func(client.ObjectKey) error {
		return func(key client.ObjectKey) error {
			if err := o().DeleteJob(ctx, key, policy); err != nil {
				return err
			}
			return goes(key)
		}
	}

	DescribeTable("is tried again by itself, since it provably never ran, when somebody", func(n int64, act func(client.ObjectKey) error) {
		w := emptyWorld(nil)
		w.operator(w.actAt(n, act))
		w.create(w.make("task").Step("pay").Once().RetryFast(2).Obj())
		task := w.reaches("task", v1alpha1.TaskSucceeded)
		Expect(attempts(task)).To(Equal(map[string]int32{"pay": 2}))
		w.told("task", v1alpha1.EventStepRetrying, "attempt 1", "PodLost", "before it had a node")
		expectStartedOnce(w, task)
		w.expectNothingHeld()
		Eventually(func(g Gomega) {
			for _, pod := range w.pods("task") {
				g.Expect(pod.UID).To(Equal(record(task, "pay").PodUID), "what never started is not left over")
			}
		}).Should(Succeed())
	},
		Entry("deletes its Job in the background when the pod is made", int64(writeOfPod), deleteJob(metav1.DeletePropagationBackground)),
		Entry("deletes its Job in the foreground when the pod is made", int64(writeOfPod), deleteJob(metav1.DeletePropagationForeground)),
		Entry("deletes its Job in the background when the pod is named", int64(writeOfPod+1), deleteJob(metav1.DeletePropagationBackground)),
		Entry("deletes its Job in the foreground when the pod is named", int64(writeOfPod+1), deleteJob(metav1.DeletePropagationForeground)),
		Entry("deletes its pod when it is made", int64(writeOfPod), func(key client.ObjectKey) error { return o().DeletePod(ctx, key, 30) }),
		Entry("deletes its pod when it is named", int64(writeOfPod+1), func(key client.ObjectKey) error { return o().DeletePod(ctx, key, 30) }),
		Entry("deletes its pod by force when it is named", int64(writeOfPod+1), func(key client.ObjectKey) error { return o().DeletePod(ctx, key, 0) }),
		Entry("strips its pod of the finalizer and deletes it when it is made", int64(writeOfPod), func(key client.ObjectKey) error { return o().StripAndDeletePod(ctx, key) }),
		Entry("strips its pod of the finalizer and deletes it when it is named", int64(writeOfPod+1), func(key client.ObjectKey) error { return o().StripAndDeletePod(ctx, key) }),
		Entry("evicts its pod when it is named", int64(writeOfPod+1), func(key client.ObjectKey) error { return o().Evict(ctx, key) }),
	)

	It("is cancelled without a doubt", func() {
		w := emptyWorld(nil)
		w.operator(w.actAt(writeOfPod, func(client.ObjectKey) error {
			w.edit("task", func(s *v1alpha1.AgentTaskSpec) { s.Cancel = true })
			return nil
		}))
		w.create(w.make("task").Step("pay").Once().Obj())
		expectKnownEnd(w, w.reaches("task", v1alpha1.TaskCancelled), v1alpha1.StepCancelled, v1alpha1.ReasonCancelled)
	})

	It("is cancelled without a doubt also when its gate is gone and no node takes its pod", func() {
		w := newWorld(harness.Plan(map[string][]harness.Behaviour{"pay": {harness.NoNode()}}))
		w.create(w.make("task").Step("pay").Once().Obj())
		w.waitsFor("task", v1alpha1.ReasonUnschedulable)
		w.edit("task", func(s *v1alpha1.AgentTaskSpec) { s.Cancel = true })
		expectKnownEnd(w, w.reaches("task", v1alpha1.TaskCancelled), v1alpha1.StepCancelled, v1alpha1.ReasonCancelled)
	})

	It("fails without a doubt at the task's deadline", func() {
		w := newWorld(harness.Plan(map[string][]harness.Behaviour{"pay": {harness.NoNode()}}))
		w.create(w.make("task").Step("pay").Once().Deadline(2).Obj())
		expectKnownEnd(w, w.reaches("task", v1alpha1.TaskFailed), v1alpha1.StepFailed, v1alpha1.ReasonDeadlineExceeded)
	})

	It("is tried again after its startTimeout", func() {
		w := newWorld(harness.Plan(map[string][]harness.Behaviour{"pay": {harness.NoNode(), harness.Succeed("paid")}}))
		w.create(w.make("task").Step("pay").Once().RetryFast(1).StartTimeout(1500 * time.Millisecond).Obj())
		task := w.reaches("task", v1alpha1.TaskSucceeded)
		Expect(attempts(task)).To(Equal(map[string]int32{"pay": 2}))
		w.told("task", v1alpha1.EventStepRetrying, v1alpha1.ReasonUnschedulable, "startTimeout of 1.5s")
		expectStartedOnce(w, task)
		w.expectNothingHeld()
	})

	It("waits while a queue holds its Job, and then starts once", func() {
		w := newWorld(nil, harness.ManagerOptions{Wrap: harness.Each(suspendJobs)})
		w.create(w.make("task").Step("pay").Once().Obj())
		w.waitsFor("task", v1alpha1.ReasonJobSuspended)
		Expect(w.pods("task")).To(BeEmpty())
		Expect(o().SuspendJob(ctx, firstOf(w.get("task"), "pay"), false)).To(Succeed())
		task := w.reaches("task", v1alpha1.TaskSucceeded)
		Expect(attempts(task)).To(Equal(map[string]int32{"pay": 1}))
		expectStartedOnce(w, task)
		w.expectNothingHeld()
	})

	It("waits for the gates of others, which it leaves alone", func() {
		w := newWorld(nil)
		gated := corev1.PodTemplateSpec{Spec: corev1.PodSpec{SchedulingGates: []corev1.PodSchedulingGate{{Name: "example.com/queue"}}}}
		w.create(w.make("task").PodTemplate(gated).Step("pay").Once().Obj())
		pod := w.pod("task", "pay", 1, func(g Gomega, pod *corev1.Pod) {
			g.Expect(pod.Spec.SchedulingGates).To(ConsistOf(HaveField("Name", "example.com/queue")))
		})
		Consistently(func() []harness.ContainerStart { return w.startsOf("pay") }).Should(BeEmpty())
		edit(w.ns, pod.Name, pod, func(pod *corev1.Pod) { pod.Spec.SchedulingGates = nil })
		expectStartedOnce(w, w.reaches("task", v1alpha1.TaskSucceeded))
		w.expectNothingHeld()
	})

	It("does not take a pod without the fence for its own, and asks a person what that did", func() {
		w := emptyWorld(nil)
		const writeOfJob = 2
		w.operator(w.actAt(writeOfJob, func(key client.ObjectKey) error { return o().SecondPod(ctx, key, key.Name) }))
		w.create(w.make("task").Step("pay").Once().Obj())
		Expect(w.waitsFor("task", v1alpha1.ReasonNameConflict)).To(And(ContainSubstring("without the fence"), ContainSubstring("look whether it did what the step does, then delete it to go on")))
		Expect(kstatus(w.get("task"))).To(Equal("Failed"), "a person must act")
		stranger := w.pod("task", "pay", 1, nil)
		Expect(cluster.Client.Delete(ctx, stranger)).To(Succeed())
		w.waitGone(stranger)
		w.edit("task", func(s *v1alpha1.AgentTaskSpec) { s.Description = "look again" })
		task := w.reaches("task", v1alpha1.TaskSucceeded)
		Expect(attempts(task)).To(Equal(map[string]int32{"pay": 1}))
		expectStartedOnce(w, task)
		w.expectNothingHeld()
	})

	It("is tried again when its Job is suspended", func() {
		w := newWorld(harness.Plan(map[string][]harness.Behaviour{"pay": {harness.NoNode(), harness.Succeed("paid")}}))
		w.create(w.make("task").Step("pay").Once().RetryFast(1).Obj())
		w.waitsFor("task", v1alpha1.ReasonUnschedulable)
		Expect(o().SuspendJob(ctx, firstOf(w.get("task"), "pay"), true)).To(Succeed())
		task := w.reaches("task", v1alpha1.TaskSucceeded)
		Expect(attempts(task)).To(Equal(map[string]int32{"pay": 2}))
		w.told("task", v1alpha1.EventStepRetrying, v1alpha1.ReasonJobSuspended)
		expectStartedOnce(w, task)
		w.expectNothingHeld()
	})
})

// expectKnownEnd looks at a task that ended before its step pay had started.
func expectKnownEnd(w *world, task *v1alpha1.AgentTask, phase v1alpha1.StepPhase, reason string) {
	GinkgoHelper()
	r := record(task, "pay")
	Expect(r.Phase).To(Equal(phase))
	Expect(r.Reason).To(Equal(reason))
	Expect(r.Unknown).To(BeNil())
	Expect(condition(task, v1alpha1.ConditionOutcomeUnknown).Status).To(Equal(metav1.ConditionFalse))
	Expect(w.kubelet.Starts(w.ns)).To(BeEmpty())
	Eventually(func() []corev1.Pod { return w.pods("task") }).Should(BeEmpty())
}

var _ = Describe("A step that must not start twice and runs", func() {
	DescribeTable("has an unknown outcome, and starts no more, when", func(b harness.Behaviour, act func(client.ObjectKey) error, reason OmegaMatcher, dead bool) {
		w := newWorld(harness.Plan(map[string][]harness.Behaviour{"pay": {b}}))
		w.create(w.make("task").Step("pay").Once().RetryFast(3).Step("tell").Obj())
		if act != nil {
			Expect(act(client.ObjectKeyFromObject(w.runningPod("task", "pay", 1)))).To(Succeed())
		}
		task := w.eventually("task", func(g Gomega, task *v1alpha1.AgentTask) {
			g.Expect(task.Status.Phase).To(Equal(v1alpha1.TaskUnknown), "%s", summary(task))
			g.Expect(record(task, "pay").Unknown.Reason).To(reason, "%s", summary(task))
			g.Expect(record(task, "pay").Unknown.PodDead).To(Equal(dead), "%s", summary(task))
		})
		Expect(attempts(task)).To(Equal(map[string]int32{"pay": 1}))
		w.told("task", v1alpha1.EventStepUnknown, "step pay attempt 1 may have taken effect", "outcome is not known")
		Consistently(func() []harness.ContainerStart { return w.kubelet.Starts(w.ns) }).Should(HaveLen(1))

		w.decision(w.get("task"), v1alpha1.DecisionAbort, nil)
		task = w.reaches("task", v1alpha1.TaskFailed)
		Expect(record(task, "pay").Reason).To(Equal(v1alpha1.ReasonDecided))
		w.expectNothingHeld()
		Expect(w.kubelet.Starts(w.ns)).To(HaveLen(1))
	},
		Entry("its Job is deleted in the background", harness.Hang(), func(key client.ObjectKey) error {
			return cluster.Outsider().DeleteJob(ctx, key, metav1.DeletePropagationBackground)
		}, Equal(v1alpha1.ReasonPodLost), true),
		Entry("its Job is deleted in the foreground", harness.Hang(), func(key client.ObjectKey) error {
			return cluster.Outsider().DeleteJob(ctx, key, metav1.DeletePropagationForeground)
		}, Equal(v1alpha1.ReasonPodLost), true),
		Entry("its pod is deleted", harness.Hang(), func(key client.ObjectKey) error { return cluster.Outsider().DeletePod(ctx, key, 30) }, Equal(v1alpha1.ReasonPodLost), true),
		Entry("its pod is deleted by force", harness.Hang(), func(key client.ObjectKey) error { return cluster.Outsider().DeletePod(ctx, key, 0) }, Equal(v1alpha1.ReasonPodLost), true),
		Entry("its pod is stripped of the finalizer and deleted", harness.Hang(), func(key client.ObjectKey) error { return cluster.Outsider().StripAndDeletePod(ctx, key) }, BeElementOf(v1alpha1.ReasonPodLost, v1alpha1.ReasonNodeLost), false),
		Entry("its pod is drained", harness.Hang(), func(key client.ObjectKey) error { return cluster.Outsider().Evict(ctx, key) }, Equal(v1alpha1.ReasonEvicted), true),
		Entry("the garbage collector gives its pod up", harness.Hang(), func(key client.ObjectKey) error { return cluster.Outsider().CollectPod(ctx, key) }, Equal(v1alpha1.ReasonNodeLost), true),
		Entry("its container is started a second time", harness.Hang(), func(key client.ObjectKey) error { return cluster.Outsider().StartContainerAgain(ctx, key, true) }, Equal(v1alpha1.ReasonKilled), true),
		Entry("its node evicts it", harness.Evict(), nil, Equal(v1alpha1.ReasonEvicted), true),
		Entry("it is killed", harness.Kill(), nil, Equal(v1alpha1.ReasonKilled), true),
		Entry("it runs out of memory", harness.RunOutOfMemory(), nil, Equal(v1alpha1.ReasonOutOfMemory), true),
		Entry("it runs into its timeout", harness.TimeOut(), nil, Equal(v1alpha1.ReasonTimeout), true),
		Entry("nobody can read what it left", harness.Garble(), nil, Equal(v1alpha1.ReasonResultInvalid), true),
	)

	It("is not even tried again after a timeout where retry.onTimeout is set", func() {
		w := newWorld(harness.Plan(map[string][]harness.Behaviour{"pay": {harness.TimeOut()}}))
		w.create(w.make("task").Step("pay").Once().RetryFast(3).OnTimeout().Obj())
		w.reaches("task", v1alpha1.TaskUnknown)
		Consistently(func() []harness.ContainerStart { return w.startsOf("pay") }).Should(HaveLen(1))
	})

	It("is tried again with the same key where its program asks for it, each time behind a fence of its own", func() {
		w := newWorld(harness.Plan(map[string][]harness.Behaviour{"pay": {harness.TryAgain(0), harness.TryAgain(0), harness.Succeed("paid")}}))
		w.create(w.make("task").Step("pay").Once().RetryFast(2).Obj())
		task := w.reaches("task", v1alpha1.TaskSucceeded)
		Expect(attempts(task)).To(Equal(map[string]int32{"pay": 3}))
		pods := map[string]bool{}
		for _, s := range w.startsOf("pay") {
			Expect(s.Key).To(Equal(record(task, "pay").IdempotencyKey))
			pods[string(s.UID)] = true
		}
		Expect(pods).To(HaveLen(3))
		w.expectNothingHeld()
	})

	It("has the last word when it fails", func() {
		w := newWorld(harness.Plan(map[string][]harness.Behaviour{"pay": {harness.Fail(1, "no such charge")}}))
		w.create(w.make("task").Step("pay").Once().RetryFast(3).OnUnknown(v1alpha1.UnknownRetry).Obj())
		r := record(w.reaches("task", v1alpha1.TaskFailed), "pay")
		Expect(r.Attempt).To(BeEquivalentTo(1))
		Expect(r.Reason).To(Equal(v1alpha1.ReasonExitCode))
		Expect(r.Message).To(Equal("no such charge"))
		Expect(w.startsOf("pay")).To(HaveLen(1))
	})

	It("runs to its end though its Job is suspended", func() {
		end := make(chan struct{})
		w := newWorld(harness.Plan(map[string][]harness.Behaviour{"pay": {harness.HangUntil(end)}}))
		w.create(w.make("task").Step("pay").Once().Obj())
		pod := w.runningPod("task", "pay", 1)
		Expect(cluster.Outsider().SuspendJob(ctx, client.ObjectKeyFromObject(pod), true)).To(Succeed())
		Consistently(func(g Gomega) {
			g.Expect(cluster.Client.Get(ctx, client.ObjectKeyFromObject(pod), pod)).To(Succeed())
			g.Expect(pod.DeletionTimestamp).To(BeNil())
		}).Should(Succeed())
		close(end)
		expectStartedOnce(w, w.reaches("task", v1alpha1.TaskSucceeded))
		w.expectNothingHeld()
	})

	It("is stopped by cancel, and the task ends with the outcome unknown, and says which key to look for", func() {
		w := newWorld(harness.Plan(map[string][]harness.Behaviour{"pay": {harness.Hang()}}))
		w.create(w.make("task").Step("pay").Once().Step("tell").Obj())
		pod := w.runningPod("task", "pay", 1)
		w.edit("task", func(s *v1alpha1.AgentTaskSpec) { s.Cancel = true })
		task := w.reaches("task", v1alpha1.TaskCancelled)
		expectUnknownEnd(task, v1alpha1.StepCancelled, v1alpha1.ReasonCancelled)
		w.waitGone(pod)
		Expect(w.kubelet.Starts(w.ns)).To(HaveLen(1))
	})

	It("is stopped by the task's deadline, and the task ends with the outcome unknown", func() {
		w := newWorld(harness.Plan(map[string][]harness.Behaviour{"pay": {harness.Hang()}}))
		w.create(w.make("task").Step("pay").Once().Deadline(2).Obj())
		pod := w.runningPod("task", "pay", 1)
		expectUnknownEnd(w.reaches("task", v1alpha1.TaskFailed), v1alpha1.StepFailed, v1alpha1.ReasonDeadlineExceeded)
		w.waitGone(pod)
	})

	It("has succeeded when its result comes in while it is being stopped", func() {
		slow := harness.Hang()
		slow.Deaf = true
		w := newWorld(harness.Plan(map[string][]harness.Behaviour{"pay": {slow}}))
		w.create(w.make("task").Step("pay").Once().Step("tell").Obj())
		pod := w.runningPod("task", "pay", 1)
		w.edit("task", func(s *v1alpha1.AgentTaskSpec) { s.Cancel = true })
		w.waitsFor("task", v1alpha1.ReasonStopping)
		reports(pod, stepexec.Result{Outcome: stepexec.OutcomeSucceeded, Output: []byte(`"paid"`)})
		task := w.reaches("task", v1alpha1.TaskCancelled)
		Expect(record(task, "pay").Phase).To(Equal(v1alpha1.StepSucceeded))
		Expect(string(record(task, "pay").Output.Raw)).To(Equal(`"paid"`))
		Expect(condition(task, v1alpha1.ConditionOutcomeUnknown).Status).To(Equal(metav1.ConditionFalse))
		w.expectNothingHeld()
	})
})

// expectUnknownEnd looks at a task that ended while its step pay ran.
func expectUnknownEnd(task *v1alpha1.AgentTask, phase v1alpha1.StepPhase, reason string) {
	GinkgoHelper()
	r := record(task, "pay")
	Expect(r.Phase).To(Equal(phase))
	Expect(r.Reason).To(Equal(reason))
	Expect(r.Message).To(ContainSubstring("whether it has taken effect is not known"))
	c := condition(task, v1alpha1.ConditionOutcomeUnknown)
	Expect(c.Status).To(Equal(metav1.ConditionTrue))
	Expect(c.Message).To(And(ContainSubstring("The task has ended"), ContainSubstring(r.IdempotencyKey), Not(ContainSubstring("kubectl"))))
	Expect(kstatus(task)).To(Equal("Failed"))
}

// reports lets a pod's node say how its program ended.
func reports(pod *corev1.Pod, result stepexec.Result) {
	GinkgoHelper()
	result.Version = stepexec.ResultVersion
	message, err := json.Marshal(result)
	Expect(err).NotTo(HaveOccurred())
	editPodStatus(pod, func(p *corev1.Pod) {
		end := corev1.ContainerStateTerminated{Message: string(message), ExitCode: int32(result.ExitCode)}
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: stepexec.ContainerStep, State: corev1.ContainerState{Terminated: &end}}}
	})
}

var _ = Describe("A task with a fenced pod", func() {
	DescribeTable("that is deleted goes whole, and its pod with it", func(script harness.Behaviour, policy metav1.DeletionPropagation) {
		w := newWorld(harness.Plan(map[string][]harness.Behaviour{"pay": {script}}))
		w.create(w.make("task").Step("pay").Once().Obj())
		pod := w.pod("task", "pay", 1, func(g Gomega, pod *corev1.Pod) { g.Expect(stepexec.Gated(pod)).To(BeFalse()) })
		task := w.get("task")
		Expect(cluster.Client.Delete(ctx, task, client.PropagationPolicy(policy))).To(Succeed())
		w.waitGone(task)
		w.waitGone(pod)
		Eventually(func() []batchv1.Job { return w.jobs() }).Should(BeEmpty())
	},
		Entry("while its program runs, in the background", harness.Hang(), metav1.DeletePropagationBackground),
		Entry("while its program runs, in the foreground", harness.Hang(), metav1.DeletePropagationForeground),
		Entry("while no node takes the pod, in the background", harness.NoNode(), metav1.DeletePropagationBackground),
		Entry("while no node takes the pod, in the foreground", harness.NoNode(), metav1.DeletePropagationForeground),
		Entry("while its outcome is unknown, in the background", harness.Kill(), metav1.DeletePropagationBackground),
		Entry("while its outcome is unknown, in the foreground", harness.Kill(), metav1.DeletePropagationForeground),
	)

	DescribeTable("that is deleted while the pod is gated goes whole, and nothing starts", func(policy metav1.DeletionPropagation, n int64) {
		w := emptyWorld(nil)
		w.operator(w.actAt(n, func(key client.ObjectKey) error {
			if err := cluster.Client.Delete(ctx, w.get("task"), client.PropagationPolicy(policy)); err != nil {
				return err
			}
			return goes(key)
		}))
		task := w.make("task").Step("pay").Once().Obj()
		w.create(task)
		Eventually(func() []string { return w.created("pods") }).Should(HaveLen(1))
		w.waitGone(task)
		Eventually(func() []corev1.Pod { return w.pods("task") }).Should(BeEmpty())
		Eventually(func() []batchv1.Job { return w.jobs() }).Should(BeEmpty())
		Expect(w.kubelet.Starts(w.ns)).To(BeEmpty())
	},
		Entry("and not named yet, in the background", metav1.DeletePropagationBackground, int64(writeOfPod)),
		Entry("and not named yet, in the foreground", metav1.DeletePropagationForeground, int64(writeOfPod)),
		Entry("and named, in the background", metav1.DeletePropagationBackground, int64(writeOfPod+1)),
		Entry("and named, in the foreground", metav1.DeletePropagationForeground, int64(writeOfPod+1)),
	)

	It("that is deleted with its Jobs orphaned leaves a pod that can be deleted", func() {
		w := newWorld(harness.Plan(map[string][]harness.Behaviour{"pay": {harness.Hang()}}))
		w.create(w.make("task").Step("pay").Once().Obj())
		pod := w.runningPod("task", "pay", 1)
		task := w.get("task")
		Expect(cluster.Client.Delete(ctx, task, client.PropagationPolicy(metav1.DeletePropagationOrphan))).To(Succeed())
		w.waitGone(task)
		w.expectNothingHeld()
		Expect(cluster.Client.Delete(ctx, w.job(pod.Name), client.PropagationPolicy(metav1.DeletePropagationBackground))).To(Succeed())
		w.waitGone(pod)
	})

	It("that is deleted while no operator is there goes when one comes", func() {
		w := emptyWorld(harness.Plan(map[string][]harness.Behaviour{"pay": {harness.Hang()}}))
		first := w.operator(harness.ManagerOptions{Name: "first"})
		w.create(w.make("task").Step("pay").Once().Obj())
		pod := w.runningPod("task", "pay", 1)
		Expect(first.Stop()).To(Succeed())
		task := w.get("task")
		Expect(cluster.Client.Delete(ctx, task)).To(Succeed())
		w.waitGone(task)
		Expect(goes(client.ObjectKeyFromObject(pod))).To(Succeed())
		Consistently(func(g Gomega) { g.Expect(cluster.Client.Get(ctx, client.ObjectKeyFromObject(pod), pod)).To(Succeed()) }).Should(Succeed(), "the fence holds it")
		w.operator(harness.ManagerOptions{Name: "second"})
		w.waitGone(pod)
	})

	It("that is made again under its name is another run, and the old pod goes", func() {
		w := newWorld(harness.Plan(map[string][]harness.Behaviour{"pay": {harness.Hang()}}))
		w.create(w.make("task").Step("pay").Once().Obj())
		pod := w.runningPod("task", "pay", 1)
		old := record(w.get("task"), "pay")
		w.kubelet.SetScript(harness.Plan(nil))
		_, err := cluster.Outsider().RecreateTask(ctx, client.ObjectKey{Namespace: w.ns, Name: "task"})
		Expect(err).NotTo(HaveOccurred())
		task := w.reaches("task", v1alpha1.TaskSucceeded)
		w.waitGone(pod)
		w.expectNothingHeld()
		Expect(record(task, "pay").IdempotencyKey).NotTo(Equal(old.IdempotencyKey))
		Expect(w.startsOf("pay")).To(HaveLen(2), "one each")
	})

	It("does not keep its namespace from being deleted", func() {
		w := newWorld(harness.Plan(map[string][]harness.Behaviour{"hang": {harness.Hang()}, "wait": {harness.NoNode()}, "die": {harness.Kill()}}))
		quick := corev1.PodTemplateSpec{Spec: corev1.PodSpec{TerminationGracePeriodSeconds: new(int64(1))}}
		for _, name := range []string{"hang", "wait", "die", "end"} {
			w.create(w.make(name).PodTemplate(quick).Step(name).Once().Obj())
		}
		w.runningPod("hang", "hang", 1)
		w.waitsFor("wait", v1alpha1.ReasonUnschedulable)
		w.reaches("die", v1alpha1.TaskUnknown)
		w.reaches("end", v1alpha1.TaskSucceeded)
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.ns}}
		Expect(cluster.DeleteNamespace(ctx, w.ns)).To(Succeed())
		w.waitGone(namespace)
	})
})

var _ = Describe("The admission policies of the fence", func() {
	It("are missed in an event and a metric where a step needs them", func() {
		w := emptyWorld(nil)
		first := w.operator(harness.ManagerOptions{Name: "first"})
		w.create(w.make("plain").Steps("look").Obj())
		w.reaches("plain", v1alpha1.TaskSucceeded)
		w.create(w.make("task").Step("pay").Once().Obj())
		w.reaches("task", v1alpha1.TaskSucceeded)
		w.told("task", v1alpha1.EventPoliciesMissing, "step pay must not start twice", strings.Join(controllers.Policies, ", "), "install config/policy")
		Expect(w.events("plain", v1alpha1.EventPoliciesMissing)).To(BeEmpty())
		Expect(metric("agenttask_admission_policies_missing")).To(BeEquivalentTo(len(controllers.Policies)))
		Expect(first.Stop()).To(Succeed())

		By("installing them")
		Expect(cluster.InstallPolicies(ctx)).To(Succeed())
		DeferCleanup(func() { Expect(cluster.RemovePolicies(ctx)).To(Succeed()) })
		second := w.operator(harness.ManagerOptions{Name: "second"})
		DeferCleanup(func() { Expect(second.Stop()).To(Succeed()) })
		w.create(w.make("guarded").Step("pay").Once().Obj())
		w.reaches("guarded", v1alpha1.TaskSucceeded)
		w.told("guarded", v1alpha1.EventTaskSucceeded)
		Expect(w.events("guarded", v1alpha1.EventPoliciesMissing)).To(BeEmpty())
		Expect(metric("agenttask_admission_policies_missing")).To(BeZero())
		w.expectNothingHeld()
	})
})
