// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
)

// verdict says how the current attempt ended, or nil while it has not provably ended.
func (d *decider) verdict(a activity) *Verdict {
	stopped := a.Phase == v1alpha1.StepStopping
	v := d.seenVerdict(a)
	switch {
	case v == nil && stopped && d.World.Pod == nil && d.World.Blocked == nil:
		return notStarted(a.Reason, "%s", a.Message)
	case v == nil:
		return nil
	case stopped && a.once() && v.Class == Success && d.World.Refusal != nil:
		return &Verdict{Class: Final, Reason: v1alpha1.ReasonOutputLost, Message: "it succeeded all the same, and its output could not be kept: " + d.World.Refusal.Message}
	case stopped && (v.unknown() || v.Class == NotStarted || d.World.Refusal != nil):
		stop := lost(a.Reason, "%s", a.Message)
		if v.Class == NotStarted {
			stop.Class = NotStarted
		}
		return stop
	case d.World.Refusal != nil:
		return nil
	}
	return v
}

// seenVerdict reads the attempt's end from what was observed.
func (d *decider) seenVerdict(a activity) *Verdict {
	if a.once() {
		return d.fencedVerdict(a)
	}
	if pod := d.World.SeenPod(); pod != nil {
		if v := VerdictOf(pod); v != nil {
			return d.withOutput(v)
		}
	}
	switch {
	case d.World.Pod != nil, d.World.Blocked != nil: // a pod of the attempt may still run
		return nil
	case d.World.JobVanished:
		return lost(v1alpha1.ReasonJobDeleted, "its Job was deleted before the outcome was recorded")
	case d.World.PodVanished:
		return vanished(d.World.LastPod)
	}
	return nil
}

// withOutput turns a success whose large output cannot be kept into a loss.
func (d *decider) withOutput(v *Verdict) *Verdict {
	switch {
	case v.Class != Success, d.World.Refusal != nil:
	case d.World.OutputProblem != "":
		return lost(v1alpha1.ReasonOutputLost, "its output could not be read back: %s", d.World.OutputProblem)
	case v.Output == nil && d.World.Output == nil:
		return lost(v1alpha1.ReasonOutputLost, "its output was not read back")
	}
	return v
}

// holdup says why a pod has not started, or nil where it merely takes its time.
func holdup(pod *corev1.Pod) *Problem {
	for _, list := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for _, s := range list {
			if s.State.Waiting == nil {
				continue
			}
			switch s.State.Waiting.Reason {
			case "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError", "RegistryUnavailable":
				return &Problem{v1alpha1.ReasonImageUnavailable, fmt.Sprintf("image %s cannot be pulled: %s", s.Image, s.State.Waiting.Message)}
			case "CreateContainerConfigError", "CreateContainerError", "RunContainerError":
				return &Problem{v1alpha1.ReasonContainerConfig, fmt.Sprintf("container %s cannot be made: %s", s.Name, s.State.Waiting.Message)}
			}
		}
	}
	for _, c := range pod.Status.Conditions {
		// That it was gated stands there until the scheduler has looked at it again.
		past := c.Reason == corev1.PodReasonSchedulingGated && len(pod.Spec.SchedulingGates) == 0
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && !past {
			return &Problem{v1alpha1.ReasonUnschedulable, "no node takes its pod: " + firstOf(c.Message, c.Reason)}
		}
	}
	return nil
}

func jobSuspended(job *batchv1.Job) bool {
	return job != nil && job.Spec.Suspend != nil && *job.Spec.Suspend
}

// verdictOf makes a verdict from a record, for a Job whose status is written later.
func verdictOf(record *v1alpha1.ActionStatus) Verdict {
	if record.Phase == v1alpha1.StepSucceeded {
		return Verdict{Class: Success}
	}
	return Verdict{Class: Final, Reason: record.Reason, Message: record.Message}
}

func firstOf(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}
