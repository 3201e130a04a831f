// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
)

// scene is a task that is decided upon again and again, with the world as each act shows
// it. A decision's status is the next one's.
type scene struct {
	t    *testing.T
	task *v1alpha1.AgentTask
	now  time.Time
	last Decision
	// decisions are what people have decided.
	decisions []*v1alpha1.AgentDecision
}

// play starts a task whose only step is given.
func play(t *testing.T, step *stepBuilder) *scene {
	t.Helper()
	s := &scene{t: t, task: MakeTask().Step(step.Obj()).Obj(), now: epoch}
	s.see(World{})
	return s
}

// see decides upon a world, and writes the status.
func (s *scene) see(w World) *scene {
	s.t.Helper()
	w.Decisions = append(w.Decisions, s.decisions...)
	s.last = decide(s.t, Input{Task: s.task, World: w, Now: s.now})
	s.task.Status = s.last.Status
	return s
}

// pod decides upon the current attempt's Job and a pod of it.
func (s *scene) pod(b *podBuilder) *scene {
	s.t.Helper()
	pod := b.Of(s.task).Obj()
	w := World{Job: jobOf(s.task), Pod: pod}
	if len(pod.Finalizers) > 0 {
		w.Held = []*corev1.Pod{pod}
	}
	return s.see(w)
}

// gone decides upon the current attempt's Job, whose pod has been deleted; last is how it
// was seen last, or nil.
func (s *scene) gone(last *podBuilder) *scene {
	s.t.Helper()
	w := World{Job: jobOf(s.task), PodVanished: true}
	if last != nil {
		w.LastPod = last.Of(s.task).Obj()
	}
	return s.see(w)
}

// edit changes the spec.
func (s *scene) edit(change func(*v1alpha1.AgentTaskSpec)) *scene {
	change(&s.task.Spec)
	s.task.Generation++
	return s
}

// later lets time pass.
func (s *scene) later(wait time.Duration) *scene { s.now = s.now.Add(wait); return s }

// decide adds a decision on the current attempt. change, if given, changes it first.
func (s *scene) decide(kind v1alpha1.DecisionKind, change ...func(*v1alpha1.AgentDecision)) *scene {
	r := s.record()
	uid := types.UID(fmt.Sprintf("decision-%d", len(s.decisions)+1))
	d := &v1alpha1.AgentDecision{ObjectMeta: metav1.ObjectMeta{Name: string(uid), UID: uid, Generation: 1, CreationTimestamp: metav1.NewTime(s.now)},
		Spec: v1alpha1.AgentDecisionSpec{Task: s.task.Name, TaskUID: string(s.task.UID), Step: r.Name, Attempt: r.Attempt, ActionHash: r.ActionHash,
			Decision: kind, DecidedBy: "ann", Reason: "looked at the bank"}}
	for _, f := range change {
		f(d)
	}
	s.decisions = append(s.decisions, d)
	return s
}

// want compares the records, the actions and the reason of the last record.
func (s *scene) want(wantRecords, wantActions, wantReason string) *scene {
	s.t.Helper()
	reason := s.record().Reason
	if got := records(&s.task.Status); got != wantRecords || kinds(s.last) != wantActions || reason != wantReason {
		s.t.Errorf("%s, %q, reason %s; want %s, %q, reason %s\nmessage: %s", got, kinds(s.last), reason, wantRecords, wantActions, wantReason, s.record().Message)
	}
	return s
}

func (s *scene) record() *v1alpha1.StepStatus {
	return &s.task.Status.Steps[len(s.task.Status.Steps)-1]
}

// bound is a pod that the record names and that has a node.
func bound() *podBuilder { return MakePod().UID("pod-1").Held().Node("n1") }

// through takes the first attempt's pod through the fence.
func (s *scene) through() *scene {
	s.t.Helper()
	return s.pod(MakePod().UID("pod-1").Gated()).want("pay:Running/1", "OpenFence", "")
}

func pay() *stepBuilder { return MakeStep("pay").Once() }

func TestOnePodOfAnAttemptIsLetThrough(t *testing.T) {
	s := play(t, pay()).want("pay:Running/1", "MakeJob", "")
	if a := find(s.last, MakeJob); !a.Attempt.Once {
		t.Error("the attempt is not fenced")
	}
	s.pod(MakePod().UID("pod-1").Gated()).want("pay:Running/1", "OpenFence", "")
	record := s.record()
	if record.PodUID != "pod-1" || record.JobUID != types.UID("job-"+record.JobName) {
		t.Errorf("the record names pod %q and Job %q", record.PodUID, record.JobUID)
	}
	s.pod(MakePod().UID("pod-1").Gated()).want("pay:Running/1", "OpenFence", "")
	s.pod(bound().Running()).want("pay:Running/1", "", "")
	s.pod(bound().Succeeded("1")).want("pay:Succeeded/1", "FinishJob ReleasePod", "")
	if a := find(s.last, ReleasePod); a.Leftover {
		t.Error("the pod that ran is released as one that is left over")
	}
	if s.record().PodUID != "pod-1" {
		t.Error("the record no longer names the pod that ran")
	}
}

// A pod that was made just before the task was cancelled waits at the fence, and nothing
// names it: it goes, and the task ends.
func TestAPodThatNoRecordNamesDoesNotHoldTheEnd(t *testing.T) {
	s := play(t, pay()).edit(cancel)
	s.pod(MakePod().UID("pod-1").Gated()).want("pay:Stopping/1", "StopPod ReleasePod", v1alpha1.ReasonCancelled)
	if a := find(s.last, ReleasePod); !a.Leftover {
		t.Error("a pod that no record names is not released as one that is left over")
	}
	s.pod(MakePod().UID("pod-1").Gated().Forced()).want("pay:Stopping/1", "ReleasePod", v1alpha1.ReasonCancelled)
	s.gone(nil).want("pay:Cancelled/1", "FinishJob", v1alpha1.ReasonCancelled)
	if s.task.Status.Phase != v1alpha1.TaskCancelled || s.record().Unknown != nil {
		t.Errorf("phase %s, unknown %v", s.task.Status.Phase, s.record().Unknown)
	}
}

// What a check said while the pod was alive may be old: once the pod is dead it runs
// anew, under another name, since the Job and pod of the first are still there.
func TestACheckRunsAnewOnceThePodIsDead(t *testing.T) {
	s := play(t, pay().OnUnknown(v1alpha1.UnknownCheck).Check("")).through()
	s.pod(bound().Running().Forced()).want("pay:Unknown/1", "", v1alpha1.ReasonNodeLost)
	s.pod(bound().Running().Forced()).want("pay:Checking/1", "MakeJob", v1alpha1.ReasonNodeLost)
	first := find(s.last, MakeJob).Attempt.Record.JobName
	s.see(World{Job: jobNamed(first), Pod: MakePod().Succeeded(`{"done":false}`).Obj()}).want("pay:Unknown/1", "FinishJob", v1alpha1.ReasonNodeLost)
	s.pod(bound().Running().Forced()).want("pay:Unknown/1", "", v1alpha1.ReasonNodeLost)
	s.pod(bound().Ended(137, "Error", "").Forced()).want("pay:Checking/1", "MakeJob ReleasePod", v1alpha1.ReasonPodLost)
	second := find(s.last, MakeJob).Attempt.Record.JobName
	if first == second {
		t.Fatalf("both checks run as Job %s, so that the first one's answer is the second one's", first)
	}
	s.see(World{Job: jobNamed(second), Pod: MakePod().Succeeded(`{"done":false}`).Obj()}).want("pay:Retrying/1", "FinishJob", v1alpha1.ReasonPodLost)
	if s.record().Unknown != nil {
		t.Error("the check has settled that nothing happened, and the outcome still counts as unknown")
	}
}

// killed is a pod whose program was killed from outside.
func killed() *podBuilder { return bound().Ended(137, "Error", "") }

func TestOnUnknownSettlesADeadPodsOutcome(t *testing.T) {
	tests := map[v1alpha1.OnUnknown]struct {
		next, wantActions, wantReason string
		wantPhase                     v1alpha1.TaskPhase
	}{
		"":                    {"pay:Unknown/1", "", v1alpha1.ReasonKilled, v1alpha1.TaskUnknown},
		v1alpha1.UnknownPause: {"pay:Unknown/1", "", v1alpha1.ReasonKilled, v1alpha1.TaskUnknown},
		v1alpha1.UnknownRetry: {"pay:Retrying/1", "FinishJob", v1alpha1.ReasonKilled, v1alpha1.TaskWaiting},
		v1alpha1.UnknownFail:  {"pay:Failed/1", "FinishJob", v1alpha1.ReasonOutcomeUnknown, v1alpha1.TaskFailed},
		v1alpha1.UnknownCheck: {"pay:Checking/1", "MakeJob", v1alpha1.ReasonKilled, v1alpha1.TaskRunning},
	}
	for policy, tt := range tests {
		t.Run("policy "+string(policy), func(t *testing.T) {
			s := play(t, pay().OnUnknown(policy).Check("")).through()
			s.pod(killed()).want("pay:Unknown/1", "ReleasePod", v1alpha1.ReasonKilled)
			waits := policy == "" || policy == v1alpha1.UnknownPause
			if stalled := reasonOfStalled(s.task.Status) != ""; stalled != waits || (s.last.RequeueAfter == 0) != waits {
				t.Errorf("stalled %v, again after %s", stalled, s.last.RequeueAfter)
			}
			s.see(World{Job: jobOf(s.task), Pod: killed().Of(s.task).Obj()}).want(tt.next, tt.wantActions, tt.wantReason)
			if s.task.Status.Phase != tt.wantPhase || s.record().Unknown == nil {
				t.Errorf("phase %s, unknown %v", s.task.Status.Phase, s.record().Unknown)
			}
		})
	}
}

// Nothing of the attempt may run any more when it is tried again.
func TestRetryWaitsUntilThePodIsProvablyDead(t *testing.T) {
	s := play(t, pay().OnUnknown(v1alpha1.UnknownRetry)).through()
	for range 3 {
		s.pod(bound().Running().Forced()).want("pay:Unknown/1", "", v1alpha1.ReasonNodeLost).later(time.Hour)
	}
	if s.last.RequeueAfter != conflictRecheck || reasonOfStalled(s.task.Status) != v1alpha1.ReasonOutcomeUnknown {
		t.Errorf("again after %s, stalled by %q", s.last.RequeueAfter, reasonOfStalled(s.task.Status))
	}
	s.gone(bound().Running()).want("pay:Unknown/1", "", v1alpha1.ReasonNodeLost)
	if s.record().Unknown.PodDead {
		t.Error("that the pod is gone from the API server is taken for its end")
	}

	s = play(t, pay().OnUnknown(v1alpha1.UnknownRetry)).through()
	s.pod(bound().Running().Forced()).pod(killed().Forced()).want("pay:Retrying/1", "FinishJob ReleasePod", v1alpha1.ReasonPodLost)
	s.later(time.Minute).see(World{}).want("pay:Running/2", "MakeJob", "")
	if s.record().PodUID != "" || s.record().JobUID != "" {
		t.Error("the next attempt begins with the pod of the one before")
	}
	if c := condition(&s.task.Status, v1alpha1.ConditionOutcomeUnknown); c.Status != "True" || !strings.Contains(c.Message, "attempt 1") {
		t.Errorf("OutcomeUnknown %s: %s", c.Status, c.Message)
	}
	s.pod(MakePod().UID("pod-2").Gated()).pod(bound().UID("pod-2").Succeeded("1")).want("pay:Succeeded/2", "FinishJob ReleasePod", "")
	if c := condition(&s.task.Status, v1alpha1.ConditionOutcomeUnknown); c.Status != "False" {
		t.Errorf("it succeeded, and OutcomeUnknown is %s", c.Status)
	}
}

func TestWhatAnAttemptThatMustNotStartTwiceEndsIn(t *testing.T) {
	failed := stepexec.Result{Outcome: stepexec.OutcomeFailed, Reason: v1alpha1.ReasonExitCode, Message: "exit code 3"}
	timeout := stepexec.Result{Outcome: stepexec.OutcomeTimeout, Reason: v1alpha1.ReasonTimeout, Message: "ran longer than 1h0m0s"}
	tests := map[string]struct {
		pod                     *podBuilder
		wantRecords, wantReason string
	}{
		"exit code 0":           {bound().Succeeded("1"), "pay:Succeeded/1", ""},
		"exit code 3":           {bound().Result(3, failed), "pay:Failed/1", v1alpha1.ReasonExitCode},
		"exit code 75":          {bound().Result(75, again), "pay:Retrying/1", v1alpha1.ReasonRetryRequested},
		"it could not start":    {unknownToKubelet(bound()).Deleting(), "pay:Retrying/1", v1alpha1.ReasonPodLost},
		"a timeout":             {bound().Result(124, timeout), "pay:Unknown/1", v1alpha1.ReasonTimeout},
		"killed for its memory": {bound().Ended(137, "OOMKilled", ""), "pay:Unknown/1", v1alpha1.ReasonOutOfMemory},
		"no result":             {bound().Ended(0, "Completed", ""), "pay:Unknown/1", v1alpha1.ReasonResultInvalid},
		"started a second time": {bound().Running().StartedTwice(), "pay:Unknown/1", v1alpha1.ReasonStartedTwice},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := play(t, pay().OnTimeout().Limit(3)).through().pod(tt.pod)
			if got := records(&s.task.Status); got != tt.wantRecords || s.record().Reason != tt.wantReason {
				t.Errorf("%s %s, want %s %s", got, s.record().Reason, tt.wantRecords, tt.wantReason)
			}
			unknown := strings.Contains(tt.wantRecords, "Unknown")
			if u := s.record().Unknown; (u != nil) != unknown || unknown && (u.Attempt != 1 || u.Reason != tt.wantReason || u.Message == "" || !u.PodDead) {
				t.Errorf("unknown: %+v", u)
			}
		})
	}
}

// The program's own word counts whenever it comes in, as long as nothing else has settled it.
func TestWordThatComesInLate(t *testing.T) {
	failed := stepexec.Result{Outcome: stepexec.OutcomeFailed, Reason: v1alpha1.ReasonExitCode, Message: "exit code 3"}
	tests := map[string]struct {
		pod                     *podBuilder
		wantRecords, wantReason string
		wantUnknown             bool
	}{
		"it had succeeded":              {bound().Succeeded("1").Forced(), "pay:Succeeded/1", "", false},
		"it had failed":                 {bound().Result(3, failed).Forced(), "pay:Failed/1", v1alpha1.ReasonExitCode, false},
		"it had asked for another":      {bound().Result(75, again).Forced(), "pay:Retrying/1", v1alpha1.ReasonRetryRequested, false},
		"its container was never made":  {unknownToKubelet(bound()).Forced(), "pay:Retrying/1", v1alpha1.ReasonPodLost, false},
		"it was killed, and says no":    {killed().Forced(), "pay:Unknown/1", v1alpha1.ReasonPodLost, true},
		"its node still says nothing":   {bound().Running().Forced(), "pay:Unknown/1", v1alpha1.ReasonNodeLost, true},
		"it had succeeded, and is gone": {nil, "pay:Succeeded/1", "", false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := play(t, pay()).through().pod(bound().Running().Forced()).want("pay:Unknown/1", "", v1alpha1.ReasonNodeLost)
			if tt.pod == nil {
				s.gone(bound().Succeeded("1"))
			} else {
				s.pod(tt.pod)
			}
			if got := records(&s.task.Status); got != tt.wantRecords || s.record().Reason != tt.wantReason || (s.record().Unknown != nil) != tt.wantUnknown {
				t.Errorf("%s %s, unknown %v; want %s %s", got, s.record().Reason, s.record().Unknown, tt.wantRecords, tt.wantReason)
			}
			if job := find(s.last, FinishJob); (job != nil) != !tt.wantUnknown {
				t.Errorf("%q", kinds(s.last))
			}
		})
	}
}

func TestTaskEndsWithAnUnknownOutcome(t *testing.T) {
	deadline := func(spec *v1alpha1.AgentTaskSpec) { spec.ActiveDeadlineSeconds = new(int64(1)) }
	ends := map[string]struct {
		edit       func(*v1alpha1.AgentTaskSpec)
		phase      string
		wantReason string
		wantPhase  v1alpha1.TaskPhase
	}{
		"cancelled":         {cancel, "Cancelled", v1alpha1.ReasonCancelled, v1alpha1.TaskCancelled},
		"past its deadline": {deadline, "Failed", v1alpha1.ReasonDeadlineExceeded, v1alpha1.TaskFailed},
	}
	alive := func() *podBuilder { return bound().Running().Forced() }
	for name, tt := range ends {
		finish := func(s *scene) {
			s.t.Helper()
			s.want("pay:"+tt.phase+"/1", kinds(s.last), tt.wantReason)
			c := condition(&s.task.Status, v1alpha1.ConditionOutcomeUnknown)
			if s.task.Status.Phase != tt.wantPhase || s.record().Unknown == nil || c.Status != "True" || !strings.Contains(c.Message, "The task has ended. Look whether") {
				s.t.Errorf("%s, unknown %v, OutcomeUnknown %s: %s", s.task.Status.Phase, s.record().Unknown, c.Status, c.Message)
			}
			if !strings.Contains(s.record().Message, "whether it has taken effect is not known: ") {
				s.t.Errorf("the record does not say so: %s", s.record().Message)
			}
		}
		t.Run(name+" while it waits for a person", func(t *testing.T) {
			finish(play(t, pay()).through().pod(killed()).edit(tt.edit).later(time.Minute).see(World{}))
		})
		t.Run(name+" while its pod may still run", func(t *testing.T) {
			finish(play(t, pay()).through().pod(alive()).edit(tt.edit).later(time.Minute).pod(alive()))
		})
		t.Run(name+" while it runs, and it is killed for that", func(t *testing.T) {
			s := play(t, pay()).through().pod(bound().Running()).edit(tt.edit).later(time.Minute)
			s.pod(bound().Running()).want("pay:Stopping/1", "StopPod", tt.wantReason)
			finish(s.pod(killed().Deleting()))
		})
		t.Run(name+" while its check runs", func(t *testing.T) {
			s := play(t, pay().OnUnknown(v1alpha1.UnknownCheck).Check("")).through().pod(killed()).see(World{})
			s.want("pay:Checking/1", "MakeJob", v1alpha1.ReasonKilled)
			check := jobNamed(find(s.last, MakeJob).Attempt.Record.JobName)
			s.edit(tt.edit).later(time.Minute).see(World{Job: check, Pod: MakePod().Running().Obj()})
			s.want("pay:Checking/1", "StopPod", v1alpha1.ReasonKilled)
			finish(s.see(World{Job: check, PodVanished: true, LastPod: MakePod().Running().Obj()}))
		})
		t.Run(name+" while somebody's decision waits for the pod to go", func(t *testing.T) {
			s := play(t, pay()).through().pod(alive()).decide(v1alpha1.DecisionRetry).pod(alive())
			finish(s.edit(tt.edit).later(time.Minute).pod(alive()))
		})
	}
}

// A result that still comes in is worth more than that the task was cancelled.
func TestStoppedInTimeOrNot(t *testing.T) {
	tests := map[string]struct {
		pod         *podBuilder
		wantRecords string
		wantUnknown bool
	}{
		"it succeeded all the same": {bound().Succeeded("1").Deleting(), "pay:Succeeded/1", false},
		"it had not started":        {MakePod().UID("pod-1").Held().Forced(), "pay:Cancelled/1", false},
		"it asked for another":      {bound().Result(75, again).Deleting(), "pay:Cancelled/1", false},
		"it was killed":             {killed().Deleting(), "pay:Cancelled/1", true},
		"its node says nothing":     {bound().Running().Forced(), "pay:Cancelled/1", true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := play(t, pay()).through().edit(cancel).pod(bound().Running()).want("pay:Stopping/1", "StopPod", v1alpha1.ReasonCancelled)
			s.pod(bound().Running().Deleting()).want("pay:Stopping/1", "", v1alpha1.ReasonCancelled).pod(tt.pod)
			if got := records(&s.task.Status); got != tt.wantRecords || (s.record().Unknown != nil) != tt.wantUnknown {
				t.Errorf("%s, unknown %v; want %s", got, s.record().Unknown, tt.wantRecords)
			}
		})
	}
}

func TestSuspendHoldsWhatTheOperatorSettlesByItself(t *testing.T) {
	for policy, next := range map[v1alpha1.OnUnknown]string{v1alpha1.UnknownRetry: "pay:Retrying/1", v1alpha1.UnknownCheck: "pay:Checking/1", v1alpha1.UnknownFail: "pay:Failed/1"} {
		s := play(t, pay().OnUnknown(policy).Check("")).through().edit(suspend).pod(killed()).want("pay:Unknown/1", "ReleasePod", v1alpha1.ReasonKilled)
		s.see(World{}).want("pay:Unknown/1", "", v1alpha1.ReasonKilled)
		if s.last.RequeueAfter != 0 {
			t.Errorf("%s: suspended, and looked at again after %s", policy, s.last.RequeueAfter)
		}
		s.edit(func(spec *v1alpha1.AgentTaskSpec) { spec.Suspend = false }).see(World{})
		if got := records(&s.task.Status); got != next {
			t.Errorf("%s: resumed, it is %s, want %s", policy, got, next)
		}
	}
}

// A pod that would be started and killed at once is not started.
func TestNoPodIsLetThroughWhoseJobIsGone(t *testing.T) {
	for name, job := range map[string]func(*scene) World{
		"its Job is gone": func(*scene) World { return World{JobVanished: true} },
		"its Job is being deleted": func(s *scene) World {
			job := jobOf(s.task)
			job.DeletionTimestamp = &metav1.Time{Time: epoch}
			return World{Job: job}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := play(t, pay())
			w := job(s)
			w.Pod = MakePod().UID("pod-1").Gated().Of(s.task).Obj()
			s.see(w).want("pay:Running/1", "", v1alpha1.ReasonJobDeleted)
			if s.record().PodUID != "pod-1" || s.last.RequeueAfter != v1alpha1.DefaultStartTimeout {
				t.Errorf("pod %q, again after %s", s.record().PodUID, s.last.RequeueAfter)
			}
			w.Pod = MakePod().UID("pod-1").Gated().Forced().Of(s.task).Obj()
			s.see(w)
			if got := records(&s.task.Status); got != "pay:Retrying/1" || s.record().Unknown != nil {
				t.Errorf("%s, unknown %v; want it known that it never started", got, s.record().Unknown)
			}
		})
	}
}

func TestAPodThatSomebodyElseMade(t *testing.T) {
	s := play(t, pay()).pod(MakePod().UID("stranger").Running()).want("pay:Running/1", "", "")
	if s.record().PodUID != "" || reasonOfStalled(s.task.Status) != v1alpha1.ReasonNameConflict || s.last.RequeueAfter != conflictRecheck {
		t.Errorf("pod %q, stalled by %q, again after %s", s.record().PodUID, reasonOfStalled(s.task.Status), s.last.RequeueAfter)
	}
	s.see(World{Job: jobOf(s.task)}).want("pay:Running/1", "MakeJob", "")
}

func TestJobSuspendedAtTheFence(t *testing.T) {
	s := play(t, pay()).through()
	held := World{Job: suspendedJobOf(s.task), Pod: MakePod().UID("pod-1").Gated().Of(s.task).Obj()}
	s.see(held).want("pay:Stopping/1", "StopPod", v1alpha1.ReasonJobSuspended)
	held.Pod = MakePod().UID("pod-1").Gated().Forced().Of(s.task).Obj()
	s.see(held).want("pay:Retrying/1", "FinishJob", v1alpha1.ReasonJobSuspended)

	s = play(t, pay()).through()
	s.see(World{Job: suspendedJobOf(s.task), Pod: bound().Running().Of(s.task).Obj()}).want("pay:Running/1", "", "")
}

// What the API server refuses stays said until the pod is through, or each try would be
// two writes.
func TestAFenceThatCannotBeOpenedJustNow(t *testing.T) {
	s := play(t, pay())
	gated := World{Job: jobOf(s.task), Pod: MakePod().UID("pod-1").Gated().Of(s.task).Obj()}
	refused := gated
	refused.Refusal = &Refusal{Reason: v1alpha1.ReasonUnavailable, Message: "a webhook does not answer", Retry: 4 * time.Second}
	s.see(gated).want("pay:Running/1", "OpenFence", "").see(refused).want("pay:Running/1", "", v1alpha1.ReasonUnavailable)
	before := s.task.Status
	for range 2 {
		s.see(gated).want("pay:Running/1", "OpenFence", v1alpha1.ReasonUnavailable).see(refused)
		if diff := cmp.Diff(before, s.task.Status); diff != "" || s.last.RequeueAfter != 4*time.Second {
			t.Errorf("tried again it changes, again after %s:\n%s", s.last.RequeueAfter, diff)
		}
	}
	s.pod(bound().Running()).want("pay:Running/1", "", "")
}

func TestMissingPoliciesAreTold(t *testing.T) {
	task := MakeTask("read").Step(pay().Obj()).Obj()
	d := decide(t, Input{Task: task, World: World{Unguarded: "no policies"}})
	if reasons := reasonsOf(d.Events); slices.Contains(reasons, v1alpha1.EventPoliciesMissing) {
		t.Errorf("a step that may run twice: %v", reasons)
	}
	task.Status = d.Status
	d = decide(t, Input{Task: task, World: World{Job: jobOf(task), Pod: MakePod().Succeeded("1").Obj(), Unguarded: "ValidatingAdmissionPolicy fence is missing"}})
	at := slices.Index(reasonsOf(d.Events), v1alpha1.EventPoliciesMissing)
	if at < 0 || !d.Events[at].Warning || !strings.Contains(d.Events[at].Message, "ValidatingAdmissionPolicy fence is missing; install config/policy") {
		t.Errorf("events %+v", d.Events)
	}
}

func reasonsOf(events []Event) []string {
	var out []string
	for _, e := range events {
		out = append(out, e.Reason)
	}
	return out
}

// awayOutput is a success whose output cannot be kept just now.
func (s *scene) awayOutput() *scene {
	s.t.Helper()
	return s.see(World{Job: jobOf(s.task), Pod: named(bound(), s.record().JobName).Result(0, announced()).Obj(),
		Refusal: &Refusal{Reason: v1alpha1.ReasonUnavailable, Message: "no route to the node", Retry: 4 * time.Second}})
}

// That a program has succeeded is known though its output cannot be kept just now.
func TestASuccessWhoseOutputCannotBeKeptJustNow(t *testing.T) {
	t.Run("it waits", func(t *testing.T) {
		s := play(t, pay()).through().awayOutput().want("pay:Running/1", "", v1alpha1.ReasonUnavailable)
		if s.last.RequeueAfter != 4*time.Second || s.record().Unknown != nil {
			t.Errorf("again after %s, unknown %v", s.last.RequeueAfter, s.record().Unknown)
		}
	})
	t.Run("the task is cancelled meanwhile: that it has happened is known", func(t *testing.T) {
		s := play(t, pay()).through().edit(cancel).pod(bound().Running()).want("pay:Stopping/1", "StopPod", v1alpha1.ReasonCancelled)
		s.awayOutput().want("pay:Cancelled/1", "FinishJob", v1alpha1.ReasonCancelled)
		if r := s.record(); r.Unknown != nil || !strings.Contains(r.Message, "it succeeded all the same, and its output could not be kept: no route to the node") {
			t.Errorf("unknown %v: %s", r.Unknown, r.Message)
		}
	})
	late := func(t *testing.T) *scene {
		return play(t, pay().OnUnknown(v1alpha1.UnknownRetry)).through().pod(bound().Running().Forced())
	}
	t.Run("it came in late: nothing is tried again", func(t *testing.T) {
		s := late(t).awayOutput().want("pay:Unknown/1", "", v1alpha1.ReasonNodeLost)
		if s.last.RequeueAfter != 4*time.Second {
			t.Errorf("again after %s", s.last.RequeueAfter)
		}
	})
	t.Run("it came in late, and the task is cancelled", func(t *testing.T) {
		s := late(t).edit(cancel).awayOutput().want("pay:Cancelled/1", "FinishJob", v1alpha1.ReasonCancelled)
		if s.record().Unknown != nil {
			t.Errorf("unknown %v", s.record().Unknown)
		}
	})
	t.Run("it came in late, and somebody decides", func(t *testing.T) {
		late(t).decide(v1alpha1.DecisionComplete).awayOutput().want("pay:Succeeded/1", "FinishJob AnswerDecision", v1alpha1.ReasonDecided)
	})
}

// What an attempt's end leads to is the plan's matter, so it waits for the plan that
// started it; what the program itself has said does not.
func TestEndOfAnAttemptOfAPlanThatChanged(t *testing.T) {
	failed := stepexec.Result{Outcome: stepexec.OutcomeFailed, Reason: v1alpha1.ReasonExitCode, Message: "exit code 3"}
	change := func(spec *v1alpha1.AgentTaskSpec) {
		spec.Steps[0].Retry = &v1alpha1.RetryPolicy{Limit: new(int32(0))}
	}
	tests := map[string]struct {
		step *stepBuilder
		pod  *podBuilder
		want string
	}{
		"it succeeded":                       {pay(), bound().Succeeded("1"), "pay:Succeeded/1"},
		"it failed for good":                 {pay(), bound().Result(3, failed), "pay:Failed/1"},
		"it left no word":                    {pay(), killed(), "pay:Unknown/1"},
		"it asks for another attempt":        {pay(), bound().Result(75, again), "pay:Running/1"},
		"it may run twice, and left no word": {MakeStep("pay"), killed(), "pay:Running/1"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := play(t, tt.step)
			if tt.step.step.Effect == v1alpha1.EffectOnce {
				s.through()
			}
			s.pod(bound().Running()).edit(change).pod(tt.pod)
			if got := records(&s.task.Status); got != tt.want {
				t.Errorf("%s, want %s", got, tt.want)
			}
			if got := reasonOfStalled(s.task.Status); got != v1alpha1.ReasonPlanChanged && tt.want != "pay:Failed/1" {
				t.Errorf("stalled by %q", got)
			}
			if tt.want != "pay:Running/1" {
				return
			}
			if s.last.RequeueAfter != conflictRecheck {
				t.Errorf("again after %s", s.last.RequeueAfter)
			}
			s.edit(func(spec *v1alpha1.AgentTaskSpec) { spec.Steps[0].Retry = nil }).pod(tt.pod)
			if got := records(&s.task.Status); got != "pay:Retrying/1" {
				t.Errorf("taken back: %s", got)
			}
		})
	}
}

func TestCurrentAttempt(t *testing.T) {
	is := func(s *scene, wantStep string, wantRole v1alpha1.Role, wantOnce bool) {
		t.Helper()
		c := CurrentOf(s.task)
		if c == nil || c.Step != wantStep || c.Role != wantRole || c.Once != wantOnce || c.JobName == "" {
			t.Errorf("%s: %+v, want %s %s, once %v", records(&s.task.Status), c, wantStep, wantRole, wantOnce)
		}
	}
	none := func(s *scene) {
		t.Helper()
		if c := CurrentOf(s.task); c != nil {
			t.Errorf("%s: %+v, want none", records(&s.task.Status), c)
		}
	}
	none(&scene{task: MakeTask("pay").Obj()})
	is(play(t, pay()), "pay", v1alpha1.RoleMain, true)
	is(play(t, MakeStep("read")), "read", v1alpha1.RoleMain, false)
	is(paused(t), "pay", v1alpha1.RoleMain, true)
	is(checked(t, pay()), "pay", v1alpha1.RoleCheck, false)
	none(checked(t, pay().Limit(3)).checkPod(MakePod().Result(75, again)))
	none(play(t, pay()).through().pod(bound().Result(75, again)))
	none(play(t, pay()).through().pod(bound().Succeeded("1")))
	none(checked(t, pay()).checkPod(MakePod().Succeeded(`{"done":true}`)))
}
