// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
)

// walk lets a cluster have its troubles for so many turns.
func (c *cluster) walk(turns int) {
	for range turns {
		switch c.IntN(8) {
		case 0:
			c.edit()
		case 1:
			c.now = c.now.Add(time.Duration(c.IntN(90)) * time.Second)
		case 2:
			if c.IntN(4) == 0 {
				c.restart()
			}
		case 3, 4:
			c.happen()
		}
		d := c.reconcile()
		if c.IntN(3) == 0 {
			c.now = c.now.Add(d.RequeueAfter + time.Duration(c.IntN(1000))*time.Microsecond)
		}
		if c.task.Status.Phase.Finished() && c.IntN(6) == 0 || len(c.problems) > 0 {
			return
		}
	}
}

// settle ends all troubles and takes every edit back, and says whether the task ends.
func (c *cluster) settle() bool {
	c.calm = true
	c.task.Spec.Suspend = false
	c.task.Spec.Params = c.paramsA.Params
	steps := c.paramsA.DeepCopy().Steps
	for i := range c.task.Status.Steps { // a step that started after an edit stays edited
		record := &c.task.Status.Steps[i]
		if i >= len(steps) || steps[i].Name != record.Name {
			return true
		}
	}
	c.task.Spec.Steps = steps
	c.task.Generation++
	for range 60 {
		if c.task.Status.Phase.Finished() || len(c.problems) > 0 {
			return true
		}
		if stalled := condition(&c.task.Status, v1alpha1.ConditionStalled); stalled != nil && stalled.Status == "True" && stalled.ObservedGeneration == c.task.Generation {
			return true
		}
		c.happen()
		before := persisted(c.task.Status)
		d := c.reconcile()
		if equality.Semantic.DeepEqual(before, c.task.Status) && d.RequeueAfter > 0 {
			c.now = c.now.Add(min(d.RequeueAfter, time.Minute))
		}
	}
	return false
}

// quiet says whether the task comes to rest where nothing happens and no time passes.
func (c *cluster) quiet() bool {
	c.calm = true
	for range 8 {
		before := persisted(c.task.Status)
		if d := c.reconcile(); len(d.Actions) > 0 && find(d, DeleteTask) == nil {
			continue // what it did is to be seen first
		}
		if equality.Semantic.DeepEqual(before, c.task.Status) {
			c.reconcile()
			return equality.Semantic.DeepEqual(before, c.task.Status)
		}
	}
	return false
}

func TestRandomWalks(t *testing.T) {
	walks := 2000
	if testing.Short() {
		walks = 150
	}
	ends := map[v1alpha1.TaskPhase]int{}
	for seed := range uint64(walks) {
		c := newCluster(rand.New(rand.NewPCG(seed, 1)))
		c.walk(10 + c.IntN(120))
		if !c.quiet() {
			c.problem("it does not come to rest")
		}
		if !c.settle() {
			c.problem("it does not end once all is well: %s, %s", c.task.Status.Phase, records(&c.task.Status))
		}
		if len(c.problems) > 0 {
			t.Fatalf("seed %d: after %s:\n%s", seed, strings.Join(c.history, "\n"), strings.Join(c.problems, "\n"))
		}
		ends[c.task.Status.Phase]++
	}
	for _, phase := range []v1alpha1.TaskPhase{v1alpha1.TaskSucceeded, v1alpha1.TaskFailed, v1alpha1.TaskCancelled, v1alpha1.TaskWaiting} {
		if ends[phase] == 0 {
			t.Errorf("of %d walks %d ended as %s; the walks do not show much: %v", walks, ends[phase], phase, ends)
		}
	}
}
