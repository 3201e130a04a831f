// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package integration_test

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/test/harness"
)

// deadWebhook refuses Jobs of a namespace since nobody answers at its address.
func deadWebhook(namespace string) *admissionv1.ValidatingWebhookConfiguration {
	fail, none := admissionv1.Fail, admissionv1.SideEffectClassNone
	return &admissionv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "down-" + namespace},
		Webhooks: []admissionv1.ValidatingWebhook{{
			Name: "down.example.com", FailurePolicy: &fail, SideEffects: &none, AdmissionReviewVersions: []string{"v1"},
			ClientConfig:      admissionv1.WebhookClientConfig{URL: new("https://127.0.0.1:9/x")},
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: namespace}},
			Rules: []admissionv1.RuleWithOperations{{Operations: []admissionv1.OperationType{admissionv1.Create}, Rule: admissionv1.Rule{
				APIGroups: []string{"batch"}, APIVersions: []string{"v1"}, Resources: []string{"jobs"}}}},
		}},
	}
}

var _ = Describe("A fault on the way", func() {
	It("of a webhook that does not answer is a wait that says so and costs no attempt", func() {
		w := newWorld(nil)
		hook := deadWebhook(w.ns)
		w.create(hook)
		DeferCleanup(func() { Expect(client.IgnoreNotFound(cluster.Client.Delete(ctx, hook))).To(Succeed()) })
		Eventually(func(g Gomega) { // until the API server has heard of the webhook
			job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "probe", Namespace: w.ns}, Spec: batchv1.JobSpec{
				Suspend: new(true), Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "c", Image: "x"}}}}}}
			g.Expect(cluster.Client.Create(ctx, job, client.DryRunAll)).To(MatchError(ContainSubstring("failed calling webhook")))
		}).Should(Succeed())

		w.create(w.make("task").Steps("one").Obj())
		Expect(w.waitsFor("task", v1alpha1.ReasonUnavailable)).To(ContainSubstring("down.example.com"))
		Expect(cluster.Client.Delete(ctx, hook)).To(Succeed())
		Expect(attempts(w.reaches("task", v1alpha1.TaskSucceeded))).To(Equal(map[string]int32{"one": 1}))
	})

	It("of a Job that was changed unseen is at most one write refused", func() {
		deaf := harness.NewWatches("jobs")
		done := make(chan struct{})
		w := newWorld(harness.Plan(map[string][]harness.Behaviour{"one": {harness.HangUntil(done)}}), harness.ManagerOptions{Wrap: deaf.Wrap})
		w.create(w.make("task").Steps("one").Obj())
		name := w.runningPod("task", "one", 1).Name
		deaf.Freeze("jobs")
		job := w.job(name)
		job.Annotations["note"] = "changed"
		Expect(cluster.Client.Update(ctx, job)).To(Succeed())
		close(done)
		w.reaches("task", v1alpha1.TaskSucceeded)
		Eventually(func(g Gomega) {
			g.Expect(w.job(name).Status.Succeeded).To(Equal(int32(1)))
		}).Should(Succeed())
		writes, err := w.writes()
		Expect(err).NotTo(HaveOccurred())
		refused := 0
		for _, write := range writes {
			if write.Rejected() {
				refused++
			}
		}
		Expect(refused).To(BeNumerically("<=", 1), harness.List(writes))
	})
})
