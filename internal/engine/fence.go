// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
)

// The fence of a step with effect Once. Its pod is made with a scheduling gate, which
// keeps it from every node. The record then names that one pod by its UID, which is
// written only where none stands. Only a pod that the record names is ever let through:
// whatever else is made under the same name, by a second operator or a paused one, waits
// for ever, and is removed. A finalizer keeps the pod until its outcome is recorded.

// fenced takes the pod of an attempt that must not start twice through the fence, and
// says whether it is still there.
func (d *decider) fenced(a activity) bool {
	pod := d.World.Pod
	if a.PodUID == "" && !stepexec.Gated(pod) && !stepexec.Held(pod) {
		d.frozen = &Problem{v1alpha1.ReasonNameConflict, fmt.Sprintf(
			"pod %s stands under the step's Job and was made by somebody else, without the fence; look whether it did what the step does, then delete it to go on", pod.Name)}
		d.wakeAfter(conflictRecheck)
		return true
	}
	if a.PodUID == "" {
		// A pod that is being deleted is named too: that it never started is then the
		// attempt's recorded end, and not something that a paused operator may dispute.
		a.PodUID = pod.UID
		if owner := metav1.GetControllerOf(pod); owner != nil {
			a.JobUID = owner.UID
		}
		if !pod.DeletionTimestamp.IsZero() || !stepexec.Gated(pod) {
			d.wakeAfter(time.Millisecond)
		}
	}
	if !stepexec.Gated(pod) || !pod.DeletionTimestamp.IsZero() {
		return false
	}
	d.wakeAt(d.startDeadline(a))
	if job := d.World.Job; job == nil || !job.DeletionTimestamp.IsZero() {
		// It would be started, and killed when the garbage collector comes.
		d.wait(a, v1alpha1.ReasonJobDeleted, "its Job was deleted before its pod was let through the fence; it is tried again when the pod is gone")
		return true
	}
	if a.Reason == v1alpha1.ReasonRefused || a.Reason == v1alpha1.ReasonUnavailable { // until it is through
		d.wait(a, a.Reason, a.Message)
	} else {
		a.Reason, a.Message = "", ""
	}
	d.Actions = append(d.Actions, Action{Kind: OpenFence, Pod: pod})
	return true
}

// fencedVerdict reads the end of an attempt that must not start twice. Only the pod that
// the record names can have run.
func (d *decider) fencedVerdict(a activity) *Verdict {
	if a.PodUID == "" {
		return nil
	}
	if pod := d.World.Pod; pod != nil && pod.UID == a.PodUID {
		return d.fencedPodVerdict(pod)
	}
	last := d.World.LastPod
	if last == nil || last.UID != a.PodUID {
		return lost(v1alpha1.ReasonPodLost, "its pod is gone, and nobody saw how it ended")
	}
	if v := ownWord(last); v != nil {
		return d.withOutput(v)
	}
	if d.World.LastPodFinal && last.Spec.NodeName == "" {
		return notStarted(v1alpha1.ReasonPodLost, "its pod was deleted before it had a node")
	}
	return vanished(last)
}

func (d *decider) fencedPodVerdict(pod *corev1.Pod) *Verdict {
	if v := ownWord(pod); v != nil {
		return d.withOutput(v)
	}
	switch {
	case neverGotNode(pod):
		return notStarted(v1alpha1.ReasonPodLost, "its pod was deleted before it had a node")
	case forsaken(pod):
		said := strings.TrimSpace(pod.Status.Reason + " " + pod.Status.Message)
		return lost(v1alpha1.ReasonNodeLost, "its pod was given up%s, and its node %s does not say how the program ended; it may still run there", inBrackets(said), pod.Spec.NodeName)
	}
	return nil
}

func inBrackets(text string) string {
	if text == "" {
		return ""
	}
	return " (" + text + ")"
}

// ownWord reads the end of a pod that must not start twice from what kubelet says of its
// containers. That the pod as a whole has failed proves nothing: kubelet says so too of a
// pod that it does not admit again after a restart, and the pod garbage collector of any.
func ownWord(pod *corev1.Pod) *Verdict {
	switch {
	case neverCreated(pod):
		return neverRan(pod)
	case stepEnd(pod) != nil:
		return VerdictOf(pod)
	case initFailed(pod):
		return neverRan(pod)
	}
	return nil
}

// neverCreated says that kubelet ended the pod without ever having made the step's
// container: it then reports its status as not known, with nothing of a container in it.
func neverCreated(pod *corev1.Pod) bool {
	for i := range pod.Status.ContainerStatuses {
		s := &pod.Status.ContainerStatuses[i]
		if s.Name != stepexec.ContainerStep {
			continue
		}
		end := s.State.Terminated
		return end != nil && end.Reason == "ContainerStatusUnknown" && end.StartedAt.IsZero() && end.ContainerID == "" &&
			s.ContainerID == "" && s.RestartCount == 0 && s.LastTerminationState.Terminated == nil
	}
	return false
}

// initFailed says that a container before the step's failed, so that the step's was not
// started. A sidecar's end says nothing of the kind.
func initFailed(pod *corev1.Pod) bool {
	sidecars := map[string]bool{}
	for _, c := range pod.Spec.InitContainers {
		sidecars[c.Name] = c.RestartPolicy != nil
	}
	for i := range pod.Status.InitContainerStatuses {
		s := &pod.Status.InitContainerStatuses[i]
		sidecar, known := sidecars[s.Name]
		if s.State.Terminated != nil && s.State.Terminated.ExitCode != 0 && known && !sidecar {
			return true
		}
	}
	return false
}

// neverGotNode says that a pod has no node and will have none: the API server binds no
// pod to a node that is being deleted.
func neverGotNode(pod *corev1.Pod) bool {
	return !pod.DeletionTimestamp.IsZero() && pod.Spec.NodeName == ""
}

// forsaken says that a pod was deleted by force, or by the pod garbage collector, while
// its node had not reported the end of its program: nobody waits for that any more.
func forsaken(pod *corev1.Pod) bool {
	forced := !pod.DeletionTimestamp.IsZero() && pod.DeletionGracePeriodSeconds != nil && *pod.DeletionGracePeriodSeconds == 0
	ended := pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded
	return forced || ended
}

// dead says that a pod provably runs nothing any more, and never will.
func dead(pod *corev1.Pod) bool {
	return ownWord(pod) != nil || neverGotNode(pod)
}

// podDead says whether the pod that an unknown attempt's record names is provably dead.
func (d *decider) podDead(a activity) bool {
	if pod := d.World.Pod; pod != nil && pod.UID == a.PodUID {
		return dead(pod)
	}
	last := d.World.LastPod
	return last != nil && last.UID == a.PodUID && (dead(last) || d.World.LastPodFinal && last.Spec.NodeName == "")
}

// beingDeleted says what a pod that is being deleted is waited for.
func beingDeleted(a activity, pod *corev1.Pod) string {
	if a.once() && pod.Spec.NodeName != "" {
		return fmt.Sprintf("its pod is being deleted; the step goes on when node %s has reported how it ended", pod.Spec.NodeName)
	}
	return "its pod is being deleted; it is tried again when the pod is gone"
}

// releasePods lets go of the pods that the fence holds and no longer needs to.
func (d *decider) releasePods() {
	for _, pod := range d.World.Held {
		if keep, leftover := d.stillHeld(pod); !keep {
			d.Actions = append(d.Actions, Action{Kind: ReleasePod, Pod: pod, Leftover: leftover})
		}
	}
}

// releaseAll lets go of a task's pods that go with it, since it is being deleted and starts
// nothing any more.
func (d *decider) releaseAll() {
	for _, pod := range d.World.Held {
		if !pod.DeletionTimestamp.IsZero() {
			d.Actions = append(d.Actions, Action{Kind: ReleasePod, Pod: pod})
		}
	}
}

// stillHeld says whether a pod's outcome is still to be recorded, and else whether it is
// one that no record names.
func (d *decider) stillHeld(pod *corev1.Pod) (keep, leftover bool) {
	for i := range d.Status.Steps {
		record := &d.Status.Steps[i]
		if record.PodUID == pod.UID {
			return d.outcomeOpen(record), false
		}
	}
	record := d.current()
	candidate := record != nil && record.JobName == pod.Name && record.PodUID == "" &&
		record.Phase == v1alpha1.StepRunning && d.World.Pod != nil && d.World.Pod.UID == pod.UID
	return candidate, true
}

// outcomeOpen says whether an attempt's outcome is still to come in.
func (d *decider) outcomeOpen(record *v1alpha1.StepStatus) bool {
	switch record.Phase {
	case v1alpha1.StepRunning, v1alpha1.StepStopping:
		return true
	case v1alpha1.StepUnknown, v1alpha1.StepChecking:
		return record.Unknown != nil && !record.Unknown.PodDead && !retryDecided(record)
	}
	return false
}
