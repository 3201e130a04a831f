// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package integration_test

import (
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
	"github.com/agenttask-dev/agenttask/test/harness"
)

var _ = Describe("An idempotency key", func() {
	It("is in the program's environment as in the record, and begins readably", func() {
		w := newWorld(nil)
		w.create(w.make("task").RunID("order-123").Step("pay").Once().Obj())
		r := record(w.reaches("task", v1alpha1.TaskSucceeded), "pay")
		Expect(r.IdempotencyKey).To(MatchRegexp(`^order-123\.pay\.[0-9a-f]{64}$`))
		Expect(w.pod("task", "pay", 1, nil).Spec.Containers[0].Env).To(ContainElements(
			corev1.EnvVar{Name: stepexec.EnvKey, Value: r.IdempotencyKey},
			corev1.EnvVar{Name: stepexec.EnvRunID, Value: "order-123"},
			corev1.EnvVar{Name: stepexec.EnvSeed, Value: stepexec.Seed(r.IdempotencyKey)},
		))
	})

	It("tells steps apart by what they do, and not by what is mended without changing that", func() {
		w := newWorld(nil)
		keyOf := func(name string, build func(*harness.Task) *harness.Task) string {
			GinkgoHelper()
			w.create(build(w.make(name).RunID("run").Step("pay").Input(`{"a": 1, "b": 2}`)).Obj())
			return record(w.reaches(name, v1alpha1.TaskSucceeded), "pay").IdempotencyKey
		}
		first := keyOf("first", asItIs)
		Expect(keyOf("order-of-fields", func(t *harness.Task) *harness.Task { return t.Input(`{"b": 2, "a": 1}`) })).To(Equal(first))
		Expect(keyOf("image", func(t *harness.Task) *harness.Task {
			return t.Last(func(s *v1alpha1.Step) { s.Run.Image = "tools.invalid/tools:2" })
		})).To(Equal(first))
		Expect(keyOf("effect", func(t *harness.Task) *harness.Task { return t.Once() })).To(Equal(first))
		Expect(keyOf("input", func(t *harness.Task) *harness.Task { return t.Input(`{"a": 1, "b": 3}`) })).NotTo(Equal(first))
		Expect(keyOf("command", func(t *harness.Task) *harness.Task { return t.Command("pay", "--now") })).NotTo(Equal(first))
	})
})

var _ = Describe("idempotencyKey", func() {
	It("may be made of an earlier step's output, and is the same for each attempt", func() {
		w := newWorld(harness.Plan(map[string][]harness.Behaviour{
			"find": {harness.Succeed(map[string]any{"charge": "ch-7", "n": 2})}, "pay": {harness.TryAgain(0), harness.Succeed("paid")},
		}))
		w.create(w.make("task").Steps("find").Step("pay").Once().RetryFast(1).Key("refund-${steps.find.output.charge}-${steps.find.output.n}").Obj())
		r := record(w.reaches("task", v1alpha1.TaskSucceeded), "pay")
		Expect(r.IdempotencyKey).To(Equal("refund-ch-7-2"))
		started := w.startsOf("pay")
		Expect(started).To(HaveLen(2))
		for _, s := range started {
			Expect(s.Key).To(Equal("refund-ch-7-2"))
		}
	})

	It("names the effect whole, whatever the run is called", func() {
		w := newWorld(nil)
		for _, run := range []string{"one", "two"} {
			w.create(w.make(run).RunID(run).Step("pay").Key("refund-7").Obj())
			Expect(record(w.reaches(run, v1alpha1.TaskSucceeded), "pay").IdempotencyKey).To(Equal("refund-7"))
		}
		Expect(w.pods("one")).To(HaveLen(1))
		Expect(w.pods("two")).To(HaveLen(1), "another task's record is not looked at: the receiver's is")
	})

	It("that was used takes the first step's output, and runs nothing, also no check", func() {
		w := newWorld(harness.Plan(map[string][]harness.Behaviour{"pay": {harness.Succeed(map[string]any{"id": 7})}}))
		w.create(w.make("task").Step("pay").Once().Key("refund-7").
			Step("between").
			Step("again").Once().Key("refund-7").Check("look", v1alpha1.CheckBefore).
			Step("tell").Input(`"${steps.again.output.id} ${steps.again.phase}"`).Obj())
		task := w.reaches("task", v1alpha1.TaskSucceeded)
		r := record(task, "again")
		Expect(r.Phase).To(Equal(v1alpha1.StepSucceeded))
		Expect(r.Reason).To(Equal(v1alpha1.ReasonReused))
		Expect(r.Message).To(Equal("step pay has succeeded under the same idempotencyKey; its output was taken and nothing was run"))
		Expect(r.JobName).To(BeEmpty())
		Expect(r.CompletionTime).NotTo(BeNil())
		Expect(harness.InputOf(w.pod("task", "tell", 1, nil))).To(Equal(`"7 Succeeded"`))
		Expect(task.Status.Progress).To(Equal("4/4"))
		Expect(task.Status.Usage.Attempts).To(BeEquivalentTo(3))
		w.told("task", v1alpha1.EventStepReused, "step again", "step pay has succeeded under the same idempotencyKey")
		Expect(w.kubelet.Starts(w.ns)).To(HaveLen(3))
	})

	It("that was used takes a large output too, by its reference", func() {
		large := strings.Repeat("x", 5000)
		w := newWorld(harness.Plan(map[string][]harness.Behaviour{"pay": {harness.SucceedLarge(map[string]any{"text": large})}, "tell": {harness.Succeed("told")}}))
		w.create(w.make("task").Step("pay").Key("refund-7").Step("again").Key("refund-7").Step("tell").Input(`"${steps.again.output.text}"`).Obj())
		task := w.reaches("task", v1alpha1.TaskSucceeded)
		Expect(record(task, "again").OutputRef).To(And(Not(BeNil()), Equal(record(task, "pay").OutputRef)))
		Expect(harness.InputOf(w.pod("task", "tell", 1, nil))).To(Equal(`"` + large + `"`))
		list := &corev1.ConfigMapList{}
		Expect(cluster.Client.List(ctx, list, client.InNamespace(w.ns), client.MatchingLabels{v1alpha1.LabelManaged: "true"})).To(Succeed())
		Expect(list.Items).To(HaveLen(1))
	})

	It("of a step that was skipped is not used: its effect has not happened", func() {
		w := newWorld(lostOnce())
		w.create(w.make("task").Step("pay").Once().Key("refund-7").Step("again").Key("refund-7").Obj())
		w.decision(w.reaches("task", v1alpha1.TaskUnknown), v1alpha1.DecisionSkip, nil)
		r := record(w.reaches("task", v1alpha1.TaskSucceeded), "again")
		Expect(r.Reason).To(BeEmpty())
		Expect(r.Attempt).To(BeEquivalentTo(1))
	})

	It("of a step that a check or a person found done is used", func() {
		w := newWorld(checking(lostOnce(), done(true, "found")))
		w.create(asking(w.make("checked").Step("pay").Once().Key("refund-7"), answersPlainly).Step("again").Key("refund-7").Obj())
		w.create(w.make("decided").Step("pay").Once().Key("refund-7").Step("again").Key("refund-7").Obj())
		r := record(w.reaches("checked", v1alpha1.TaskSucceeded), "again")
		Expect(r.Reason).To(Equal(v1alpha1.ReasonReused))
		Expect(string(r.Output.Raw)).To(Equal(`"found"`))
		w.decision(w.reaches("decided", v1alpha1.TaskUnknown), v1alpha1.DecisionComplete, func(s *v1alpha1.AgentDecisionSpec) { s.Output = jsonOf(`"by hand"`) })
		r = record(w.reaches("decided", v1alpha1.TaskSucceeded), "again")
		Expect(r.Reason).To(Equal(v1alpha1.ReasonReused))
		Expect(string(r.Output.Raw)).To(Equal(`"by hand"`))
	})

	DescribeTable("that is none fails the step before it runs, and says what a key is", func(key, params, words string) {
		w := newWorld(nil)
		w.create(w.make("task").Params(params).Step("pay").Once().Key(key).Obj())
		task := w.reaches("task", v1alpha1.TaskFailed)
		r := record(task, "pay")
		Expect(r.Reason).To(Equal(v1alpha1.ReasonKeyInvalid))
		Expect(r.Message).To(ContainSubstring(words))
		Expect(condition(task, "Ready").Message).To(ContainSubstring("step pay failed before its first attempt: KeyInvalid"))
		Expect(w.pods("task")).To(BeEmpty())
	},
		Entry("a space", "refund-${params.order}", `{"order": "1 2"}`, `is "refund-1 2", and must be 1 to 255 printable ASCII characters without spaces`),
		Entry("a letter beyond ASCII", "refund-${params.order}", `{"order": "ü"}`, "printable ASCII"),
		Entry("a line break", "refund-${params.order}", `{"order": "1\n2"}`, "printable ASCII"),
		Entry("nothing", "${params.order}", `{"order": ""}`, "must be 1 to 255"),
		Entry("more than 255 characters", "${params.order}", `{"order": "`+strings.Repeat("x", 256)+`"}`, "must be 1 to 255"),
		Entry("what there is not", "refund-${params.other}", `{"order": "1"}`, "idempotencyKey"),
	)

	It("of 255 characters is one", func() {
		w := newWorld(nil)
		w.create(w.make("task").Step("pay").Key(strings.Repeat("k", 255)).Obj())
		w.reaches("task", v1alpha1.TaskSucceeded)
		Expect(harness.KeyOf(&w.pods("task")[0])).To(HaveLen(255))
	})

	It("that refers to a later step is found before anything runs", func() {
		w := newWorld(nil)
		w.create(w.make("task").Step("pay").Key("refund-${steps.tell.output}").Step("tell").Obj())
		Expect(w.waitsFor("task", v1alpha1.ReasonInvalidPlan)).To(And(ContainSubstring("spec.steps[0] (pay)"), ContainSubstring("idempotencyKey")))
		Expect(w.created("jobs")).To(BeEmpty())
	})

	It("that changes once the step has started stops it, and both keys are shown", func() {
		w := newWorld(harness.Plan(map[string][]harness.Behaviour{"pay": {harness.TryAgain(0), harness.Succeed("paid")}}), harness.ManagerOptions{Rand: func() float64 { return 0.999 }})
		w.create(w.make("task").Params(`{"order": "1"}`).Step("pay").Once().Key("refund-${params.order}").Retry(3, 2*time.Second, 2*time.Second).Obj())
		w.stepIs("task", "pay", v1alpha1.StepRetrying, v1alpha1.ReasonRetryRequested)
		w.edit("task", func(s *v1alpha1.AgentTaskSpec) { s.Params = jsonOf(`{"order": "2"}`) })
		Expect(w.waitsFor("task", v1alpha1.ReasonPlanChanged)).To(And(ContainSubstring("its key was refund-1 and would be refund-2"), ContainSubstring("take the change back")))
		Expect(kstatus(w.get("task"))).To(Equal("Failed"))
		Consistently(func() []harness.ContainerStart { return w.startsOf("pay") }).Should(HaveLen(1))
		w.edit("task", func(s *v1alpha1.AgentTaskSpec) { s.Params = jsonOf(`{"order": "1"}`) })
		Expect(attempts(w.reaches("task", v1alpha1.TaskSucceeded))).To(Equal(map[string]int32{"pay": 2}))
	})
})
