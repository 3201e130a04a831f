// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package integration_test

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/test/harness"
)

var _ = Describe("A refusal of the API server", func() {
	// expectRefused looks at a task whose first step is refused.
	expectRefused := func(w *world, who string) {
		GinkgoHelper()
		Expect(w.waitsFor("task", v1alpha1.ReasonRefused)).To(ContainSubstring(who))
		task := w.get("task")
		Expect(task.Status.Phase).To(Equal(v1alpha1.TaskWaiting))
		Expect(kstatus(task)).To(Equal("InProgress"))
		Expect(attempts(task)).To(Equal(map[string]int32{"one": 1}))
		Expect(w.pods("task")).To(BeEmpty())
	}

	It("by a quota is a wait that names it, costs no attempt, and ends when there is room", func() {
		w := newWorld(nil)
		quota := &corev1.ResourceQuota{
			ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "no-pods"},
			Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourcePods: quantity("0")}},
		}
		w.create(quota)
		Eventually(func(g Gomega) {
			g.Expect(cluster.Client.Get(ctx, client.ObjectKeyFromObject(quota), quota)).To(Succeed())
			g.Expect(quota.Status.Hard).NotTo(BeEmpty())
		}).Should(Succeed())
		w.create(w.make("task").Steps("one", "two").Obj())
		expectRefused(w, "exceeded quota: no-pods")

		By("writing nothing each time that it is tried again")
		version := w.get("task").ResourceVersion
		Eventually(func(g Gomega) {
			list, err := w.writes()
			g.Expect(err).NotTo(HaveOccurred())
			tries := 0
			for _, r := range list {
				if r.Is("create", "pods") {
					tries++
				}
			}
			g.Expect(tries).To(BeNumerically(">=", 2), harness.List(list))
		}).Should(Succeed())
		Expect(w.get("task").ResourceVersion).To(Equal(version))

		Expect(cluster.Client.Delete(ctx, quota)).To(Succeed())
		Expect(attempts(w.reaches("task", v1alpha1.TaskSucceeded))).To(Equal(map[string]int32{"one": 1, "two": 1}))
		Expect(w.created("jobs")).To(HaveLen(2))
	})

	It("by an admission policy on Jobs is a wait that names it", func() {
		w := newWorld(nil)
		policy := &admissionv1.ValidatingAdmissionPolicy{
			ObjectMeta: metav1.ObjectMeta{Name: "no-jobs-" + w.ns},
			Spec: admissionv1.ValidatingAdmissionPolicySpec{
				MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
					Operations: []admissionv1.OperationType{admissionv1.Create},
					Rule:       admissionv1.Rule{APIGroups: []string{"batch"}, APIVersions: []string{"v1"}, Resources: []string{"jobs"}},
				}}}},
				Validations: []admissionv1.Validation{{Expression: "false", Message: "Jobs are not wanted here"}},
			},
		}
		binding := &admissionv1.ValidatingAdmissionPolicyBinding{
			ObjectMeta: metav1.ObjectMeta{Name: policy.Name},
			Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
				PolicyName: policy.Name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
				MatchResources: &admissionv1.MatchResources{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: w.ns}}},
			},
		}
		w.create(policy)
		w.create(binding)
		DeferCleanup(func() { Expect(client.IgnoreNotFound(cluster.Client.Delete(ctx, policy))).To(Succeed()) })
		Eventually(func() error { return cluster.Client.Create(ctx, plainJob(w.ns, "probe"), client.DryRunAll) }).
			Should(MatchError(ContainSubstring("not wanted here")), "the API server takes a moment to know the policy")

		w.create(w.make("task").Step("one").Obj())
		expectRefused(w, "Jobs are not wanted here")
		Expect(w.jobs()).To(BeEmpty())
		Expect(cluster.Client.Delete(ctx, binding)).To(Succeed())
		Expect(attempts(w.reaches("task", v1alpha1.TaskSucceeded))).To(Equal(map[string]int32{"one": 1}))
	})

	It("by Pod Security is a wait that names it, and cancel ends it", func() {
		w := emptyWorld(nil, map[string]string{"pod-security.kubernetes.io/enforce": "restricted"})
		w.operator()
		w.create(w.make("task").Step("one").PodTemplate(corev1.PodTemplateSpec{Spec: corev1.PodSpec{HostNetwork: true}}).Obj())
		expectRefused(w, "violates PodSecurity")
		w.edit("task", func(s *v1alpha1.AgentTaskSpec) { s.Cancel = true })
		task := w.reaches("task", v1alpha1.TaskCancelled)
		Expect(record(task, "one").Phase).To(Equal(v1alpha1.StepCancelled))
	})

	It("by Pod Security restricted does not meet a task that asks for nothing special", func() {
		w := emptyWorld(nil, map[string]string{"pod-security.kubernetes.io/enforce": "restricted"})
		w.operator()
		w.create(w.make("task").Steps("one", "two").Obj())
		w.reaches("task", v1alpha1.TaskSucceeded)
	})

	It("of an invalid pod is a wait that names the field, and ends when the template is mended", func() {
		w := newWorld(nil)
		w.create(w.make("task").Step("one").PodTemplate(corev1.PodTemplateSpec{Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "step", VolumeMounts: []corev1.VolumeMount{{Name: "missing", MountPath: "/x"}}}},
		}}).Obj())
		expectRefused(w, "volumeMounts")
		w.edit("task", func(s *v1alpha1.AgentTaskSpec) {
			s.PodTemplate.Spec.Volumes = []corev1.Volume{{Name: "missing", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
		})
		Expect(attempts(w.reaches("task", v1alpha1.TaskSucceeded))).To(Equal(map[string]int32{"one": 1}))
	})

	It("that was lifted while the operator was away is noticed", func() {
		w := emptyWorld(nil, map[string]string{"pod-security.kubernetes.io/enforce": "restricted"})
		m := w.operator()
		w.create(w.make("task").Step("one").PodTemplate(corev1.PodTemplateSpec{Spec: corev1.PodSpec{HostNetwork: true}}).Obj())
		expectRefused(w, "violates PodSecurity")
		Expect(m.Stop()).To(Succeed())
		edit("", w.ns, &corev1.Namespace{}, func(ns *corev1.Namespace) { ns.Labels = nil })
		w.operator(harness.ManagerOptions{Name: "second"})
		Expect(attempts(w.reaches("task", v1alpha1.TaskSucceeded))).To(Equal(map[string]int32{"one": 1}))
	})
})
