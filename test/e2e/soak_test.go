// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/sample"
)

const (
	// soakTasks is how many tasks the soak runs unless AGENTTASK_SOAK says otherwise, and
	// soakAtOnce how many of them run at a time.
	soakTasks  = 6
	soakAtOnce = 16
	// An operator lives so long, counted from when its process starts.
	soakLifeMin = 200 * time.Millisecond
	soakLifeMax = 900 * time.Millisecond
	// idleLives is how many lives in a row may end before the operator works, on a slow
	// machine; the next one is then counted from when it works.
	idleLives = 3
	// The soak takes at most soakBase, and soakPerTask more for each task.
	soakBase    = 3 * time.Minute
	soakPerTask = 30 * time.Second

	working = "Starting workers" // what an operator prints when its caches are filled
)

// soakSteps are the steps of each of the soak's tasks. Each has one effect. Those that the
// ledger performs as often as it is asked (raw) show a step that ran twice.
var soakSteps = []struct {
	name   string
	effect v1alpha1.Effect
	raw    bool
}{
	{"look", v1alpha1.EffectNone, true},
	{"reserve", v1alpha1.EffectIdempotent, false},
	{"pay", v1alpha1.EffectOnce, true},
	{"ship", v1alpha1.EffectOnce, true},
	{"book", v1alpha1.EffectIdempotent, false},
	{"charge", v1alpha1.EffectOnce, true},
	{"refund", v1alpha1.EffectIdempotent, false},
	{"tell", v1alpha1.EffectIdempotent, false},
}

// soakTask is a task of those steps: programs and requests in turn, of which charge asks
// for a second attempt before its effect. Each step is given the number that the ledger
// gave to the effect before it.
func soakTask(namespace string, number int) *taskBuilder {
	after := func(step string) string { return fmt.Sprintf(`{"after": "${steps.%s.output.seq}"}`, step) }
	task := makeTask(namespace, fmt.Sprintf("soak-%02d", number)).Steps(
		agentStep("look", "once-effect", "--kind", "look"),
		agentStep("reserve", "effect", "--kind", "reserve").Idempotent().Input(after("look")),
		agentStep("pay", "once-effect", "--kind", "pay").Once().Input(after("reserve")),
		ledgerStep("ship", "/effects/raw", after("pay")).Once(),
		ledgerStep("book", "/effects", after("ship")).Idempotent(),
		agentStep("charge", "once-effect", "--kind", "charge").Once().Retry(1).
			Input(`{"after": "${steps.book.output.seq}", "trouble": {"before": {"exit": 75}}}`),
		ledgerStep("refund", "/refunds", `{"after": "${steps.charge.output.seq}", "charge": "${task.name}", "amount": 5}`).Idempotent(),
		agentStep("tell", "effect", "--kind", "tell").Idempotent().Input(after("refund")),
	)
	for i := range task.task.Spec.Steps {
		Expect([]any{task.task.Spec.Steps[i].Name, task.task.Spec.Steps[i].Effect}).To(Equal([]any{soakSteps[i].name, soakSteps[i].effect}))
	}
	histories := []v1alpha1.JobHistory{v1alpha1.JobHistoryAll, v1alpha1.JobHistoryFailed, v1alpha1.JobHistoryNone}
	task.task.Spec.JobHistory = histories[number%len(histories)]
	return task
}

var _ = Describe("An operator that dies all the time", Ordered, func() {
	It("by SIGKILL every 200 to 900 ms has each effect of many tasks happen once", func() {
		build := buildOperator()
		withoutDeployedOperator()
		namespace := makeNamespace("soak")
		seen := recordHistory(namespace)
		book := ledger(namespace)
		book.start()
		s := &soak{build: build, namespace: namespace, seen: seen, random: seededRandom(), count: soakCount()}
		s.run()

		build.start("that lives")
		for _, name := range s.tasks {
			expectEachStepOnce(seen, awaitEnd(namespace, name, v1alpha1.TaskSucceeded))
		}
		effects := book.effects()
		for _, name := range s.tasks {
			expectEffectOfEachStep(name, effects)
		}
		Expect(effects).To(HaveLen(s.count * len(soakSteps)))
		var requests int64
		for _, e := range effects {
			requests += e.Count
		}
		AddReportEntry("soak", fmt.Sprintf("%d tasks of %d steps in %v: %d kills, %d of them of an operator that worked; %d effects, asked for by %d requests",
			s.count, len(soakSteps), s.took.Round(time.Second), s.kills, s.worked, len(effects), requests), ReportEntryVisibilityAlways)
	})
})

// soakCount is how many tasks the soak runs.
func soakCount() int {
	GinkgoHelper()
	text := os.Getenv("AGENTTASK_SOAK")
	if text == "" {
		return soakTasks
	}
	count, err := strconv.Atoi(text)
	Expect(err).NotTo(HaveOccurred(), "AGENTTASK_SOAK")
	Expect(count).To(BeNumerically(">", 0), "AGENTTASK_SOAK")
	return count
}

// soak runs tasks under an operator that dies again and again.
type soak struct {
	build     operatorBuild
	namespace string
	seen      *history
	random    *rand.Rand
	count     int // of tasks

	tasks         []string
	kills, worked int
	idle          int // lives in a row that ended before the operator worked
	took          time.Duration
}

// run returns when all tasks have ended.
func (s *soak) run() {
	GinkgoHelper()
	started := time.Now()
	limit := soakBase + time.Duration(s.count)*soakPerTask
	for {
		active := s.active()
		for ; len(s.tasks) < s.count && active < soakAtOnce; active++ {
			s.tasks = append(s.tasks, soakTask(s.namespace, len(s.tasks)+1).Create())
		}
		if s.took = time.Since(started); active == 0 {
			return
		}
		Expect(s.took).To(BeNumerically("<", limit), "the tasks that have not ended: %s", progressIn(s.namespace))
		s.live()
	}
}

// active is how many of the tasks have not ended.
func (s *soak) active() int {
	GinkgoHelper()
	active := 0
	for _, name := range s.tasks {
		states := s.seen.statesOf(name)
		if len(states) == 0 || !slices.ContainsFunc([]v1alpha1.TaskPhase{v1alpha1.TaskSucceeded, v1alpha1.TaskFailed, v1alpha1.TaskCancelled},
			func(phase v1alpha1.TaskPhase) bool {
				return strings.HasPrefix(states[len(states)-1], string(phase)+" ")
			}) {
			active++
		}
	}
	return active
}

// live lets an operator live and kills it.
func (s *soak) live() {
	GinkgoHelper()
	s.kills++
	life := soakLifeMin + time.Duration(s.random.Int64N(int64(soakLifeMax-soakLifeMin)))
	operator := s.build.start(fmt.Sprintf("killed %d", s.kills))
	works := func() bool { return strings.Contains(operator.printed(), working) }
	if s.idle == idleLives {
		Eventually(works).WithPolling(10*time.Millisecond).WithTimeout(stepTimeout).Should(BeTrue(), "the operator works")
	}
	select {
	case <-operator.exited:
		Fail("the operator ended by itself")
	case <-time.After(life):
	}
	operator.kill()
	if works() {
		s.worked, s.idle = s.worked+1, 0
	} else {
		s.idle++
	}
}

// expectEachStepOnce checks a task that has succeeded: each attempt that its records count
// had one Job and one pod, and there were no others.
func expectEachStepOnce(h *history, task *v1alpha1.AgentTask) {
	GinkgoHelper()
	Expect(task.Status.Progress).To(Equal("8/8"), "task %s", task.Name)
	attempts := 0
	for i, record := range task.Status.Steps {
		Expect([]any{record.Name, record.Phase}).To(Equal([]any{soakSteps[i].name, v1alpha1.StepSucceeded}))
		attempts += int(record.Attempt)
	}
	Expect(recordOf(task, "charge").Attempt).To(BeNumerically(">=", 2), "it asks for a second attempt")
	Expect(task.Status.Usage.Attempts).To(BeEquivalentTo(attempts))
	Eventually(func() []int {
		jobs, pods := h.made(task)
		return []int{jobs, pods}
	}).Should(Equal([]int{attempts, attempts}), "Jobs and pods ever made for task %s", task.Name)
}

// expectEffectOfEachStep looks through all effects for those of one task: one for each
// step, in the plan's order, each with the number of the one before it.
func expectEffectOfEachStep(task string, all []sample.Entry) {
	GinkgoHelper()
	mine := slices.DeleteFunc(slices.Clone(all), func(e sample.Entry) bool { return e.Task != task })
	var steps, want []string
	for _, e := range mine {
		steps = append(steps, e.Step)
	}
	for _, s := range soakSteps {
		want = append(want, s.name)
	}
	Expect(steps).To(Equal(want), "the effects of task %s", task)
	for i, e := range mine {
		Expect(e.Path == "/effects/raw").To(Equal(soakSteps[i].raw))
		Expect(e.Performed).To(BeEquivalentTo(1), "step %s of task %s", e.Step, task)
		var body struct{ After int64 }
		Expect(json.Unmarshal(e.Body, &body)).To(Succeed())
		if i > 0 {
			Expect(body.After).To(Equal(mine[i-1].Seq), "what step %s of task %s was given", e.Step, task)
		}
	}
}
