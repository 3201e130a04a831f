// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestTimeouts(t *testing.T) {
	d := func(v time.Duration) *metav1.Duration { return &metav1.Duration{Duration: v} }
	tests := map[string]struct {
		step               Step
		wantRun, wantStart time.Duration
	}{
		"nothing given: the defaults":         {Step{}, time.Hour, 10 * time.Minute},
		"both given":                          {Step{Timeout: d(time.Second), StartTimeout: d(time.Minute)}, time.Second, time.Minute},
		"0 would end each attempt at once":    {Step{Timeout: d(0), StartTimeout: d(0)}, time.Hour, 10 * time.Minute},
		"less than 0 is not a timeout either": {Step{Timeout: d(-1), StartTimeout: d(-1)}, time.Hour, 10 * time.Minute},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if run, start := tt.step.RunTimeout(), tt.step.StartDeadline(); run != tt.wantRun || start != tt.wantStart {
				t.Errorf("run %s, start %s; want %s, %s", run, start, tt.wantRun, tt.wantStart)
			}
		})
	}
}

func TestFinishedPhases(t *testing.T) {
	for _, p := range []TaskPhase{"", TaskPending, TaskRunning, TaskWaiting, TaskSuspended, "Odd"} {
		if p.Finished() {
			t.Errorf("%q is final", p)
		}
	}
	for _, p := range []StepPhase{"", StepRunning, StepRetrying, StepStopping, "Odd"} {
		if p.Finished() {
			t.Errorf("%q is final", p)
		}
	}
	for _, p := range []TaskPhase{TaskSucceeded, TaskFailed, TaskCancelled} {
		if !p.Finished() || !StepPhase(p).Finished() {
			t.Errorf("%q is not final", p)
		}
	}
}
