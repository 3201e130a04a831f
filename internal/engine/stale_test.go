// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
)

// A plan that was changed while something else held the task is still found changed when
// that is over.
func TestAnotherHoldDoesNotHideThatThePlanChanged(t *testing.T) {
	edits := map[string]func(*v1alpha1.AgentTaskSpec){
		"renamed":        func(s *v1alpha1.AgentTaskSpec) { s.Steps[0].Name = "uno" },
		"another image":  func(s *v1alpha1.AgentTaskSpec) { s.Steps[0].Run.Image = "other:2" },
		"another effect": func(s *v1alpha1.AgentTaskSpec) { s.Steps[0].Effect = v1alpha1.EffectNone },
	}
	for name, edit := range edits {
		task := MakeTask("one", "two").Running(t, "one")
		conflict := World{Conflict: &Problem{v1alpha1.ReasonNameConflict, "a stranger's Job"}}
		task.Status = decide(t, Input{Task: task, World: conflict}).Status
		edit(&task.Spec)
		task.Generation = 2
		task.Status = decide(t, Input{Task: task, World: conflict}).Status
		for range 2 {
			d := decide(t, Input{Task: task})
			if got := reasonOfStalled(d.Status); got != v1alpha1.ReasonPlanChanged || len(d.Actions) != 0 {
				t.Errorf("%s: stalled by %q with actions %q, want PlanChanged and none", name, got, kinds(d))
			}
			task.Status = d.Status
		}
	}
}

func reasonOfStalled(status v1alpha1.AgentTaskStatus) string {
	for _, c := range status.Conditions {
		if c.Type == v1alpha1.ConditionStalled && c.Status == metav1.ConditionTrue {
			return c.Reason
		}
	}
	return ""
}

// The task that was read may be older than a Job that is seen: only a Job of an attempt
// that a record has left behind is ended.
func TestOnlyJobsOfEarlierAttemptsAreEnded(t *testing.T) {
	task := MakeTask().Step(MakeStep("one").Limit(5).Obj()).Step(MakeStep("two").Obj()).Running(t, "one")
	task.Status.Steps[0].Attempt = 3
	name := func(step string, attempt int32) string {
		return stepexec.JobName(task.Name, task.UID, step, v1alpha1.RoleMain, attempt)
	}
	task.Status.Steps[0].JobName = name("one", 3)
	tests := map[string]struct {
		job  string
		want string
	}{
		"an earlier attempt's": {name("one", 2), "FinishJob"},
		"a later attempt's":    {name("one", 4), ""},
		"the next step's":      {name("two", 1), ""},
		"no attempt's":         {"something-else", ""},
	}
	for what, tc := range tests {
		job := jobOf(task)
		job.Name = tc.job
		d := decide(t, Input{Task: task, World: World{Job: jobOf(task), Pod: MakePod().Running().Obj(), Ended: []*batchv1.Job{job}}})
		if got := kinds(d); got != tc.want {
			t.Errorf("%s: %q, want %q", what, got, tc.want)
		}
	}
}

func TestCancelDuringAConflictOverThePodEndsOurJob(t *testing.T) {
	task := MakeTask("one").Running(t, "one")
	world := World{Job: jobOf(task), Conflict: &Problem{v1alpha1.ReasonNameConflict, "a stranger's pod"}}
	task.Spec.Cancel, task.Generation = true, 2
	d := decide(t, Input{Task: task, World: world})
	if d.Status.Phase != v1alpha1.TaskCancelled || kinds(d) != "FinishJob" {
		t.Errorf("phase %s, actions %q, want Cancelled and FinishJob", d.Status.Phase, kinds(d))
	}
}

// The API server's clock may be behind ours by more than startTimeout.
func TestStartTimeoutCountsFromTheLaterOfTwoClocks(t *testing.T) {
	task := MakeTask().Step(MakeStep("one").StartTimeout(10*time.Second).Obj()).Running(t, "one")
	for name, tc := range map[string]struct {
		created time.Duration
		now     time.Duration
		want    string
	}{
		"its clock is behind":             {-time.Hour, 5 * time.Second, ""},
		"its clock is behind, and late":   {-time.Hour, 11 * time.Second, "StopPod"},
		"the pod was made long after":     {time.Minute, time.Minute + 5*time.Second, ""},
		"the pod was made long ago, late": {time.Minute, time.Minute + 11*time.Second, "StopPod"},
	} {
		pod := MakePod().Obj()
		pod.CreationTimestamp = metav1.NewTime(epoch.Add(tc.created))
		d := decide(t, Input{Task: task, World: World{Job: jobOf(task), Pod: pod}, Now: epoch.Add(tc.now)})
		if got := kinds(d); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

// etcd takes the task as a whole.
func TestALargeSpecLeavesLessRoomForOutputs(t *testing.T) {
	builder := MakeTask()
	for i := range 100 {
		builder.Step(MakeStep(fmt.Sprintf("s%d", i)).Obj())
	}
	for i := range 10 {
		builder.Step(MakeStep(fmt.Sprintf("big%d", i)).Input(`"` + strings.Repeat("y", 110_000) + `"`).Obj())
	}
	task := builder.Obj()
	err := Simulation{Program: func(Attempt) stepexec.Result {
		return stepexec.Result{Outcome: stepexec.OutcomeSucceeded, Output: []byte(`"` + strings.Repeat("x", 2000) + `"`)}
	}}.Run(task, epoch)
	last := task.Status.Steps[len(task.Status.Steps)-1]
	if err != nil || last.Reason != v1alpha1.ReasonOutputTooLarge {
		t.Errorf("error %v, last step %s %s, want OutputTooLarge", err, last.Name, last.Reason)
	}
	const room = 32 << 10 // for the message that says so
	if size := statusSize(&task.Status) + restSize(task); size > maxObject+room {
		t.Errorf("the task has %d bytes, and at most %d are allowed", size, maxObject)
	}
}
