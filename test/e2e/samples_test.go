// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"path/filepath"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
)

// Each file of config/samples ends as its comment says.
var _ = Describe("The samples", Ordered, func() {
	var namespace string
	var seen *history

	BeforeAll(func() {
		namespace = makeNamespace("samples")
		seen = recordHistory(namespace)
		startLedger(namespace)
		for _, file := range sampleFiles() {
			kubectl("-n", namespace, "apply", "-f", file)
		}
	})

	It("are all looked at here", func() {
		var names []string
		for _, file := range sampleFiles() {
			names = append(names, filepath.Base(file))
		}
		Expect(names).To(ConsistOf("agenttask_failing.yaml", "agenttask_refund.yaml", "agenttask_research.yaml",
			"agenttask_retry.yaml", "agenttask_smallest.yaml", "agenttask_verify.yaml", "ledger.yaml"), "write a spec for each sample")
	})

	It("count words with nothing but a shell", func() {
		task := awaitEnd(namespace, "smallest", v1alpha1.TaskSucceeded)
		Expect(outputOf(task, "count")).To(MatchJSON(`{"words": 8}`))
		Expect(conditions(task)).To(ConsistOf("Ready=True", "Succeeded=True", "Reconciling=False", "Stalled=False", "Suspended=False", "OutcomeUnknown=False"))
	})

	It("try again until it works", func() {
		task := awaitEnd(namespace, "retry", v1alpha1.TaskSucceeded)
		Expect(outputOf(task, "flaky")).To(MatchJSON(`{"attempts": 3}`))
		Expect(task.Status.Usage).To(HaveValue(Equal(v1alpha1.Usage{Attempts: 3, Retries: 2})))
		Expect(seen.statesOf("retry")).To(ContainElements(
			"Waiting StepRetrying step=flaky Retrying attempt=1 RetryRequested",
			"Running StepRunning step=flaky Running attempt=2 ",
			"Waiting StepRetrying step=flaky Retrying attempt=2 RetryRequested",
			"Running StepRunning step=flaky Running attempt=3 "))
		expectJobs(task, 3)
	})

	It("fail for good, saying why, and go no further", func() {
		task := awaitEnd(namespace, "failing", v1alpha1.TaskFailed)
		Expect(task.Status.Progress).To(Equal("1/3"))
		Expect(task.Status.Steps).To(HaveLen(2), "the third step never starts")
		Expect(outputOf(task, "plan")).To(ContainSubstring("solar panels"))
		failed := lastRecord(task)
		Expect(failed.Name).To(Equal("order"))
		Expect(failed.Attempt).To(BeEquivalentTo(1), "exit code 3 is not retried")
		Expect(failed.Reason).To(Equal(v1alpha1.ReasonExitCode))
		Expect(failed.Message).To(Equal("exited with code 3: the supplier's catalogue has no such panel: order another one"))
		Expect(conditions(task)).To(ConsistOf("Ready=False", "Succeeded=False", "Reconciling=False", "Stalled=True", "Suspended=False", "OutcomeUnknown=False"))
		Expect(message(task)).To(And(HavePrefix("StepFailed: step order failed"), ContainSubstring("no such panel"),
			ContainSubstring("kubectl logs job/"+failed.JobName)))
		expectJobs(task, 2)
	})

	It("research, publish and notify, each once", func() {
		expectRanOnce(seen, awaitEnd(namespace, "research", v1alpha1.TaskSucceeded))
	})

	It("refund once though the answer is lost, since a check finds the refund", func() {
		task := awaitEnd(namespace, "refund", v1alpha1.TaskSucceeded)
		record := recordOf(task, "refund")
		Expect(record.Reason).To(Equal(v1alpha1.ReasonCheckedDone))
		Expect(record.Attempt).To(BeEquivalentTo(1))
		Expect(task.Status.Usage.Retries).To(BeZero())
		Expect(eventsOf(Default, namespace, "refund")).To(ContainElement(And(
			HavePrefix("StepUnknown: step refund attempt 1 may have taken effect"), ContainSubstring("502 Bad Gateway"))))
		refund := ledger(namespace).expectOneEffect(record.IdempotencyKey)
		Expect(refund.Body).To(MatchJSON(`{"charge": "ch-123", "amount": 35.5}`))
		tell := ledger(namespace).expectOneEffect(recordOf(task, "tell").IdempotencyKey)
		Expect(tell.Body).To(MatchJSON(fmt.Sprintf(`{"to": "customer@example.com", "text": "Order 123 is refunded, as number %d."}`, refund.Seq)))
	})

	It("verify finds out the step that may not run twice", func() {
		task := awaitEnd(namespace, "verify", v1alpha1.TaskFailed)
		Expect(task.Status.Progress).To(Equal("1/2"))
		Expect(ledger(namespace).expectOneEffect(recordOf(task, "reserve").IdempotencyKey).Count).To(BeEquivalentTo(2))
		record := recordOf(task, "print")
		Expect(record.Reason).To(Equal(v1alpha1.ReasonNotIdempotent))
		Expect(record.Message).To(MatchRegexp(`the observer's view differs at \.\S+: 1, then 2`))
		Expect(ledger(namespace).effects("key", record.IdempotencyKey)).To(HaveLen(2))
	})

	It("are not changed by applying them again", func() {
		Eventually(func(g Gomega) {
			jobs, err := clientset.BatchV1().Jobs(namespace).List(ctx, metav1.ListOptions{})
			g.Expect(err).NotTo(HaveOccurred())
			for _, job := range jobs.Items {
				g.Expect(job.Status.Conditions).NotTo(BeEmpty(), "Job %s has no final status", job.Name)
			}
		}).Should(Succeed())
		before := versionsIn(namespace)
		for _, file := range sampleFiles() {
			Expect(kubectl("-n", namespace, "apply", "-f", file)).To(MatchRegexp(`^(\S+ unchanged\n)+$`), "kubectl apply -f %s", file)
		}
		const settled = 2 * time.Second
		Consistently(func() map[types.UID]string { return versionsIn(namespace) }).
			WithTimeout(settled).WithPolling(pollInterval).Should(Equal(before))
	})
})

// versionsIn are the resourceVersions of a namespace's tasks and Jobs, and the names of
// its pods, of which the kubelet may still write the last status.
func versionsIn(namespace string) map[types.UID]string {
	GinkgoHelper()
	versions := map[types.UID]string{}
	for _, kind := range []metav1.GroupVersionKind{
		{Group: "agenttask.dev", Version: "v1alpha1", Kind: "AgentTaskList"},
		{Group: "batch", Version: "v1", Kind: "JobList"},
		{Version: "v1", Kind: "PodList"},
	} {
		list := &metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{
			APIVersion: metav1.GroupVersion{Group: kind.Group, Version: kind.Version}.String(), Kind: kind.Kind}}
		Expect(api.List(ctx, list, client.InNamespace(namespace))).To(Succeed())
		for _, item := range list.Items {
			versions[item.UID] = item.Name
			if kind.Kind != "PodList" {
				versions[item.UID] += " " + item.ResourceVersion
			}
		}
	}
	return versions
}
