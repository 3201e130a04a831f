// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
)

// What a person sees who knows kubectl and has never seen the project.
var _ = Describe("With kubectl", Ordered, func() {
	var namespace string

	BeforeAll(func() {
		namespace = makeNamespace("kubectl")
		makeTask(namespace, "greeting").Steps(
			shellStep("greet", `echo good morning >&2; echo '"hello"'`).Stdout(),
			shellStep("answer", `cat /agenttask/input.json`).Stdout().Input(`"${steps.greet.output}, too"`)).Create()
		kubectl("-n", namespace, "apply", "-f", samples+"/agenttask_failing.yaml")
		kubectl("-n", namespace, "wait", "agenttask/greeting", "--for=condition=Succeeded", "--timeout="+planTimeout.String())
		kubectl("-n", namespace, "wait", "agenttask/failing", "--for=condition=Stalled", "--timeout="+planTimeout.String())
	})

	It("get shows how far tasks are", func() {
		Expect(table("-n", namespace, "get", "agenttasks", "--no-headers=false")).To(And(
			HaveKey("NAME PHASE STEP PROGRESS RETRIES AGE"),
			HaveKey(HavePrefix("failing Failed order 1/3 0 ")),
			HaveKey(HavePrefix("greeting Succeeded answer 2/2 0 "))))
		runID := string(readTask(Default, namespace, "greeting").UID)
		Expect(table("-n", namespace, "get", "agt", "greeting", "-o", "wide")).To(And(
			HaveKey("NAME PHASE STEP PROGRESS RETRIES AGE RUN-ID REASON CHECKPOINT"),
			HaveKey(MatchRegexp(`^greeting Succeeded answer 2/2 0 \S+ `+runID+` Completed \S+$`))))
	})

	It("get jobs, wait and logs read a step's Job like any other", func() {
		done, failed := lastRecord(readTask(Default, namespace, "greeting")).JobName, lastRecord(readTask(Default, namespace, "failing")).JobName
		kubectl("-n", namespace, "wait", "--for=condition=complete", "job/"+done, "--timeout="+answerTimeout.String())
		kubectl("-n", namespace, "wait", "--for=condition=failed", "job/"+failed, "--timeout="+answerTimeout.String())
		Expect(table("-n", namespace, "get", "jobs")).To(And(
			HaveKey(HavePrefix(done+" Complete 1/1 ")), HaveKey(HavePrefix(failed+" Failed 0/1 "))))
		Expect(kubectl("-n", namespace, "logs", "job/"+failed)).To(ContainSubstring("the supplier's catalogue has no such panel"))
		first := readTask(Default, namespace, "greeting").Status.Steps[0].JobName
		Expect(kubectl("-n", namespace, "logs", "job/"+first)).To(ContainSubstring("good morning"))
		Expect(kubectl("-n", namespace, "describe", "job", failed)).To(ContainSubstring("order another one"))
	})

	It("describe tells the story", func() {
		Eventually(func() string { return kubectl("-n", namespace, "describe", "agenttask", "failing") }).Should(And(
			MatchRegexp(`Normal +StepStarted .*step plan started as Job failing-plan-`),
			MatchRegexp(`Normal +StepSucceeded .*step plan succeeded after`),
			MatchRegexp(`Warning +StepFailed .*step order ended as Failed: ExitCode: exited with code 3: the supplier's catalogue`),
			MatchRegexp(`Warning +TaskFailed .*see kubectl logs job/failing-order-`)))
	})

	It("explain teaches", func() {
		steps := kubectl("explain", "agenttask.spec.steps")
		Expect(steps).To(MatchRegexp(`name\s+<string> -required-\n\s+name names the step within the task`))
		for _, field := range []string{"effect", "input", "retry", "run", "startTimeout", "timeout"} {
			Expect(steps).To(MatchRegexp(`(?m)^  `+field+`\s+<`), "field %s", field)
		}
		Expect(kubectl("explain", "agenttask.status.steps.nextAttemptTime")).NotTo(BeEmpty())
	})

	It("a mistake is answered with the mend", func() {
		manifest := strings.ReplaceAll(`
apiVersion: agenttask.dev/v1alpha1
kind: AgentTask
metadata: {name: wrong, namespace: NAMESPACE}
spec:
  steps:
  - name: Find_Order
    comand: [true]
    run: {image: busybox:1.35, command: [find-order]}
`, "NAMESPACE", namespace)
		_, err := tryKubectl(manifest, "apply", "-f", "-")
		Expect(err).To(MatchError(ContainSubstring(`unknown field "spec.steps[0].comand"`)))
		_, err = tryKubectl(strings.Replace(manifest, "    comand: [true]\n", "", 1), "apply", "-f", "-")
		Expect(err).To(MatchError(ContainSubstring("a step's name must be a DNS label")))
	})

	It("the cluster's own roles view, edit and admin are enough", func() {
		for _, role := range []string{"view", "edit", "admin"} {
			kubectl("-n", namespace, "create", "rolebinding", role, "--clusterrole="+role, "--user=e2e-"+role)
		}
		// The controller that aggregates roles may take a moment.
		Eventually(func(g Gomega) {
			g.Expect(allowed(namespace, "e2e-view", "get", "agenttasks.agenttask.dev")).To(BeTrue())
			g.Expect(allowed(namespace, "e2e-edit", "create", "agenttasks.agenttask.dev")).To(BeTrue())
			g.Expect(allowed(namespace, "e2e-admin", "deletecollection", "agenttasks.agenttask.dev")).To(BeTrue())
		}).Should(Succeed())
		for _, verb := range []string{"create", "update", "patch", "delete"} {
			Expect(allowed(namespace, "e2e-view", verb, "agenttasks.agenttask.dev")).To(BeFalse(), verb)
			Expect(allowed(namespace, "e2e-edit", verb, "agenttasks.agenttask.dev")).To(BeTrue(), verb)
		}
		Expect(allowed(namespace, "e2e-edit", "update", "agenttasks.agenttask.dev/status")).To(BeFalse(), "the status is the operator's alone")
		Expect(allowed(namespace, "e2e-nobody", "get", "agenttasks.agenttask.dev")).To(BeFalse())
		Expect(kubectl("-n", namespace, "get", "agenttasks", "--as=e2e-view")).To(ContainSubstring(string(v1alpha1.TaskFailed)))
	})
})

// table runs kubectl and returns the rows it prints, with one space between columns.
func table(args ...string) map[string]bool {
	GinkgoHelper()
	rows := map[string]bool{}
	for line := range strings.Lines(kubectl(args...)) {
		rows[strings.Join(strings.Fields(line), " ")] = true
	}
	return rows
}

// allowed asks the API server whether a user may do something to a resource, or to a
// resource/subresource.
func allowed(namespace, user, verb, resource string) bool {
	resource, subresource, _ := strings.Cut(resource, "/")
	out, _ := tryKubectl("", "auth", "can-i", verb, resource, "--subresource="+subresource, "-n", namespace, "--as="+user) // "no" is an exit code of 1
	return strings.TrimSpace(out) == "yes"
}
