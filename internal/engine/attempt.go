// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
)

// stopIfAsked turns a running attempt to Stopping where the task, its deadline or the
// attempt's own start deadline says so. The stop is in the checkpoint before it happens.
func (d *decider) stopIfAsked(a activity) {
	if a.Phase == v1alpha1.StepStopping && isTaskStop(a.Reason) {
		return
	}
	switch {
	case d.Task.Spec.Cancel:
		stopping(a, v1alpha1.ReasonCancelled, "stopped because the task was cancelled")
	case d.pastDeadline():
		stopping(a, v1alpha1.ReasonDeadlineExceeded, fmt.Sprintf("stopped because the task's activeDeadlineSeconds of %d passed", *d.Task.Spec.ActiveDeadlineSeconds))
	case a.Phase == v1alpha1.StepStopping || d.World.Pod == nil:
	case jobSuspended(d.World.Job) && !(a.once() && started(d.World.Pod)): // what runs once runs to its end
		stopping(a, v1alpha1.ReasonJobSuspended, "its Job was suspended while it ran; it will be tried again")
	case !started(d.World.Pod) && !d.Now.Before(d.startDeadline(a)):
		reason, message := d.cannotStart(a)
		stopping(a, reason, message)
	}
}

func stopping(a activity, reason, message string) {
	a.Phase = v1alpha1.StepStopping
	a.Reason, a.Message = reason, shorten(message)
}

func isTaskStop(reason string) bool {
	return reason == v1alpha1.ReasonCancelled || reason == v1alpha1.ReasonDeadlineExceeded
}

func (d *decider) startDeadline(a activity) time.Time {
	// The later of two clocks: the API server's may be behind ours, and the pod may have
	// been made long after its attempt was started.
	from := d.World.Pod.CreationTimestamp.Time
	for _, own := range []*metav1.Time{&a.StartTime, a.AttemptTime} {
		if own != nil && own.After(from) {
			from = own.Time
		}
	}
	return from.Add(a.step.StartDeadline())
}

// cannotStart says why a pod has not started by its deadline.
func (d *decider) cannotStart(a activity) (reason, message string) {
	limit := a.step.StartDeadline()
	why := holdup(d.World.Pod)
	if why == nil && keptHoldup(a) {
		why = &Problem{a.Reason, a.Message}
	}
	if why != nil {
		return why.Reason, fmt.Sprintf("did not start within its startTimeout of %s: %s", limit, why.Message)
	}
	return v1alpha1.ReasonStartTimeout, fmt.Sprintf("did not start within its startTimeout of %s", limit)
}

// stopPod deletes the attempt's pod, or looks again at once where there is none, now
// that the checkpoint says that none will be made.
func (d *decider) stopPod() {
	if d.World.Blocked != nil {
		d.wakeAfter(goneRecheck)
		return
	}
	if d.World.Pod == nil {
		d.wakeAfter(time.Millisecond)
		return
	}
	if d.World.Pod.DeletionTimestamp.IsZero() {
		d.Actions = append(d.Actions, Action{Kind: StopPod, Pod: d.World.Pod})
	}
	d.wakeAfter(goneRecheck)
}

// drive brings a running attempt's Job and pod about, and says what it waits for.
func (d *decider) drive(a activity) {
	job, pod := d.World.Job, d.World.Pod
	switch {
	case d.World.Refusal != nil:
		d.wait(a, d.World.Refusal.Reason, d.World.Refusal.Message)
		d.wakeAfter(d.World.Refusal.Retry)
	case d.World.Blocked != nil:
		d.wait(a, d.World.Blocked.Reason, d.World.Blocked.Message)
		d.wakeAfter(goneRecheck)
	case pod != nil && a.once() && d.fenced(a):
	case pod != nil:
		d.watchPod(a)
	case job != nil && !job.DeletionTimestamp.IsZero():
		d.wait(a, v1alpha1.ReasonJobDeleted, "its Job is being deleted")
		d.wakeAfter(goneRecheck)
	case jobSuspended(job):
		d.wait(a, v1alpha1.ReasonJobSuspended, "its Job is suspended, by a queue or by somebody; it goes on when the Job's spec.suspend is false")
	default:
		if what, ok := d.sameAction(a); ok {
			d.makeJob(a, what)
			if a.Reason == v1alpha1.ReasonRefused || a.Reason == v1alpha1.ReasonUnavailable { // until there is a pod: each try would be two writes
				d.wait(a, a.Reason, a.Message)
			}
		}
	}
}

// goneRecheck is how often an object that is being deleted is looked at again, in
// case the end of it was not heard of.
const goneRecheck = 5 * time.Second

// watchPod says what a living pod waits for, if anything.
func (d *decider) watchPod(a activity) {
	pod := d.World.Pod
	switch {
	case !pod.DeletionTimestamp.IsZero():
		d.wait(a, v1alpha1.ReasonPodLost, beingDeleted(a, pod))
		d.wakeAfter(goneRecheck)
	case !started(pod):
		d.watchStart(a)
		d.wakeAt(d.startDeadline(a))
	default:
		a.Reason, a.Message = "", ""
	}
}

// keptHoldup says whether the record holds what kubelet said of an image or a container.
func keptHoldup(a activity) bool {
	return a.Reason == v1alpha1.ReasonImageUnavailable || a.Reason == v1alpha1.ReasonContainerConfig
}

// watchStart says why a pod has not started. What kubelet says of an image or a
// container stays until the program runs, since kubelet keeps changing its words.
func (d *decider) watchStart(a activity) {
	why := holdup(d.World.Pod)
	switch {
	case why != nil:
		d.wait(a, why.Reason, why.Message)
	case keptHoldup(a):
		d.wait(a, a.Reason, a.Message)
	default:
		a.Reason, a.Message = "", ""
	}
}

// wait notes why the current step does not run. The first message of a reason stays,
// so that a message that keeps changing does not become a write each time.
func (d *decider) wait(a activity, reason, message string) {
	if a.Reason != reason {
		a.Reason, a.Message = reason, shorten(message)
		d.event(true, v1alpha1.EventStepWaiting, fmt.Sprintf("%s waits: %s: %s", a.name(), reason, message))
	}
	d.waiting = &Problem{a.Reason, aboutStep(a.record.Name) + a.Message}
}
