// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package integration_test

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/test/harness"
)

var _ = Describe("A plan", func() {
	It("runs its steps in order and passes results on", func() {
		w := newWorld(harness.Plan(map[string][]harness.Behaviour{
			"find": {harness.Succeed(map[string]any{"amount": 7, "mail": "a@example.com"})},
		}))
		w.create(w.make("refund").Params(`{"order": "123"}`).
			Step("find").Input(`{"order": "${params.order}"}`).
			Step("pay").Input(`{"amount": "${steps['find'].output.amount}", "text": "refund of ${steps['find'].output.amount}"}`).
			Step("tell").Input(`{"to": "${steps['find'].output.mail}", "paid": "${steps['pay'].output.input.amount}"}`).Obj())
		task := w.reaches("refund", v1alpha1.TaskSucceeded)

		By("giving each program its input")
		Expect(harness.InputOf(w.pod("refund", "find", 1, nil))).To(MatchJSON(`{"order": "123"}`))
		Expect(harness.InputOf(w.pod("refund", "pay", 1, nil))).To(MatchJSON(`{"amount": 7, "text": "refund of 7"}`))
		Expect(harness.InputOf(w.pod("refund", "tell", 1, nil))).To(MatchJSON(`{"to": "a@example.com", "paid": 7}`))

		By("keeping each result in the checkpoint")
		s := task.Status
		Expect(s.ObservedGeneration).To(Equal(task.Generation))
		Expect(s.RunID).To(Equal(string(task.UID)))
		Expect(s.Progress).To(Equal("3/3"))
		Expect(s.CurrentStep).To(Equal("tell"))
		Expect(s.PlanHash).NotTo(BeEmpty())
		Expect(s.StartTime).NotTo(BeNil())
		Expect(s.CompletionTime).NotTo(BeNil())
		Expect(s.CheckpointTime).NotTo(BeNil())
		Expect(*s.Usage).To(Equal(v1alpha1.Usage{Attempts: 3}))
		Expect(s.Steps).To(HaveLen(3))
		keys := sets.New[string]()
		for i, r := range s.Steps {
			Expect(r.Name).To(Equal(task.Spec.Steps[i].Name))
			Expect(r.Phase).To(Equal(v1alpha1.StepSucceeded))
			Expect(r.Attempt).To(BeEquivalentTo(1))
			Expect(r.Reason).To(BeEmpty())
			Expect(r.CompletionTime).NotTo(BeNil())
			pod := w.pod("refund", r.Name, 1, nil)
			Expect(pod.Name).To(Equal(r.JobName))
			Expect(harness.KeyOf(pod)).To(Equal(r.IdempotencyKey))
			keys.Insert(r.IdempotencyKey, r.ActionHash, r.JobName)
		}
		Expect(keys).To(HaveLen(9), "no two steps share a key, a hash or a Job")
		Expect(s.Steps[0].Output.Raw).To(MatchJSON(`{"amount": 7, "mail": "a@example.com"}`))
	})

	It("has conditions that tools can read, from the first reconcile to the end", func() {
		done := make(chan struct{})
		w := newWorld(harness.Plan(map[string][]harness.Behaviour{"one": {harness.HangUntil(done)}}))
		w.create(w.make("task").Steps("one", "two").Obj())
		w.runningPod("task", "one", 1)
		task := w.reaches("task", v1alpha1.TaskRunning)
		expectConditions(task, map[string]metav1.ConditionStatus{
			"Ready": "False", "Succeeded": "Unknown", "Reconciling": "True", "Stalled": "False", "Suspended": "False", "OutcomeUnknown": "False",
		})
		Expect(kstatus(task)).To(Equal("InProgress"))
		Expect(condition(task, "Ready").Reason).To(Equal(v1alpha1.ReasonRunning))

		close(done)
		task = w.reaches("task", v1alpha1.TaskSucceeded)
		expectConditions(task, map[string]metav1.ConditionStatus{
			"Ready": "True", "Succeeded": "True", "Reconciling": "False", "Stalled": "False", "Suspended": "False", "OutcomeUnknown": "False",
		})
		Expect(kstatus(task)).To(Equal("Current"))
		Expect(condition(task, "Ready").Message).To(Equal("all 2 steps succeeded"))
		_, err := cluster.Kubectl(ctx, "-n", w.ns, "wait", "--for=condition=Ready", "agt/task", "--timeout=5s")
		Expect(err).NotTo(HaveOccurred())
	})

	It("ends as Failed when a step has the last word, and runs no later step", func() {
		w := newWorld(harness.Plan(map[string][]harness.Behaviour{"two": {harness.Fail(3, "no such order")}}))
		w.create(w.make("task").Steps("one", "two", "three").Obj())
		task := w.reaches("task", v1alpha1.TaskFailed)
		expectConditions(task, map[string]metav1.ConditionStatus{
			"Ready": "False", "Succeeded": "False", "Reconciling": "False", "Stalled": "True", "Suspended": "False", "OutcomeUnknown": "False",
		})
		Expect(kstatus(task)).To(Equal("Failed"))
		Expect(condition(task, "Stalled").Message).To(And(ContainSubstring("step two"), ContainSubstring("no such order"), ContainSubstring("kubectl logs job/")))
		Expect(task.Status.Progress).To(Equal("1/3"))
		Expect(record(task, "three")).To(BeNil())
		Expect(record(task, "two").Reason).To(Equal(v1alpha1.ReasonExitCode))
		Consistently(func() []corev1.Pod { return w.pods("task") }).Should(HaveLen(2))
	})

	It("fails with a clear reason where an input cannot be rendered", func() {
		w := newWorld(nil)
		w.create(w.make("task").Step("one").Step("two").Input(`{"x": "${steps['one'].output.missing}"}`).Obj())
		task := w.reaches("task", v1alpha1.TaskFailed)
		Expect(record(task, "two").Reason).To(Equal(v1alpha1.ReasonInputInvalid))
		Expect(record(task, "two").Message).To(ContainSubstring("missing"))
		Expect(w.pods("task")).To(HaveLen(1))
	})

	It("takes its keys from runID, so that a task made again sends the same", func() {
		w := newWorld(nil)
		again := func() *v1alpha1.AgentTask { return w.make("task").RunID("refund-123").Steps("one", "two").Obj() }
		w.create(again())
		first := w.reaches("task", v1alpha1.TaskSucceeded)
		Expect(cluster.Client.Delete(ctx, first.DeepCopy())).To(Succeed())
		w.waitGone(first.DeepCopy())
		w.create(again())
		second := w.reaches("task", v1alpha1.TaskSucceeded)
		Expect(second.UID).NotTo(Equal(first.UID))
		for i := range first.Status.Steps {
			Expect(second.Status.Steps[i].IdempotencyKey).To(Equal(first.Status.Steps[i].IdempotencyKey))
			Expect(second.Status.Steps[i].JobName).NotTo(Equal(first.Status.Steps[i].JobName))
		}
	})

	It("shows itself in kubectl get, describe and explain", func() {
		w := newWorld(harness.Plan(map[string][]harness.Behaviour{"one": {harness.TryAgain(0)}}))
		w.create(w.make("task").RunID("my-run").Step("one").RetryFast(1).Obj())
		w.reaches("task", v1alpha1.TaskFailed)
		out, err := cluster.Kubectl(ctx, "-n", w.ns, "get", "agt")
		Expect(err).NotTo(HaveOccurred())
		Expect(out).To(MatchRegexp(`NAME +PHASE +STEP +PROGRESS +RETRIES +AGE\ntask +Failed +one +0/1 +1 +\d+s`))
		out, err = cluster.Kubectl(ctx, "-n", w.ns, "get", "agenttasks", "-o", "wide")
		Expect(err).NotTo(HaveOccurred())
		Expect(out).To(MatchRegexp(`AGE +RUN-ID +REASON +CHECKPOINT\n.* my-run +StepFailed +\d+s`))
		out, err = cluster.Kubectl(ctx, "-n", w.ns, "describe", "agt", "task")
		Expect(err).NotTo(HaveOccurred())
		Expect(out).To(And(ContainSubstring("Idempotency Key"), ContainSubstring("retry.limit of 1 is reached")))
		Eventually(func(g Gomega) {
			out, err := cluster.Kubectl(ctx, "-n", w.ns, "get", "events", "--field-selector", "involvedObject.name=task", "-o", "jsonpath={.items[*].reason}")
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(out).To(And(ContainSubstring("StepStarted"), ContainSubstring("StepRetrying"), ContainSubstring("StepFailed"), ContainSubstring("TaskFailed")))
		}).Should(Succeed())
		out, err = cluster.Kubectl(ctx, "explain", "agenttask.spec.steps.retry")
		Expect(err).NotTo(HaveOccurred())
		Expect(out).To(ContainSubstring("limit is how many attempts may follow the first"))
	})

	It("is not changed by a second kubectl apply of the same manifest", func() {
		w := newWorld(nil)
		manifest := `{apiVersion: agenttask.dev/v1alpha1, kind: AgentTask, metadata: {name: task}, spec: {
			steps: [{name: one, run: {image: x, command: [one]}}]}}`
		_, err := cluster.KubectlInput(ctx, manifest, "-n", w.ns, "apply", "-f", "-")
		Expect(err).NotTo(HaveOccurred())
		before := w.reaches("task", v1alpha1.TaskSucceeded)
		out, err := cluster.KubectlInput(ctx, manifest, "-n", w.ns, "apply", "-f", "-")
		Expect(err).NotTo(HaveOccurred())
		Expect(out).To(ContainSubstring("unchanged"))
		Expect(w.get("task").ResourceVersion).To(Equal(before.ResourceVersion))
	})
})

func expectConditions(task *v1alpha1.AgentTask, want map[string]metav1.ConditionStatus) {
	GinkgoHelper()
	have := map[string]metav1.ConditionStatus{}
	for _, c := range task.Status.Conditions {
		have[c.Type] = c.Status
		Expect(c.ObservedGeneration).To(Equal(task.Generation), c.Type)
	}
	Expect(have).To(Equal(want))
}
