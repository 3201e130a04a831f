// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package integration_test

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
	"github.com/agenttask-dev/agenttask/test/harness"
)

var _ = Describe("Somebody else", func() {
	// held is a task that waits before its first step, so that its Jobs' names are known.
	held := func(w *world) (*v1alpha1.AgentTask, string) {
		GinkgoHelper()
		w.create(w.make("task").Step("one").RetryFast(4).Suspend().Obj())
		task := w.reaches("task", v1alpha1.TaskSuspended)
		return task, stepexec.JobName(task.Name, task.UID, "one", v1alpha1.RoleMain, 1)
	}
	resume := func(w *world) { w.edit("task", func(s *v1alpha1.AgentTaskSpec) { s.Suspend = false }) }
	// nudge makes the operator look again, as it does by itself every half minute.
	nudge := func(w *world) { w.edit("task", func(s *v1alpha1.AgentTaskSpec) { s.Description += "." }) }

	It("who has a Job of our name is not touched, and the task says whose it is", func() {
		w := newWorld(nil)
		_, name := held(w)
		stranger := plainJob(w.ns, name)
		stranger.Spec.Suspend = new(true)
		w.create(stranger)
		resume(w)
		Expect(w.waitsFor("task", v1alpha1.ReasonNameConflict)).To(And(ContainSubstring("Job "+name+" belongs to nobody"), ContainSubstring("delete it to go on")))
		task := w.get("task")
		Expect(kstatus(task)).To(Equal("Failed"), "a person must act")
		Expect(task.Status.Phase).To(Equal(v1alpha1.TaskWaiting))
		Expect(w.pods("task")).To(BeEmpty())
		Expect(w.job(name).UID).To(Equal(stranger.UID))

		Expect(cluster.Client.Delete(ctx, stranger, client.PropagationPolicy(metav1.DeletePropagationBackground))).To(Succeed())
		w.waitGone(stranger)
		nudge(w)
		task = w.reaches("task", v1alpha1.TaskSucceeded)
		Expect(attempts(task)).To(Equal(map[string]int32{"one": 1}))
		Expect(kstatus(task)).To(Equal("Current"))
	})

	DescribeTable("who has the name of the next step's does not make that step's outcome of the last one's", func(kind string) {
		gate := make(chan struct{})
		w := newWorld(harness.Plan(map[string][]harness.Behaviour{"one": {harness.HangUntil(gate)}}))
		w.create(w.make("task").Steps("one", "two").Obj())
		w.runningPod("task", "one", 1)
		task := w.get("task")
		key := client.ObjectKey{Namespace: w.ns, Name: stepexec.JobName(task.Name, task.UID, "two", v1alpha1.RoleMain, 1)}
		outsider := cluster.Outsider()
		if kind == "Job" {
			Expect(outsider.StrangerJob(ctx, key)).To(Succeed())
		} else {
			Expect(outsider.StrangerPod(ctx, key)).To(Succeed())
		}
		close(gate)
		Expect(w.waitsFor("task", v1alpha1.ReasonNameConflict)).To(ContainSubstring(key.Name))
		Expect(record(w.get("task"), "two").Phase).To(Equal(v1alpha1.StepRunning))
	},
		Entry("a Job", "Job"),
		Entry("a pod", "pod"),
	)

	It("who has a pod of our name is not touched, and the task says whose it is", func() {
		w := newWorld(nil)
		_, name := held(w)
		stranger := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name},
			Spec:       corev1.PodSpec{SchedulingGates: []corev1.PodSchedulingGate{{Name: "example.com/never"}}, Containers: []corev1.Container{{Name: "x", Image: "x"}}},
		}
		w.create(stranger)
		resume(w)
		Expect(w.waitsFor("task", v1alpha1.ReasonNameConflict)).To(ContainSubstring("pod " + name + " belongs to nobody"))
		Expect(cluster.Client.Get(ctx, client.ObjectKeyFromObject(stranger), stranger)).To(Succeed())
		Expect(stranger.DeletionTimestamp).To(BeNil())
		Expect(cluster.Client.Delete(ctx, stranger, gracePeriod(0))).To(Succeed())
		nudge(w)
		Expect(attempts(w.reaches("task", v1alpha1.TaskSucceeded))).To(Equal(map[string]int32{"one": 1}))
	})

	It("who made a pod of our name under another Job is not taken for ours", func() {
		w := newWorld(nil)
		_, name := held(w)
		other := plainJob(w.ns, "other")
		other.Spec.Suspend = new(true)
		w.create(other)
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name, OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(other, batchv1.SchemeGroupVersion.WithKind("Job"))}},
			Spec:       corev1.PodSpec{SchedulingGates: []corev1.PodSchedulingGate{{Name: "example.com/never"}}, Containers: []corev1.Container{{Name: "step", Image: "x"}}},
		}
		w.create(pod)
		editPodStatus(pod, func(p *corev1.Pod) {
			p.Status.Phase = corev1.PodSucceeded
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "step", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: `{"v":1,"outcome":"Succeeded","output":"forged"}`}}}}
		})
		resume(w)
		Expect(w.waitsFor("task", v1alpha1.ReasonNameConflict)).To(ContainSubstring("Job other"))
	})

	It("who takes our labels away hides nothing for long", func() {
		done := make(chan struct{})
		w := newWorld(harness.Plan(map[string][]harness.Behaviour{"one": {harness.HangUntil(done)}}), harness.ManagerOptions{RecheckInterval: 500 * time.Millisecond})
		w.create(w.make("task").Steps("one", "two").Obj())
		name := w.runningPod("task", "one", 1).Name
		edit(w.ns, name, &batchv1.Job{}, func(job *batchv1.Job) { job.Labels = nil })
		edit(w.ns, name, &corev1.Pod{}, func(pod *corev1.Pod) { pod.Labels = nil })
		close(done)
		Expect(attempts(w.reaches("task", v1alpha1.TaskSucceeded))).To(Equal(map[string]int32{"one": 1, "two": 1}))
		Expect(w.created("pods")).To(HaveLen(2))
	})

	DescribeTable("who deletes a Job while its step runs makes it run again, once the first run is over",
		func(policy metav1.DeletionPropagation) {
			w := newWorld(harness.Plan(map[string][]harness.Behaviour{"one": {harness.Hang(), harness.Succeed(2)}}))
			w.create(w.make("task").Step("one").Retry(3, time.Second, time.Second).Step("two").Obj())
			pod := w.runningPod("task", "one", 1)
			Expect(cluster.Client.Delete(ctx, w.job(pod.Name), client.PropagationPolicy(policy))).To(Succeed())
			task := w.eventually("task", func(g Gomega, task *v1alpha1.AgentTask) {
				g.Expect(record(task, "one").Phase).To(Equal(v1alpha1.StepRetrying), "%s", summary(task))
				g.Expect(record(task, "one").Reason).To(BeElementOf(v1alpha1.ReasonJobDeleted, v1alpha1.ReasonPodLost))
			})
			Expect(task.Status.Usage.Attempts).To(BeEquivalentTo(1))
			task = w.reaches("task", v1alpha1.TaskSucceeded)
			Expect(attempts(task)).To(Equal(map[string]int32{"one": 2, "two": 1}))
			w.waitGone(pod)
		},
		Entry("in the background", metav1.DeletePropagationBackground),
		Entry("in the foreground", metav1.DeletePropagationForeground),
	)

	It("who deletes a Job and leaves its running pod is asked to delete that too", func() {
		w := newWorld(harness.Plan(map[string][]harness.Behaviour{"one": {harness.Hang(), harness.Succeed(2)}}))
		w.create(w.make("task").Step("one").RetryFast(3).Obj())
		pod := w.runningPod("task", "one", 1)
		Expect(cluster.Client.Delete(ctx, w.job(pod.Name), client.PropagationPolicy(metav1.DeletePropagationOrphan))).To(Succeed())
		Expect(w.waitsFor("task", v1alpha1.ReasonNameConflict)).To(ContainSubstring("delete it to go on"))
		Expect(cluster.Client.Delete(ctx, pod)).To(Succeed())
		w.waitGone(pod)
		nudge(w)
		Expect(attempts(w.reaches("task", v1alpha1.TaskSucceeded))).To(Equal(map[string]int32{"one": 2}))
	})

	It("who deletes a finished step's Job changes nothing", func() {
		done := make(chan struct{})
		w := newWorld(harness.Plan(map[string][]harness.Behaviour{"two": {harness.HangUntil(done)}}))
		w.create(w.make("task").Steps("one", "two").Obj())
		w.runningPod("task", "two", 1)
		job := w.job(record(w.get("task"), "one").JobName)
		Expect(cluster.Client.Delete(ctx, job, client.PropagationPolicy(metav1.DeletePropagationBackground))).To(Succeed())
		w.waitGone(job)
		close(done)
		Expect(attempts(w.reaches("task", v1alpha1.TaskSucceeded))).To(Equal(map[string]int32{"one": 1, "two": 1}))
		Expect(w.created("pods")).To(HaveLen(2))
	})

	It("who deletes the task while it runs ends it, and nothing is written to what is gone", func() {
		w := newWorld(harness.Plan(map[string][]harness.Behaviour{"two": {harness.Hang()}}))
		w.create(w.make("task").Steps("one", "two", "three").Obj())
		pod := w.runningPod("task", "two", 1)
		task := w.get("task")
		Expect(cluster.Client.Delete(ctx, task)).To(Succeed())
		w.waitGone(task)
		w.waitGone(pod)
		Eventually(func() []batchv1.Job { return w.jobs() }).Should(BeEmpty())
		list, err := w.writes()
		Expect(err).NotTo(HaveOccurred())
		for _, r := range list {
			Expect(r.Rejected()).To(BeFalse(), harness.List(list))
		}
		Expect(w.created("pods")).To(HaveLen(2))
	})

	It("who makes the task again under its name while it runs gets another run", func() {
		w := newWorld(harness.Plan(map[string][]harness.Behaviour{"one": {harness.Hang()}}))
		w.create(w.make("task").Step("one").Obj())
		pod := w.runningPod("task", "one", 1)
		first := w.get("task")
		w.kubelet.SetScript(harness.Plan(nil))
		Expect(cluster.Client.Delete(ctx, first.DeepCopy(), client.PropagationPolicy(metav1.DeletePropagationBackground))).To(Succeed())
		w.create(w.make("task").Step("one").Obj())
		second := w.reaches("task", v1alpha1.TaskSucceeded)
		Expect(second.UID).NotTo(Equal(first.UID))
		Expect(record(second, "one").JobName).NotTo(Equal(pod.Name))
		Expect(record(second, "one").IdempotencyKey).NotTo(Equal(record(first, "one").IdempotencyKey))
		w.waitGone(pod)
		Expect(w.jobs()).To(HaveLen(1))
	})
})

// plainJob is a Job as anybody may make it.
func plainJob(ns, name string) *batchv1.Job {
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name},
		Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "x", Image: "x"}},
		}}},
	}
}
