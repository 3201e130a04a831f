// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package integration_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/test/harness"
)

// outside is a world that steps change and the observer looks at: how often each key was
// acted upon.
type outside struct {
	mu    sync.Mutex
	count map[string]int
	// honest says that a step acts once for each key.
	honest func(step string) bool
}

// script plays the steps that change it, and the observer. Every step returns its name.
func (o *outside) script(pod *corev1.Pod) harness.Behaviour {
	o.mu.Lock()
	defer o.mu.Unlock()
	key, step := harness.KeyOf(pod), harness.StepOf(pod)
	if role := roleOf(pod); role == v1alpha1.RoleObserve || role == v1alpha1.RoleObserveAgain {
		return harness.Succeed(map[string]any{"effects": o.count[key]})
	}
	if o.count[key] == 0 || !o.honest(step) {
		o.count[key]++
	}
	return harness.Succeed(step)
}

func newOutside(dishonest ...string) *outside {
	return &outside{count: map[string]int{}, honest: func(step string) bool { return !slices.Contains(dishonest, step) }}
}

// rolesOf are the roles in which a step's pods were made, in order.
func (w *world) rolesOf(name, step string) []string {
	GinkgoHelper()
	byName := map[string]string{}
	for _, pod := range w.pods(name) {
		if harness.StepOf(&pod) == step {
			byName[pod.Name] = string(roleOf(&pod))
		}
	}
	var list []string
	for _, pod := range w.created("pods") {
		if role, ok := byName[pod]; ok {
			list = append(list, role)
		}
	}
	return list
}

// playing scripts the parts of a test: main and again are the step's two runs, which both
// have its name.
func playing(parts map[v1alpha1.Role]harness.Behaviour) harness.Script {
	return byRole(harness.Plan(map[string][]harness.Behaviour{"pay": {harness.Succeed("paid")}}), parts)
}

var _ = Describe("A plan that is verified", func() {
	It("runs each step, looks, runs it again with the same key and input, and looks again", func() {
		w := newWorld(newOutside().script)
		w.create(w.make("task").RunID("test").Step("pay").Input(`{"eur": 5}`).Step("tell").Input(`"${steps.pay.output}"`).Verify("observe").Obj())
		task := w.reaches("task", v1alpha1.TaskSucceeded)
		Expect(attempts(task)).To(Equal(map[string]int32{"pay": 1, "tell": 1}))
		for _, step := range []string{"pay", "tell"} {
			Expect(w.rolesOf("task", step)).To(Equal([]string{"", "observe", "again", "observe-again"}))
			r := record(task, step)
			Expect(string(r.Output.Raw)).To(Equal(fmt.Sprintf("%q", step)))
			for _, role := range []v1alpha1.Role{v1alpha1.RoleObserve, v1alpha1.RoleAgain, v1alpha1.RoleObserveAgain} {
				Expect(actionOf(r, role)).To(And(HaveField("Phase", v1alpha1.StepSucceeded), HaveField("IdempotencyKey", r.IdempotencyKey)))
			}
			Expect(string(actionOf(r, v1alpha1.RoleObserve).Output.Raw)).To(Equal(`{"effects":1}`))
			w.told("task", v1alpha1.EventStepVerifying, "step "+step+" succeeded, and is run a second time with the same key")
		}
		again := w.ofRole("task", v1alpha1.RoleAgain)[0]
		Expect(harness.InputOf(&again)).To(MatchJSON(`{"eur": 5}`))
		Expect(harness.InputOf(&w.ofRole("task", v1alpha1.RoleObserve)[0])).To(Equal("{}"))
		Expect(task.Status.Usage.Attempts).To(BeEquivalentTo(2), "tests are no attempts of the plan")
	})

	It("fails at the step that changes the world a second time, with the difference", func() {
		w := newWorld(newOutside("tell").script)
		w.create(w.make("task").Step("pay").Step("tell").Step("last").Verify("observe").Obj())
		task := w.reaches("task", v1alpha1.TaskFailed)
		Expect(record(task, "pay").Phase).To(Equal(v1alpha1.StepSucceeded))
		r := record(task, "tell")
		Expect(r.Reason).To(Equal(v1alpha1.ReasonNotIdempotent))
		Expect(r.Message).To(Equal("run a second time with the same key, it changed the world again; the observer's view differs at .effects: 1, then 2"))
		Expect(record(task, "last")).To(BeNil())
		Expect(condition(task, "Ready").Message).To(ContainSubstring("step tell failed in attempt 1: NotIdempotent: run a second time"))
		w.told("task", v1alpha1.EventStepFailed, "NotIdempotent", ".effects: 1, then 2")
		out, err := cluster.Kubectl(ctx, "-n", w.ns, "get", "agt", "task")
		Expect(err).NotTo(HaveOccurred())
		Expect(out).To(MatchRegexp(`\ntask +Failed +tell +1/3 `))
		out, err = cluster.Kubectl(ctx, "-n", w.ns, "get", "jobs", "-l", "agenttask.dev/task=task,agenttask.dev/step=tell", "-L", "agenttask.dev/role", "--no-headers")
		Expect(err).NotTo(HaveOccurred())
		Expect(out).To(And(MatchRegexp(` observe\n`), MatchRegexp(` again\n`), MatchRegexp(` observe-again\n`)))
	})

	It("fails at a step whose output differs though the world is the same", func() {
		w := newWorld(playing(map[v1alpha1.Role]harness.Behaviour{
			v1alpha1.RoleObserve: harness.Succeed(1), v1alpha1.RoleObserveAgain: harness.Succeed(1), v1alpha1.RoleAgain: harness.Succeed(map[string]any{"id": 8}),
		}))
		w.create(w.make("task").Step("pay").Verify("observe").Obj())
		r := record(w.reaches("task", v1alpha1.TaskFailed), "pay")
		Expect(r.Reason).To(Equal(v1alpha1.ReasonNotIdempotent))
		Expect(r.Message).To(Equal(`run a second time with the same key, its output differs as a whole: "paid", then {"id":8}`))
	})

	It("compares views of more than 2 KiB by their hash", func() {
		view := func(text string) harness.Behaviour { return harness.SucceedLarge(strings.Repeat(text, 3000)) }
		for again, phase := range map[string]v1alpha1.TaskPhase{"x": v1alpha1.TaskSucceeded, "y": v1alpha1.TaskFailed} {
			w := newWorld(playing(map[v1alpha1.Role]harness.Behaviour{
				v1alpha1.RoleObserve: view("x"), v1alpha1.RoleObserveAgain: view(again), v1alpha1.RoleAgain: harness.Succeed("paid"),
			}))
			w.create(w.make("task").Step("pay").Verify("observe").Obj())
			r := record(w.reaches("task", phase), "pay")
			if phase == v1alpha1.TaskFailed {
				Expect(r.Reason).To(Equal(v1alpha1.ReasonNotIdempotent))
				Expect(r.Message).To(ContainSubstring("in a result of more than 2 KiB; see the ConfigMaps that the records name"))
			}
		}
	})

	It("runs steps with effect Once a single time", func() {
		w := newWorld(newOutside("pay").script)
		w.create(w.make("task").Step("look").Effect(v1alpha1.EffectNone).Step("pay").Once().Step("tell").Verify("observe").Obj())
		task := w.reaches("task", v1alpha1.TaskSucceeded)
		Expect(w.rolesOf("task", "look")).To(HaveLen(4), "also a step that only looks must give the same")
		Expect(w.rolesOf("task", "pay")).To(Equal([]string{""}))
		Expect(record(task, "pay").Actions).To(BeEmpty())
		Expect(w.startsOf("pay")).To(HaveLen(1))
	})

	It("does not test what did not run", func() {
		w := newWorld(checking(newOutside().script, done(true, "there")))
		w.create(w.make("task").Step("pay").Key("refund-7").Step("again").Key("refund-7").Step("known").Check("look", v1alpha1.CheckBefore).Verify("observe").Obj())
		task := w.reaches("task", v1alpha1.TaskSucceeded)
		Expect(record(task, "again").Reason).To(Equal(v1alpha1.ReasonReused))
		Expect(record(task, "known").Reason).To(Equal(v1alpha1.ReasonCheckedDone))
		Expect(w.rolesOf("task", "again")).To(BeEmpty())
		Expect(w.rolesOf("task", "known")).To(Equal([]string{"check"}))
	})

	DescribeTable("fails where the test cannot be made, and says which part of it failed and why", func(role v1alpha1.Role, part harness.Behaviour, words string) {
		parts := map[v1alpha1.Role]harness.Behaviour{v1alpha1.RoleObserve: harness.Succeed(1), v1alpha1.RoleObserveAgain: harness.Succeed(1), v1alpha1.RoleAgain: harness.Succeed("paid")}
		parts[role] = part
		w := newWorld(playing(parts))
		w.create(w.make("task").Step("pay").RetryFast(1).Verify("observe").Obj())
		r := record(w.reaches("task", v1alpha1.TaskFailed), "pay")
		Expect(r.Reason).To(Equal(v1alpha1.ReasonVerifyFailed))
		Expect(r.Message).To(ContainSubstring(words))
	},
		Entry("the first look", v1alpha1.RoleObserve, harness.Fail(1, "no access"), "step pay (observe) ended as Failed: ExitCode: no access"),
		Entry("the second run", v1alpha1.RoleAgain, harness.Fail(1, "there is one already"), "step pay (again) ended as Failed: ExitCode: there is one already"),
		Entry("the second look, again and again", v1alpha1.RoleObserveAgain, harness.TryAgain(0), "retry.limit of 1 is reached"),
	)

	It("tries each part of the test again by the step's retry", func() {
		lost := map[v1alpha1.Role]bool{}
		world := newOutside()
		w := newWorld(func(pod *corev1.Pod) harness.Behaviour {
			world.mu.Lock()
			first := roleOf(pod) != "" && !lost[roleOf(pod)]
			lost[roleOf(pod)] = true
			world.mu.Unlock()
			if first {
				return harness.Kill()
			}
			return world.script(pod)
		})
		w.create(w.make("task").Step("pay").RetryFast(1).Verify("observe").Obj())
		r := record(w.reaches("task", v1alpha1.TaskSucceeded), "pay")
		for _, role := range []v1alpha1.Role{v1alpha1.RoleObserve, v1alpha1.RoleAgain, v1alpha1.RoleObserveAgain} {
			Expect(actionOf(r, role).Attempt).To(BeEquivalentTo(2), string(role))
		}
	})

	It("does not test a step that failed", func() {
		w := newWorld(harness.Plan(map[string][]harness.Behaviour{"pay": {harness.Fail(1, "broken")}}))
		w.create(w.make("task").Step("pay").Verify("observe").Obj())
		Expect(record(w.reaches("task", v1alpha1.TaskFailed), "pay").Reason).To(Equal(v1alpha1.ReasonExitCode))
		Expect(w.pods("task")).To(HaveLen(1))
	})

	It("says that it tests while it does, and is stopped by cancel", func() {
		w := newWorld(playing(map[v1alpha1.Role]harness.Behaviour{v1alpha1.RoleObserve: harness.Hang()}))
		w.create(w.make("task").Step("pay").Verify("observe").Obj())
		Expect(w.waitsFor("task", v1alpha1.ReasonVerifying)).To(Equal("step pay is run twice, and what it leaves compared"))
		task := w.get("task")
		Expect(record(task, "pay").Phase).To(Equal(v1alpha1.StepVerifying))
		Expect(task.Status.Progress).To(Equal("0/1"))
		Expect(kstatus(task)).To(Equal("InProgress"))
		w.edit("task", func(s *v1alpha1.AgentTaskSpec) { s.Cancel = true })
		r := record(w.reaches("task", v1alpha1.TaskCancelled), "pay")
		Expect(r.Message).To(ContainSubstring("its test was not made to the end"))
		Eventually(func() []corev1.Pod { return w.ofRole("task", v1alpha1.RoleObserve) }).Should(BeEmpty())
	})

	It("is only a pause longer when the operator dies in the middle of a test", func() {
		world := newOutside()
		w := emptyWorld(world.script)
		for _, at := range []int64{2, 5, 4, 3} {
			faults := harness.NewFaults(harness.Fault{At: at, Kind: harness.DieAfter})
			m := w.operator(harness.ManagerOptions{Name: fmt.Sprintf("dies-%d", at), Faults: faults})
			if at == 2 {
				w.create(w.make("task").Step("pay").Verify("observe").Obj())
			}
			Eventually(faults.Hit()).Should(BeClosed(), func() string { return summary(w.get("task")) })
			Expect(m.Stop()).To(Succeed())
		}
		w.operator(harness.ManagerOptions{Name: "last"})
		w.reaches("task", v1alpha1.TaskSucceeded)
		Expect(w.rolesOf("task", "pay")).To(Equal([]string{"", "observe", "again", "observe-again"}))
	})
})

var _ = Describe("spec.verify of a task that exists", func() {
	DescribeTable("cannot be changed", func(verified bool, change func(*v1alpha1.AgentTaskSpec)) {
		task := taskToChange()
		if verified {
			task.Spec.Verify = harness.MakeTask("", "").Verify("observe").Obj().Spec.Verify
		}
		Expect(cluster.Client.Create(ctx, task)).To(Succeed())
		DeferCleanup(func() { Expect(cluster.Client.Delete(ctx, task)).To(Succeed()) })
		changed := task.DeepCopy()
		change(&changed.Spec)
		Expect(cluster.Client.Update(ctx, changed)).To(MatchError(ContainSubstring("verify is immutable; create another AgentTask")))
	},
		Entry("added", false, func(s *v1alpha1.AgentTaskSpec) {
			s.Verify = harness.MakeTask("", "").Verify("observe").Obj().Spec.Verify
		}),
		Entry("taken away", true, func(s *v1alpha1.AgentTaskSpec) { s.Verify = nil }),
		Entry("changed", true, func(s *v1alpha1.AgentTaskSpec) { s.Verify.Observe.Run.Command = []string{"other"} }),
	)
})
