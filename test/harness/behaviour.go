// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
)

// Behaviour is what becomes of a pod. The zero value runs and succeeds with the output
// null.
type Behaviour struct {
	// Instant takes the pod from Pending to its end in a single write, without a node.
	Instant bool
	// Unschedulable is why no node takes the pod; it then stays Pending.
	Unschedulable string
	// Waiting is the reason for which the step's container never starts, with a message.
	Waiting, WaitingMessage string
	// Until keeps the program running until it is closed. Hang makes one that never is.
	Until <-chan struct{}
	// Result is what the runner leaves. Nil: success with the output null.
	Result *stepexec.Result
	// Unreadable is left in place of a result, where NoResult says so.
	Unreadable string
	NoResult   bool
	// ExitCode and ExitReason are the container's. ExitReason's default is kubelet's.
	ExitCode   int32
	ExitReason string
	// PodReason and PodMessage are the failed pod's, Disruption its DisruptionTarget's.
	PodReason, PodMessage, Disruption string
	// Log is what kubectl logs prints.
	Log string
	// Deaf is a node that does not answer: it does not end a pod that is deleted.
	Deaf bool
}

// Script says what becomes of each pod.
type Script func(pod *corev1.Pod) Behaviour

// Plan scripts pods by step: the n-th behaviour is the n-th attempt's, and the last one
// every later attempt's. Steps that are not in it succeed and return their own name and
// input: {"step": "...", "input": ...}.
func Plan(steps map[string][]Behaviour) Script {
	return func(pod *corev1.Pod) Behaviour {
		list := steps[StepOf(pod)]
		if len(list) == 0 {
			return Echo(pod)
		}
		return list[min(AttemptOf(pod), len(list))-1]
	}
}

// Echo succeeds with the step's name and its input.
func Echo(pod *corev1.Pod) Behaviour {
	return Succeed(map[string]any{"step": StepOf(pod), "input": json.RawMessage(InputOf(pod))})
}

// Instantly makes each pod of a script end in a single write.
func Instantly(script Script) Script {
	return func(pod *corev1.Pod) Behaviour {
		b := script(pod)
		b.Instant = true
		return b
	}
}

// Succeed ends with an output, given as what marshals to JSON.
func Succeed(output any) Behaviour {
	return Behaviour{Result: &stepexec.Result{Outcome: stepexec.OutcomeSucceeded, Output: mustJSON(output)}}
}

// TryAgain ends with exit code 75, and asks for a least wait before the next attempt.
func TryAgain(after time.Duration) Behaviour {
	return Behaviour{ExitCode: stepexec.ExitRetry, Result: &stepexec.Result{
		Outcome: stepexec.OutcomeRetry, Reason: v1alpha1.ReasonRetryRequested, Message: "the program asks for another attempt",
		ExitCode: stepexec.ExitRetry, RetryAfterSeconds: int64(after / time.Second),
	}}
}

// Fail ends with another exit code.
func Fail(code int32, message string) Behaviour {
	return Behaviour{ExitCode: code, Result: &stepexec.Result{
		Outcome: stepexec.OutcomeFailed, Reason: v1alpha1.ReasonExitCode, Message: message, ExitCode: int(code),
	}}
}

// TimeOut ends as the runner ends a program that ran into its timeout.
func TimeOut() Behaviour {
	return Behaviour{ExitCode: 124, Result: &stepexec.Result{
		Outcome: stepexec.OutcomeTimeout, Reason: v1alpha1.ReasonTimeout, Message: "ran longer than its timeout",
	}}
}

// Hang runs until it is stopped.
func Hang() Behaviour { return HangUntil(make(chan struct{})) }

// HangUntil runs until it is told to succeed, or is stopped.
func HangUntil(done <-chan struct{}) Behaviour { return Behaviour{Until: done} }

// BadImage never starts, since its image cannot be pulled.
func BadImage() Behaviour {
	return Behaviour{Waiting: "ImagePullBackOff", WaitingMessage: "Back-off pulling image: not found"}
}

// NoNode is taken by no node.
func NoNode() Behaviour {
	return Behaviour{Unschedulable: "0/1 nodes are available: 1 Insufficient cpu."}
}

// Evict is evicted by its node while it runs.
func Evict() Behaviour {
	return Behaviour{
		NoResult: true, ExitCode: 137, PodReason: "Evicted", PodMessage: "The node was low on resource: memory.", Disruption: "TerminationByKubelet",
	}
}

// Kill is killed from outside and leaves no result.
func Kill() Behaviour { return Behaviour{NoResult: true, ExitCode: 137, ExitReason: "Error"} }

// RunOutOfMemory is killed for its memory limit.
func RunOutOfMemory() Behaviour {
	return Behaviour{NoResult: true, ExitCode: 137, ExitReason: "OOMKilled"}
}

// Garble leaves a result that is none.
func Garble() Behaviour { return Behaviour{NoResult: true, Unreadable: "no JSON"} }

// SucceedLarge ends with an output that is handed over in the log.
func SucceedLarge(output any) Behaviour {
	doc := mustJSON(output)
	sum := stepexec.SHA256Hex(doc)
	lines := []string{stepexec.LogBegin + " " + sum}
	text := base64.StdEncoding.EncodeToString(doc)
	for len(text) > 0 {
		n := min(len(text), stepexec.LogLine)
		lines = append(lines, stepexec.LogData+" "+text[:n])
		text = text[n:]
	}
	lines = append(lines, stepexec.LogEnd+" "+sum)
	return Behaviour{
		Log: "a line before\n" + strings.Join(lines, "\n") + "\na line after\n",
		Result: &stepexec.Result{
			Outcome: stepexec.OutcomeSucceeded, LogOutput: &stepexec.LogOutput{SHA256: sum, Bytes: int64(len(doc)), Lines: int64(len(lines))},
		},
	}
}

func mustJSON(value any) json.RawMessage {
	doc, err := json.Marshal(value)
	if err != nil {
		panic(fmt.Sprintf("harness: %v is no JSON: %v", value, err))
	}
	return doc
}

// StepOf is the step that a pod runs, as its program would know it.
func StepOf(pod *corev1.Pod) string { return env(pod, stepexec.EnvStep) }

// KeyOf is the idempotency key that a pod's program gets.
func KeyOf(pod *corev1.Pod) string { return env(pod, stepexec.EnvKey) }

// InputOf is the input that a pod's program gets.
func InputOf(pod *corev1.Pod) string { return pod.Annotations[v1alpha1.AnnotationInput] }

// AttemptOf is the attempt that a pod is, from 1.
func AttemptOf(pod *corev1.Pod) int {
	n, err := strconv.Atoi(env(pod, stepexec.EnvAttempt))
	if err != nil {
		return 1
	}
	return n
}

func env(pod *corev1.Pod, name string) string {
	for i := range pod.Spec.Containers {
		for _, e := range pod.Spec.Containers[i].Env {
			if e.Name == name {
				return e.Value
			}
		}
	}
	return ""
}
