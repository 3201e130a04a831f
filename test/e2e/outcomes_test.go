// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"strconv"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
)

// What the node and its kernel do to a step. The tasks run all at once; each spec then
// looks at one of them.
var _ = Describe("A step's program", Ordered, func() {
	var namespace string
	var seen *history

	const (
		runTimeout   = 2 * time.Second
		grace        = 3 * time.Second
		startTimeout = 20 * time.Second
		tooLarge     = 100 << 10
	)

	BeforeAll(func() {
		namespace = makeNamespace("outcomes")
		seen = recordHistory(namespace)
		startLedger(namespace)
		makeTask(namespace, "oom").Steps(
			agentStep("eat", "memhog", "--mib", "256").Memory("48Mi").Retry(1)).Create()
		// Nothing listens on port 1, so that the pull fails at once, on any network. Yet the
		// kubelet may take 10 to 15 seconds until it says so in the pod's status.
		makeTask(namespace, "image").Steps(
			agentStep("pull", "plan").Image("localhost:1/no-such-agent:1.0").StartTimeout(startTimeout).Retry(1)).Create()
		makeTask(namespace, "large").Steps(
			agentStep("big", "big", "--bytes", "102400"),
			shellStep("count", "wc -c < /agenttask/input.json").Stdout().Input(`"${steps.big.output.data}"`),
			shellStep("size", "cat /agenttask/input.json").Stdout().Input(`{"size": "${size(steps.big.output.data)}"}`)).Create()
		makeTask(namespace, "stubborn").Grace(grace).Steps(
			shellStep("ignore", `trap 'echo TERM is ignored' TERM; while :; do sleep 0.2; done`).Timeout(runTimeout)).Create()
	})

	It("that the kernel kills for its memory limit is tried again, then fails, and the limit is named", func() {
		task := awaitEnd(namespace, "oom", v1alpha1.TaskFailed)
		failed := lastRecord(task)
		Expect(failed.Reason).To(Equal(v1alpha1.ReasonOutOfMemory))
		Expect(failed.Attempt).To(BeEquivalentTo(2))
		Expect(failed.Message).To(And(ContainSubstring("memory limit"), ContainSubstring("resources.limits.memory"),
			ContainSubstring("retry.limit of 1 is reached")))
		Expect(seen.statesOf("oom")).To(ContainElement("Waiting StepRetrying step=eat Retrying attempt=1 OutOfMemory"))
		Expect(eventsOf(Default, namespace, "oom")).To(ContainElement(HavePrefix("StepRetrying: step eat attempt 1 of at most 2 ended: OutOfMemory")))
		expectJobs(task, 2)
	})

	It("may leave a large output, which later steps read and which goes away with the task", func() {
		task := awaitEnd(namespace, "large", v1alpha1.TaskSucceeded)
		ref := task.Status.Steps[0].OutputRef
		Expect(task.Status.Steps[0].Output).To(BeNil())
		Expect(ref).NotTo(BeNil())
		Expect(ref.Bytes).To(BeEquivalentTo(tooLarge))
		kept := &corev1.ConfigMap{}
		at := client.ObjectKey{Namespace: namespace, Name: task.Status.Steps[0].JobName}
		Expect(ref.URI).To(Equal("configmap:" + at.Name))
		Expect(api.Get(ctx, at, kept)).To(Succeed())
		Expect(metav1.IsControlledBy(kept, task)).To(BeTrue())
		Expect(kept.Immutable).To(HaveValue(BeTrue()))
		Expect(kept.Data).To(HaveKeyWithValue("output.json", HaveLen(tooLarge)))

		const data = tooLarge - len(`{"data":""}`)
		Expect(outputOf(task, "count")).To(MatchJSON(strconv.Itoa(data + len(`""`))))
		Expect(outputOf(task, "size")).To(MatchJSON(`{"size": ` + strconv.Itoa(data) + `}`))

		kubectl("-n", namespace, "delete", "agenttask", "large")
		Eventually(func(g Gomega) {
			g.Expect(apierrors.IsNotFound(api.Get(ctx, at, kept))).To(BeTrue(), "ConfigMap %s is still there", at.Name)
			g.Expect(kubectl("-n", namespace, "get", "jobs,pods", "-o", "name", "-l", v1alpha1.LabelTask+"=large")).To(BeEmpty())
		}).WithTimeout(stepTimeout).Should(Succeed())
	})

	It("that ignores SIGTERM at its timeout is killed after the grace", func() {
		task := awaitEnd(namespace, "stubborn", v1alpha1.TaskFailed)
		failed := lastRecord(task)
		Expect(failed.Reason).To(Equal(v1alpha1.ReasonTimeout))
		Expect(failed.Attempt).To(BeEquivalentTo(1), "a timeout is not retried without retry.onTimeout")
		Expect(failed.Message).To(ContainSubstring("stopped after its timeout of 2s"))
		Expect(kubectl("-n", namespace, "logs", "job/"+failed.JobName)).To(ContainSubstring("TERM is ignored"))
		pod := &corev1.Pod{}
		Expect(api.Get(ctx, client.ObjectKey{Namespace: namespace, Name: failed.JobName}, pod)).To(Succeed())
		ended := pod.Status.ContainerStatuses[0].State.Terminated
		const late, seconds = 10 * time.Second, time.Second // the times have whole seconds
		Expect(ended.FinishedAt.Sub(ended.StartedAt.Time)).To(And(
			BeNumerically(">=", runTimeout+grace-seconds), BeNumerically("<", runTimeout+grace+late)))
	})

	It("gets SIGTERM when its task is cancelled, and time to end", func() {
		name := makeTask(namespace, "cancelled").Grace(30*time.Second).Steps(
			shellStep("wait", `trap 'echo tidying up; exit 0' TERM; echo ready; while :; do sleep 0.2; done`),
			shellStep("never", "true")).Create()
		record := awaitRunning(namespace, name, "wait")
		log := startKubectl("-n", namespace, "logs", "--follow", "job/"+record.JobName)
		Eventually(log.printed).WithTimeout(stepTimeout).Should(ContainSubstring("ready"))

		kubectl("-n", namespace, "patch", "agenttask", name, "--type=merge", "-p", `{"spec":{"cancel":true}}`)
		const soon = 15 * time.Second // half of the grace
		Eventually(func(g Gomega) {
			g.Expect(readTask(g, namespace, name).Status.Phase).To(Equal(v1alpha1.TaskCancelled))
		}).WithTimeout(soon).Should(Succeed())
		Eventually(log.printed).Should(ContainSubstring("tidying up"))
		task := readTask(Default, namespace, name)
		Expect(task.Status.Steps).To(HaveLen(1))
		Expect(lastRecord(task).Phase).To(Equal(v1alpha1.StepCancelled))
		Expect(conditions(task)).To(ContainElements("Ready=False", "Succeeded=False", "Stalled=True", "Reconciling=False"))
	})

	It("whose pod somebody deletes is run again under the same key", func() {
		name := makeTask(namespace, "lost").Steps(
			agentStep("charge", "effect", "--kind", "charge", "--work", "4s").Idempotent().Retry(2).Input(`{"order": "123"}`)).Create()
		first := awaitRunning(namespace, name, "charge")
		Eventually(func() int { return len(effectsOf(namespace, name)) }).WithTimeout(stepTimeout).Should(Equal(1))
		kubectl("-n", namespace, "delete", "pod", first.JobName, "--wait=false")

		task := awaitEnd(namespace, name, v1alpha1.TaskSucceeded)
		Expect(seen.statesOf(name)).To(ContainElement("Waiting StepRetrying step=charge Retrying attempt=1 PodLost"))
		Expect(lastRecord(task).Attempt).To(BeEquivalentTo(2))
		Expect(lastRecord(task).IdempotencyKey).To(Equal(first.IdempotencyKey))
		effects := effectsOf(namespace, name)
		Expect(effects).To(HaveLen(1), "one effect")
		Expect(effects[0].Count).To(BeEquivalentTo(2), "asked for twice")
		Expect(effects[0].Key).To(Equal(first.IdempotencyKey))
	})

	It("whose image cannot be pulled waits, saying so, is tried again, then fails", func() {
		task := awaitEnd(namespace, "image", v1alpha1.TaskFailed)
		failed := lastRecord(task)
		Expect(failed.Reason).To(Equal(v1alpha1.ReasonImageUnavailable))
		Expect(failed.Attempt).To(BeEquivalentTo(2))
		Expect(failed.Message).To(And(ContainSubstring("startTimeout of 20s"), ContainSubstring("localhost:1/no-such-agent:1.0")))
		Expect(seen.statesOf("image")).To(ContainElements(
			"Waiting ImageUnavailable step=pull Running attempt=1 ImageUnavailable",
			"Waiting StepRetrying step=pull Retrying attempt=1 ImageUnavailable",
			"Waiting ImageUnavailable step=pull Running attempt=2 ImageUnavailable"))
		Expect(eventsOf(Default, namespace, "image")).To(ContainElement(
			HavePrefix("StepWaiting: step pull waits: ImageUnavailable: image localhost:1/no-such-agent:1.0 cannot be pulled")))
		Eventually(func(g Gomega) {
			pods := &corev1.PodList{}
			g.Expect(api.List(ctx, pods, client.InNamespace(namespace), client.MatchingLabels{v1alpha1.LabelTask: "image"})).To(Succeed())
			g.Expect(pods.Items).To(BeEmpty(), "pods that never started go away")
		}).WithTimeout(stepTimeout).Should(Succeed())
	})
})
