package faults_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/test/harness"
)

func TestDebug(t *testing.T) {
	l := theLab(t)
	h := l.run(t, plans[0], func(w *world) {
		w.operator("only", harness.NewFaults())
		w.create()
		w.rest()
	})
	var last *v1alpha1.AgentTask
	for _, r := range h.Revisions {
		if r.Task != nil {
			if last != nil {
				t.Log(r.RV, cmp.Diff(last.Status, r.Task.Status))
			}
			last = r.Task
		} else if r.Pod != nil {
			t.Log(r.RV, "pod", r.Pod.Name, r.Pod.Status.Phase, r.Pod.Spec.SchedulingGates, r.Pod.Status.Conditions, r.Pod.Spec.NodeName, r.Pod.Finalizers)
		}
	}
}
