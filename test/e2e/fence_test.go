// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/controllers"
	"github.com/agenttask-dev/agenttask/internal/sample"
)

// operatorUser is who the deployed operator is to the API server.
const operatorUser = "system:serviceaccount:" + operatorNamespace + ":agenttask-operator"

// heldStep is a step with effect Once, whose program waits, before its effect or after it,
// until the hold of the step's key is released. A second attempt does not wait.
func heldStep(key, when string) *stepBuilder {
	return agentStep("pay", "once-effect", "--kind", "pay").Once().Key(key).Retry(1).
		Input(fmt.Sprintf(`{"eur": 5, "trouble": {%q: {"hold": %q}}}`, when, key))
}

// What a step with effect Once makes of pods that go away and of hands that reach for the
// fence. The tasks run all at once; each spec then looks at one of them.
var _ = Describe("A step with effect Once", Ordered, func() {
	var namespace string
	var book ledger

	BeforeAll(func() {
		namespace = makeNamespace("once")
		book = ledger(namespace)
		book.start()
		for name, step := range map[string]*stepBuilder{
			"asked":   heldStep("asked", "after"),
			"checked": heldStep("checked", "after").CheckLedger(),
			"undone":  heldStep("undone", "before").CheckLedger(),
			"guarded": heldStep("guarded", "after"),
		} {
			makeTask(namespace, name).Steps(step, shellStep("next", `cat /agenttask/input.json`).Stdout().Input(`"${steps.pay.output}"`)).Create()
		}
	})

	It("whose pod is deleted by force may have taken effect: it waits, says so, and ends as a person decides", func() {
		book.awaitHeld("asked")
		first := awaitRunning(namespace, "asked", "pay")
		deleteByForce(namespace, first.JobName)
		awaitPhase(namespace, "asked", "pay", v1alpha1.StepUnknown)
		Eventually(func(g Gomega) {
			record := recordOf(readTask(g, namespace, "asked"), "pay")
			g.Expect(record.Unknown).NotTo(BeNil())
			g.Expect(record.Unknown.PodDead).To(BeTrue(), "the node has reported that the program ended")
		}).WithTimeout(stepTimeout).Should(Succeed())

		task := readTask(Default, namespace, "asked")
		Expect(task.Status.Phase).To(Equal(v1alpha1.TaskUnknown))
		Expect(conditions(task)).To(ContainElements("Ready=False", "Succeeded=Unknown", "Stalled=True", "Reconciling=False", "OutcomeUnknown=True"))
		story := kubectl("-n", namespace, "describe", "agenttask", "asked")
		Expect(story).To(MatchRegexp(`Warning +StepUnknown .*step pay attempt 1 may have taken effect, and its outcome is not known`), "what happened")
		Expect(strings.Join(strings.Fields(story), " ")).To(And(
			ContainSubstring("its pod was deleted while it ran"),
			ContainSubstring("To run it again may do it twice, to go on without it may leave it undone"),
			ContainSubstring("Look whether the effect with idempotency key asked has happened"),
			ContainSubstring("kubectl -n "+namespace+" create -f -")), "what happened, what is at stake, and what settles it")

		decide(task, "Complete", `{"looked": "up"}`)
		task = awaitEnd(namespace, "asked", v1alpha1.TaskSucceeded)
		record := recordOf(task, "pay")
		Expect(record.Reason).To(Equal(v1alpha1.ReasonDecided))
		Expect(record.Attempt).To(BeEquivalentTo(1))
		Expect(record.Decision.Decision).To(Equal(v1alpha1.DecisionComplete))
		Expect(record.Decision.DecidedBy).To(Equal(whoami()))
		Expect(outputOf(task, "next")).To(MatchJSON(`{"looked": "up"}`))
		Expect(conditions(task)).To(ContainElement("OutcomeUnknown=False"))
		book.expectOneEffect("asked")
		expectApplied(namespace, record.Decision.Name, "True", v1alpha1.ReasonApplied)
		expectGone(namespace, first.JobName)
	})

	It("whose pod is deleted by force after its effect is settled by its check", func() {
		book.awaitHeld("checked")
		deleteByForce(namespace, awaitRunning(namespace, "checked", "pay").JobName)
		task := awaitEnd(namespace, "checked", v1alpha1.TaskSucceeded)
		record := recordOf(task, "pay")
		Expect(record.Reason).To(Equal(v1alpha1.ReasonCheckedDone))
		Expect(record.Attempt).To(BeEquivalentTo(1), "there was no second attempt")
		var output sample.Record
		Expect(json.Unmarshal([]byte(outputOf(task, "next")), &output)).To(Succeed())
		Expect(output).To(Equal(book.expectOneEffect("checked").Record), "the next step got what the ledger has")
		Expect(eventsOf(Default, namespace, "checked")).To(ContainElement(HavePrefix(v1alpha1.EventStepUnknown + ": step pay attempt 1 may have taken effect")))
	})

	It("whose pod is deleted by force before its effect is tried again when its check has said so", func() {
		book.awaitHeld("undone")
		first := awaitRunning(namespace, "undone", "pay")
		deleteByForce(namespace, first.JobName)
		record := recordOf(awaitEnd(namespace, "undone", v1alpha1.TaskSucceeded), "pay")
		Expect(record.Attempt).To(BeEquivalentTo(2))
		Expect(record.IdempotencyKey).To(Equal(first.IdempotencyKey))
		Expect(record.PodUID).NotTo(Equal(first.PodUID))
		Expect(book.expectOneEffect("undone").Key).To(Equal("undone"))
	})

	It("runs in a pod that nobody but the operator lets go of, or changes", func() {
		book.awaitHeld("guarded")
		pod := awaitRunning(namespace, "guarded", "pay").JobName
		for mark, patch := range map[string]string{
			"finalizer agenttask.dev/fence":   `[{"op": "remove", "path": "/metadata/finalizers"}]`,
			"the images of a fenced pod":      `[{"op": "replace", "path": "/spec/containers/0/image", "value": "busybox:1.35"}]`,
			"the label agenttask.dev/managed": `[{"op": "remove", "path": "/metadata/labels/agenttask.dev~1managed"}]`,
			"annotations agenttask.dev/input": `[{"op": "remove", "path": "/metadata/annotations/agenttask.dev~1task-uid"}]`,
		} {
			expectRefused(mark, "-n", namespace, "patch", "pod", pod, "--type=json", "-p", patch)
		}
		expectRefused("may write the status of a Job", "-n", namespace, "patch", "job", pod, "--subresource=status", "--type=merge",
			"-p", `{"status": {"active": 1}}`)
		book.release("guarded")
		awaitEnd(namespace, "guarded", v1alpha1.TaskSucceeded)
		book.expectOneEffect("guarded")
	})

	It("waits behind a gate that an administrator cannot open", func() {
		gated := gatedPod(namespace)
		_, err := tryKubectl(gated, "create", "-f", "-")
		Expect(err).To(MatchError(ContainSubstring("only "+operatorUser+" may make the pod of an AgentTask's step")), "nor make such a pod")
		_, err = tryKubectl(gated, "create", "-f", "-", "--as="+operatorUser)
		Expect(err).NotTo(HaveOccurred())
		open := []string{"-n", namespace, "patch", "pod", "gated", "--type=json", "-p", `[{"op": "remove", "path": "/spec/schedulingGates/0"}]`}
		expectRefused("only "+operatorUser+" may remove the scheduling gate agenttask.dev/fence", open...)
		pod := &corev1.Pod{}
		Expect(api.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "gated"}, pod)).To(Succeed())
		Expect(pod.Spec.SchedulingGates).To(ConsistOf(corev1.PodSchedulingGate{Name: v1alpha1.FenceGate}))
		Expect(pod.Spec.NodeName).To(BeEmpty())

		kubectl("-n", namespace, "delete", "pod", "gated", "--wait=false")
		kubectl("-n", namespace, "patch", "pod", "gated", "--type=json", "-p", `[{"op": "remove", "path": "/metadata/finalizers"}]`, "--as="+operatorUser)
	})

	It("finds the policies installed that guard it, and nothing to warn of", func() {
		for _, kind := range []string{"validatingadmissionpolicies", "validatingadmissionpolicybindings"} {
			names := strings.Fields(kubectl("get", kind, "-o", "jsonpath={.items[*].metadata.name}"))
			for _, policy := range controllers.Policies {
				Expect(names).To(ContainElement(policy), kind)
			}
		}
		events, err := clientset.EventsV1().Events(namespace).List(ctx, metav1.ListOptions{})
		Expect(err).NotTo(HaveOccurred())
		Expect(events.Items).NotTo(BeEmpty())
		for _, event := range events.Items {
			Expect(event.Reason).NotTo(Equal(v1alpha1.EventPoliciesMissing), event.Note)
		}
		Expect(kubectl("-n", operatorNamespace, "logs", "-l", operatorSelector, "--tail=-1")).NotTo(ContainSubstring("are not installed"))
	})
})

// deleteByForce deletes a pod as people do it whose pod hangs. What holds the pod is not
// waited for.
func deleteByForce(namespace, pod string) {
	GinkgoHelper()
	kubectl("-n", namespace, "delete", "pod", pod, "--grace-period=0", "--force", "--wait=false")
}

// expectGone waits until a pod is gone.
func expectGone(namespace, pod string) {
	GinkgoHelper()
	Eventually(func() string {
		return kubectl("-n", namespace, "get", "pod", pod, "--ignore-not-found", "-o", "name")
	}).WithTimeout(stepTimeout).Should(BeEmpty())
}

// expectRefused runs a kubectl command that a policy must refuse.
func expectRefused(why string, command ...string) {
	GinkgoHelper()
	_, err := tryKubectl("", command...)
	Expect(err).To(MatchError(And(ContainSubstring("ValidatingAdmissionPolicy"), ContainSubstring(why))))
}

var settlingCommand = regexp.MustCompile(`echo '.*'.* \| kubectl -n \S+ create -f -`)

// decide settles an unknown outcome by the command that the task itself gives, the choice,
// an output and the reason filled in.
func decide(task *v1alpha1.AgentTask, decision, output string) {
	GinkgoHelper()
	command := settlingCommand.FindString(conditionMessage(task, v1alpha1.ConditionOutcomeUnknown))
	Expect(command).NotTo(BeEmpty(), "the command in condition OutcomeUnknown")
	out, err := exec.Command("sh", "-c", command).CombinedOutput()
	Expect(err).To(HaveOccurred(), "as it stands it decides nothing: %s", out)
	command = strings.NewReplacer(`"Retry|Complete|Skip|Abort"`, fmt.Sprintf(`%q,"output":%s`, decision, output), "WHY", "looked at the ledger").Replace(command)
	out, err = exec.Command("sh", "-c", command).CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), "%s: %s", command, out)
}

// whoami is who these tests are to the API server.
func whoami() string {
	GinkgoHelper()
	return kubectl("auth", "whoami", "-o", "jsonpath={.status.userInfo.username}")
}

// expectApplied waits for the operator's answer to a decision.
func expectApplied(namespace, decision, status, reason string) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		d := &v1alpha1.AgentDecision{}
		g.Expect(api.Get(ctx, client.ObjectKey{Namespace: namespace, Name: decision}, d)).To(Succeed())
		g.Expect(slices.ContainsFunc(d.Status.Conditions, func(c metav1.Condition) bool {
			return c.Type == v1alpha1.ConditionApplied && string(c.Status) == status && c.Reason == reason
		})).To(BeTrue(), "conditions of AgentDecision %s: %v", decision, d.Status.Conditions)
	}).Should(Succeed())
}

// gatedPod is the manifest of a pod as the operator makes them for steps with effect Once,
// but for the label by which the operator would find it and clear it away.
func gatedPod(namespace string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata:
  name: gated
  namespace: %s
  annotations: {agenttask.dev/task-uid: none, agenttask.dev/task: none}
  finalizers: [agenttask.dev/fence]
spec:
  restartPolicy: Never
  schedulingGates: [{name: agenttask.dev/fence}]
  securityContext: {runAsNonRoot: true, runAsUser: 65532, seccompProfile: {type: RuntimeDefault}}
  containers:
  - name: step
    image: %s
    command: [/bin/true]
    securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
`, namespace, shellImage)
}
