// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
)

// fencedRecord is a record whose attempt names pod-1.
func fencedRecord() *v1alpha1.StepStatus {
	return &v1alpha1.StepStatus{Name: "pay", Effect: v1alpha1.EffectOnce,
		ActionStatus: v1alpha1.ActionStatus{Phase: v1alpha1.StepRunning, Attempt: 1, PodUID: "pod-1"}}
}

// fencedDecider is a call of Decide at work on a task of one record.
func fencedDecider(record *v1alpha1.StepStatus, world World) *decider {
	d := &decider{Input: Input{Task: MakeTask().Step(pay().Obj()).Obj(), World: world, Now: epoch}}
	d.Status.Steps = []v1alpha1.StepStatus{*record}
	return d
}

// withInit gives a pod its init containers, of which sidecar is one that runs on.
func withInit(b *podBuilder, sidecar string) *podBuilder {
	b.pod.Spec.InitContainers = []corev1.Container{{Name: stepexec.ContainerInstall}, {Name: "prepare"}}
	if sidecar != "" {
		b.pod.Spec.InitContainers = append(b.pod.Spec.InitContainers, corev1.Container{Name: sidecar, RestartPolicy: new(corev1.ContainerRestartPolicyAlways)})
	}
	return b
}

// created says that kubelet had made the step's container.
func created(b *podBuilder) *podBuilder {
	b.pod.Status.ContainerStatuses[0].ContainerID = "containerd://1"
	return b
}

// fencedCase is what is seen of the pod that a record names, and how its attempt ended.
type fencedCase struct {
	world       World
	want        string // a class, or empty: it has not ended
	wantReason  string
	wantMessage string
	wantDead    bool
}

func live(b *podBuilder) World { return World{Pod: b.Obj()} }
func last(b *podBuilder) World { return World{PodVanished: true, LastPod: b.Obj()} }
func final(b *podBuilder) World {
	return World{PodVanished: true, LastPod: b.Obj(), LastPodFinal: true}
}

// unknownToKubelet is how kubelet ends a container of which it knows nothing.
func unknownToKubelet(b *podBuilder) *podBuilder {
	return b.Ended(137, "ContainerStatusUnknown", "The container could not be located when the pod was terminated")
}

func fencedEnds() map[string]fencedCase {
	const lost, notStarted = "Lost", "NotStarted"
	return map[string]fencedCase{
		"it runs":                      {world: live(bound().Running())},
		"it waits at the fence":        {world: live(MakePod().UID("pod-1").Gated())},
		"it is pulled":                 {world: live(bound().Waiting("ImagePullBackOff", ""))},
		"it runs and is being deleted": {world: live(bound().Running().Deleting())},
		"it has a node, and is being deleted before it ran": {world: live(bound().Deleting())},
		"it succeeded":                 {world: live(bound().Succeeded("1")), want: "Success", wantDead: true},
		"it asks for another attempt":  {world: live(bound().Result(75, again)), want: "Again", wantReason: v1alpha1.ReasonRetryRequested, wantDead: true},
		"it was killed":                {world: live(bound().Ended(137, "Error", "")), want: lost, wantReason: v1alpha1.ReasonKilled, wantDead: true},
		"it was killed for its memory": {world: live(bound().Ended(137, "OOMKilled", "")), want: lost, wantReason: v1alpha1.ReasonOutOfMemory, wantDead: true},
		"it ran into its timeout": {world: live(bound().Result(124, stepexec.Result{Outcome: stepexec.OutcomeTimeout, Reason: v1alpha1.ReasonTimeout})),
			want: "TimedOut", wantReason: v1alpha1.ReasonTimeout, wantDead: true},
		"its runner says that the program never ran": {world: live(bound().Result(143, stepexec.Result{Outcome: stepexec.OutcomeInterrupted, Reason: v1alpha1.ReasonKilled, NotStarted: true})),
			want: notStarted, wantReason: v1alpha1.ReasonKilled, wantDead: true},

		"deleted at the fence":                           {world: live(MakePod().UID("pod-1").Gated().Forced()), want: notStarted, wantReason: v1alpha1.ReasonPodLost, wantDead: true},
		"deleted behind the fence, before it had a node": {world: live(MakePod().UID("pod-1").Held().Forced()), want: notStarted, wantReason: v1alpha1.ReasonPodLost, wantDead: true},
		"deleted by force while it ran":                  {world: live(bound().Running().Forced()), want: lost, wantReason: v1alpha1.ReasonNodeLost, wantMessage: "may still run there"},
		"deleted by force while its node took it":        {world: live(bound().Forced()), want: lost, wantReason: v1alpha1.ReasonNodeLost, wantMessage: "node n1"},
		"deleted by force, and its node reports the end": {world: live(bound().Ended(137, "Error", "").Forced()), want: lost, wantReason: v1alpha1.ReasonPodLost, wantDead: true},
		"given up by the pod garbage collector while it ran": {world: live(bound().Running().Phase(corev1.PodFailed, "", "").Disrupted("DeletionByPodGC").Forced()),
			want: lost, wantReason: v1alpha1.ReasonNodeLost},
		"given up by the pod garbage collector before it ran": {world: live(bound().Waiting("ContainerCreating", "").Phase(corev1.PodFailed, "", "").Disrupted("DeletionByPodGC").Forced()),
			want: lost, wantReason: v1alpha1.ReasonNodeLost},
		"its node does not admit it again, and forgets that it ran": {world: live(bound().Phase(corev1.PodFailed, "OutOfcpu", "Node didn't have enough resource: cpu")),
			want: lost, wantReason: v1alpha1.ReasonNodeLost, wantMessage: "OutOfcpu Node didn't have enough resource: cpu"},
		"somebody wrote that it succeeded": {world: live(bound().Running().Phase(corev1.PodSucceeded, "", "")), want: lost, wantReason: v1alpha1.ReasonNodeLost},

		"its container was never made":                {world: live(unknownToKubelet(bound()).Deleting()), want: notStarted, wantReason: v1alpha1.ReasonPodLost, wantMessage: "before its program ran", wantDead: true},
		"its container was made, and kubelet lost it": {world: live(created(unknownToKubelet(bound())).Deleting()), want: lost, wantReason: v1alpha1.ReasonPodLost, wantDead: true},
		"an init container failed": {world: live(withInit(bound().Waiting("PodInitializing", ""), "").Init("prepare", 2, "Error", "no space left").Phase(corev1.PodFailed, "", "")),
			want: notStarted, wantReason: v1alpha1.ReasonInitFailed, wantMessage: "no space left", wantDead: true},
		"a sidecar failed": {world: live(withInit(bound().Running(), "proxy").Init("proxy", 2, "Error", ""))},
		"something failed that the pod does not know": {world: live(withInit(bound().Running(), "").Init("proxy", 2, "Error", ""))},

		"it was started twice, and had succeeded":                 {world: live(bound().Succeeded("1").StartedTwice()), want: "Success", wantDead: true},
		"it was started twice, and had asked for another attempt": {world: live(bound().Result(75, again).StartedTwice()), want: "Again", wantReason: v1alpha1.ReasonRetryRequested, wantDead: true},
		"it was started twice, and had been killed":               {world: live(bound().Ended(137, "Error", "").StartedTwice()), want: lost, wantReason: v1alpha1.ReasonKilled, wantDead: true},
		"it was started twice, and nobody knows how it had ended": {world: live(bound().Running().StartedTwice()), want: lost, wantReason: v1alpha1.ReasonStartedTwice, wantDead: true},

		"gone, and nobody saw it":                     {world: World{}, want: lost, wantReason: v1alpha1.ReasonPodLost, wantMessage: "nobody saw how it ended"},
		"gone, and another of its name was seen":      {world: last(MakePod().UID("pod-2").Succeeded("1")), want: lost, wantReason: v1alpha1.ReasonPodLost, wantMessage: "nobody saw how it ended"},
		"gone, and another of its name is there":      {world: live(MakePod().UID("pod-2").Running()), want: lost, wantReason: v1alpha1.ReasonPodLost},
		"gone, last seen when it had succeeded":       {world: last(bound().Succeeded("1")), want: "Success", wantDead: true},
		"gone, last seen when it ran":                 {world: last(bound().Running()), want: lost, wantReason: v1alpha1.ReasonPodLost},
		"gone, evicted, last seen when it ran":        {world: final(bound().Running().Disrupted("EvictionByEvictionAPI").Deleting()), want: lost, wantReason: v1alpha1.ReasonEvicted},
		"gone, seen to the end, and it had no node":   {world: final(MakePod().UID("pod-1").Forced()), want: notStarted, wantReason: v1alpha1.ReasonPodLost, wantDead: true},
		"gone, and when last seen it had no node yet": {world: last(MakePod().UID("pod-1")), want: lost, wantReason: v1alpha1.ReasonPodLost},
		"gone, seen to the end, and it had a node":    {world: final(bound().Forced()), want: lost, wantReason: v1alpha1.ReasonPodLost},
	}
}

var classes = map[Class]string{Success: "Success", Final: "Final", Again: "Again", TimedOut: "TimedOut", NotStarted: "NotStarted", Lost: "Lost"}

func TestEndOfAPodThatMustNotStartTwice(t *testing.T) {
	for name, tt := range fencedEnds() {
		t.Run(name, func(t *testing.T) {
			d := fencedDecider(fencedRecord(), tt.world)
			a := d.mainOf(d.current())
			v := d.verdict(a)
			got, reason, message := "", "", ""
			if v != nil {
				got, reason, message = classes[v.Class], v.Reason, v.Message
			}
			if got != tt.want || reason != tt.wantReason || !strings.Contains(message, tt.wantMessage) {
				t.Errorf("%q %s: %q; want %q %s: %q", got, reason, message, tt.want, tt.wantReason, tt.wantMessage)
			}
			if dead := d.podDead(a); dead != tt.wantDead {
				t.Errorf("dead is %v", dead)
			}
		})
	}
}

func TestNoPodCountsBeforeTheRecordNamesIt(t *testing.T) {
	for name, world := range map[string]World{
		"none":              {},
		"one that has gone": last(bound().Succeeded("1")),
		"one that is there": live(bound().Succeeded("1")),
	} {
		record := fencedRecord()
		record.PodUID = ""
		d := fencedDecider(record, world)
		if v := d.verdict(d.mainOf(d.current())); v != nil {
			t.Errorf("%s: %+v", name, v)
		}
	}
}

func TestWhichPodsAreLetGo(t *testing.T) {
	unknown := func(dead bool) *v1alpha1.Unknown {
		return &v1alpha1.Unknown{Time: metav1.NewTime(epoch), Attempt: 1, Reason: v1alpha1.ReasonKilled, PodDead: dead}
	}
	decided := func(kind v1alpha1.DecisionKind, attempt int32) *v1alpha1.AppliedDecision {
		return &v1alpha1.AppliedDecision{Decision: kind, Attempt: attempt}
	}
	const keep, release, leftover = "kept", "released", "released as left over"
	tests := map[string]struct {
		record func(*v1alpha1.StepStatus)
		pod    *podBuilder
		world  *podBuilder // the attempt's pod, as it is seen
		want   string
	}{
		"its attempt runs":                       {func(*v1alpha1.StepStatus) {}, bound(), bound(), keep},
		"its attempt is stopped":                 {func(r *v1alpha1.StepStatus) { r.Phase = v1alpha1.StepStopping }, bound(), bound(), keep},
		"its outcome is unknown":                 {func(r *v1alpha1.StepStatus) { r.Phase, r.Unknown = v1alpha1.StepUnknown, unknown(false) }, bound(), bound(), keep},
		"its outcome is unknown, and it is dead": {func(r *v1alpha1.StepStatus) { r.Phase, r.Unknown = v1alpha1.StepUnknown, unknown(true) }, bound(), bound(), release},
		"its outcome is checked":                 {func(r *v1alpha1.StepStatus) { r.Phase, r.Unknown = v1alpha1.StepChecking, unknown(false) }, bound(), nil, keep},
		"somebody decided to try again": {func(r *v1alpha1.StepStatus) {
			r.Phase, r.Unknown, r.Decision = v1alpha1.StepUnknown, unknown(false), decided(v1alpha1.DecisionRetry, 1)
		}, bound(), bound(), release},
		"somebody had decided on an earlier attempt": {func(r *v1alpha1.StepStatus) {
			r.Attempt, r.Phase, r.Unknown, r.Decision = 2, v1alpha1.StepUnknown, unknown(false), decided(v1alpha1.DecisionRetry, 1)
		}, bound(), bound(), keep},
		"an earlier attempt's outcome is unknown, and its own runs": {func(r *v1alpha1.StepStatus) { r.Attempt, r.Unknown = 2, unknown(true) }, bound(), bound(), keep},
		"its attempt is to be followed by another":                  {func(r *v1alpha1.StepStatus) { r.Phase = v1alpha1.StepRetrying }, bound(), nil, release},
		"its step has ended":                                        {func(r *v1alpha1.StepStatus) { r.Phase = v1alpha1.StepSucceeded }, bound(), nil, release},
		"it is of an earlier attempt":                               {func(r *v1alpha1.StepStatus) { r.Attempt, r.JobName, r.PodUID = 2, "pay-2", "pod-2" }, bound(), nil, leftover},
		"the record is about to name it":                            {func(r *v1alpha1.StepStatus) { r.PodUID = "" }, MakePod().UID("pod-1").Gated(), MakePod().UID("pod-1").Gated(), keep},
		"another is about to be named":                              {func(r *v1alpha1.StepStatus) { r.PodUID = "" }, MakePod().UID("pod-2").Gated(), MakePod().UID("pod-1").Gated(), leftover},
		"no record names it, and it is not seen as the attempt's":   {func(r *v1alpha1.StepStatus) { r.PodUID = "" }, MakePod().UID("pod-1").Gated(), nil, leftover},
		"its attempt was stopped before it was named":               {func(r *v1alpha1.StepStatus) { r.PodUID, r.Phase = "", v1alpha1.StepStopping }, MakePod().UID("pod-1").Gated(), MakePod().UID("pod-1").Gated(), leftover},
		"it has another name":                                       {func(r *v1alpha1.StepStatus) { r.PodUID = "" }, named(MakePod().UID("pod-1").Gated(), "copy"), named(MakePod().UID("pod-1").Gated(), "copy"), leftover},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			record := fencedRecord()
			record.JobName = "pod"
			tt.record(record)
			d := fencedDecider(record, World{Held: []*corev1.Pod{tt.pod.Obj()}})
			if tt.world != nil {
				d.World.Pod = tt.world.Obj()
			}
			d.releasePods()
			got := keep
			if a := find(d.Decision, ReleasePod); a != nil {
				got = map[bool]string{true: leftover, false: release}[a.Leftover]
			}
			if got != tt.want {
				t.Errorf("it is %s, want it %s", got, tt.want)
			}
		})
	}
}

func named(b *podBuilder, name string) *podBuilder { b.pod.Name = name; return b }

// A task that is being deleted starts nothing any more: what goes with it is let go, and
// nothing else is done.
func TestPodsOfADeletedTaskAreLetGo(t *testing.T) {
	task := MakeTask().Step(pay().Obj()).Running(t, "pay")
	task.DeletionTimestamp = &metav1.Time{Time: epoch}
	held := []*corev1.Pod{bound().Running().Obj(), bound().UID("pod-2").Running().Deleting().Obj()}
	d := decide(t, Input{Task: task, World: World{Held: held}})
	if kinds(d) != "ReleasePod" || d.Actions[0].Pod.UID != "pod-2" {
		t.Errorf("%q: %+v", kinds(d), d.Actions)
	}
}
