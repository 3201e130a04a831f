// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package integration_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
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

var _ = Describe("A step that must not start twice", func() {
	It("is named in the status before its pod's gate goes, and is let go of in the end", func() {
		w := newWorld(nil)
		w.create(w.make("task").Step("pay").Once().Obj())
		task := w.reaches("task", v1alpha1.TaskSucceeded)
		r := record(task, "pay")
		pod := w.pods("task")[0]
		Expect(r.PodUID).To(Equal(pod.UID))
		Expect(r.JobUID).To(Equal(w.job(r.JobName).UID))
		Expect(pod.Annotations).To(HaveKeyWithValue("karpenter.sh/do-not-disrupt", "true"))
		Expect(pod.Spec.Containers[0].Command).To(ContainElement("--once"))
		w.expectNothingHeld()
		Expect(w.kubelet.Starts(w.ns)).To(HaveLen(1))
	})

	It("is tried again where its program asks for it, and not where it fails", func() {
		w := newWorld(harness.Plan(map[string][]harness.Behaviour{"pay": {harness.TryAgain(0), harness.Fail(3, "no such charge")}}))
		w.create(w.make("task").Step("pay").Once().RetryFast(4).Obj())
		task := w.reaches("task", v1alpha1.TaskFailed)
		Expect(attempts(task)).To(Equal(map[string]int32{"pay": 2}))
		Expect(condition(task, v1alpha1.ConditionOutcomeUnknown).Status).To(Equal(metav1.ConditionFalse))
		w.expectNothingHeld()
	})

	It("goes with its task, whichever way that is deleted", func() {
		for i, how := range []metav1.DeletionPropagation{metav1.DeletePropagationBackground, metav1.DeletePropagationForeground} {
			w := newWorld(harness.Plan(map[string][]harness.Behaviour{"pay": {harness.Hang()}}))
			name := fmt.Sprintf("task%d", i)
			w.create(w.make(name).Step("pay").Once().Obj())
			pod := w.runningPod(name, "pay", 1)
			task := w.get(name)
			Expect(cluster.Client.Delete(ctx, task, client.PropagationPolicy(how))).To(Succeed())
			w.waitGone(pod)
			w.waitGone(task)
		}
	})
})

var _ = Describe("An outcome that is not known", func() {
	It("is a phase of its own, starts nothing, and tells what settles it", func() {
		w := newWorld(lostOnce())
		w.create(w.make("task").Step("pay").Once().Step("tell").Obj())
		task := w.reaches("task", v1alpha1.TaskUnknown)
		r := record(task, "pay")
		Expect(r.Phase).To(Equal(v1alpha1.StepUnknown))
		Expect(r.Unknown.PodDead).To(BeTrue())
		Expect(kstatus(task)).To(Equal("Failed"), "a person must act")
		c := condition(task, v1alpha1.ConditionOutcomeUnknown)
		Expect(c.Status).To(Equal(metav1.ConditionTrue))
		Expect(c.Message).To(And(ContainSubstring("may have taken effect"), ContainSubstring(r.IdempotencyKey), ContainSubstring("kubectl -n "+w.ns+" create -f -")))
		text, err := cluster.Kubectl(ctx, "-n", w.ns, "describe", "agenttask", "task")
		Expect(err).NotTo(HaveOccurred())
		Expect(text).To(And(ContainSubstring(c.Message), ContainSubstring("StepUnknown")))
		Consistently(func() []harness.ContainerStart { return w.kubelet.Starts(w.ns) }).Should(HaveLen(1))

		By("running the command that stands there")
		_, command, found := strings.Cut(c.Message, ": echo ")
		Expect(found).To(BeTrue())
		run := func(line string) (string, error) {
			shell := exec.CommandContext(ctx, "bash", "-c", line)
			shell.Env = append(os.Environ(), "KUBECONFIG="+cluster.Kubeconfig, "PATH="+os.Getenv("KUBEBUILDER_ASSETS")+string(filepath.ListSeparator)+os.Getenv("PATH"))
			out, err := shell.CombinedOutput()
			return string(out), err
		}
		out, err := run("echo " + command)
		Expect(err).To(HaveOccurred(), "which decision it is must be chosen")
		Expect(out).To(ContainSubstring("Unsupported value"))
		out, err = run("echo " + strings.Replace(command, "Retry|Complete|Skip|Abort", "Retry", 1))
		Expect(err).NotTo(HaveOccurred(), out)
		task = w.reaches("task", v1alpha1.TaskSucceeded)
		Expect(record(task, "pay").Decision).To(HaveField("Decision", v1alpha1.DecisionRetry))
		Expect(attempts(task)).To(Equal(map[string]int32{"pay": 2, "tell": 1}))
		w.expectNothingHeld()
	})

	It("is settled by the plan where onUnknown says so", func() {
		w := newWorld(lostOnce())
		w.create(w.make("retry").Step("pay").Once().OnUnknown(v1alpha1.UnknownRetry).RetryFast(2).Obj())
		w.create(w.make("fail").Step("pay").Once().OnUnknown(v1alpha1.UnknownFail).Obj())
		Expect(attempts(w.reaches("retry", v1alpha1.TaskSucceeded))).To(Equal(map[string]int32{"pay": 2}))
		task := w.reaches("fail", v1alpha1.TaskFailed)
		Expect(record(task, "pay").Reason).To(Equal(v1alpha1.ReasonOutcomeUnknown))
		Expect(condition(task, v1alpha1.ConditionOutcomeUnknown).Status).To(Equal(metav1.ConditionTrue), "it stays unknown")
	})

	DescribeTable("is settled by the step's check", func(check harness.Behaviour, phase v1alpha1.TaskPhase, reason string, starts int32) {
		w := newWorld(byRole(lostOnce(), map[v1alpha1.Role]harness.Behaviour{v1alpha1.RoleCheck: check}))
		w.create(w.make("task").Step("pay").Once().OnUnknown(v1alpha1.UnknownCheck).Check("look", "").RetryFast(1).Obj())
		task := w.reaches("task", phase)
		r := record(task, "pay")
		Expect(r.Reason).To(Equal(reason), summary(task))
		Expect(r.Attempt).To(Equal(starts))
		if reason == v1alpha1.ReasonCheckedDone {
			Expect(string(r.Output.Raw)).To(Equal(`"found"`))
		}
		w.expectNothingHeld()
	},
		Entry("that says done", done(true, "found"), v1alpha1.TaskSucceeded, v1alpha1.ReasonCheckedDone, int32(1)),
		Entry("that says not done", done(false, nil), v1alpha1.TaskSucceeded, "", int32(2)),
		Entry("unless that fails", harness.Fail(1, "no access"), v1alpha1.TaskUnknown, v1alpha1.ReasonKilled, int32(1)),
		Entry("unless that answers something else", harness.Succeed("yes"), v1alpha1.TaskUnknown, v1alpha1.ReasonKilled, int32(1)),
	)

	It("is known after all when the node reports late", func() {
		silent := harness.Hang()
		silent.Deaf = true
		w := newWorld(harness.Plan(map[string][]harness.Behaviour{"pay": {silent}}))
		w.create(w.make("task").Step("pay").Once().Obj())
		pod := w.runningPod("task", "pay", 1)
		Expect(cluster.Outsider().CollectPod(ctx, client.ObjectKeyFromObject(pod))).To(Succeed())
		task := w.reaches("task", v1alpha1.TaskUnknown)
		Expect(condition(task, v1alpha1.ConditionOutcomeUnknown).Message).To(ContainSubstring("not provably dead"))
		editPodStatus(pod, func(p *corev1.Pod) {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: stepexec.ContainerStep, State: corev1.ContainerState{
				Terminated: &corev1.ContainerStateTerminated{Message: `{"v":1,"outcome":"Succeeded","output":"paid"}`}}}}
		})
		task = w.reaches("task", v1alpha1.TaskSucceeded)
		Expect(string(record(task, "pay").Output.Raw)).To(Equal(`"paid"`))
		w.expectNothingHeld()
	})
})

var _ = Describe("An AgentDecision", func() {
	DescribeTable("settles an unknown outcome", func(kind v1alpha1.DecisionKind, phase v1alpha1.TaskPhase, step v1alpha1.StepPhase) {
		w := newWorld(lostOnce())
		w.create(w.make("task").Step("pay").Once().Step("tell").Obj())
		d := w.decision(w.reaches("task", v1alpha1.TaskUnknown), kind, func(s *v1alpha1.AgentDecisionSpec) {
			if kind == v1alpha1.DecisionComplete {
				s.Output = &apiextensionsv1.JSON{Raw: []byte(`{"by":"hand"}`)}
			}
		})
		task := w.reaches("task", phase)
		r := record(task, "pay")
		Expect(r.Phase).To(Equal(step))
		Expect(r.Unknown).To(BeNil())
		Expect(r.Decision).To(And(HaveField("DecidedBy", "somebody"), HaveField("Reason", "looked at the account"), HaveField("UID", d.UID), HaveField("Attempt", int32(1))))
		if kind == v1alpha1.DecisionComplete {
			Expect(string(r.Output.Raw)).To(Equal(`{"by":"hand"}`))
		}
		Expect(answer(d).Status).To(Equal(metav1.ConditionTrue))
		Expect(condition(task, v1alpha1.ConditionOutcomeUnknown).Status).To(Equal(metav1.ConditionFalse))
	},
		Entry("by another attempt", v1alpha1.DecisionRetry, v1alpha1.TaskSucceeded, v1alpha1.StepSucceeded),
		Entry("by what somebody saw", v1alpha1.DecisionComplete, v1alpha1.TaskSucceeded, v1alpha1.StepSucceeded),
		Entry("by going on without it", v1alpha1.DecisionSkip, v1alpha1.TaskSucceeded, v1alpha1.StepSkipped),
		Entry("by giving up", v1alpha1.DecisionAbort, v1alpha1.TaskFailed, v1alpha1.StepFailed),
	)

	It("on anything else is refused with a message, and settles nothing", func() {
		w := newWorld(lostOnce())
		w.create(w.make("task").Step("pay").Once().Obj())
		task := w.reaches("task", v1alpha1.TaskUnknown)
		for reason, change := range map[string]func(*v1alpha1.AgentDecisionSpec){
			v1alpha1.ReasonOtherTask:       func(s *v1alpha1.AgentDecisionSpec) { s.TaskUID = "another" },
			v1alpha1.ReasonOtherAction:     func(s *v1alpha1.AgentDecisionSpec) { s.ActionHash = "sha256:another" },
			v1alpha1.ReasonNothingToDecide: func(s *v1alpha1.AgentDecisionSpec) { s.Step = "another" },
			v1alpha1.ReasonBadOutput:       func(s *v1alpha1.AgentDecisionSpec) { s.Output = &apiextensionsv1.JSON{Raw: []byte(`1`)} },
		} {
			got := answer(w.decision(task, v1alpha1.DecisionSkip, change))
			Expect(got.Status).To(Equal(metav1.ConditionFalse), reason)
			Expect(got.Reason).To(Equal(reason), got.Message)
		}
		got := answer(w.decision(task, v1alpha1.DecisionSkip, func(s *v1alpha1.AgentDecisionSpec) { s.Attempt = 7 }))
		Expect(got.Reason).To(Equal(v1alpha1.ReasonOtherAction))
		got = answer(w.decision(task, v1alpha1.DecisionSkip, func(s *v1alpha1.AgentDecisionSpec) { s.Task = "nobody" }))
		Expect(got.Reason).To(Equal(v1alpha1.ReasonOtherTask))
		Expect(w.get("task").Status.Phase).To(Equal(v1alpha1.TaskUnknown))
		Expect(record(w.get("task"), "pay").Decision).To(BeNil())
	})

	It("is the only one on its attempt, and cannot be changed", func() {
		w := newWorld(harness.Plan(map[string][]harness.Behaviour{"pay": {harness.Kill(), harness.Hang()}}))
		w.create(w.make("task").Step("pay").Once().Obj())
		task := w.reaches("task", v1alpha1.TaskUnknown)
		first := w.decision(task, v1alpha1.DecisionRetry, nil)
		Expect(answer(first).Status).To(Equal(metav1.ConditionTrue))
		w.runningPod("task", "pay", 2)
		Expect(answer(w.decision(task, v1alpha1.DecisionSkip, nil)).Reason).To(Equal(v1alpha1.ReasonOtherAction), "it was on attempt 1")
		first.Spec.Decision = v1alpha1.DecisionSkip
		Expect(cluster.Client.Update(ctx, first)).To(MatchError(ContainSubstring("a decision cannot be changed")))
	})

	It("is answered once though the operator dies between the status and the answer", func() {
		w := emptyWorld(lostOnce())
		setup := w.operator(harness.ManagerOptions{Name: "setup"})
		w.create(w.make("task").Step("pay").Once().Obj())
		task := w.reaches("task", v1alpha1.TaskUnknown)
		w.expectNothingHeld()
		Expect(setup.Stop()).To(Succeed())
		d := w.decision(task, v1alpha1.DecisionSkip, nil)
		faults := harness.NewFaults(harness.Fault{At: 1, Kind: harness.DieAfter})
		m := w.operator(harness.ManagerOptions{Name: "first", Faults: faults})
		Eventually(faults.Hit()).Should(BeClosed())
		Expect(m.Stop()).To(Succeed())
		Expect(record(w.get("task"), "pay").Phase).To(Equal(v1alpha1.StepSkipped))
		w.operator(harness.ManagerOptions{Name: "second"})
		Expect(answer(d).Status).To(Equal(metav1.ConditionTrue))
	})
})

var _ = Describe("Check, then act", func() {
	It("runs nothing where the effect has happened", func() {
		w := newWorld(byRole(harness.Plan(nil), map[v1alpha1.Role]harness.Behaviour{v1alpha1.RoleCheck: done(true, "there")}))
		w.create(w.make("task").Step("pay").Check("look", v1alpha1.CheckBefore).Obj())
		task := w.reaches("task", v1alpha1.TaskSucceeded)
		r := record(task, "pay")
		Expect(r.Attempt).To(BeZero())
		Expect(r.Reason).To(Equal(v1alpha1.ReasonCheckedDone))
		Expect(string(r.Output.Raw)).To(Equal(`"there"`))
		Expect(w.pods("task")).To(HaveLen(1))
		Expect(harness.KeyOf(&w.pods("task")[0])).To(Equal(r.IdempotencyKey), "the check looks for the step's own key")
	})

	It("runs the step where it has not, and reads the answer by expressions", func() {
		w := newWorld(byRole(harness.Plan(nil), map[v1alpha1.Role]harness.Behaviour{v1alpha1.RoleCheck: harness.Succeed(map[string]any{"status": 404})}))
		w.create(w.make("task").Step("pay").Once().Check("look", v1alpha1.CheckBefore).Last(func(s *v1alpha1.Step) {
			s.Check.Done = "${result.status == 200}"
		}).Obj())
		Expect(attempts(w.reaches("task", v1alpha1.TaskSucceeded))).To(Equal(map[string]int32{"pay": 1}))
		Expect(w.pods("task")).To(HaveLen(2))
	})

	It("fails where it cannot be known, and runs nothing", func() {
		w := newWorld(byRole(harness.Plan(nil), map[v1alpha1.Role]harness.Behaviour{v1alpha1.RoleCheck: harness.Fail(1, "no access")}))
		w.create(w.make("task").Step("pay").Check("look", v1alpha1.CheckBefore).Obj())
		r := record(w.reaches("task", v1alpha1.TaskFailed), "pay")
		Expect(r.Reason).To(Equal(v1alpha1.ReasonCheckFailed))
		Expect(r.Attempt).To(BeZero())
	})
})

var _ = Describe("An idempotencyKey of one's own", func() {
	It("is what the program gets, and a second step under it takes the first's output", func() {
		w := newWorld(nil)
		w.create(w.make("task").Params(`{"order":"123"}`).
			Step("pay").Key("refund-${params.order}").Input(`{"eur":5}`).
			Step("pay-again").Key("refund-${params.order}").
			Step("tell").Input(`"${steps['pay-again'].output}"`).Obj())
		task := w.reaches("task", v1alpha1.TaskSucceeded)
		first, second := record(task, "pay"), record(task, "pay-again")
		Expect(first.IdempotencyKey).To(Equal("refund-123"))
		Expect(second.Reason).To(Equal(v1alpha1.ReasonReused))
		Expect(second.Output).To(Equal(first.Output))
		Expect(second.Attempt).To(BeZero())
		pods := w.pods("task")
		Expect(pods).To(HaveLen(2))
		Expect(harness.KeyOf(&pods[0])).To(Equal("refund-123"))
	})

	It("that is none fails the step before it runs", func() {
		w := newWorld(nil)
		w.create(w.make("task").Params(`{"order":"1 2"}`).Step("pay").Key("refund-${params.order}").Obj())
		r := record(w.reaches("task", v1alpha1.TaskFailed), "pay")
		Expect(r.Reason).To(Equal(v1alpha1.ReasonKeyInvalid))
		Expect(r.Message).To(ContainSubstring("without spaces"))
		Expect(w.pods("task")).To(BeEmpty())
	})
})

var _ = Describe("spec.verify", func() {
	run := func(seen, again harness.Behaviour) *v1alpha1.StepStatus {
		GinkgoHelper()
		w := newWorld(byRole(harness.Plan(map[string][]harness.Behaviour{"pay": {harness.Succeed("paid")}}), map[v1alpha1.Role]harness.Behaviour{
			v1alpha1.RoleObserve: harness.Succeed(map[string]any{"payments": 1}), v1alpha1.RoleObserveAgain: seen, v1alpha1.RoleAgain: again,
		}))
		w.create(w.make("task").Step("pay").Verify("observe").Obj())
		var r *v1alpha1.StepStatus
		w.eventually("task", func(g Gomega, task *v1alpha1.AgentTask) {
			g.Expect(task.Status.Phase.Finished()).To(BeTrue(), summary(task))
			r = record(task, "pay")
		})
		keys := map[string]bool{}
		for _, pod := range w.pods("task") {
			keys[harness.KeyOf(&pod)] = true
		}
		Expect(keys).To(HaveLen(1), "both runs and both looks have the same key")
		return r
	}

	It("passes a step that leaves the world as it was", func() {
		Expect(run(harness.Succeed(map[string]any{"payments": 1}), harness.Succeed("paid")).Phase).To(Equal(v1alpha1.StepSucceeded))
	})

	It("fails one that changes it again, and says where", func() {
		r := run(harness.Succeed(map[string]any{"payments": 2}), harness.Succeed("paid"))
		Expect(r.Reason).To(Equal(v1alpha1.ReasonNotIdempotent))
		Expect(r.Message).To(ContainSubstring("at .payments: 1, then 2"))
	})

	It("fails one whose output differs", func() {
		r := run(harness.Succeed(map[string]any{"payments": 1}), harness.Succeed("paid again"))
		Expect(r.Reason).To(Equal(v1alpha1.ReasonNotIdempotent))
		Expect(r.Message).To(ContainSubstring(`"paid", then "paid again"`))
	})
})
