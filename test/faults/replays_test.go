// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package faults_test

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
	"github.com/agenttask-dev/agenttask/test/faults"
	"github.com/agenttask-dev/agenttask/test/harness"
)

// replayFaults stop an operator before it makes a Job or pod. Another one makes it and goes
// on; then somebody deletes it, so that its name is free again; and then the first operator
// goes on and makes it once more. That happens while the program runs, or when all is done.
func replayFaults() []fault {
	var list []fault
	for _, f := range []struct {
		name    string
		running bool
	}{
		{"replay-while-it-runs", true},
		{"replay-when-done", false},
	} {
		list = append(list, fault{name: f.name, class: classFrozen,
			may: []faults.Difference{faults.JobGone, faults.PodGone, faults.NextAttempt, faults.Decided, faults.Replayed},
			strikes: func(b *baseline, n int64) bool {
				return strings.HasPrefix(b.plan.writes[n-1], "create jobs") || b.makesPod(n)
			},
			run: func(w *world, b *baseline, n int64) { replay(w, b, n, f.running) },
		})
	}
	return list
}

func (b *baseline) makesPod(n int64) bool {
	return strings.HasPrefix(b.plan.writes[n-1], "create pods")
}

func replay(w *world, b *baseline, n int64, running bool) {
	line := harness.NewFaults(harness.Fault{At: n, Kind: harness.FreezeBefore})
	w.begin(line)
	target := b.name(lastJob, n)
	if b.makesPod(n) {
		target = b.name(lastPod, n)
	}
	if running {
		w.hold.set()
	}
	w.operator("second", nil)
	if running {
		w.programOf(target.step, false)
		w.hold.forget()
	} else {
		w.rest()
	}
	w.deleteMade(target, !b.makesPod(n))
	w.silence()
	w.hold.release()
	line.Thaw()
	w.restAgain()
	w.decide()
}

// deleteMade deletes an attempt's pod, and its Job, at once and for good.
func (w *world) deleteMade(m *made, job bool) {
	task, err := w.task()
	if err != nil {
		w.problem("deleting: %w", err)
		return
	}
	w.touched = faults.Touched{Step: m.step, Attempt: m.attempt}
	key := client.ObjectKey{Namespace: w.ns, Name: stepexec.JobName(taskName, task.UID, m.step, v1alpha1.RoleMain, m.attempt)}
	if job {
		if err := w.Outsider().DeleteJob(w.ctx, key, metav1.DeletePropagationBackground); err != nil {
			w.problem("deleting Job %s: %w", key.Name, err)
		}
	}
	if err := w.Outsider().StripAndDeletePod(w.ctx, key); client.IgnoreNotFound(err) != nil {
		w.problem("deleting pod %s: %w", key.Name, err)
	}
}
