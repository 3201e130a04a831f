// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package faults_test

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
	"github.com/agenttask-dev/agenttask/test/harness"
)

// plan is what is run under faults: a task and what its programs do.
type plan struct {
	// name begins the IDs of its cases. The first plan's is empty.
	name    string
	history v1alpha1.JobHistory
	// programs are what becomes of each step's attempts.
	programs map[string][]harness.Behaviour
	// writes are what an undisturbed run writes, in order: the numbers of the cases are
	// theirs.
	writes []string
}

// The steps of every plan, in order. They have mixed effects, hand outputs on, and the
// output of gather is too large for the status.
const (
	look   = "look"   // None
	mark   = "mark"   // Idempotent
	pay    = "pay"    // Once
	gather = "gather" // Idempotent
	tell   = "tell"   // Once
)

// plans are one whose steps all succeed at once and keep their Jobs, and one where a step
// that may repeat and one that may not each ask for another attempt, and no Job stays.
var plans = []*plan{
	{history: v1alpha1.JobHistoryAll, programs: programs(), writes: slices.Concat(
		repeats("look/1"), repeats("mark/1", patched("look/1")), fenced("pay/1", patched("mark/1")),
		repeats("gather/1", patched("pay/1"), let("pay/1"), kept("gather/1")), fenced("tell/1", patched("gather/1")),
		[]string{checkpoint, patched("tell/1"), let("tell/1")},
	)},
	{name: "again", history: v1alpha1.JobHistoryNone, programs: programs(mark, pay), writes: slices.Concat(
		repeats("look/1"), repeats("mark/1", deleted("look/1")), []string{checkpoint, deleted("mark/1")},
		repeats("mark/2"), fenced("pay/1", deleted("mark/2")), []string{checkpoint, deleted("pay/1"), let("pay/1")},
		fenced("pay/2"), repeats("gather/1", deleted("pay/2"), let("pay/2"), kept("gather/1")), fenced("tell/1", deleted("gather/1")),
		[]string{checkpoint, deleted("tell/1"), let("tell/1")},
	)},
}

// What an undisturbed run writes: a checkpoint, which holds the result of the attempt
// before and the intent for the next one; the attempt's Job and pod; and then what is left
// to do about the attempt before.
const checkpoint = "update agenttasks/status task"

func patched(attempt string) string { return "patch jobs/status " + attempt }
func deleted(attempt string) string { return "delete jobs " + attempt }
func kept(attempt string) string    { return "create configmaps " + attempt }

// let is a pod that is let through the fence, or let go.
func let(attempt string) string { return "patch pods " + attempt }

// repeats is an attempt of a step that may repeat.
func repeats(attempt string, then ...string) []string {
	return append([]string{checkpoint, "create jobs " + attempt, "create pods " + attempt}, then...)
}

// fenced is an attempt of a step that may not: when its pod is named in a checkpoint it is
// let through the fence.
func fenced(attempt string, then ...string) []string {
	return append(repeats(attempt, then...), checkpoint, let(attempt))
}

func programs(again ...string) map[string][]harness.Behaviour {
	list := map[string][]harness.Behaviour{
		look:   {harness.Succeed(map[string]any{"order": 7, "charge": "c-1"})},
		mark:   {harness.Succeed(map[string]any{"marked": true})},
		pay:    {harness.Succeed(map[string]any{"receipt": "r-7"})},
		gather: {harness.SucceedLarge(map[string]any{"count": 3, "text": strings.Repeat("a line of text ", 200)})},
		tell:   {harness.Succeed("told")},
	}
	for _, step := range again {
		list[step] = append([]harness.Behaviour{harness.TryAgain(0)}, list[step]...)
	}
	return list
}

// taskName is the task's name in every case.
const taskName = "task"

// task builds the plan's task. Its run ID is the same in every case, so that keys are.
func (p *plan) task(ns string) *v1alpha1.AgentTask {
	task := harness.MakeTask(ns, taskName).RunID("run-7").JobHistory(p.history)
	add := func(step string, effect v1alpha1.Effect, input string) {
		task.Step(step).RetryFast(3).Input(input).Last(func(s *v1alpha1.Step) { s.Effect = effect })
	}
	add(look, v1alpha1.EffectNone, `{}`)
	add(mark, v1alpha1.EffectIdempotent, `{"order": "${steps.look.output.order}"}`)
	add(pay, v1alpha1.EffectOnce, `{"charge": "${steps.look.output.charge}"}`)
	add(gather, v1alpha1.EffectIdempotent, `{"receipt": "${steps.pay.output.receipt}"}`)
	add(tell, v1alpha1.EffectOnce, `{"count": "${steps.gather.output.count}", "receipt": "${steps.pay.output.receipt}"}`)
	return task.Obj()
}

// title names the plan in the report.
func (p *plan) title() string { return cmp.Or(p.name, "plain") }

// behaviour is what becomes of an attempt's pod.
func (p *plan) behaviour(step string, attempt int) harness.Behaviour {
	list := p.programs[step]
	return list[min(attempt, len(list))-1]
}

func (p *plan) script(pod *corev1.Pod) harness.Behaviour {
	return p.behaviour(harness.StepOf(pod), harness.AttemptOf(pod))
}

// effective says whether an attempt's program has its effect: one that asks for another
// attempt has none.
func (p *plan) effective(step string, attempt int) bool {
	return p.behaviour(step, attempt).ExitCode != stepexec.ExitRetry
}

// output is what a step's program returns in the end.
func (p *plan) output(step string) json.RawMessage {
	list := p.programs[step]
	return list[len(list)-1].Result.Output
}
