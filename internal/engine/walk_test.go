// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
)

// walk lets a cluster have its troubles for so many turns.
func (c *cluster) walk(turns int) {
	for range turns {
		c.trouble()
		o := c.operators[c.IntN(len(c.operators))]
		o.step()
		if o.idle() && c.IntN(4) == 0 {
			wait := min(o.requeue, 10*time.Second)
			if c.IntN(16) == 0 {
				wait = o.requeue
			}
			c.now = c.now.Add(wait + time.Duration(c.IntN(1000))*time.Microsecond)
		}
		if c.task.Status.Phase.Finished() && c.IntN(12) == 0 || len(c.problems) > 0 {
			return
		}
	}
}

// trouble lets one thing happen that is not an operator's doing, or nothing.
func (c *cluster) trouble() {
	o := c.operators[c.IntN(len(c.operators))]
	switch c.IntN(32) {
	case 0:
		c.edit()
	case 1:
		c.now = c.now.Add(time.Duration(c.IntN(90)) * time.Second)
	case 2:
		c.note("operator %d is killed", slices.Index(c.operators, o))
		o.restart()
	case 3:
		o.paused = c.IntN(40)
	case 4:
		c.outsiders()
	case 5:
		c.loseNode()
	case 6, 7:
		c.collect()
	case 8:
		if record := c.record(); record != nil && record.Phase == v1alpha1.StepUnknown || c.IntN(10) == 0 {
			c.people()
		}
	case 9, 10, 11, 12, 13, 14, 15, 16, 17, 18:
		c.nodes()
	case 19, 20:
		if p := c.running(); c.stormy && p != nil {
			p.cutOff = !p.cutOff || c.IntN(4) > 0
			c.outsiders()
		}
	case 21, 22:
		if record := c.record(); c.stormy && record != nil && record.Phase == v1alpha1.StepUnknown {
			c.people()
		}
	}
}

// running is a program that runs and is not to start twice, or nil.
func (c *cluster) running() *process {
	if record := c.record(); record != nil {
		if p := c.processes[record.PodUID]; p != nil && p.running {
			return p
		}
	}
	return nil
}

// settle, once it is calm, takes every edit back, and says whether the task ends, or
// waits for a person as it should.
func (c *cluster) settle() bool {
	c.task.Spec.Suspend, c.task.Spec.Params = false, c.plan.Params
	steps := c.plan.DeepCopy().Steps
	for i := range c.task.Status.Steps { // a step that started after an edit stays edited
		if record := &c.task.Status.Steps[i]; i >= len(steps) || steps[i].Name != record.Name || stepexec.SpecHash(&steps[i]) != record.SpecHash {
			return true
		}
	}
	c.task.Spec.Steps = steps
	c.task.Generation++
	c.stamp(c.task)
	for _, p := range c.processes {
		p.cutOff = false
	}
	for range 400 {
		if len(c.problems) > 0 || c.rest() {
			return true
		}
		c.goWell()
		for _, o := range c.operators {
			o.step()
			if o.idle() && o.requeue > 0 {
				c.now = c.now.Add(min(o.requeue, 10*time.Second))
			}
			if o.hasty > 20 {
				c.problem("an operator looks again and again, and nothing changes: every %s", o.requeue)
			}
		}
	}
	return false
}

// rest says whether the task has ended, nothing of it is held any more and all is
// answered; or whether it waits for a person and says so.
func (c *cluster) rest() bool {
	for _, o := range c.operators {
		if !o.idle() {
			return false
		}
	}
	stalled := condition(&c.task.Status, v1alpha1.ConditionStalled)
	waits := stalled != nil && stalled.Status == "True" && stalled.ObservedGeneration == c.task.Generation && !c.task.Status.Phase.Finished()
	if waits && c.task.Status.Phase == v1alpha1.TaskUnknown {
		return c.alone
	}
	if waits && stalled.Reason == v1alpha1.ReasonNameConflict {
		return false
	}
	return waits || c.task.Status.Phase.Finished() && !c.leaks()
}

// leaks says whether something is left of an ended task that should not be.
func (c *cluster) leaks() bool {
	for _, pod := range c.pods {
		if stepexec.Held(pod) {
			return true
		}
	}
	for _, job := range c.jobs {
		if len(job.Status.Conditions) == 0 && c.operators[0].owned(job) {
			return true
		}
	}
	return slices.ContainsFunc(c.decisions, func(d *v1alpha1.AgentDecision) bool { return len(c.answers[d.UID]) == 0 })
}

// goWell lets all go on that is under way.
func (c *cluster) goWell() {
	c.collect()
	for _, name := range slices.Sorted(maps.Keys(c.jobs)) {
		job := c.jobs[name]
		if jobSuspended(job) {
			job.Spec.Suspend = new(false)
			c.stamp(job)
		}
		if job.Annotations["stranger"] != "" {
			c.deleteJob(job, false)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.pods)) {
		pod := c.pods[name]
		c.node(c.processes[pod.UID])
		if waits := holdup(pod); waits != nil && pod.Spec.NodeName != "" && c.pods[name] == pod {
			pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses = nil, nil
		}
	}
	open := slices.ContainsFunc(c.decisions, func(d *v1alpha1.AgentDecision) bool { return len(c.answers[d.UID]) == 0 })
	if record := c.record(); record != nil && record.Phase == v1alpha1.StepUnknown && !open {
		c.people()
		if pod := c.pods[record.JobName]; pod != nil && retryDecided(record) {
			c.deletePod(pod, true)
		}
	}
}

// quiet says whether the task comes to rest where nothing happens and no time passes.
func (c *cluster) quiet() bool {
	c.calm = true
	c.operators = c.operators[:1] // there is one leader in the end
	still := 0
	for range 150 {
		version := c.version
		for _, o := range c.operators {
			o.step()
		}
		if still++; version != c.version {
			still = 0
		}
		if still == 12 {
			return true
		}
	}
	return false
}

// audit looks at the whole once all is over.
func (c *cluster) audit() {
	for key, n := range c.effects {
		if n > 1 && !c.atRisk[key] {
			c.problem("the effect of key %s has happened %d times", key, n)
		}
	}
	for _, d := range c.decisions {
		answers := c.answers[d.UID]
		if c.wrong[d.UID] && c.applied[d.UID] {
			c.problem("decision %s was applied, and cannot be: %+v", d.UID, d.Spec)
		}
		if len(answers) > 1 {
			c.problem("decision %s was answered %d times: %v", d.UID, len(answers), answers)
		}
		for _, a := range answers {
			// Of two operators one may refuse it, and one that has not heard of that apply it later.
			told := a.Reason == v1alpha1.ReasonApplied
			if told && !c.applied[d.UID] || !told && c.applied[d.UID] && !c.rivals {
				c.problem("decision %s was applied: %v, and was told %s: %s", d.UID, c.applied[d.UID], a.Reason, a.Message)
			}
		}
	}
}

func TestRandomWalks(t *testing.T) {
	walks := 1000
	if testing.Short() {
		walks = 150
	}
	ends := map[string]int{}
	for seed := range uint64(walks) {
		c := newCluster(rand.New(rand.NewPCG(seed, 1)))
		c.walk(40 + c.IntN(400))
		if !c.quiet() {
			c.problem("it does not come to rest")
		}
		if !c.settle() {
			c.problem("it does not end once all is well: %s, %s", c.task.Status.Phase, records(&c.task.Status))
		}
		c.audit()
		if len(c.problems) > 0 {
			t.Fatalf("seed %d: after %s:\n%s", seed, strings.Join(c.history, "\n"), strings.Join(c.problems, "\n"))
		}
		c.count(ends)
	}
	if testing.Short() {
		return
	}
	for _, what := range []string{
		"Succeeded", "Failed", "Cancelled", "Waiting", "Unknown", "Skipped", "NotIdempotent", "by CheckedDone", "by Reused", "by Decided",
		"once, at the second attempt or later", "unknown, its pod alive", "unknown, its pod dead", "unknown, its pod dies", "checked, its pod alive", "checked, its pod dead",
		"not settled by its check, its pod alive", "not settled by its check, its pod dead", "to be tried again, its pod alive",
	} {
		if ends[what] == 0 {
			t.Errorf("in %d walks nothing is %s; they do not show much: %v", walks, what, ends)
		}
	}
}

// count counts what a walk has come to.
func (c *cluster) count(ends map[string]int) {
	ends[string(c.task.Status.Phase)]++
	for what, times := range c.seen {
		ends[what] += times
	}
	for i := range c.task.Status.Steps {
		r := &c.task.Status.Steps[i]
		switch {
		case r.Phase == v1alpha1.StepSkipped:
			ends["Skipped"]++
		case r.Phase == v1alpha1.StepSucceeded && r.Reason != "":
			ends["by "+r.Reason]++
		case r.Phase == v1alpha1.StepSucceeded && r.Effect == v1alpha1.EffectOnce && r.Attempt > 1:
			ends["once, at the second attempt or later"]++
		case r.Reason == v1alpha1.ReasonNotIdempotent:
			ends["NotIdempotent"]++
		}
	}
}
