// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
)

// counts are our own metrics with their labels; a histogram counts its observations.
func counts(t *testing.T) map[string]float64 {
	t.Helper()
	families, err := ctrlmetrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, family := range families {
		if !strings.HasPrefix(family.GetName(), "agenttask_") {
			continue
		}
		for _, m := range family.GetMetric() {
			name := strings.TrimPrefix(family.GetName(), "agenttask_")
			for _, l := range m.GetLabel() {
				name += " " + l.GetName() + "=" + l.GetValue()
			}
			out[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return out
}

// added is what an act counts.
func added(t *testing.T, act func()) map[string]float64 {
	t.Helper()
	before := counts(t)
	act()
	out := map[string]float64{}
	for name, value := range counts(t) {
		if value != before[name] {
			out[name] = value - before[name]
		}
	}
	return out
}

func record(phase v1alpha1.StepPhase, reason string) v1alpha1.StepStatus {
	r := v1alpha1.StepStatus{Name: "plan", ActionStatus: v1alpha1.ActionStatus{Phase: phase, Attempt: 1, Reason: reason}}
	if phase.Finished() {
		r.CompletionTime = new(metav1.NewTime(r.StartTime.Add(time.Second)))
	}
	return r
}

func status(phase v1alpha1.TaskPhase, steps ...v1alpha1.StepStatus) *v1alpha1.AgentTaskStatus {
	return &v1alpha1.AgentTaskStatus{Phase: phase, Steps: steps}
}

// unknown is a record whose first attempt left no outcome.
func unknown(phase v1alpha1.StepPhase) v1alpha1.StepStatus {
	r := record(phase, "Killed")
	r.Unknown = &v1alpha1.Unknown{Attempt: 1, Reason: "Killed"}
	return r
}

func TestCheckpointCountsWhatItRecords(t *testing.T) {
	running, done := record(v1alpha1.StepRunning, ""), record(v1alpha1.StepSucceeded, "")
	tests := map[string]struct {
		before, after *v1alpha1.AgentTaskStatus
		want          map[string]float64
	}{
		"a first step starts": {status(""), status(v1alpha1.TaskRunning, running),
			map[string]float64{"checkpoints_total": 1}},
		"a step succeeds and the next one starts": {status(v1alpha1.TaskRunning, running), status(v1alpha1.TaskRunning, done, running),
			map[string]float64{"checkpoints_total": 1, "steps_finished_total phase=Succeeded": 1, "step_duration_seconds": 1}},
		"an attempt is to be tried again": {status(v1alpha1.TaskRunning, running), status(v1alpha1.TaskWaiting, record(v1alpha1.StepRetrying, "Evicted")),
			map[string]float64{"checkpoints_total": 1, "attempt_failures_total reason=Evicted": 1}},
		"a step fails and the task with it": {status(v1alpha1.TaskRunning, done, running), status(v1alpha1.TaskFailed, done, record(v1alpha1.StepFailed, "ExitCode")),
			map[string]float64{"checkpoints_total": 1, "attempt_failures_total reason=ExitCode": 1, "steps_finished_total phase=Failed": 1, "step_duration_seconds": 1, "tasks_finished_total phase=Failed": 1}},
		"a step succeeds and the next one's input is wrong": {status(v1alpha1.TaskRunning, running), status(v1alpha1.TaskFailed, done, record(v1alpha1.StepFailed, "InputInvalid")),
			map[string]float64{"checkpoints_total": 1, "attempt_failures_total reason=InputInvalid": 1, "steps_finished_total phase=Succeeded": 1, "steps_finished_total phase=Failed": 1, "step_duration_seconds": 2, "tasks_finished_total phase=Failed": 1}},
		"an outcome turns out to be unknown": {status(v1alpha1.TaskRunning, running), status(v1alpha1.TaskUnknown, unknown(v1alpha1.StepUnknown)),
			map[string]float64{"checkpoints_total": 1, "outcomes_unknown_total": 1}},
		"it stays unknown while it is checked": {status(v1alpha1.TaskUnknown, unknown(v1alpha1.StepUnknown)), status(v1alpha1.TaskRunning, unknown(v1alpha1.StepChecking)),
			map[string]float64{"checkpoints_total": 1}},
		"it is tried again": {status(v1alpha1.TaskUnknown, unknown(v1alpha1.StepUnknown)), status(v1alpha1.TaskWaiting, unknown(v1alpha1.StepRetrying)),
			map[string]float64{"checkpoints_total": 1, "attempt_failures_total reason=Killed": 1}},
		"its task ends with it, at once": {status(v1alpha1.TaskRunning, running), status(v1alpha1.TaskCancelled, unknown(v1alpha1.StepCancelled)),
			map[string]float64{"checkpoints_total": 1, "outcomes_unknown_total": 1, "steps_finished_total phase=Cancelled": 1, "step_duration_seconds": 1, "tasks_finished_total phase=Cancelled": 1}},
		"somebody decides to go on without it": {status(v1alpha1.TaskUnknown, unknown(v1alpha1.StepUnknown)), status(v1alpha1.TaskRunning, record(v1alpha1.StepSkipped, "Decided"), running),
			map[string]float64{"checkpoints_total": 1, "steps_finished_total phase=Skipped": 1, "step_duration_seconds": 1}},
		"a step is done by its check": {status(v1alpha1.TaskRunning, record(v1alpha1.StepChecking, "")), status(v1alpha1.TaskSucceeded, record(v1alpha1.StepSucceeded, "CheckedDone")),
			map[string]float64{"checkpoints_total": 1, "steps_finished_total phase=Succeeded": 1, "step_duration_seconds": 1, "tasks_finished_total phase=Succeeded": 1}},
		"what had ended is not counted twice": {status(v1alpha1.TaskSucceeded, done), status(v1alpha1.TaskSucceeded, done),
			map[string]float64{"checkpoints_total": 1}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := added(t, func() { Checkpoint(tt.before, tt.after) })
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("counted (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAttemptStarted(t *testing.T) {
	got := added(t, func() {
		for _, attempt := range []int32{1, 2, 3} {
			AttemptStarted(attempt)
		}
	})
	if diff := cmp.Diff(map[string]float64{"attempts_started_total retry=false": 1, "attempts_started_total retry=true": 2}, got); diff != "" {
		t.Errorf("counted (-want +got):\n%s", diff)
	}
}

func TestPoliciesMissing(t *testing.T) {
	for _, count := range []int{3, 0} {
		PoliciesMissing(count)
		if got := counts(t)["admission_policies_missing"]; got != float64(count) {
			t.Errorf("%d are missing, and the gauge says %v", count, got)
		}
	}
}
