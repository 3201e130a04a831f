// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
)

// line is a status as tools read it: phase, what kstatus makes of it, and the
// conditions with their reasons.
func line(task *v1alpha1.AgentTask, status *v1alpha1.AgentTaskStatus) string {
	out := fmt.Sprintf("%s %s:", status.Phase, kstatus(task.Generation, status))
	for _, kind := range allConditions {
		c := condition(status, kind)
		out += fmt.Sprintf(" %s=%.1s(%s)", kind, c.Status, c.Reason)
	}
	return out
}

// known is how a line ends while every outcome is known.
const known = " OutcomeUnknown=F(OutcomesKnown)"

func TestConditionsOfEachState(t *testing.T) {
	failed := stepexec.Result{Outcome: stepexec.OutcomeFailed, Reason: v1alpha1.ReasonExitCode, Message: "exit code 3"}
	started := func(change func(*v1alpha1.AgentTask)) func(*testing.T) *v1alpha1.AgentTask {
		return func(t *testing.T) *v1alpha1.AgentTask {
			task := MakeTask("plan").Deadline(3600).Running(t, "plan")
			task.Generation = 7
			if change != nil {
				change(task)
			}
			return task
		}
	}
	tests := map[string]struct {
		task  func(*testing.T) *v1alpha1.AgentTask
		world World
		now   time.Duration
		want  string
	}{
		"a step runs": {task: started(nil), world: World{Pod: MakePod().Running().Obj()},
			want: "Running InProgress: Ready=F(StepRunning) Succeeded=U(StepRunning) Reconciling=T(StepRunning) Stalled=F(NotStalled) Suspended=F(NotSuspended)" + known},
		"a step runs in a task that is to be suspended": {task: started(func(a *v1alpha1.AgentTask) { a.Spec.Suspend = true }), world: World{Pod: MakePod().Running().Obj()},
			want: "Running InProgress: Ready=F(StepRunning) Succeeded=U(StepRunning) Reconciling=T(StepRunning) Stalled=F(NotStalled) Suspended=T(Suspended)" + known},
		"a step is stopped": {task: started(func(a *v1alpha1.AgentTask) { a.Spec.Cancel = true }), world: World{Pod: MakePod().Running().Obj()},
			want: "Running InProgress: Ready=F(StepStopping) Succeeded=U(StepStopping) Reconciling=T(StepStopping) Stalled=F(NotStalled) Suspended=F(NotSuspended)" + known},
		"a step waits for its next attempt": {task: started(nil), world: World{Pod: MakePod().Result(75, again).Obj()},
			want: "Waiting InProgress: Ready=F(StepRetrying) Succeeded=U(StepRetrying) Reconciling=T(StepRetrying) Stalled=F(NotStalled) Suspended=F(NotSuspended)" + known},
		"a step's pod waits for its image": {task: started(nil), world: World{Pod: MakePod().Waiting("ErrImagePull", "no").Obj()},
			want: "Waiting InProgress: Ready=F(ImageUnavailable) Succeeded=U(ImageUnavailable) Reconciling=T(ImageUnavailable) Stalled=F(NotStalled) Suspended=F(NotSuspended)" + known},
		"a step is refused": {task: started(nil), world: World{Refusal: &Refusal{v1alpha1.ReasonRefused, "quota", time.Second}},
			want: "Waiting InProgress: Ready=F(Refused) Succeeded=U(Refused) Reconciling=T(Refused) Stalled=F(NotStalled) Suspended=F(NotSuspended)" + known},
		"a stranger has the name": {task: started(nil), world: World{Conflict: &Problem{v1alpha1.ReasonNameConflict, "x"}},
			want: "Waiting Failed: Ready=F(NameConflict) Succeeded=U(NameConflict) Reconciling=F(NameConflict) Stalled=T(NameConflict) Suspended=F(NotSuspended)" + known},
		"the plan was changed": {task: started(func(a *v1alpha1.AgentTask) { a.Spec.Steps[0].Run.Image = "tools:2" }), world: World{Pod: MakePod().Running().Obj()},
			want: "Waiting Failed: Ready=F(PlanChanged) Succeeded=U(PlanChanged) Reconciling=F(PlanChanged) Stalled=T(PlanChanged) Suspended=F(NotSuspended)" + known},
		"the plan is completed": {task: started(nil), world: World{Pod: MakePod().Succeeded("1").Obj()},
			want: "Succeeded Current: Ready=T(Completed) Succeeded=T(Completed) Reconciling=F(Finished) Stalled=F(NotStalled) Suspended=F(NotSuspended)" + known},
		"a step failed for good": {task: started(nil), world: World{Pod: MakePod().Result(3, failed).Obj()},
			want: "Failed Failed: Ready=F(StepFailed) Succeeded=F(StepFailed) Reconciling=F(Finished) Stalled=T(StepFailed) Suspended=F(NotSuspended)" + known},
		"the deadline has passed": {task: started(nil), world: World{Pod: MakePod().Ended(137, "Error", "").Obj()}, now: 2 * time.Hour,
			want: "Failed Failed: Ready=F(DeadlineExceeded) Succeeded=F(DeadlineExceeded) Reconciling=F(Finished) Stalled=T(DeadlineExceeded) Suspended=F(NotSuspended)" + known},
		"it was cancelled before anything ran": {task: func(*testing.T) *v1alpha1.AgentTask { return MakeTask("plan").Cancel().Suspend().Obj() },
			want: "Cancelled Failed: Ready=F(Cancelled) Succeeded=F(Cancelled) Reconciling=F(Finished) Stalled=T(Cancelled) Suspended=F(NotSuspended)" + known},
		"it is suspended before anything ran": {task: func(*testing.T) *v1alpha1.AgentTask { return MakeTask("plan").Suspend().Obj() },
			want: "Suspended InProgress: Ready=F(Suspended) Succeeded=U(Suspended) Reconciling=F(Suspended) Stalled=F(NotStalled) Suspended=T(Suspended)" + known},
		"its first step is about to run": {task: func(*testing.T) *v1alpha1.AgentTask { return MakeTask("plan").Obj() },
			want: "Running InProgress: Ready=F(StepRunning) Succeeded=U(StepRunning) Reconciling=T(StepRunning) Stalled=F(NotStalled) Suspended=F(NotSuspended)" + known},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			task := tt.task(t)
			d := decide(t, Input{Task: task, World: tt.world, Now: epoch.Add(tt.now)})
			if diff := cmp.Diff(tt.want, line(task, &d.Status)); diff != "" {
				t.Errorf("status (-want +got):\n%s", diff)
			}
		})
	}
}

func TestConditionsWhileAnOutcomeIsUnknown(t *testing.T) {
	const settled, open = " Stalled=F(NotStalled) Suspended=F(NotSuspended)", " OutcomeUnknown=T(OutcomeUnknown)"
	alive := func() *podBuilder { return bound().Running().Forced() }
	tests := map[string]struct {
		scene func(*testing.T) *scene
		want  string
	}{
		"it waits for a person": {paused,
			"Unknown Failed: Ready=F(OutcomeUnknown) Succeeded=U(OutcomeUnknown) Reconciling=F(OutcomeUnknown) Stalled=T(OutcomeUnknown) Suspended=F(NotSuspended)" + open},
		"it waits for its pod's end": {func(t *testing.T) *scene {
			return play(t, pay().OnUnknown(v1alpha1.UnknownRetry)).through().pod(alive())
		},
			"Unknown Failed: Ready=F(OutcomeUnknown) Succeeded=U(OutcomeUnknown) Reconciling=F(OutcomeUnknown) Stalled=T(OutcomeUnknown) Suspended=F(NotSuspended)" + open},
		"the plan settles it": {func(t *testing.T) *scene {
			return play(t, pay().OnUnknown(v1alpha1.UnknownFail)).through().pod(killed())
		},
			"Unknown InProgress: Ready=F(OutcomeUnknown) Succeeded=U(OutcomeUnknown) Reconciling=T(OutcomeUnknown)" + settled + open},
		"its check settles it": {func(t *testing.T) *scene {
			return play(t, pay().OnUnknown(v1alpha1.UnknownCheck).Check("")).through().pod(killed()).see(World{})
		}, "Running InProgress: Ready=F(StepChecking) Succeeded=U(StepChecking) Reconciling=T(StepChecking)" + settled + open},
		"it is tried again": {func(t *testing.T) *scene {
			return play(t, pay().OnUnknown(v1alpha1.UnknownRetry)).through().pod(killed()).see(World{})
		}, "Waiting InProgress: Ready=F(StepRetrying) Succeeded=U(StepRetrying) Reconciling=T(StepRetrying)" + settled + open},
		"somebody decided to try it again": {func(t *testing.T) *scene { return paused(t).decide(v1alpha1.DecisionRetry).see(World{}) },
			"Waiting InProgress: Ready=F(StepRetrying) Succeeded=U(StepRetrying) Reconciling=T(StepRetrying)" + settled + known},
		"its task ended": {func(t *testing.T) *scene { return paused(t).edit(cancel).see(World{}) },
			"Cancelled Failed: Ready=F(Cancelled) Succeeded=F(Cancelled) Reconciling=F(Finished) Stalled=T(Cancelled) Suspended=F(NotSuspended)" + open},
		"its step was skipped": {func(t *testing.T) *scene { return paused(t).decide(v1alpha1.DecisionSkip).see(World{}) },
			"Succeeded Current: Ready=T(Completed) Succeeded=T(Completed) Reconciling=F(Finished)" + settled + known},
		"a step is checked before it starts": {func(t *testing.T) *scene { return checked(t, pay()) },
			"Running InProgress: Ready=F(StepChecking) Succeeded=U(StepChecking) Reconciling=T(StepChecking)" + settled + known},
		"a step is tested": {func(t *testing.T) *scene {
			task := verifying(MakeStep("a"))
			s := &scene{t: t, task: task, now: epoch}
			s.see(World{})
			return s.pod(MakePod().Succeeded("1"))
		}, "Running InProgress: Ready=F(StepVerifying) Succeeded=U(StepVerifying) Reconciling=T(StepVerifying)" + settled + known},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := tt.scene(t)
			if diff := cmp.Diff(tt.want, line(s.task, &s.task.Status)); diff != "" {
				t.Errorf("status (-want +got):\n%s", diff)
			}
		})
	}
	s := paused(t).decide(v1alpha1.DecisionSkip).see(World{})
	if ready := condition(&s.task.Status, v1alpha1.ConditionReady); ready.Message != "0 steps succeeded and 1 were skipped by decision" || s.task.Status.Progress != "1/1" {
		t.Errorf("Ready: %s, progress %s", ready.Message, s.task.Status.Progress)
	}
}

func TestWhatPeopleRead(t *testing.T) {
	task := MakeTask("plan", "gather", "draft").Obj()
	var seen []string
	tell(t, task, failsTimes("gather", 1, again), func(_ *v1alpha1.AgentTask, d Decision) {
		seen = append(seen, fmt.Sprintf("%s %s %d/%d", d.Status.Progress, d.Status.CurrentStep, d.Status.Usage.Attempts, d.Status.Usage.Retries))
	})
	want := []string{"0/3 plan 1/0", "1/3 gather 2/0", "1/3 gather 2/0", "1/3 gather 3/1", "2/3 draft 4/1", "3/3 draft 4/1"}
	if diff := cmp.Diff(want, seen); diff != "" {
		t.Errorf("progress, step, attempts/retries (-want +got):\n%s", diff)
	}
}

func TestTimesOfTheConditionsChangeWithTheirStatusOnly(t *testing.T) {
	task := MakeTask("plan").Running(t, "plan")
	world := World{Pod: MakePod().Waiting("ErrImagePull", "no").Obj()}
	d := decide(t, Input{Task: task, World: world, Now: epoch.Add(time.Minute)})
	for _, kind := range allConditions {
		if got := condition(&d.Status, kind).LastTransitionTime; !got.Time.Equal(epoch) {
			t.Errorf("%s changed at %s though its status is what it was", kind, got)
		}
	}
	if !d.Status.CheckpointTime.Time.Equal(epoch.Add(time.Minute)) || !d.Status.StartTime.Time.Equal(epoch) {
		t.Errorf("checkpointTime %s, startTime %s", d.Status.CheckpointTime, d.Status.StartTime)
	}
}
