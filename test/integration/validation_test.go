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

// request is a spec with one step that sends a request, of which more is said.
func request(more string) string {
	fields := map[string]any{"method": "POST", "url": "https://x"}
	Expect(yaml.Unmarshal([]byte("{"+more+"}"), &fields)).To(Succeed())
	doc, err := yaml.Marshal(map[string]any{"steps": []any{map[string]any{"name": "one", "http": fields}}})
	Expect(err).NotTo(HaveOccurred())
	return string(doc)
}

func manyHeaders(n int) string {
	headers := make([]string, n)
	for i := range headers {
		headers[i] = fmt.Sprintf("{name: X-%d, value: x}", i)
	}
	return strings.Join(headers, ", ")
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

	DescribeTable("whose steps do things that do not go together is refused with what is wrong and how to mend it",
		func(spec string, messages ...string) {
			err := refusedCreate(spec)
			Expect(err).To(HaveOccurred())
			for _, message := range messages {
				Expect(err.Error()).To(ContainSubstring(message))
			}
		},
		Entry("a program and a request", step("http: {method: GET, url: 'https://x'}"), "spec.steps[0]", "a step needs exactly one action: give run with image and command, or http with method and url"),
		Entry("onUnknown without effect Once", step("onUnknown: Pause"), "spec.steps[0]", "onUnknown is for effect Once"),
		Entry("onUnknown with effect Idempotent", step("effect: Idempotent, onUnknown: Retry"), "onUnknown is for effect Once"),
		Entry("an unknown onUnknown", step("effect: Once, onUnknown: Guess"), "spec.steps[0].onUnknown", `supported values: "Pause", "Check", "Retry", "Fail"`),
		Entry("onUnknown: Check without a check", step("effect: Once, onUnknown: Check"), "onUnknown: Check needs a check"),
		Entry("a check that would never run", step("effect: Once, check: {run: {image: x, command: [x]}}"), "this check would never run; set onUnknown: Check (with effect Once), or check.when: Before"),
		Entry("a check without an action", step("check: {when: Before}"), "spec.steps[0].check", "a check needs exactly one action"),
		Entry("a check with two", step("check: {when: Before, run: {image: x, command: [x]}, http: {method: GET, url: 'https://x'}}"), "a check needs exactly one action"),
		Entry("an unknown time of a check", step("check: {when: After, run: {image: x, command: [x]}}"), "spec.steps[0].check.when", `supported values: "Unknown", "Before"`),
		Entry("a check's timeout of zero", step("check: {when: Before, timeout: 0s, run: {image: x, command: [x]}}"), "spec.steps[0].check.timeout", "leave it out for the default of 1m"),
		Entry("an expression as a check's image", step("check: {when: Before, run: {image: '${params.x}', command: [x]}}"), "spec.steps[0].check.run.image", "can never choose what runs"),
		Entry("an empty idempotencyKey", step("idempotencyKey: ''"), "spec.steps[0].idempotencyKey", "at least 1 chars long"),
		Entry("an idempotencyKey of more than 1024 characters", step("idempotencyKey: "+strings.Repeat("a", 1025)), "spec.steps[0].idempotencyKey", "Too long"),
		Entry("verify without a mode", alsoWith("verify: {observe: {run: {image: x, command: [x]}}}"), "spec.verify.mode: Required value"),
		Entry("an unknown mode of verify", alsoWith("verify: {mode: RunThrice, observe: {run: {image: x, command: [x]}}}"), "spec.verify.mode", `supported values: "RunTwice"`),
		Entry("verify without an observer", alsoWith("verify: {mode: RunTwice}"), "spec.verify.observe: Required value"),
		Entry("an observer that does nothing", alsoWith("verify: {mode: RunTwice, observe: {input: {}}}"), "spec.verify.observe", "observe needs exactly one action"),
	)

	DescribeTable("with a request that is wrong is refused with what is wrong and how to mend it",
		func(spec string, messages ...string) {
			err := refusedCreate(spec)
			Expect(err).To(HaveOccurred())
			for _, message := range messages {
				Expect(err.Error()).To(ContainSubstring(message))
			}
		},
		Entry("no method", "steps: [{name: one, http: {url: 'https://x'}}]", "spec.steps[0].http.method: Required value"),
		Entry("an unknown method", "steps: [{name: one, http: {method: post, url: 'https://x'}}]", "spec.steps[0].http.method", `supported values: "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"`),
		Entry("no url", "steps: [{name: one, http: {method: GET}}]", "spec.steps[0].http.url: Required value"),
		Entry("a url of another scheme", request("url: 'ftp://x'"), "spec.steps[0].http.url", "url must begin with http:// or https://"),
		Entry("a url whose scheme is an expression", request("url: '${params.url}'"), "url must begin with http:// or https://; what follows may hold expressions"),
		Entry("a url of more than 4096 characters", request("url: 'https://"+strings.Repeat("a", 4096)+"'"), "spec.steps[0].http.url", "Too long"),
		Entry("a header's name with a space", request("headers: [{name: 'X Order', value: x}]"), "spec.steps[0].http.headers[0].name", "should match"),
		Entry("a header's name with a colon", request("headers: [{name: 'X-Order:', value: x}]"), "spec.steps[0].http.headers[0].name", "should match"),
		Entry("a header's name with a line break", request(`headers: [{name: "X\r\nY", value: x}]`), "spec.steps[0].http.headers[0].name", "should match"),
		Entry("a header without a value", request("headers: [{name: X-Order}]"), "spec.steps[0].http.headers[0]", "a header needs a value or a secretKeyRef, and not both"),
		Entry("a header with two", request("headers: [{name: X-Order, value: x, secretKeyRef: {name: s, key: k}}]"), "a header needs a value or a secretKeyRef, and not both"),
		Entry("a header twice", request("headers: [{name: X-Order, value: x}, {name: X-Order, value: y}]"), "spec.steps[0].http.headers[1]: Duplicate value"),
		Entry("a header from a Secret without a key", request("headers: [{name: X-Order, secretKeyRef: {name: s}}]"), "spec.steps[0].http.headers[0].secretKeyRef.key: Required value"),
		Entry("33 headers", request("headers: ["+manyHeaders(33)+"]"), "spec.steps[0].http.headers: Too many: 33"),
		Entry("a success code below 200", request("successCodes: [199]"), "spec.steps[0].http.successCodes[0]", "greater than or equal to 200"),
		Entry("a success code twice", request("successCodes: [201, 201]"), "spec.steps[0].http.successCodes[1]: Duplicate value"),
		Entry("a timeout of zero", request("timeout: 0s"), "spec.steps[0].http.timeout", "leave it out for the default of 30s"),
		Entry("a key header that is none", request("keyHeader: {name: 'Idempotency Key'}"), "spec.steps[0].http.keyHeader.name", "should match"),
		Entry("an unknown format of the key", request("keyHeader: {format: Base64}"), "spec.steps[0].http.keyHeader.format", `supported values: "Quoted", "Bare"`),
		Entry("an unknown output", request("output: Headers"), "spec.steps[0].http.output", `supported values: "Body", "Response"`),
		Entry("outputHeaders of a body", request("outputHeaders: [Location]"), "spec.steps[0].http", "outputHeaders needs output: Response"),
		Entry("a bundle of certificates from nowhere", request("tls: {ca: {}}"), "spec.steps[0].http.tls.ca", "ca needs a configMapKeyRef or a secretKeyRef, and not both"),
		Entry("a bundle from two places", request("tls: {ca: {configMapKeyRef: {name: c, key: k}, secretKeyRef: {name: s, key: k}}}"), "ca needs a configMapKeyRef or a secretKeyRef, and not both"),
		Entry("an unknown field", request("retries: 3"), `unknown field "spec.steps[0].http.retries"`),
		Entry("a check's url of another scheme", step("check: {when: Before, http: {method: GET, url: 'file:///etc'}}"), "spec.steps[0].check.http.url", "url must begin with http:// or https://"),
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
		Entry("a step that must not start twice, with all that belongs to it", step("effect: Once, idempotencyKey: 'pay-${params.order}', onUnknown: Check, check: {when: Before, timeout: 5s, "+
			"run: {image: x, command: [x]}, input: {key: '${key}'}, done: '${result.ok}', output: '${result}'}")),
		Entry("each onUnknown", "steps: [{name: a, effect: Once, onUnknown: Pause, run: {image: x, command: [x]}}, {name: b, effect: Once, onUnknown: Retry, run: {image: x, command: [x]}}, "+
			"{name: c, effect: Once, onUnknown: Fail, run: {image: x, command: [x]}}]"),
		Entry("a check before a step of another effect", step("effect: None, check: {when: Before, http: {method: GET, url: 'http://x'}}")),
		Entry("a request with everything", request("url: 'https://x/${urlEncode(params.order)}', method: PATCH, headers: [{name: A, value: '${key}'}, {name: B, secretKeyRef: {name: s, key: k, optional: true}}], "+
			"body: [1, null, '${params.order}'], successCodes: [200, 404, 599], timeout: 500ms, keyHeader: {name: X-Request-Id, format: Bare}, output: Response, outputHeaders: [Location], "+
			"tls: {ca: {configMapKeyRef: {name: c, key: ca.crt}}}")),
		Entry("a plan that is verified", alsoWith("verify: {mode: RunTwice, observe: {http: {method: GET, url: 'https://x?key=${urlEncode(key)}'}}}")),
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
