// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
)

// Verify has each step run twice, and compares what the ledger has of its key.
func (b *taskBuilder) Verify() *taskBuilder {
	b.task.Spec.Verify = &v1alpha1.Verify{Mode: v1alpha1.VerifyRunTwice, Observe: v1alpha1.Observe{
		Run:   &v1alpha1.RunAction{Image: agentImage, ImagePullPolicy: corev1.PullIfNotPresent, Command: []string{"/sample-agent", "observe"}},
		Input: &apiextensionsv1.JSON{Raw: []byte(`{"key": "${key}"}`)},
	}}
	return b
}

var _ = Describe("A plan that is verified", Ordered, func() {
	var namespace string
	var book ledger

	BeforeAll(func() {
		namespace = makeNamespace("verify")
		book = ledger(namespace)
		book.start()
		makeTask(namespace, "honest").Verify().Steps(
			agentStep("publish", "effect", "--kind", "publish").Idempotent().Input(`{"title": "offers"}`)).Create()
		makeTask(namespace, "dishonest").Verify().Steps(
			agentStep("publish", "once-effect", "--kind", "publish").Idempotent().Input(`{"title": "offers"}`)).Create()
		makeTask(namespace, "sent").Verify().Steps(
			ledgerStep("publish", "/effects", `{"title": "offers"}`).Idempotent()).Create()
	})

	It("succeeds where a step that runs twice changes the world once", func() {
		for _, name := range []string{"honest", "sent"} {
			record := recordOf(awaitEnd(namespace, name, v1alpha1.TaskSucceeded), "publish")
			effect := book.expectOneEffect(record.IdempotencyKey)
			Expect(effect.Performed).To(BeEquivalentTo(1))
			Expect(effect.Count).To(BeEquivalentTo(2), "it was asked for by both runs of task %s", name)
			var roles []v1alpha1.Role
			for _, action := range record.Actions {
				roles = append(roles, action.Role)
				Expect(action.Phase).To(Equal(v1alpha1.StepSucceeded))
			}
			Expect(roles).To(ConsistOf(v1alpha1.RoleObserve, v1alpha1.RoleAgain, v1alpha1.RoleObserveAgain))
		}
	})

	It("fails where it changes the world twice, and says how", func() {
		task := awaitEnd(namespace, "dishonest", v1alpha1.TaskFailed)
		record := recordOf(task, "publish")
		Expect(record.Reason).To(Equal(v1alpha1.ReasonNotIdempotent))
		Expect(record.Message).To(And(
			ContainSubstring("run a second time with the same key, it changed the world again"),
			ContainSubstring("at .effects[0].performed: 1, then 2")))
		Expect(book.effects("key", record.IdempotencyKey)).To(HaveLen(2))
		Expect(message(task)).To(ContainSubstring("NotIdempotent"))
	})
})
