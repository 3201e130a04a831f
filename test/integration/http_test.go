// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package integration_test

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
	"github.com/agenttask-dev/agenttask/test/harness"
)

// requestOf is the request that a pod's runner is told to send.
func requestOf(pod *corev1.Pod) *stepexec.HTTPRequest {
	GinkgoHelper()
	request, err := stepexec.DecodeHTTPRequest([]byte(harness.InputOf(pod)))
	Expect(err).NotTo(HaveOccurred(), harness.InputOf(pod))
	return request
}

// answering is a kubelet under which each request succeeds with the same answer.
func answering(answer any) harness.Script {
	return func(*corev1.Pod) harness.Behaviour { return harness.Succeed(answer) }
}

func secretKey(name, key string) *corev1.SecretKeySelector {
	return &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: name}, Key: key}
}

var _ = Describe("A step that sends a request", func() {
	It("is a Job in the runner's own image, which is told the request with its expressions evaluated", func() {
		w := newWorld(answering(map[string]any{"id": 7}))
		w.create(w.make("task").RunID("run").Params(`{"order": "1/2", "eur": 5}`).
			Request("refund", http.MethodPost, "https://pay.example.com/orders/${urlEncode(params.order)}/refunds").
			HTTP(func(h *v1alpha1.HTTPAction) {
				h.Body = jsonOf(`{"amount": "${params.eur}", "note": "order ${params.order}"}`)
				h.Headers = []v1alpha1.HTTPHeader{{Name: "X-Order", Value: "${params.order}"}, {Name: "X-Key", Value: "k=${key}"}}
			}).
			Step("tell").Input(`"${steps.refund.output.id}"`).Obj())
		task := w.reaches("task", v1alpha1.TaskSucceeded)
		r := record(task, "refund")
		pod := w.pod("task", "refund", 1, nil)
		container := pod.Spec.Containers[0]
		Expect(container.Image).To(Equal(harness.RunnerImage))
		Expect(container.Command).To(Equal([]string{stepexec.RunnerPath, "http"}))
		Expect(container.Args).To(BeEmpty())
		Expect(harness.KeyOf(pod)).To(Equal(r.IdempotencyKey))
		Expect(*requestOf(pod)).To(Equal(stepexec.HTTPRequest{
			Method: "POST", URL: "https://pay.example.com/orders/1%2F2/refunds", Body: []byte(`{"amount":5,"note":"order 1/2"}`),
			Headers:   []stepexec.HTTPHeader{{Name: "X-Order", Value: "1/2"}, {Name: "X-Key", Value: "k=" + r.IdempotencyKey}},
			Timeout:   metav1.Duration{Duration: 30 * time.Second},
			KeyHeader: &stepexec.HTTPKeyHeader{},
		}))
		Expect(w.job(r.JobName).Spec.Template.Annotations).To(HaveKeyWithValue(v1alpha1.AnnotationInput, harness.InputOf(pod)))
		Expect(harness.InputOf(w.pod("task", "tell", 1, nil))).To(Equal("7"))
	})

	It("has its secrets in the environment of its container alone", func() {
		const secret = "Bearer very-secret"
		w := newWorld(answering(nil))
		w.create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "payments"}, StringData: map[string]string{"authorization": secret, "ca.crt": "a certificate"}})
		w.create(w.make("task").Request("refund", http.MethodPost, "https://pay.example.com/refunds").HTTP(func(h *v1alpha1.HTTPAction) {
			h.Headers = []v1alpha1.HTTPHeader{{Name: "X-Order", Value: "7"}, {Name: "Authorization", SecretKeyRef: secretKey("payments", "authorization")}}
			h.TLS = &v1alpha1.HTTPTLS{CA: &v1alpha1.CASource{SecretKeyRef: secretKey("payments", "ca.crt")}}
		}).Obj())
		w.reaches("task", v1alpha1.TaskSucceeded)
		pod := w.pod("task", "refund", 1, nil)
		Expect(pod.Spec.Containers[0].Env).To(ContainElements(
			corev1.EnvVar{Name: stepexec.EnvHTTPHeader(1), ValueFrom: &corev1.EnvVarSource{SecretKeyRef: secretKey("payments", "authorization")}},
			corev1.EnvVar{Name: stepexec.EnvHTTPCA, ValueFrom: &corev1.EnvVarSource{SecretKeyRef: secretKey("payments", "ca.crt")}},
		))
		for _, c := range pod.Spec.InitContainers {
			for _, e := range c.Env {
				Expect(e.ValueFrom).To(BeNil(), e.Name)
			}
		}
		request := requestOf(pod)
		Expect(request.Headers).To(Equal([]stepexec.HTTPHeader{{Name: "X-Order", Value: "7"}, {Name: "Authorization", FromEnv: stepexec.EnvHTTPHeader(1)}}))
		Expect(request.CAEnv).To(Equal(stepexec.EnvHTTPCA))
		w.told("task", v1alpha1.EventTaskSucceeded)
		out, err := cluster.Kubectl(ctx, "-n", w.ns, "get", "agenttasks,jobs,pods,configmaps,events", "-o", "yaml")
		Expect(err).NotTo(HaveOccurred())
		Expect(out).To(ContainSubstring("secretKeyRef"))
		Expect(out).NotTo(ContainSubstring("very-secret"))
	})

	It("takes whom to trust from a ConfigMap, too", func() {
		w := newWorld(answering(nil))
		from := &corev1.ConfigMapKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "ca"}, Key: "ca.crt"}
		w.create(w.make("task").Request("look", http.MethodGet, "https://pay.example.com").HTTP(func(h *v1alpha1.HTTPAction) {
			h.TLS = &v1alpha1.HTTPTLS{CA: &v1alpha1.CASource{ConfigMapKeyRef: from}}
		}).Obj())
		w.reaches("task", v1alpha1.TaskSucceeded)
		Expect(w.pod("task", "look", 1, nil).Spec.Containers[0].Env).To(ContainElement(
			corev1.EnvVar{Name: stepexec.EnvHTTPCA, ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: from}}))
	})

	It("tells the runner how to send the key, what is success and what to keep", func() {
		w := newWorld(answering(nil))
		w.create(w.make("task").
			Request("put", http.MethodPut, "https://pay.example.com").HTTP(func(h *v1alpha1.HTTPAction) {
			h.KeyHeader = &v1alpha1.KeyHeader{Name: "X-Request-Id", Format: v1alpha1.KeyBare}
			h.SuccessCodes, h.Output, h.OutputHeaders = []int32{201, 404}, v1alpha1.HTTPOutputResponse, []string{"Location"}
			h.Timeout = &metav1.Duration{Duration: 5 * time.Second}
		}).
			Request("get", http.MethodGet, "https://pay.example.com").Obj())
		w.reaches("task", v1alpha1.TaskSucceeded)
		pod := w.pod("task", "put", 1, nil)
		Expect(*requestOf(pod)).To(Equal(stepexec.HTTPRequest{
			Method: "PUT", URL: "https://pay.example.com", SuccessCodes: []int32{201, 404}, Timeout: metav1.Duration{Duration: 5 * time.Second},
			KeyHeader: &stepexec.HTTPKeyHeader{Name: "X-Request-Id", Bare: true}, Output: v1alpha1.HTTPOutputResponse, OutputHeaders: []string{"Location"},
		}))
		// startTimeout, the request's own, the grace period, and a minute.
		Expect(*pod.Spec.ActiveDeadlineSeconds).To(BeEquivalentTo(600 + 5 + 30 + 60))
		Expect(requestOf(w.pod("task", "get", 1, nil)).KeyHeader).To(BeNil(), "what only looks sends no key")
	})

	It("with a timeout of the step that is less than the request's has that", func() {
		w := newWorld(answering(nil))
		w.create(w.make("task").Request("look", http.MethodGet, "https://pay.example.com").Timeout(2 * time.Second).Obj())
		w.reaches("task", v1alpha1.TaskSucceeded)
		Expect(requestOf(w.pod("task", "look", 1, nil)).Timeout.Duration).To(Equal(2 * time.Second))
	})

	It("that must not be sent twice is fenced as any other, and waits for its answer when it is told to stop", func() {
		w := newWorld(answering(map[string]any{"id": 7}))
		w.create(w.make("task").Request("pay", http.MethodPost, "https://pay.example.com").Once().Obj())
		task := w.reaches("task", v1alpha1.TaskSucceeded)
		expectStartedOnce(w, task)
		Expect(w.pod("task", "pay", 1, nil).Spec.Containers[0].Command).To(Equal([]string{stepexec.RunnerPath, "http", "--once", "--grace=25s"}))
		w.expectNothingHeld()
	})

	It("has a key of its method, URL and body, and not of its headers", func() {
		w := newWorld(answering(nil))
		keyOf := func(name string, change func(*v1alpha1.HTTPAction)) string {
			GinkgoHelper()
			w.create(w.make(name).RunID("run").Request("pay", http.MethodPost, "https://pay.example.com").HTTP(func(h *v1alpha1.HTTPAction) { h.Body = jsonOf(`{"a": 1, "b": 2}`) }).HTTP(change).Obj())
			return record(w.reaches(name, v1alpha1.TaskSucceeded), "pay").IdempotencyKey
		}
		first := keyOf("first", func(*v1alpha1.HTTPAction) {})
		Expect(keyOf("headers", func(h *v1alpha1.HTTPAction) {
			h.Headers, h.SuccessCodes, h.Timeout = []v1alpha1.HTTPHeader{{Name: "A", Value: "b"}}, []int32{200}, &metav1.Duration{Duration: time.Second}
		})).To(Equal(first))
		Expect(keyOf("order", func(h *v1alpha1.HTTPAction) { h.Body = jsonOf(`{"b": 2, "a": 1}`) })).To(Equal(first))
		Expect(keyOf("body", func(h *v1alpha1.HTTPAction) { h.Body = jsonOf(`{"a": 2}`) })).NotTo(Equal(first))
		Expect(keyOf("url", func(h *v1alpha1.HTTPAction) { h.URL += "/" })).NotTo(Equal(first))
		Expect(keyOf("method", func(h *v1alpha1.HTTPAction) { h.Method = http.MethodPut })).NotTo(Equal(first))
	})

	It("may check by a request, and be observed by one", func() {
		w := newWorld(byRole(answering("done"), map[v1alpha1.Role]harness.Behaviour{
			v1alpha1.RoleCheck: harness.Succeed(map[string]any{"status": 404}), v1alpha1.RoleObserve: harness.Succeed(1), v1alpha1.RoleObserveAgain: harness.Succeed(1),
		}))
		w.create(w.make("task").RunID("run").Request("pay", http.MethodPost, "https://pay.example.com").Last(func(s *v1alpha1.Step) {
			s.Check = &v1alpha1.Check{When: v1alpha1.CheckBefore, Done: "${result.status == 200}", HTTP: &v1alpha1.HTTPAction{
				Method: http.MethodGet, URL: "https://pay.example.com/${urlEncode(key)}", SuccessCodes: []int32{200, 404}, Output: v1alpha1.HTTPOutputResponse,
			}}
		}).With(func(task *v1alpha1.AgentTask) {
			task.Spec.Verify = &v1alpha1.Verify{Mode: v1alpha1.VerifyRunTwice, Observe: v1alpha1.Observe{HTTP: &v1alpha1.HTTPAction{Method: http.MethodGet, URL: "https://pay.example.com/?key=${key}"}}}
		}).Obj())
		r := record(w.reaches("task", v1alpha1.TaskSucceeded), "pay")
		look, observe := w.ofRole("task", v1alpha1.RoleCheck)[0], w.ofRole("task", v1alpha1.RoleObserve)[0]
		Expect(requestOf(&look).URL).To(Equal("https://pay.example.com/" + r.IdempotencyKey))
		Expect(requestOf(&observe).URL).To(Equal("https://pay.example.com/?key=" + r.IdempotencyKey))
		again := w.ofRole("task", v1alpha1.RoleAgain)[0]
		Expect(harness.InputOf(&again)).To(Equal(harness.InputOf(&w.ofRole("task", "")[0])), "the very same request")
	})
})

var _ = Describe("What the runner says of a request", func() {
	said := func(outcome stepexec.Outcome, reason, message string, code int) harness.Behaviour {
		return harness.Behaviour{ExitCode: int32(code), Result: &stepexec.Result{Outcome: outcome, Reason: reason, Message: message, ExitCode: code}}
	}

	DescribeTable("is the step's reason", func(b harness.Behaviour, phase v1alpha1.TaskPhase, reason, words string) {
		w := newWorld(func(*corev1.Pod) harness.Behaviour { return b })
		w.create(w.make("task").Request("pay", http.MethodPost, "https://pay.example.com").Once().RetryFast(1).Obj())
		r := record(w.reaches("task", phase), "pay")
		Expect(r.Reason).To(Equal(reason))
		Expect(r.Message).To(ContainSubstring(words))
	},
		Entry("a key that was used with another payload", said(stepexec.OutcomeFailed, v1alpha1.ReasonKeyReused, "pay.example.com has seen the key with another payload (422)", 1),
			v1alpha1.TaskFailed, v1alpha1.ReasonKeyReused, "another payload"),
		Entry("a request that is in flight, for too long", said(stepexec.OutcomeRetry, v1alpha1.ReasonHTTPStatus, "409 Conflict: in flight", stepexec.ExitRetry),
			v1alpha1.TaskFailed, v1alpha1.ReasonHTTPStatus, "in flight; no retry left: retry.limit of 1 is reached"),
		Entry("an answer that does not tell", said(stepexec.OutcomeInterrupted, v1alpha1.ReasonHTTPStatus, "502 Bad Gateway", 1),
			v1alpha1.TaskUnknown, v1alpha1.ReasonHTTPStatus, "502 Bad Gateway"),
		Entry("no answer", said(stepexec.OutcomeTimeout, v1alpha1.ReasonTimeout, "no answer within 30s", 1),
			v1alpha1.TaskUnknown, v1alpha1.ReasonTimeout, "no answer within 30s"),
		Entry("a connection that broke", said(stepexec.OutcomeInterrupted, v1alpha1.ReasonConnection, "the connection was reset", 1),
			v1alpha1.TaskUnknown, v1alpha1.ReasonConnection, "reset"),
	)

	It("may be that it was never sent, which is tried again also where it must not be sent twice", func() {
		refused := said(stepexec.OutcomeRetry, v1alpha1.ReasonConnection, "connection refused", stepexec.ExitRetry)
		w := newWorld(harness.Plan(map[string][]harness.Behaviour{"pay": {refused, harness.Succeed("paid")}}))
		w.create(w.make("task").Request("pay", http.MethodPost, "https://pay.example.com").Once().RetryFast(1).Obj())
		Expect(attempts(w.reaches("task", v1alpha1.TaskSucceeded))).To(Equal(map[string]int32{"pay": 2}))
	})
})

var _ = Describe("A plan with a request that is wrong", func() {
	DescribeTable("is not begun, and the task says what is wrong with it", func(build func(*harness.Task) *harness.Task, words ...string) {
		w := newWorld(nil)
		w.create(build(w.make("task").Steps("find").Request("pay", http.MethodPost, "https://pay.example.com")).Obj())
		Expect(w.waitsFor("task", v1alpha1.ReasonInvalidPlan)).To(containsAll(words))
		Expect(kstatus(w.get("task"))).To(Equal("Failed"))
		Expect(w.created("jobs")).To(BeEmpty())
	},
		Entry("a body that a GET has not", func(t *harness.Task) *harness.Task {
			return t.HTTP(func(h *v1alpha1.HTTPAction) { h.Method, h.Body = http.MethodGet, jsonOf(`{}`) })
		}, "spec.steps[1] (pay)", "http.body: a GET request has none; put it into the url"),
		Entry("an input", func(t *harness.Task) *harness.Task { return t.Input(`{}`) }, "input is for run", "http.body"),
		Entry("a later step in its URL", func(t *harness.Task) *harness.Task {
			return t.HTTP(func(h *v1alpha1.HTTPAction) { h.URL += "/${steps.tell.output}" }).Step("tell")
		}, "http.url", "tell"),
		Entry("the key in its URL, of which the key is made", func(t *harness.Task) *harness.Task {
			return t.HTTP(func(h *v1alpha1.HTTPAction) { h.URL += "/${key}" })
		}, "http.url", "key"),
		Entry("an expression that is none in a header", func(t *harness.Task) *harness.Task {
			return t.HTTP(func(h *v1alpha1.HTTPAction) { h.Headers = []v1alpha1.HTTPHeader{{Name: "A", Value: "${1 +}"}} })
		}, "http.headers[0].value"),
		Entry("a check's body that a GET has not", func(t *harness.Task) *harness.Task {
			return t.Last(func(s *v1alpha1.Step) {
				s.Check = &v1alpha1.Check{When: v1alpha1.CheckBefore, HTTP: &v1alpha1.HTTPAction{Method: http.MethodGet, URL: "https://x", Body: jsonOf(`{}`)}}
			})
		}, "check.http.body: a GET request has none"),
		Entry("an observer that reads a step", func(t *harness.Task) *harness.Task {
			return t.With(func(task *v1alpha1.AgentTask) {
				task.Spec.Verify = &v1alpha1.Verify{Mode: v1alpha1.VerifyRunTwice, Observe: v1alpha1.Observe{HTTP: &v1alpha1.HTTPAction{Method: http.MethodGet, URL: "https://x/${steps.find.output}"}}}
			})
		}, "spec.verify.observe.http.url"),
		Entry("effect Once on a node that the plan names", func(t *harness.Task) *harness.Task {
			return t.Once().PodTemplate(corev1.PodTemplateSpec{Spec: corev1.PodSpec{NodeName: "node-1"}})
		}, "effect Once cannot go with podTemplate.spec.nodeName", "use nodeSelector"),
	)

	DescribeTable("only when its values are known fails before it is sent, without telling them", func(order string, change func(*v1alpha1.HTTPAction), words string) {
		w := newWorld(answering(map[string]any{"order": order}))
		w.create(w.make("task").Steps("find").Request("pay", http.MethodPost, "https://pay.example.com").HTTP(change).Obj())
		task := w.reaches("task", v1alpha1.TaskFailed)
		r := record(task, "pay")
		Expect(r.Reason).To(Equal(v1alpha1.ReasonInputInvalid))
		Expect(r.Message).To(And(ContainSubstring(words), Not(ContainSubstring(order))))
		Expect(r.Attempt).To(BeZero())
		Expect(w.pods("task")).To(HaveLen(1))
	},
		Entry("a space in the URL", "one two", func(h *v1alpha1.HTTPAction) { h.URL += "/${steps.find.output.order}" }, "put values into it with urlEncode"),
		Entry("a line break in a header", "one\r\nX-Admin: yes", func(h *v1alpha1.HTTPAction) {
			h.Headers = []v1alpha1.HTTPHeader{{Name: "A", Value: "${steps.find.output.order}"}}
		}, "headers[0]: value holds a control character"),
	)

	It("whose body is too large fails before it is sent", func() {
		w := newWorld(harness.Plan(map[string][]harness.Behaviour{"find": {harness.SucceedLarge(strings.Repeat("x", 131000))}}))
		w.create(w.make("task").Steps("find").Request("pay", http.MethodPost, "https://pay.example.com").HTTP(func(h *v1alpha1.HTTPAction) {
			h.Body = jsonOf(fmt.Sprintf(`["${steps.find.output}", %q]`, strings.Repeat("y", 1000)))
		}).Obj())
		r := record(w.reaches("task", v1alpha1.TaskFailed), "pay")
		Expect(r.Reason).To(Equal(v1alpha1.ReasonInputTooLarge))
		Expect(w.pods("task")).To(HaveLen(1))
	})
})
