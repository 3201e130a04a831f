// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/sample"
)

// What becomes of requests, against a ledger that takes keys only in quotes and fails as
// it is told, and against the API server, which asks for a certificate's and a token's
// trust. The tasks run all at once; each spec then looks at some of them.
var _ = Describe("An http action", Ordered, func() {
	var namespace, token string
	var book ledger

	const (
		disputed   = "refund-order-7" // the key that three tasks use
		retryAfter = 2 * time.Second
		whoamiURL  = "https://kubernetes.default.svc/apis/authentication.k8s.io/v1/selfsubjectreviews"
		whoamiBody = `{"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}`
	)
	refund := func(order string) *stepBuilder {
		return ledgerStep("refund", "/refunds", `{"charge": "`+order+`", "amount": 5}`).Idempotent().Retry(4)
	}

	BeforeAll(func() {
		namespace = makeNamespace("http")
		book = ledger(namespace)
		book.start("--strict-keys")
		book.hold(disputed, "before")
		token = serviceAccountToken(namespace, "agent")
		_, err := clientset.CoreV1().Secrets(namespace).Create(ctx, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: "credentials"},
			StringData: map[string]string{"authorization": "Bearer " + token + "\n"},
		}, metav1.CreateOptions{})
		Expect(err).NotTo(HaveOccurred())
		for name, step := range map[string]*stepBuilder{
			"quoted":      refund("ch_1"),
			"bare":        refund("ch_2").BareKey(),
			"first":       refund("ch_7").Key(disputed).RequestTimeout(planTimeout),
			"unavailable": ledgerStep("pay", "/effects/raw", `5`).Once().Retry(1).Header(sample.FaultHeader, "unavailable; times=1; retry-after=2"),
			"cut-once":    ledgerStep("pay", "/effects/raw", `5`).Once().CheckLedger().Header(sample.FaultHeader, sample.FaultCutAfter),
			"cut-again":   refund("ch_3").Header(sample.FaultHeader, sample.FaultCutAfter).Response("Idempotent-Replayed", "Date"),
			"trusted": httpStep("whoami", "POST", whoamiURL).Body(whoamiBody).
				SecretHeader("Authorization", "credentials", "authorization").Authority("kube-root-ca.crt", "ca.crt"),
			"untrusted": httpStep("whoami", "POST", whoamiURL).Body(whoamiBody).
				SecretHeader("Authorization", "credentials", "authorization").Retry(0),
		} {
			makeTask(namespace, name).Steps(step).Create()
		}
	})

	It("sends the step's key in quotes, as the draft asks", func() {
		task := awaitEnd(namespace, "quoted", v1alpha1.TaskSucceeded)
		key := recordOf(task, "refund").IdempotencyKey
		effect := book.expectOneEffect(key)
		Expect(effect.Count).To(BeEquivalentTo(1))
		Expect(effect.Body).To(MatchJSON(`{"charge": "ch_1", "amount": 5}`))
		var output sample.Record
		Expect(json.Unmarshal([]byte(outputOf(task, "refund")), &output)).To(Succeed())
		Expect(output).To(Equal(effect.Record), "the answer's body is the step's output")
	})

	It("sends it without quotes where it is told to, which this ledger refuses for good", func() {
		record := recordOf(awaitEnd(namespace, "bare", v1alpha1.TaskFailed), "refund")
		Expect(record.Reason).To(Equal(v1alpha1.ReasonHTTPStatus))
		Expect(record.Attempt).To(BeEquivalentTo(1))
		Expect(record.Message).To(And(ContainSubstring("400 Bad Request"), ContainSubstring("Idempotency-Key cannot be read"), ContainSubstring("quotation marks")))
		Expect(book.effects("task", "bare")).To(BeEmpty())
	})

	It("waits while another request with its key is in flight, and then gets that one's answer", func() {
		book.awaitHeld(disputed)
		makeTask(namespace, "second").Steps(refund("ch_7").Key(disputed).Response("Idempotent-Replayed")).Create()
		record := awaitPhase(namespace, "second", "refund", v1alpha1.StepRetrying)
		Expect(record.Reason).To(Equal(v1alpha1.ReasonHTTPStatus))
		Expect(record.Message).To(And(ContainSubstring("409 Conflict"), ContainSubstring("still in flight")))
		book.release(disputed)

		awaitEnd(namespace, "first", v1alpha1.TaskSucceeded)
		second := awaitEnd(namespace, "second", v1alpha1.TaskSucceeded)
		effect := book.expectOneEffect(disputed)
		Expect(effect.Task).To(Equal("first"))
		Expect(effect.Count).To(BeNumerically(">", 2))
		var output struct {
			Status  int
			Headers map[string]string
			Body    sample.Record
		}
		Expect(json.Unmarshal([]byte(outputOf(second, "refund")), &output)).To(Succeed())
		Expect(output.Status).To(Equal(201))
		Expect(output.Headers).To(Equal(map[string]string{"idempotent-replayed": "true"}))
		Expect(output.Body).To(Equal(effect.Record), "the first one's answer")
	})

	It("with a key that was used for something else fails for good", func() {
		Expect(book.effects("key", disputed)).To(HaveLen(1))
		makeTask(namespace, "other").Steps(refund("ch_8").Key(disputed)).Create()
		record := recordOf(awaitEnd(namespace, "other", v1alpha1.TaskFailed), "refund")
		Expect(record.Reason).To(Equal(v1alpha1.ReasonKeyReused))
		Expect(record.Attempt).To(BeEquivalentTo(1))
		Expect(record.Message).To(And(ContainSubstring("422"), ContainSubstring("another payload")))
		Expect(book.effects("task", "other")).To(BeEmpty())
	})

	It("that is turned away with Retry-After is sent again, not before, also with effect Once", func() {
		record := recordOf(awaitEnd(namespace, "unavailable", v1alpha1.TaskSucceeded), "pay")
		Expect(record.Attempt).To(BeEquivalentTo(2))
		Expect(record.AttemptTime.Sub(record.FirstFailureTime.Time)).To(BeNumerically(">=", retryAfter))
		Expect(eventsOf(Default, namespace, "unavailable")).To(ContainElement(And(
			HavePrefix("StepRetrying: step pay attempt 1 of at most 2 ended: HTTPStatus"), ContainSubstring("503 Service Unavailable"))))
		book.expectOneEffect(record.IdempotencyKey)
	})

	It("whose answer is lost is unknown with effect Once, and its check settles it", func() {
		task := awaitEnd(namespace, "cut-once", v1alpha1.TaskSucceeded)
		record := recordOf(task, "pay")
		Expect(record.Reason).To(Equal(v1alpha1.ReasonCheckedDone))
		Expect(record.Attempt).To(BeEquivalentTo(1))
		Expect(eventsOf(Default, namespace, "cut-once")).To(ContainElement(And(
			HavePrefix("StepUnknown: step pay attempt 1 may have taken effect"), ContainSubstring("ConnectionFailed"))))
		var output sample.Record
		Expect(json.Unmarshal([]byte(outputOf(task, "pay")), &output)).To(Succeed())
		Expect(output).To(Equal(book.expectOneEffect(record.IdempotencyKey).Record))
	})

	It("whose answer is lost is sent again with its key where it is idempotent, and gets the first answer", func() {
		task := awaitEnd(namespace, "cut-again", v1alpha1.TaskSucceeded)
		record := recordOf(task, "refund")
		Expect(record.Attempt).To(BeEquivalentTo(2))
		effect := book.expectOneEffect(record.IdempotencyKey)
		Expect(effect.Count).To(BeEquivalentTo(2))
		Expect(outputOf(task, "refund")).To(ContainSubstring(`"idempotent-replayed":"true"`))
	})

	It("is sent with a secret that no object, event or log shows, to a server that it trusts", func() {
		task := awaitEnd(namespace, "trusted", v1alpha1.TaskSucceeded)
		Expect(outputOf(task, "whoami")).To(ContainSubstring("system:serviceaccount:"+namespace+":agent"), "the API server knows whose token it was")
		record := recordOf(awaitEnd(namespace, "untrusted", v1alpha1.TaskFailed), "whoami")
		Expect(record.Reason).To(Equal(v1alpha1.ReasonConnection))
		Expect(record.Message).To(ContainSubstring("certificate"))

		for what, text := range map[string]string{
			"objects":  kubectl("-n", namespace, "get", "agenttasks,jobs,pods,events,configmaps", "-o", "yaml"),
			"logs":     kubectl("-n", namespace, "logs", "-l", v1alpha1.LabelManaged+"=true", "--all-containers", "--prefix", "--tail=-1", "--max-log-requests=50"),
			"operator": kubectl("-n", operatorNamespace, "logs", "-l", operatorSelector, "--tail=-1"),
		} {
			signature := token[strings.LastIndex(token, ".")+1:]
			Expect(strings.Contains(text, signature)).To(BeFalse(), "the token stands in the %s", what)
		}
		Expect(kubectl("-n", namespace, "get", "pods", "-o", "yaml")).To(ContainSubstring("name: credentials"), "they do name the Secret")
	})
})
