// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
)

// Class is what an attempt's end means for its step.
type Class int

const (
	// Success: the step is done.
	Success Class = iota
	// Final: the program's last word; another attempt would not help.
	Final
	// Again: the program asks for another attempt.
	Again
	// TimedOut: the program ran into its timeout.
	TimedOut
	// NotStarted: the program provably never ran, and never will in this attempt.
	NotStarted
	// Lost: the infrastructure ended the attempt, or its outcome is not known.
	Lost
)

// Verdict is how an attempt ended.
type Verdict struct {
	Class           Class
	Reason, Message string
	// Output is the program's output on success, where it is small.
	Output json.RawMessage
	// RetryAfter is the least wait before the next attempt.
	RetryAfter time.Duration
}

// unknown says whether the program may have taken effect and left no word of its own.
func (v *Verdict) unknown() bool { return v.Class == Lost || v.Class == TimedOut }

func lost(reason, format string, args ...any) *Verdict {
	return &Verdict{Class: Lost, Reason: reason, Message: fmt.Sprintf(format, args...)}
}

func notStarted(reason, format string, args ...any) *Verdict {
	return &Verdict{Class: NotStarted, Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// VerdictOf reads an attempt's end from its pod: nil while the program may still run.
// That a pod's phase is Failed proves nothing by itself, since the pod garbage
// collector writes it without asking the node.
func VerdictOf(pod *corev1.Pod) *Verdict {
	if end := stepEnd(pod); end != nil {
		return verdictOfEnd(pod, end)
	}
	if pod.Status.Phase != corev1.PodFailed && pod.Status.Phase != corev1.PodSucceeded {
		return nil
	}
	if started(pod) || disruption(pod) == "DeletionByPodGC" {
		return nil
	}
	return neverRan(pod)
}

// ResultOf reads the result that the runner left, or nil where there is none that it
// can have left.
func ResultOf(pod *corev1.Pod) *stepexec.Result {
	end := stepEnd(pod)
	if end == nil {
		return nil
	}
	result, _ := readResult(end)
	return result
}

// readResult reads a result and checks it, since the program may have written it itself.
// A result that the runner cannot have left is none, and problem says why.
func readResult(end *corev1.ContainerStateTerminated) (result *stepexec.Result, problem string) {
	result = &stepexec.Result{}
	if json.Unmarshal([]byte(end.Message), result) != nil || result.Version != stepexec.ResultVersion {
		return nil, ""
	}
	if result.Outcome == stepexec.OutcomeSucceeded {
		if problem = checkSuccess(end, result); problem != "" {
			return nil, problem
		}
	}
	return result, ""
}

// checkSuccess says why a success is not the runner's word, or nothing. The output then
// is in canonical form.
func checkSuccess(end *corev1.ContainerStateTerminated, result *stepexec.Result) string {
	switch {
	case end.ExitCode != 0, end.Reason == "OOMKilled":
		return fmt.Sprintf("it says that the program succeeded, and the container ended with exit code %d", end.ExitCode)
	case result.LogOutput != nil && result.Output != nil:
		return "it has two outputs"
	case result.LogOutput != nil && !validLogOutput(result.LogOutput):
		return "the output that it announces cannot be one"
	case result.Output == nil:
		return ""
	}
	output, err := stepexec.Canonical(result.Output)
	switch {
	case err != nil:
		return fmt.Sprintf("its output is not valid: %v", err)
	case len(output) > stepexec.MaxInlineOutput:
		return fmt.Sprintf("its output has %d bytes, and at most %d may stand in it", len(output), stepexec.MaxInlineOutput)
	}
	result.Output = output
	return ""
}

var sha256Hex = regexp.MustCompile("^[0-9a-f]{64}$")

func validLogOutput(o *stepexec.LogOutput) bool {
	return o.Lines > 0 && o.Bytes > 0 && sha256Hex.MatchString(o.SHA256)
}

// stepEnd is how the step's container ended, or nil while it may run. Where kubelet
// started it a second time, which the runner refuses, that is how it ended the first time,
// as far as kubelet knows of it.
func stepEnd(pod *corev1.Pod) *corev1.ContainerStateTerminated {
	for i := range pod.Status.ContainerStatuses {
		s := &pod.Status.ContainerStatuses[i]
		if s.Name != stepexec.ContainerStep {
			continue
		}
		first := s.LastTerminationState.Terminated
		if end := s.State.Terminated; end == nil || first == nil || !secondStart(end) {
			return end
		}
		return first
	}
	return nil
}

func secondStart(end *corev1.ContainerStateTerminated) bool {
	result, _ := readResult(end)
	return result != nil && result.Reason == v1alpha1.ReasonStartedTwice
}

// started says whether the program may have run.
func started(pod *corev1.Pod) bool {
	for _, s := range pod.Status.ContainerStatuses {
		if s.State.Running != nil || s.State.Terminated != nil || s.LastTerminationState.Terminated != nil {
			return true
		}
	}
	return false
}

// maxRetryAfter is the longest wait that is taken from a result, in seconds: a year.
const maxRetryAfter = 365 * 24 * 60 * 60

// reasonOf is a result's reason where it is one of the runner's, else the common one of
// its outcome: the program may have written the result itself, and reasons are labels of
// metrics.
func reasonOf(result *stepexec.Result) string {
	switch result.Reason {
	case v1alpha1.ReasonExitCode, v1alpha1.ReasonRetryRequested, v1alpha1.ReasonTimeout, v1alpha1.ReasonOutOfMemory,
		v1alpha1.ReasonOutputInvalid, v1alpha1.ReasonOutputMissing, v1alpha1.ReasonOutputTooLarge, v1alpha1.ReasonOutputLost,
		v1alpha1.ReasonCommandNotFound, v1alpha1.ReasonKilled, v1alpha1.ReasonResultInvalid, v1alpha1.ReasonStartedTwice,
		v1alpha1.ReasonInputInvalid, v1alpha1.ReasonKeyInvalid, v1alpha1.ReasonContainerConfig,
		v1alpha1.ReasonHTTPStatus, v1alpha1.ReasonKeyReused, v1alpha1.ReasonConnection:
		return result.Reason
	}
	switch result.Outcome {
	case stepexec.OutcomeSucceeded:
		return ""
	case stepexec.OutcomeRetry:
		return v1alpha1.ReasonRetryRequested
	case stepexec.OutcomeTimeout:
		return v1alpha1.ReasonTimeout
	case stepexec.OutcomeFailed:
		return v1alpha1.ReasonExitCode
	}
	return v1alpha1.ReasonKilled
}

func verdictOfEnd(pod *corev1.Pod, end *corev1.ContainerStateTerminated) *Verdict {
	result, problem := readResult(end)
	if result == nil {
		return withoutResult(pod, end, problem)
	}
	v := &Verdict{Reason: reasonOf(result), Message: result.Message}
	switch result.Outcome {
	case stepexec.OutcomeSucceeded:
		v.Output = result.Output
		if v.Output == nil && result.LogOutput == nil {
			v.Output = json.RawMessage("null")
		}
	case stepexec.OutcomeRetry:
		v.Class, v.RetryAfter = Again, time.Duration(min(max(result.RetryAfterSeconds, 0), maxRetryAfter))*time.Second
	case stepexec.OutcomeTimeout:
		v.Class = TimedOut
	case stepexec.OutcomeFailed:
		v.Class = Final
		if end.Reason == "OOMKilled" {
			return outOfMemory()
		}
	default:
		v = interrupted(pod, end, result)
		if result.NotStarted {
			v.Class = NotStarted
		}
	}
	return v
}

// interrupted says who ended a program that did not end by itself.
func interrupted(pod *corev1.Pod, end *corev1.ContainerStateTerminated, result *stepexec.Result) *Verdict {
	if end.Reason == "OOMKilled" || result.Reason == v1alpha1.ReasonOutOfMemory {
		return outOfMemory()
	}
	if v := disrupted(pod); v != nil {
		return v
	}
	return lost(reasonOf(result), "%s", firstOf(result.Message, "the program was killed from outside"))
}

// withoutResult reads an end about which the runner could say nothing; problem is what is
// wrong with what was said in its place, if anything was.
func withoutResult(pod *corev1.Pod, end *corev1.ContainerStateTerminated, problem string) *Verdict {
	if end.Reason == "OOMKilled" {
		return outOfMemory()
	}
	if v := disrupted(pod); v != nil {
		return v
	}
	switch {
	case pod.Status.Reason == "DeadlineExceeded":
		return &Verdict{Class: TimedOut, Reason: v1alpha1.ReasonTimeout, Message: "stopped by the pod's activeDeadlineSeconds, which stands above the step's timeout"}
	case problem != "":
		return lost(v1alpha1.ReasonResultInvalid, "the result that stands in its termination message is not the runner's: %s", problem)
	case end.Reason == "StartError" || end.Reason == "ContainerCannotRun":
		return lost(v1alpha1.ReasonContainerConfig, "the container could not be started: %s", end.Message)
	case end.ExitCode == 137 || end.ExitCode == 143:
		return lost(v1alpha1.ReasonKilled, "the container was killed from outside (exit code %d)", end.ExitCode)
	}
	return lost(v1alpha1.ReasonResultInvalid, "the container ended with exit code %d and left no result the operator can read", end.ExitCode)
}

func outOfMemory() *Verdict {
	return lost(v1alpha1.ReasonOutOfMemory, "the kernel killed the program for its memory limit; raise run.resources.limits.memory")
}

// disrupted says what Kubernetes did to a pod that it ended, or nil.
func disrupted(pod *corev1.Pod) *Verdict {
	switch reason := disruption(pod); reason {
	case "":
	case "DeletionByTaintManager", "DeletionByPodGC":
		return lost(v1alpha1.ReasonNodeLost, "its node went away or may not run it any more (%s)", reason)
	default:
		return lost(v1alpha1.ReasonEvicted, "its pod was evicted (%s)", reason)
	}
	switch {
	case pod.Status.Reason == "Evicted":
		return lost(v1alpha1.ReasonEvicted, "its pod was evicted: %s", pod.Status.Message)
	case pod.Status.Reason == "NodeLost", pod.Status.Reason == "NodeShutdown", pod.Status.Reason == "Terminated":
		return lost(v1alpha1.ReasonNodeLost, "its node went away: %s", pod.Status.Message)
	case !pod.DeletionTimestamp.IsZero():
		return lost(v1alpha1.ReasonPodLost, "its pod was deleted while it ran")
	}
	return nil
}

func disruption(pod *corev1.Pod) string {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue {
			return c.Reason
		}
	}
	return ""
}

// neverRan says why a pod failed before its program ran. Whoever ended the pod ended
// its init containers too, so they come last.
func neverRan(pod *corev1.Pod) *Verdict {
	if pod.Status.Reason == "DeadlineExceeded" {
		return notStarted(v1alpha1.ReasonStartTimeout, "the pod did not start its program in time")
	}
	if v := disrupted(pod); v != nil {
		v.Class, v.Message = NotStarted, strings.Replace(v.Message, "while it ran", "before its program ran", 1)
		return v
	}
	for _, s := range pod.Status.InitContainerStatuses {
		if t := s.State.Terminated; t != nil && t.ExitCode != 0 {
			return notStarted(v1alpha1.ReasonInitFailed, "init container %s ended with exit code %d: %s", s.Name, t.ExitCode, firstOf(t.Message, t.Reason))
		}
	}
	return notStarted(v1alpha1.ReasonPodRejected, "the node refused the pod: %s", strings.TrimSpace(pod.Status.Reason+" "+pod.Status.Message))
}

// vanished says why a pod is gone whose end was not seen.
func vanished(last *corev1.Pod) *Verdict {
	if last != nil {
		if v := disrupted(last); v != nil {
			return v
		}
	}
	return lost(v1alpha1.ReasonPodLost, "its pod was deleted before its outcome was recorded")
}

// shorten cuts a message to what a record may hold, which is also the longest note that
// the events API takes, on a rune boundary.
func shorten(message string) string {
	const mark, limit = "…", v1alpha1.MaxMessage
	message = strings.ToValidUTF8(message, "\uFFFD")
	if len(message) <= limit {
		return message
	}
	end := limit - len(mark)
	for !utf8.RuneStart(message[end]) {
		end--
	}
	return message[:end] + mark
}
