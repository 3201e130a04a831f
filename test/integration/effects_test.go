// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package integration_test

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
	"github.com/agenttask-dev/agenttask/test/harness"
)

// byRole scripts the pods of a step's own action as main, and those of its others by role.
func byRole(main harness.Script, others map[v1alpha1.Role]harness.Behaviour) harness.Script {
	return func(pod *corev1.Pod) harness.Behaviour {
		if b, ok := others[v1alpha1.Role(pod.Labels[v1alpha1.LabelRole])]; ok {
			return b
		}
		return main(pod)
	}
}

// lostOnce is killed in its first attempt, without a word, and succeeds in any later one.
func lostOnce() harness.Script {
	return harness.Plan(map[string][]harness.Behaviour{"pay": {harness.Kill(), harness.Succeed("paid")}})
}

// done is what a check answers.
func done(yes bool, output any) harness.Behaviour {
	return harness.Succeed(map[string]any{"done": yes, "output": output})
}

func (w *world) decision(task *v1alpha1.AgentTask, kind v1alpha1.DecisionKind, change func(*v1alpha1.AgentDecisionSpec)) *v1alpha1.AgentDecision {
	GinkgoHelper()
	r := record(task, "pay")
	d := &v1alpha1.AgentDecision{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, GenerateName: "decision-"},
		Spec: v1alpha1.AgentDecisionSpec{
			Task: task.Name, TaskUID: string(task.UID), Step: "pay", Attempt: r.Attempt, ActionHash: r.ActionHash,
			Decision: kind, DecidedBy: "somebody", Reason: "looked at the account",
		},
	}
	if change != nil {
		change(&d.Spec)
	}
	w.create(d)
	return d
}

// answer waits for what became of a decision.
func answer(d *v1alpha1.AgentDecision) metav1.Condition {
	GinkgoHelper()
	var found metav1.Condition
	Eventually(func(g Gomega) {
		g.Expect(cluster.Client.Get(ctx, client.ObjectKeyFromObject(d), d)).To(Succeed())
		c := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.ConditionApplied)
		g.Expect(c).NotTo(BeNil())
		found = *c
	}).Should(Succeed())
	return found
}

// expectNothingHeld waits until the fence holds no pod any more.
func (w *world) expectNothingHeld() {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		list := &corev1.PodList{}
		g.Expect(cluster.Client.List(ctx, list, client.InNamespace(w.ns))).To(Succeed())
		for i := range list.Items {
			g.Expect(stepexec.Held(&list.Items[i])).To(BeFalse(), list.Items[i].Name)
		}
	}).Should(Succeed())
}
