// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
)

// End is what a run leaves behind, without UIDs, times, and names and messages that hold
// them.
type End struct {
	Phase v1alpha1.TaskPhase
	// Conditions are status and reason of each type: "True Completed".
	Conditions            map[string]string
	Progress, CurrentStep string
	Attempts, Retries     int32
	Steps                 []StepEnd
	// Jobs and Pods are those that are still there, by attempt: "pay/1". A Job is
	// Complete, Failed or Open; a pod its phase, and whether it is gated or held.
	Jobs, Pods map[string]string
	// Strays are Jobs and pods that are no attempt's of the task, by kind.
	Strays map[string]int
	// Effects are how often each step's effect happened. What may repeat goes under a key,
	// and counts once for each.
	Effects map[string]int
}

// StepEnd is what a step's record says in the end.
type StepEnd struct {
	Name            string
	Phase           v1alpha1.StepPhase
	Attempt         int32
	Key, ActionHash string
	// Output is the JSON, or the SHA-256 of one that is kept elsewhere.
	Output string
	Reason string
}

// EndOf reads the end from a history: that of the task that was made last.
func EndOf(h *History) End {
	v := viewOf(h)
	end := End{Conditions: map[string]string{}, Jobs: map[string]string{}, Pods: map[string]string{}, Strays: map[string]int{}, Effects: map[string]int{}}
	task := v.newest()
	if task == nil {
		return end
	}
	s := &task.Status
	end.Phase, end.Progress, end.CurrentStep = s.Phase, s.Progress, s.CurrentStep
	if s.Usage != nil {
		end.Attempts, end.Retries = s.Usage.Attempts, s.Usage.Retries
	}
	for _, c := range s.Conditions {
		end.Conditions[c.Type] = string(c.Status) + " " + c.Reason
	}
	for i := range s.Steps {
		end.Steps = append(end.Steps, stepEnd(&s.Steps[i]))
	}
	counts, keys := v.effects()
	for a, n := range counts {
		switch {
		case a.task != task.UID:
		case v.fenced(a):
			end.Effects[a.step] = n
		default:
			end.Effects[a.step] = len(keys[a])
		}
	}
	for _, job := range v.jobs {
		if last := job[len(job)-1]; !last.Deleted {
			a, ok := v.attemptOfJob(last.Job)
			end.leave(end.Jobs, v, "Job", a, ok, last.Job.Name, jobEnd(last.Job))
		}
	}
	for _, pod := range v.pods {
		if last := pod[len(pod)-1]; !last.Deleted {
			a, ok := v.attemptOfPod(last.Pod)
			end.leave(end.Pods, v, "pod", a, ok, last.Pod.Name, podEnd(last.Pod))
		}
	}
	return end
}

// newest is the task that was made last, as it was last seen, or nil.
func (v *view) newest() *v1alpha1.AgentTask {
	var found *v1alpha1.AgentTask
	first := int64(0)
	for uid, list := range v.tasks {
		if list[0].RV > first {
			first, found = list[0].RV, v.last(uid)
		}
	}
	return found
}

// leave notes a Job or pod that is still there. What is no attempt's of the task, or does
// not have its attempt's name, is a stray.
func (e *End) leave(kinds map[string]string, v *view, kind string, a attempt, ok bool, name, state string) {
	if !ok || a.task != v.newest().UID || name != v.jobName(a) {
		e.Strays[kind]++
		return
	}
	kinds[attemptName(a.step, a.number)] = state
}

func attemptName(step string, n int32) string { return fmt.Sprintf("%s/%d", step, n) }

func stepEnd(s *v1alpha1.StepStatus) StepEnd {
	end := StepEnd{Name: s.Name, Phase: s.Phase, Attempt: s.Attempt, Key: s.IdempotencyKey, ActionHash: s.ActionHash, Reason: s.Reason}
	switch {
	case s.Output != nil:
		end.Output = string(s.Output.Raw)
	case s.OutputRef != nil:
		end.Output = s.OutputRef.SHA256
	}
	return end
}

// jobOpen is a Job without its final status.
const jobOpen = "Open"

func jobEnd(job *batchv1.Job) string {
	state := jobOpen
	for _, c := range job.Status.Conditions {
		if c.Status == corev1.ConditionTrue && (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) {
			state = string(c.Type)
		}
	}
	return state + deleting(job)
}

func podEnd(pod *corev1.Pod) string {
	words := []string{string(pod.Status.Phase)}
	if stepexec.Gated(pod) {
		words = append(words, "gated")
	}
	if stepexec.Held(pod) {
		words = append(words, "held")
	}
	return strings.Join(words, " ") + deleting(pod)
}

func deleting(obj metav1.Object) string {
	if obj.GetDeletionTimestamp() != nil {
		return " deleting"
	}
	return ""
}

// clone is a copy that shares nothing.
func (e End) clone() End {
	e.Conditions, e.Jobs, e.Pods, e.Strays = maps.Clone(e.Conditions), maps.Clone(e.Jobs), maps.Clone(e.Pods), maps.Clone(e.Strays)
	e.Effects = maps.Clone(e.Effects)
	e.Steps = slices.Clone(e.Steps)
	return e
}

// step finds a step's end, or nil.
func (e *End) step(name string) *StepEnd {
	for i := range e.Steps {
		if e.Steps[i].Name == name {
			return &e.Steps[i]
		}
	}
	return nil
}

// Diff says how an end differs from what was wanted: lines with - are missing, lines
// with + are too much. Empty: they are equal.
func (e End) Diff(want End) string { return cmp.Diff(want, e) }
