// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/sample"
)

// httpStep sends a request.
func httpStep(name, method, url string) *stepBuilder {
	return &stepBuilder{v1alpha1.Step{
		Name:   name,
		Effect: v1alpha1.EffectNone,
		HTTP:   &v1alpha1.HTTPAction{Method: method, URL: url},
	}}
}

// ledgerStep sends an effect to a resource of the ledger, which notes task and step.
func ledgerStep(name, resource, body string) *stepBuilder {
	return httpStep(name, "POST", fmt.Sprintf("http://ledger%s?task=${urlEncode(task.name)}&step=%s&kind=%s", resource, name, name)).Body(body)
}

func (b *stepBuilder) Once() *stepBuilder {
	b.step.Effect = v1alpha1.EffectOnce
	return b
}

// OnUnknown says what settles an unknown outcome.
func (b *stepBuilder) OnUnknown(how v1alpha1.OnUnknown) *stepBuilder {
	b.step.OnUnknown = how
	return b
}

// CheckLedger has the ledger asked whether the effect of the step's key has happened.
func (b *stepBuilder) CheckLedger() *stepBuilder {
	b.step.OnUnknown = v1alpha1.UnknownCheck
	b.step.Check = &v1alpha1.Check{HTTP: &v1alpha1.HTTPAction{Method: "GET", URL: "http://ledger/effects/lookup?key=${urlEncode(key)}"}}
	return b
}

// Key is the step's own idempotency key.
func (b *stepBuilder) Key(key string) *stepBuilder {
	b.step.IdempotencyKey = key
	return b
}

func (b *stepBuilder) Body(json string) *stepBuilder {
	b.step.HTTP.Body = &apiextensionsv1.JSON{Raw: []byte(json)}
	return b
}

// BareKey sends the key without quotes.
func (b *stepBuilder) BareKey() *stepBuilder {
	b.step.HTTP.KeyHeader = &v1alpha1.KeyHeader{Format: v1alpha1.KeyBare}
	return b
}

func (b *stepBuilder) Header(name, value string) *stepBuilder {
	b.step.HTTP.Headers = append(b.step.HTTP.Headers, v1alpha1.HTTPHeader{Name: name, Value: value})
	return b
}

// SecretHeader takes a header's value from a key of a Secret.
func (b *stepBuilder) SecretHeader(name, secret, key string) *stepBuilder {
	b.step.HTTP.Headers = append(b.step.HTTP.Headers, v1alpha1.HTTPHeader{Name: name, SecretKeyRef: &corev1.SecretKeySelector{
		LocalObjectReference: corev1.LocalObjectReference{Name: secret}, Key: key,
	}})
	return b
}

// Authority trusts the certificates in a key of a ConfigMap.
func (b *stepBuilder) Authority(configMap, key string) *stepBuilder {
	b.step.HTTP.TLS = &v1alpha1.HTTPTLS{CA: &v1alpha1.CASource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{
		LocalObjectReference: corev1.LocalObjectReference{Name: configMap}, Key: key,
	}}}
	return b
}

// Response makes status, body and these headers the output.
func (b *stepBuilder) Response(headers ...string) *stepBuilder {
	b.step.HTTP.Output, b.step.HTTP.OutputHeaders = v1alpha1.HTTPOutputResponse, headers
	return b
}

// RequestTimeout is how long the request may take.
func (b *stepBuilder) RequestTimeout(d time.Duration) *stepBuilder {
	b.step.HTTP.Timeout = &metav1.Duration{Duration: d}
	return b
}

// ledger is the ledger of a namespace, as its administrator sees it.
type ledger string

// start starts the samples' ledger, with further flags.
func (l ledger) start(flags ...string) {
	GinkgoHelper()
	startLedger(string(l))
	if len(flags) == 0 {
		return
	}
	var patch []string
	for _, flag := range flags {
		patch = append(patch, fmt.Sprintf(`{"op": "add", "path": "/spec/template/spec/containers/0/command/-", "value": %q}`, flag))
	}
	kubectl("-n", string(l), "patch", "deployment", "ledger", "--type=json", "-p", "["+strings.Join(patch, ",")+"]")
	kubectl("-n", string(l), "rollout", "status", "deployment/ledger", "--timeout="+rolloutTimeout.String())
}

// ask sends a request with an even number of parameters, names and values.
func (l ledger) ask(verb, path string, params ...string) ([]byte, error) {
	request := clientset.CoreV1().RESTClient().Verb(verb).AbsPath("/api/v1/namespaces", string(l), "services/ledger:http/proxy"+path)
	for i := 0; i < len(params); i += 2 {
		request = request.Param(params[i], params[i+1])
	}
	return request.DoRaw(ctx)
}

// hold has the ledger hold requests with a key before or after their effect, or a program
// that waits for it.
func (l ledger) hold(key, when string) {
	GinkgoHelper()
	_, err := l.ask("POST", "/admin/hold", "key", key, "when", when)
	Expect(err).NotTo(HaveOccurred())
}

// awaitHeld waits until somebody is held.
func (l ledger) awaitHeld(key string) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		raw, err := l.ask("GET", "/admin/holds")
		g.Expect(err).NotTo(HaveOccurred())
		var holds []sample.Hold
		g.Expect(json.Unmarshal(raw, &holds)).To(Succeed())
		g.Expect(holds).To(ContainElement(And(HaveField("Key", key), HaveField("Waiting", BeNumerically(">", 0)))))
	}).WithTimeout(stepTimeout).Should(Succeed())
}

func (l ledger) release(key string) {
	GinkgoHelper()
	_, err := l.ask("POST", "/admin/release", "key", key)
	Expect(err).NotTo(HaveOccurred())
}

// effects are those whose fields have the given values.
func (l ledger) effects(filter ...string) []sample.Entry {
	GinkgoHelper()
	raw, err := l.ask("GET", "/effects", filter...)
	Expect(err).NotTo(HaveOccurred())
	var entries []sample.Entry
	Expect(json.Unmarshal(raw, &entries)).To(Succeed(), "the ledger's answer: %s", raw)
	return entries
}

// expectOneEffect checks that there is one effect with a key, and returns it.
func (l ledger) expectOneEffect(key string) sample.Entry {
	GinkgoHelper()
	effects := l.effects("key", key)
	Expect(effects).To(HaveLen(1), "the effects with key %s", key)
	return effects[0]
}

// awaitPhase waits until a step is in a phase, and returns its record.
func awaitPhase(namespace, name, step string, phase v1alpha1.StepPhase) v1alpha1.StepStatus {
	GinkgoHelper()
	var record v1alpha1.StepStatus
	Eventually(func(g Gomega) {
		record = recordOf(readTask(g, namespace, name), step)
		g.Expect(record.Phase).To(Equal(phase), "step %s of task %s: %s: %s", step, name, record.Reason, record.Message)
	}).WithTimeout(planTimeout).Should(Succeed())
	return record
}

// recordOf is a step's record, empty where the step has not been started.
func recordOf(task *v1alpha1.AgentTask, step string) v1alpha1.StepStatus {
	for _, record := range task.Status.Steps {
		if record.Name == step {
			return record
		}
	}
	return v1alpha1.StepStatus{}
}

// conditionMessage is what a condition says while it is True.
func conditionMessage(task *v1alpha1.AgentTask, kind string) string {
	if c := meta.FindStatusCondition(task.Status.Conditions, kind); c != nil && c.Status == metav1.ConditionTrue {
		return c.Message
	}
	return ""
}
