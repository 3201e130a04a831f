// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
)

// large is the pod of a program whose output stands in its log.
func large() *podBuilder {
	return MakePod().Result(0, stepexec.Result{Outcome: stepexec.OutcomeSucceeded, LogOutput: &stepexec.LogOutput{SHA256: stepexec.SHA256Hex(nil), Bytes: 5000, Lines: 4}})
}

// worldCase is what may be seen of a running attempt, and what is decided upon it.
type worldCase struct {
	world       World
	job         bool
	edit        func(*v1alpha1.AgentTaskSpec)
	now         time.Duration
	wantRecords string
	wantActions string
	wantReason  string
	wantPhase   v1alpha1.TaskPhase
	wantRequeue time.Duration
}

func worldCases() map[string]worldCase {
	refusal := &Refusal{Reason: v1alpha1.ReasonRefused, Message: "quota exceeded", Retry: 4 * time.Second}
	conflict := &Problem{v1alpha1.ReasonNameConflict, "Job x belongs to nobody"}
	blocked := &Problem{v1alpha1.ReasonPodLost, "pod x of a deleted Job is still there"}
	return map[string]worldCase{
		"neither Job nor pod: both are made": {
			wantRecords: "plan:Running/1", wantActions: "MakeJob", wantPhase: v1alpha1.TaskRunning, wantRequeue: 10 * time.Minute},
		"a Job and no pod: the pod is made": {
			job: true, wantRecords: "plan:Running/1", wantActions: "MakeJob", wantPhase: v1alpha1.TaskRunning, wantRequeue: 10 * time.Minute},
		"both, and it runs: nothing to do": {
			job: true, world: World{Pod: MakePod().Running().Obj()}, wantRecords: "plan:Running/1", wantPhase: v1alpha1.TaskRunning},
		"the Job vanished, the pod lives: the program may still run": {
			world: World{JobVanished: true, Pod: MakePod().Running().Obj()}, wantRecords: "plan:Running/1", wantPhase: v1alpha1.TaskRunning},
		"the Job vanished, the pod ended well: its result counts": {
			world: World{JobVanished: true, Pod: MakePod().Succeeded("1").Obj()}, wantRecords: "plan:Succeeded/1", wantPhase: v1alpha1.TaskSucceeded},
		"the Job vanished and the pod with it": {
			world: World{JobVanished: true}, wantRecords: "plan:Retrying/1", wantReason: v1alpha1.ReasonJobDeleted, wantPhase: v1alpha1.TaskWaiting, wantRequeue: time.Second / 2},
		"the pod vanished": {
			job: true, world: World{PodVanished: true}, wantRecords: "plan:Retrying/1", wantActions: "FinishJob", wantReason: v1alpha1.ReasonPodLost, wantPhase: v1alpha1.TaskWaiting, wantRequeue: time.Second / 2},
		"the pod vanished while it ran, with its node": {
			job: true, world: World{PodVanished: true, LastPod: MakePod().Running().Phase(corev1.PodFailed, "", "").Disrupted("DeletionByPodGC").Obj()},
			wantRecords: "plan:Retrying/1", wantActions: "FinishJob", wantReason: v1alpha1.ReasonNodeLost, wantPhase: v1alpha1.TaskWaiting, wantRequeue: time.Second / 2},
		"the pod vanished, and its last sight shows success: that is recorded": {
			job: true, world: World{PodVanished: true, LastPod: MakePod().Succeeded("1").Obj()},
			wantRecords: "plan:Succeeded/1", wantActions: "FinishJob", wantPhase: v1alpha1.TaskSucceeded},
		"the API server refuses the pod: it waits and costs no attempt": {
			job: true, world: World{Refusal: refusal}, wantRecords: "plan:Running/1", wantReason: v1alpha1.ReasonRefused, wantPhase: v1alpha1.TaskWaiting, wantRequeue: 4 * time.Second},
		"the pod of a deleted Job is in the way": {
			world: World{Blocked: blocked}, wantRecords: "plan:Running/1", wantReason: v1alpha1.ReasonPodLost, wantPhase: v1alpha1.TaskWaiting, wantRequeue: goneRecheck},
		"a stranger has the name: a person must act": {
			world: World{Conflict: conflict}, wantRecords: "plan:Running/1", wantPhase: v1alpha1.TaskWaiting, wantRequeue: conflictRecheck},
		"a stranger has the name and the task is cancelled": {
			world: World{Conflict: conflict}, edit: cancel, wantRecords: "plan:Cancelled/1", wantReason: v1alpha1.ReasonCancelled, wantPhase: v1alpha1.TaskCancelled},
		"a stranger has the name and the deadline comes": {
			world: World{Conflict: conflict}, now: time.Hour, wantRecords: "plan:Failed/1", wantReason: v1alpha1.ReasonDeadlineExceeded, wantPhase: v1alpha1.TaskFailed},
		"the pod is being deleted: it is waited for": {
			job: true, world: World{Pod: MakePod().Running().Deleting().Obj()}, wantRecords: "plan:Running/1", wantReason: v1alpha1.ReasonPodLost, wantPhase: v1alpha1.TaskWaiting, wantRequeue: goneRecheck},
		"the image cannot be pulled: it waits until the start deadline": {
			job: true, world: World{Pod: MakePod().Waiting("ImagePullBackOff", "not found").Obj()}, now: time.Minute,
			wantRecords: "plan:Running/1", wantReason: v1alpha1.ReasonImageUnavailable, wantPhase: v1alpha1.TaskWaiting, wantRequeue: 9 * time.Minute},
		"the image cannot be pulled by the start deadline": {
			job: true, world: World{Pod: MakePod().Waiting("ImagePullBackOff", "not found").Obj()}, now: 10 * time.Minute,
			wantRecords: "plan:Stopping/1", wantActions: "StopPod", wantReason: v1alpha1.ReasonImageUnavailable, wantPhase: v1alpha1.TaskRunning, wantRequeue: goneRecheck},
		"it merely takes too long to start": {
			job: true, world: World{Pod: MakePod().Waiting("ContainerCreating", "").Obj()}, now: 10 * time.Minute,
			wantRecords: "plan:Stopping/1", wantActions: "StopPod", wantReason: v1alpha1.ReasonStartTimeout, wantPhase: v1alpha1.TaskRunning, wantRequeue: goneRecheck},
		"it runs past the start deadline": {
			job: true, world: World{Pod: MakePod().Running().Obj()}, now: 20 * time.Minute, wantRecords: "plan:Running/1", wantPhase: v1alpha1.TaskRunning},
		"cancelled while it runs: the pod is stopped": {
			job: true, world: World{Pod: MakePod().Running().Obj()}, edit: cancel,
			wantRecords: "plan:Stopping/1", wantActions: "StopPod", wantReason: v1alpha1.ReasonCancelled, wantPhase: v1alpha1.TaskRunning, wantRequeue: goneRecheck},
		"cancelled before it has a pod: first the checkpoint says that none will be made": {
			edit: cancel, wantRecords: "plan:Stopping/1", wantReason: v1alpha1.ReasonCancelled, wantPhase: v1alpha1.TaskRunning, wantRequeue: time.Millisecond},
		"cancelled while its pod is being deleted: it is not deleted twice": {
			job: true, world: World{Pod: MakePod().Running().Deleting().Obj()}, edit: cancel,
			wantRecords: "plan:Stopping/1", wantReason: v1alpha1.ReasonCancelled, wantPhase: v1alpha1.TaskRunning, wantRequeue: goneRecheck},
		"a large output was stored": {
			job: true, world: World{Pod: large().Obj(), Output: &v1alpha1.OutputRef{URI: "configmap:x", SHA256: "ab", Bytes: 5000}},
			wantRecords: "plan:Succeeded/1", wantActions: "FinishJob", wantPhase: v1alpha1.TaskSucceeded},
		"a large output could not be read back: it is made again": {
			job: true, world: World{Pod: large().Obj(), OutputProblem: "sha256 differs"},
			wantRecords: "plan:Retrying/1", wantActions: "FinishJob", wantReason: v1alpha1.ReasonOutputLost, wantPhase: v1alpha1.TaskWaiting, wantRequeue: time.Second / 2},
		"a large output whose pod vanished before it was read": {
			job: true, world: World{PodVanished: true, LastPod: large().Obj()},
			wantRecords: "plan:Retrying/1", wantActions: "FinishJob", wantReason: v1alpha1.ReasonOutputLost, wantPhase: v1alpha1.TaskWaiting, wantRequeue: time.Second / 2},
		"a large output whose store the API server refuses: it waits": {
			job: true, world: World{Pod: large().Obj(), Refusal: refusal},
			wantRecords: "plan:Running/1", wantReason: v1alpha1.ReasonRefused, wantPhase: v1alpha1.TaskWaiting, wantRequeue: 4 * time.Second},
	}
}

func TestWorldOfARunningAttempt(t *testing.T) {
	for name, tt := range worldCases() {
		t.Run(name, func(t *testing.T) {
			task := MakeTask("plan").Running(t, "plan")
			if tt.job {
				tt.world.Job = jobOf(task)
			}
			if tt.edit != nil {
				tt.edit(&task.Spec)
				task.Generation++
			}
			if strings.Contains(name, "the deadline comes") {
				task.Spec.ActiveDeadlineSeconds = new(int64(60))
			}
			d := decide(t, Input{Task: task, World: tt.world, Now: epoch.Add(tt.now)})
			type outcome struct {
				Records, Actions, Reason string
				Phase                    v1alpha1.TaskPhase
				Requeue                  time.Duration
			}
			want := outcome{tt.wantRecords, tt.wantActions, tt.wantReason, tt.wantPhase, tt.wantRequeue}
			got := outcome{records(&d.Status), kinds(d), d.Status.Steps[0].Reason, d.Status.Phase, d.RequeueAfter}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("decision (-want +got):\n%s", diff)
			}
			if a := find(d, MakeJob); a != nil && (a.Job != nil) != tt.job {
				t.Errorf("MakeJob says that the Job is %v", a.Job)
			}
			settled := task.DeepCopy()
			settled.Status = d.Status
			if d.Status.Steps[0].Phase == v1alpha1.StepRunning {
				second := decide(t, Input{Task: settled, World: tt.world, Now: epoch.Add(tt.now)})
				if diff := cmp.Diff(d.Status, second.Status); diff != "" {
					t.Errorf("looked at again it changes:\n%s", diff)
				}
			}
		})
	}
}

func TestConflictGoesAway(t *testing.T) {
	task := MakeTask("plan").Running(t, "plan")
	conflict := &Problem{v1alpha1.ReasonNameConflict, "Job x belongs to nobody"}
	d := decide(t, Input{Task: task, World: World{Conflict: conflict}})
	stalled := condition(&d.Status, v1alpha1.ConditionStalled)
	if stalled.Status != metav1.ConditionTrue || stalled.Reason != v1alpha1.ReasonNameConflict || d.Status.Steps[0].Attempt != 1 {
		t.Errorf("Stalled %s %s", stalled.Status, stalled.Reason)
	}
	task.Status = d.Status
	if d = decide(t, Input{Task: task}); kinds(d) != "MakeJob" || d.Status.Phase != v1alpha1.TaskRunning {
		t.Errorf("once it is gone: %q, %s", kinds(d), d.Status.Phase)
	}
}

// Each try of a refused Job begins without knowing that it is refused. What it waits for
// stays in the status until there is a pod, or each try would be two writes.
func TestRefusedStepDoesNotFlap(t *testing.T) {
	task := MakeTask("plan").Running(t, "plan")
	refused := World{Refusal: &Refusal{Reason: v1alpha1.ReasonRefused, Message: "exceeded quota", Retry: time.Second}}
	d := decide(t, Input{Task: task, World: refused})
	task.Status = d.Status
	for try := range 3 {
		now := epoch.Add(time.Duration(try+1) * time.Minute)
		d = decide(t, Input{Task: task, Now: now})
		if diff := cmp.Diff(task.Status, d.Status); diff != "" || kinds(d) != "MakeJob" {
			t.Errorf("try %d: %q, status:\n%s", try, kinds(d), diff)
		}
		refused.Refusal.Message = "exceeded quota, said otherwise"
		d = decide(t, Input{Task: task, World: refused, Now: now})
		if diff := cmp.Diff(task.Status, d.Status); diff != "" {
			t.Errorf("refusal %d:\n%s", try, diff)
		}
	}
	d = decide(t, Input{Task: task, World: World{Job: jobOf(task), Pod: MakePod().Running().Obj()}})
	if d.Status.Phase != v1alpha1.TaskRunning || d.Status.Steps[0].Reason != "" {
		t.Errorf("at last it runs: %s, reason %q", d.Status.Phase, d.Status.Steps[0].Reason)
	}
}

func TestJobSuspendedByAQueue(t *testing.T) {
	task := MakeTask("plan").Running(t, "plan")
	d := decide(t, Input{Task: task, World: World{Job: suspendedJobOf(task)}})
	if kinds(d) != "" || d.Status.Steps[0].Reason != v1alpha1.ReasonJobSuspended || d.Status.Phase != v1alpha1.TaskWaiting {
		t.Fatalf("held: %q, %s, %s", kinds(d), d.Status.Steps[0].Reason, d.Status.Phase)
	}
	task.Status = d.Status
	if d = decide(t, Input{Task: task, World: World{Job: jobOf(task)}}); kinds(d) != "MakeJob" {
		t.Errorf("released: %q", kinds(d))
	}

	running := World{Job: suspendedJobOf(task), Pod: MakePod().Running().Obj()}
	d = decide(t, Input{Task: task, World: running})
	if records(&d.Status) != "plan:Stopping/1" || kinds(d) != "StopPod" {
		t.Fatalf("suspended while it runs: %s, %q", records(&d.Status), kinds(d))
	}
	task.Status = d.Status
	d = decide(t, Input{Task: task, World: World{Job: running.Job, PodVanished: true, LastPod: running.Pod}})
	if records(&d.Status) != "plan:Retrying/1" || d.Status.Steps[0].Reason != v1alpha1.ReasonJobSuspended {
		t.Errorf("stopped: %s, %s", records(&d.Status), d.Status.Steps[0].Reason)
	}
}

func TestStoppingEnds(t *testing.T) {
	failed := stepexec.Result{Outcome: stepexec.OutcomeFailed, Reason: v1alpha1.ReasonExitCode, Message: "exit code 3"}
	tests := map[string]struct {
		world                   World
		wantRecords, wantReason string
		wantPhase               v1alpha1.TaskPhase
	}{
		"without a pod":                       {World{}, "plan:Cancelled/1", v1alpha1.ReasonCancelled, v1alpha1.TaskCancelled},
		"with a pod that was killed":          {World{Pod: MakePod().Ended(137, "Error", "").Deleting().Obj()}, "plan:Cancelled/1", v1alpha1.ReasonCancelled, v1alpha1.TaskCancelled},
		"with a pod that vanished":            {World{PodVanished: true, LastPod: MakePod().Running().Obj()}, "plan:Cancelled/1", v1alpha1.ReasonCancelled, v1alpha1.TaskCancelled},
		"with a failure":                      {World{Pod: MakePod().Result(3, failed).Obj()}, "plan:Cancelled/1", v1alpha1.ReasonCancelled, v1alpha1.TaskCancelled},
		"with a late success":                 {World{Pod: MakePod().Succeeded("1").Deleting().Obj()}, "plan:Succeeded/1", "", v1alpha1.TaskCancelled},
		"with a success seen last":            {World{PodVanished: true, LastPod: MakePod().Succeeded("1").Obj()}, "plan:Succeeded/1", "", v1alpha1.TaskCancelled},
		"not while the program may still run": {World{Pod: MakePod().Running().Deleting().Obj()}, "plan:Stopping/1", v1alpha1.ReasonCancelled, v1alpha1.TaskRunning},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			task := MakeTask("plan", "gather").Running(t, "plan")
			task.Spec.Cancel, task.Generation = true, 2
			task.Status = decide(t, Input{Task: task, World: World{Job: jobOf(task), Pod: MakePod().Running().Obj()}}).Status
			d := decide(t, Input{Task: task, World: tt.world})
			if records(&d.Status) != tt.wantRecords || d.Status.Steps[0].Reason != tt.wantReason || d.Status.Phase != tt.wantPhase {
				t.Errorf("%s %s, %s; want %s %s, %s", records(&d.Status), d.Status.Steps[0].Reason, d.Status.Phase, tt.wantRecords, tt.wantReason, tt.wantPhase)
			}
		})
	}
}

// The operator that restarted does not know whose the pod of a deleted Job is. It may
// still run, so the attempt has not ended, whatever else is said of it.
func TestPodOfADeletedJobHoldsItsAttempt(t *testing.T) {
	blocked := &Problem{v1alpha1.ReasonPodLost, "pod x of a deleted Job is still there"}
	for name, world := range map[string]World{
		"alone":                          {Blocked: blocked},
		"and the Job after it vanished":  {Blocked: blocked, JobVanished: true},
		"and the Job after it is there":  {Blocked: blocked, Job: &batchv1.Job{}},
		"and another pod of it vanished": {Blocked: blocked, PodVanished: true, LastPod: MakePod().Running().Obj()},
	} {
		t.Run(name, func(t *testing.T) {
			task := MakeTask("plan").Running(t, "plan")
			d := decide(t, Input{Task: task, World: world})
			if records(&d.Status) != "plan:Running/1" || kinds(d) != "" || d.RequeueAfter != goneRecheck {
				t.Errorf("%s, %q, RequeueAfter %s", records(&d.Status), kinds(d), d.RequeueAfter)
			}
			task.Spec.Cancel, task.Generation = true, 2
			for range 2 {
				d = decide(t, Input{Task: task, World: world})
				if records(&d.Status) != "plan:Stopping/1" || kinds(d) != "" || d.RequeueAfter != goneRecheck {
					t.Errorf("cancelled: %s, %q, RequeueAfter %s", records(&d.Status), kinds(d), d.RequeueAfter)
				}
				task.Status = d.Status
			}
			if d = decide(t, Input{Task: task}); records(&d.Status) != "plan:Cancelled/1" {
				t.Errorf("once it is gone: %s", records(&d.Status))
			}
		})
	}
}

// A stranger may take the name of a Job that was deleted while its pod runs on.
func TestPodOutlivesAConflictOfItsJob(t *testing.T) {
	conflict := &Problem{v1alpha1.ReasonNameConflict, "Job x belongs to nobody"}
	task := MakeTask("plan").Running(t, "plan")
	task.Spec.Cancel, task.Generation = true, 2
	d := decide(t, Input{Task: task, World: World{Conflict: conflict, JobVanished: true, Pod: MakePod().Running().Obj()}})
	if records(&d.Status) != "plan:Stopping/1" || kinds(d) != "StopPod" {
		t.Errorf("cancelled: %s, %q; want the pod stopped first", records(&d.Status), kinds(d))
	}
	d = decide(t, Input{Task: task, World: World{Conflict: conflict, JobVanished: true, Pod: MakePod().Succeeded("1").Obj()}})
	if records(&d.Status) != "plan:Succeeded/1" {
		t.Errorf("it ended well: %s", records(&d.Status))
	}
}

func TestWhatAPodWaitsForDoesNotFlap(t *testing.T) {
	task := MakeTask("plan").Running(t, "plan")
	look := func(pod *podBuilder) Decision {
		d := decide(t, Input{Task: task, World: World{Job: jobOf(task), Pod: pod.Obj()}, Now: epoch.Add(time.Second)})
		task.Status = d.Status
		return d
	}
	first := look(MakePod().Waiting("ErrImagePull", "manifest unknown"))
	for _, pod := range []*podBuilder{
		MakePod().Waiting("ImagePullBackOff", "Back-off pulling image"), MakePod().Waiting("ContainerCreating", ""), MakePod().Waiting("ErrImagePull", "manifest unknown again"),
	} {
		if d := look(pod); cmp.Diff(first.Status, d.Status) != "" || len(d.Events) != 0 {
			t.Errorf("kubelet's other words change the status: %s", cmp.Diff(first.Status, d.Status))
		}
	}
	if d := look(MakePod().Running()); d.Status.Steps[0].Reason != "" || d.Status.Phase != v1alpha1.TaskRunning {
		t.Errorf("it runs: %s, %s", d.Status.Steps[0].Reason, d.Status.Phase)
	}
}

func TestJobsOfEndedAttemptsAreFinished(t *testing.T) {
	failed := stepexec.Result{Outcome: stepexec.OutcomeFailed, Reason: v1alpha1.ReasonExitCode, Message: "exit code 3"}
	tests := map[string]struct {
		history  v1alpha1.JobHistory
		pod      *podBuilder
		wantKeep bool
	}{
		"by default a success stays":  {"", MakePod().Succeeded("1"), true},
		"All keeps a success":         {v1alpha1.JobHistoryAll, MakePod().Succeeded("1"), true},
		"Failed deletes a success":    {v1alpha1.JobHistoryFailed, MakePod().Succeeded("1"), false},
		"Failed keeps a failure":      {v1alpha1.JobHistoryFailed, MakePod().Result(3, failed), true},
		"Failed keeps a lost attempt": {v1alpha1.JobHistoryFailed, MakePod().Ended(137, "OOMKilled", ""), true},
		"None deletes a failure":      {v1alpha1.JobHistoryNone, MakePod().Result(3, failed), false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			task := MakeTask("plan").History(tt.history).Running(t, "plan")
			d := decide(t, Input{Task: task, World: World{Job: jobOf(task), Pod: tt.pod.Obj()}})
			if a := find(d, FinishJob); a == nil || a.Keep != tt.wantKeep {
				t.Errorf("FinishJob: %+v, want Keep %v", a, tt.wantKeep)
			}
		})
	}

	t.Run("a Job that was left behind is finished later, once the task has ended too", func(t *testing.T) {
		task := MakeTask().Step(MakeStep("plan").Obj()).Obj()
		if s := tell(t, task, failsTimes("plan", 1, again), nil); s.err != nil {
			t.Fatal(s.err)
		}
		first := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: stepexec.JobName(task.Name, task.UID, "plan", v1alpha1.RoleMain, 1)}}
		d := decide(t, Input{Task: task, World: World{Ended: []*batchv1.Job{first, jobOf(task)}}})
		if kinds(d) != "FinishJob FinishJob" || d.Actions[0].Verdict.Class != Final || d.Actions[1].Verdict.Class != Success {
			t.Errorf("%q: %+v", kinds(d), d.Actions)
		}
	})
}

func TestDeletedTaskIsLeftAlone(t *testing.T) {
	task := MakeTask("plan").Running(t, "plan")
	task.DeletionTimestamp = &metav1.Time{Time: epoch}
	d := decide(t, Input{Task: task})
	if kinds(d) != "" || cmp.Diff(task.Status, d.Status) != "" || d.RequeueAfter != 0 {
		t.Errorf("%q, RequeueAfter %s", kinds(d), d.RequeueAfter)
	}
}
