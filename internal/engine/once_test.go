// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
)

// scene is a task that is decided upon again and again, with the world as each act shows
// it. A decision's status is the next one's.
type scene struct {
	t    *testing.T
	task *v1alpha1.AgentTask
	now  time.Time
	last Decision
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
