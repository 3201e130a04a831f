// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"cmp"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
)

// play takes a pod through its life.
func (k *Kubelet) play(pod *corev1.Pod, b Behaviour, deleted <-chan struct{}) {
	switch {
	case b.Instant:
		k.write(pod, func(s *corev1.PodStatus) { b.end(pod, s) })
		return
	case b.Unschedulable != "":
		k.write(pod, func(s *corev1.PodStatus) {
			setCondition(s, corev1.PodScheduled, corev1.ConditionFalse, corev1.PodReasonUnschedulable, b.Unschedulable)
		})
		return
	case pod.Spec.NodeName == "" && !k.bind(pod):
		return
	case b.Waiting != "":
		k.write(pod, func(s *corev1.PodStatus) { b.wait(pod, s) })
		k.await(deleted, nil)
	case told(deleted): // before it was started
		k.write(pod, func(s *corev1.PodStatus) { neverStarted.end(pod, s) })
		k.remove(pod)
		return
	default:
		k.start(pod)
		seen := !k.quick || b.Until != nil
		if seen && !k.write(pod, func(s *corev1.PodStatus) { run(pod, s) }) {
			return
		}
		if b.Until == nil || k.await(deleted, b.Until) {
			if k.write(pod, func(s *corev1.PodStatus) { b.end(pod, s) }) && pod.DeletionTimestamp != nil && !b.Deaf {
				k.remove(pod)
			}
			return
		}
	}
	if k.ctx.Err() == nil && !b.Deaf {
		k.kill(pod, b)
	}
}

func told(deleted <-chan struct{}) bool {
	select {
	case <-deleted:
		return true
	default:
		return false
	}
}

// await waits until a pod is deleted, or its program told to end: then it is true.
func (k *Kubelet) await(deleted, told <-chan struct{}) bool {
	select {
	case <-told:
		return true
	case <-deleted:
	case <-k.ctx.Done():
	}
	return false
}

// bind gives a pod to the node, as a scheduler does.
func (k *Kubelet) bind(pod *corev1.Pod) bool {
	binding := &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		Target:     corev1.ObjectReference{Kind: "Node", Name: k.Node},
	}
	return k.client.CoreV1().Pods(pod.Namespace).Bind(k.ctx, binding, metav1.CreateOptions{}) == nil
}

// kill ends a pod that is deleted: SIGTERM to the runner, whose word is the last, and
// then the object goes.
func (k *Kubelet) kill(pod *corev1.Pod, b Behaviour) {
	if b.Waiting == "" {
		killed := Behaviour{ExitCode: 143, Result: &stepexec.Result{
			Outcome: stepexec.OutcomeInterrupted, Reason: v1alpha1.ReasonKilled, Message: "the program was stopped by SIGTERM",
		}}
		k.write(pod, func(s *corev1.PodStatus) { killed.end(pod, s) })
	}
	k.remove(pod)
}

// neverStarted is a pod that was deleted before its container was started: the kubelet
// finds no container and cannot tell that there was none.
var neverStarted = Behaviour{
	NoResult: true, ExitCode: 137, ExitReason: "ContainerStatusUnknown",
	Unreadable: "no container of the pod was found",
}

// remove takes away the object of a pod that has ended. Finalizers keep it.
func (k *Kubelet) remove(pod *corev1.Pod) {
	_ = k.client.CoreV1().Pods(pod.Namespace).Delete(k.ctx, pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: new(int64(0)), Preconditions: &metav1.Preconditions{UID: &pod.UID},
	})
}

// write changes a pod's status, on top of what others wrote in the meantime.
func (k *Kubelet) write(pod *corev1.Pod, change func(*corev1.PodStatus)) bool {
	pods := k.client.CoreV1().Pods(pod.Namespace)
	next := pod.DeepCopy()
	for k.ctx.Err() == nil {
		change(&next.Status)
		written, err := pods.UpdateStatus(k.ctx, next, metav1.UpdateOptions{})
		if err == nil {
			*pod = *written
			return true
		}
		if apierrors.IsNotFound(err) {
			return false
		}
		fresh, err := pods.Get(k.ctx, pod.Name, metav1.GetOptions{})
		if err != nil || fresh.UID != pod.UID {
			return false
		}
		next = fresh
	}
	return false
}

func run(pod *corev1.Pod, s *corev1.PodStatus) {
	s.Phase = corev1.PodRunning
	s.StartTime = new(metav1.Now())
	setCondition(s, corev1.PodReady, corev1.ConditionTrue, "", "")
	s.InitContainerStatuses = nil
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		s.InitContainerStatuses = append(s.InitContainerStatuses, corev1.ContainerStatus{
			Name: c.Name, Image: c.Image, Ready: true,
			State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Completed", StartedAt: *s.StartTime, FinishedAt: *s.StartTime}},
		})
	}
	s.ContainerStatuses = []corev1.ContainerStatus{{
		Name: stepexec.ContainerStep, Image: pod.Spec.Containers[0].Image, Ready: true, Started: new(true),
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: *s.StartTime}},
	}}
}

func (b Behaviour) wait(pod *corev1.Pod, s *corev1.PodStatus) {
	s.Phase = corev1.PodPending
	s.ContainerStatuses = []corev1.ContainerStatus{{
		Name: stepexec.ContainerStep, Image: pod.Spec.Containers[0].Image,
		State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: b.Waiting, Message: b.WaitingMessage}},
	}}
}

// end is a pod whose program has ended.
func (b Behaviour) end(pod *corev1.Pod, s *corev1.PodStatus) {
	now := metav1.Now()
	if s.StartTime == nil {
		s.StartTime = &now
	}
	reason := "Completed"
	s.Phase = corev1.PodSucceeded
	if b.ExitCode != 0 || b.PodReason != "" {
		s.Phase, reason = corev1.PodFailed, "Error"
	}
	s.Reason, s.Message = b.PodReason, b.PodMessage
	if b.Disruption != "" {
		setCondition(s, corev1.DisruptionTarget, corev1.ConditionTrue, b.Disruption, b.PodMessage)
	}
	s.ContainerStatuses = []corev1.ContainerStatus{{
		Name: stepexec.ContainerStep, Image: pod.Spec.Containers[0].Image,
		State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			ExitCode: b.ExitCode, Reason: cmp.Or(b.ExitReason, reason), Message: b.message(), StartedAt: *s.StartTime, FinishedAt: now,
		}},
	}}
}

// message is the termination message.
func (b Behaviour) message() string {
	if b.NoResult {
		return b.Unreadable
	}
	result := stepexec.Result{Outcome: stepexec.OutcomeSucceeded}
	if b.Result != nil {
		result = *b.Result
	}
	result.Version = stepexec.ResultVersion
	return string(mustJSON(result))
}

func setCondition(s *corev1.PodStatus, kind corev1.PodConditionType, value corev1.ConditionStatus, reason, message string) {
	next := corev1.PodCondition{Type: kind, Status: value, Reason: reason, Message: message, LastTransitionTime: metav1.NewTime(time.Now())}
	for i := range s.Conditions {
		if s.Conditions[i].Type == kind {
			s.Conditions[i] = next
			return
		}
	}
	s.Conditions = append(s.Conditions, next)
}
