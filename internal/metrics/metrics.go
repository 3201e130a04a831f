// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

// Package metrics is what the operator counts. Labels are bounded: they hold phases and
// reasons, never the name of an object. Counts follow the write that they speak of.
package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
)

var (
	checkpoints = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "agenttask_checkpoints_total", Help: "Status writes that landed.",
	})
	attempts = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "agenttask_attempts_started_total", Help: "Attempts whose pod was made, by whether they were a step's first.",
	}, []string{"retry"})
	attemptFailures = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "agenttask_attempt_failures_total", Help: "Attempts that ended badly, by reason.",
	}, []string{"reason"})
	steps = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "agenttask_steps_finished_total", Help: "Steps that ended for good, by phase.",
	}, []string{"phase"})
	stepSeconds = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "agenttask_step_duration_seconds", Help: "From a step's first attempt to its recorded end.",
		Buckets: []float64{.1, .5, 1, 2, 5, 10, 30, 60, 300, 900, 3600, 14400},
	})
	tasks = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "agenttask_tasks_finished_total", Help: "Tasks that ended, by phase.",
	}, []string{"phase"})
	outcomesUnknown = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "agenttask_outcomes_unknown_total", Help: "Attempts that may have taken effect and left no outcome.",
	})
	policiesMissing = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "agenttask_admission_policies_missing", Help: "Admission policies of config/policy that are not installed, so that the fence of steps with effect Once is not guarded.",
	})
)

func init() {
	ctrlmetrics.Registry.MustRegister(checkpoints, attempts, attemptFailures, steps, stepSeconds, tasks, outcomesUnknown, policiesMissing)
}

// PoliciesMissing says how many of the admission policies that guard the fence are not
// installed.
func PoliciesMissing(count int) { policiesMissing.Set(float64(count)) }

// AttemptStarted counts an attempt whose pod was made.
func AttemptStarted(number int32) {
	retry := "false"
	if number > 1 {
		retry = "true"
	}
	attempts.WithLabelValues(retry).Inc()
}

// Checkpoint counts what a status write has recorded.
func Checkpoint(before, after *v1alpha1.AgentTaskStatus) {
	checkpoints.Inc()
	for i := max(len(before.Steps)-1, 0); i < len(after.Steps); i++ {
		record := &after.Steps[i]
		was, known := v1alpha1.StepPhase(""), true
		if i < len(before.Steps) {
			was, known = before.Steps[i].Phase, before.Steps[i].Unknown == nil
		}
		if known && record.Unknown != nil {
			outcomesUnknown.Inc()
		}
		if was != record.Phase {
			stepChanged(record)
		}
	}
	if after.Phase != before.Phase && after.Phase.Finished() {
		tasks.WithLabelValues(string(after.Phase)).Inc()
	}
}

func stepChanged(record *v1alpha1.StepStatus) {
	switch {
	case record.Phase == v1alpha1.StepRetrying:
		attemptFailures.WithLabelValues(record.Reason).Inc()
	case record.Phase.Finished():
		steps.WithLabelValues(string(record.Phase)).Inc()
		if record.CompletionTime != nil {
			stepSeconds.Observe(record.CompletionTime.Sub(record.StartTime.Time).Seconds())
		}
		if record.Phase == v1alpha1.StepFailed {
			attemptFailures.WithLabelValues(record.Reason).Inc()
		}
	}
}
