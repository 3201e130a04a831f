// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package integration_test

import (
	"fmt"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
)

// refusedCreate tries to create a task with a spec, as kubectl does, and returns the
// answer. Nothing is kept.
func refusedCreate(spec string) error {
	GinkgoHelper()
	object := map[string]any{}
	Expect(yaml.Unmarshal([]byte(spec), &object)).To(Succeed())
	task := &unstructured.Unstructured{Object: map[string]any{"spec": object}}
	task.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("AgentTask"))
	task.SetNamespace("default")
	task.SetName("validated")
	strict := client.WithFieldValidation(cluster.Client, metav1.FieldValidationStrict)
	return strict.Create(ctx, task, client.DryRunAll)
}

// step is a spec with one step that has more than a name and a run.
func step(more string) string {
	return "steps: [{name: one, run: {image: x, command: [x]}, " + more + "}]"
}

// run is a spec with one step whose run has more than an image and a command.
func run(more string) string {
	return "steps: [{name: one, run: {image: x, command: [x], " + more + "}}]"
}

// alsoWith is a spec with a good step and more.
func alsoWith(more string) string {
	return "{steps: [{name: one, run: {image: x, command: [x]}}], " + more + "}"
}

func manySteps(n int) string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("{name: s%d, run: {image: x, command: [x]}}", i)
	}
	return "steps: [" + strings.Join(names, ", ") + "]"
}

var _ = Describe("A manifest", func() {
	DescribeTable("that is wrong is refused with what is wrong and how to mend it",
		func(spec string, messages ...string) {
			err := refusedCreate(spec)
			Expect(err).To(HaveOccurred())
			for _, message := range messages {
				Expect(err.Error()).To(ContainSubstring(message))
			}
		},
		Entry("no steps at all", "{description: x}", "spec.steps: Required value"),
		Entry("an empty list of steps", "steps: []", "spec.steps", "should have at least 1 items"),
		Entry("more than 500 steps", manySteps(501), "spec.steps: Too many: 501: must have at most 500 items"),
		Entry("two steps of one name", "steps: [{name: one, run: {image: x, command: [x]}}, {name: one, run: {image: x, command: [x]}}]", `spec.steps[1]: Duplicate value: {"name":"one"}`),
		Entry("a step without a name", "steps: [{run: {image: x, command: [x]}}]", "spec.steps[0].name: Required value"),
		Entry("a step without an action", "steps: [{name: one}]", "spec.steps[0]", "a step needs exactly one action: give run with image and command, or http with method and url"),
		Entry("a name with an upper-case letter", "steps: [{name: One, run: {image: x, command: [x]}}]", "spec.steps[0].name", "for example find-order"),
		Entry("a name that ends with a hyphen", "steps: [{name: one-, run: {image: x, command: [x]}}]", "spec.steps[0].name", "a step's name must be a DNS label"),
		Entry("an empty name", "steps: [{name: '', run: {image: x, command: [x]}}]", "a step's name must be a DNS label"),
		Entry("a name of 41 characters", "steps: [{name: "+strings.Repeat("a", 41)+", run: {image: x, command: [x]}}]", "spec.steps[0].name", "Too long"),
		Entry("an unknown effect", step("effect: Twice"), "spec.steps[0].effect", `supported values: "None", "Idempotent"`),
		Entry("an unknown field of a step", step("retries: 3"), `unknown field "spec.steps[0].retries"`),
		Entry("an unknown field of the spec", alsoWith("stepz: []"), `unknown field "spec.stepz"`),

		Entry("no image", "steps: [{name: one, run: {command: [x]}}]", "spec.steps[0].run.image: Required value"),
		Entry("an empty image", "steps: [{name: one, run: {image: '', command: [x]}}]", "spec.steps[0].run.image"),
		Entry("an expression as image", "steps: [{name: one, run: {image: '${params.image}', command: [x]}}]", "spec.steps[0].run.image", "a step's output can never choose what runs"),
		Entry("no command", "steps: [{name: one, run: {image: x}}]", "spec.steps[0].run.command: Required value"),
		Entry("an empty command", "steps: [{name: one, run: {image: x, command: []}}]", "spec.steps[0].run.command", "at least 1 items"),
		Entry("65 arguments", run("args: ["+strings.TrimSuffix(strings.Repeat("x,", 65), ",")+"]"), "spec.steps[0].run.args: Too many: 65"),
		Entry("a variable of the operator's", run("env: [{name: AGENTTASK_SEED, value: x}]"), "spec.steps[0].run.env", "AGENTTASK_ are set by the operator"),
		Entry("an expression in a variable", run("env: [{name: A, value: '${params.x}'}]"), "spec.steps[0].run.env", "give the value in the step's input"),
		Entry("a variable twice", run("env: [{name: A, value: x}, {name: A, value: y}]"), "spec.steps[0].run.env[1]: Duplicate value"),
		Entry("a mount on the operator's folder", run("volumeMounts: [{name: v, mountPath: /agenttask}]"), "spec.steps[0].run.volumeMounts", "choose another mountPath"),
		Entry("a mount below the operator's folder", run("volumeMounts: [{name: v, mountPath: /agenttask/bin}]"), "choose another mountPath"),
		Entry("an unknown pull policy", run("imagePullPolicy: Sometimes"), "spec.steps[0].run.imagePullPolicy", "Unsupported value"),
		Entry("an unknown output", run("output: Stderr"), "spec.steps[0].run.output", `supported values: "File", "Stdout"`),

		Entry("a timeout of zero", step("timeout: 0s"), "spec.steps[0].timeout", "leave it out for the default of 1h"),
		Entry("a timeout below zero", step("timeout: -5s"), "spec.steps[0].timeout", "timeout must be a duration such as 90s"),
		Entry("a timeout of more than a year", step("timeout: 8761h"), "at most 8760h"),
		Entry("a timeout that is no duration", step("timeout: soon"), "spec.steps[0].timeout", "timeout must be a duration such as 90s"),
		Entry("a timeout in days", step("timeout: 2d"), "spec.steps[0].timeout", "timeout must be a duration such as 90s"),
		Entry("a timeout without a unit", step("timeout: 90"), "spec.steps[0].timeout"),
		Entry("an empty timeout", step("timeout: ''"), "spec.steps[0].timeout", "timeout must be a duration such as 90s"),
		Entry("a startTimeout of zero", step("startTimeout: 0s"), "spec.steps[0].startTimeout", "leave it out for the default of 10m"),
		Entry("a negative retry limit", step("retry: {limit: -1}"), "spec.steps[0].retry.limit", "greater than or equal to 0"),
		Entry("a retry limit above 100", step("retry: {limit: 101}"), "spec.steps[0].retry.limit", "less than or equal to 100"),
		Entry("a base above its cap", step("retry: {backoff: {base: 10s, cap: 1s}}"), "spec.steps[0].retry.backoff", "base must not be more than cap"),
		Entry("a base of zero", step("retry: {backoff: {base: 0s}}"), "spec.steps[0].retry.backoff.base", "from 1ms to 24h"),
		Entry("a cap that is no duration", step("retry: {backoff: {cap: forever, base: 1s}}"), "spec.steps[0].retry.backoff.cap", "from 1ms to 24h"),
		Entry("a maxElapsed of zero", step("retry: {maxElapsed: 0s}"), "spec.steps[0].retry.maxElapsed", "to retry nothing, set retry.limit to 0"),

		Entry("a runID that is none", alsoWith("runID: Refund_123"), "spec.runID", "for example refund-order-123"),
		Entry("params that are no object", alsoWith("params: [1]"), "spec.params", "must be of type object"),
		Entry("an unknown onFailure", alsoWith("onFailure: Panic"), "spec.onFailure", `supported values: "Stop"`),
		Entry("an unknown jobHistory", alsoWith("jobHistory: Some"), "spec.jobHistory", `supported values: "All", "Failed", "None"`),
		Entry("a deadline of zero", alsoWith("activeDeadlineSeconds: 0"), "spec.activeDeadlineSeconds", "greater than or equal to 1"),
		Entry("a negative TTL", alsoWith("ttlSecondsAfterFinished: -1"), "spec.ttlSecondsAfterFinished", "greater than or equal to 0"),
		Entry("a description of more than 1024 characters", alsoWith("description: "+strings.Repeat("a", 1025)), "spec.description", "Too long"),
		Entry("another container in the pod template", alsoWith("podTemplate: {spec: {containers: [{name: proxy, image: x}]}}"), "spec.podTemplate", "give a sidecar as an init container with restartPolicy Always"),
		Entry("a restart policy in the pod template", alsoWith("podTemplate: {spec: {restartPolicy: OnFailure, containers: [{name: step}]}}"), "spec.podTemplate", "podTemplate.spec.restartPolicy must be Never or left out"),
		Entry("a deadline in the pod template", alsoWith("podTemplate: {spec: {activeDeadlineSeconds: 5, containers: [{name: step}]}}"), "spec.podTemplate", "use steps[].timeout"),
		Entry("a restarting step container", alsoWith("podTemplate: {spec: {containers: [{name: step, restartPolicy: Always}]}}"), "spec.podTemplate", "must not set restartPolicy"),
	)

	DescribeTable("that is right is taken",
		func(spec string) { Expect(refusedCreate(spec)).To(Succeed()) },
		Entry("500 steps", manySteps(500)),
		Entry("a name of 40 characters", "steps: [{name: "+strings.Repeat("a", 40)+", run: {image: x, command: [x]}}]"),
		Entry("any JSON as input", step("input: [1, null, {a: {b: true}}, 'x ${task.name}']")),
		Entry("durations of several units", step("timeout: 1h30m, startTimeout: 1.5s, retry: {limit: 0, maxElapsed: 100ms, backoff: {base: 1ms, cap: 24h}}")),
		Entry("a base without a cap", step("retry: {backoff: {base: 2h}}")),
		Entry("a template with a sidecar and volumes", alsoWith("podTemplate: {metadata: {labels: {a: b}}, spec: {serviceAccountName: x, volumes: [{name: v, emptyDir: {}}], "+
			"initContainers: [{name: proxy, image: x, restartPolicy: Always}]}}")),
		Entry("a template without a spec", alsoWith("podTemplate: {metadata: {labels: {a: b}}}")),
		Entry("everything at once", `{description: x, runID: a.b-1, params: {a: 1}, suspend: true, cancel: false, onFailure: Stop, activeDeadlineSeconds: 1,
			ttlSecondsAfterFinished: 0, jobHistory: None, steps: [{name: one, effect: None, run: {image: x, command: [x], args: ["${not.an.expression}"], workingDir: /,
			env: [{name: A, valueFrom: {secretKeyRef: {name: s, key: k}}}], envFrom: [{configMapRef: {name: c}}], output: Stdout, imagePullPolicy: Never,
			resources: {limits: {memory: 1Gi}}, volumeMounts: [{name: v, mountPath: /agenttask-data}]}}]}`),
	)

	DescribeTable("of a task that exists may not change everything",
		func(change func(*v1alpha1.AgentTaskSpec), message string) {
			task := taskToChange()
			task.Spec.RunID, task.Spec.Cancel = "a-run", true
			Expect(cluster.Client.Create(ctx, task)).To(Succeed())
			DeferCleanup(func() { Expect(cluster.Client.Delete(ctx, task)).To(Succeed()) })
			changed := task.DeepCopy()
			change(&changed.Spec)
			Expect(cluster.Client.Update(ctx, changed)).To(MatchError(ContainSubstring(message)))
		},
		Entry("runID changed", func(s *v1alpha1.AgentTaskSpec) { s.RunID = "another" }, "runID is immutable"),
		Entry("runID removed", func(s *v1alpha1.AgentTaskSpec) { s.RunID = "" }, "runID is immutable"),
		Entry("cancel taken back", func(s *v1alpha1.AgentTaskSpec) { s.Cancel = false }, "cancel cannot be taken back"),
	)

	It("of a task that exists may not get a runID afterwards", func() {
		task := taskToChange()
		Expect(cluster.Client.Create(ctx, task)).To(Succeed())
		DeferCleanup(func() { Expect(cluster.Client.Delete(ctx, task)).To(Succeed()) })
		task.Spec.RunID = "late"
		Expect(cluster.Client.Update(ctx, task)).To(MatchError(ContainSubstring("runID is immutable")))
	})

	It("of the CRD itself can be applied by a plain kubectl apply", func() {
		out, err := cluster.Kubectl(ctx, "apply", "-f", "../../config/crd/bases")
		Expect(err).NotTo(HaveOccurred())
		Expect(out).To(ContainSubstring("agenttasks.agenttask.dev"))
	})
})

// taskToChange is one that no operator looks after: none watches the namespace default.
func taskToChange() *v1alpha1.AgentTask {
	task := &v1alpha1.AgentTask{Spec: v1alpha1.AgentTaskSpec{Steps: []v1alpha1.Step{{Name: "one", Run: &v1alpha1.RunAction{Image: "x", Command: []string{"x"}}}}}}
	task.Namespace, task.GenerateName = "default", "validated-"
	return task
}
