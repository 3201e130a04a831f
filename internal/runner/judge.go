// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package runner

import (
	"fmt"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
)

// judge turns the program's end into the result: the table of the package comment.
// A large output goes to the log here.
func (r *Runner) judge(o Options, end ending, out *capture, outOfMemory bool) stepexec.Result {
	word := readMessage(r.in(stepexec.MessagePath))
	if end.status.Exited() && end.status.ExitStatus() == 0 {
		doc := r.output(out)
		if doc.problem == "" && (doc.given || !end.stopped()) {
			return r.succeeded(doc.json, word)
		}
		if !end.stopped() {
			return failed(doc.reason, doc.problem)
		}
	}
	res := outcome(o, end, word, outOfMemory)
	res.ExitCode = end.exitCode()
	if res.Outcome == stepexec.OutcomeRetry {
		res.RetryAfterSeconds, res.Message = r.retryAfter(res.Message, time.Now())
	}
	return res
}

// outcome judges an end that is not a success.
func outcome(o Options, end ending, word string, outOfMemory bool) stepexec.Result {
	killed := end.status.Signaled() && end.status.Signal() == syscall.SIGKILL
	switch {
	case end.cause == causeTimeout:
		return stepexec.Result{
			Outcome: stepexec.OutcomeTimeout,
			Reason:  v1alpha1.ReasonTimeout,
			Message: withWord(fmt.Sprintf("stopped after its timeout of %v; set steps[].timeout to allow more, or "+
				"retry.onTimeout to try again", o.Timeout), word),
		}
	case killed && outOfMemory:
		return stepexec.Result{
			Outcome: stepexec.OutcomeInterrupted,
			Reason:  v1alpha1.ReasonOutOfMemory,
			Message: withWord("killed by the kernel for its memory limit; raise resources.limits.memory, or use less", word),
		}
	case end.status.Exited() && end.status.ExitStatus() == stepexec.ExitRetry:
		return stepexec.Result{
			Outcome: stepexec.OutcomeRetry,
			Reason:  v1alpha1.ReasonRetryRequested,
			Message: orElse(word, "asked for another attempt (exit code 75)"),
		}
	case end.cause == causeOutside:
		return interrupted(withWord("stopped from outside while it ran", word))
	case killed:
		return interrupted(withWord("killed from outside while it ran (SIGKILL)", word))
	case end.status.Signaled():
		return failed(v1alpha1.ReasonExitCode, withWord("ended by signal "+signalName(end.status.Signal()), word))
	}
	message := fmt.Sprintf("exited with code %d", end.status.ExitStatus())
	if outOfMemory {
		message += "; the kernel killed one of its processes for the container's memory limit, see resources.limits.memory"
	}
	if word != "" {
		message += ": " + word
	}
	return failed(v1alpha1.ReasonExitCode, message)
}

// succeeded is the result of a program whose output is doc.
func (r *Runner) succeeded(doc []byte, word string) stepexec.Result {
	res := stepexec.Result{Outcome: stepexec.OutcomeSucceeded, Message: word}
	if len(doc) <= stepexec.MaxInlineOutput {
		res.Output = doc
		return res
	}
	announced, err := writeFrame(r.Stdout, doc)
	if err != nil {
		return stepexec.Result{
			Outcome: stepexec.OutcomeInterrupted,
			Reason:  v1alpha1.ReasonOutputLost,
			Message: fmt.Sprintf("its output of %d bytes could not be written to the container's log: %v", len(doc), err),
		}
	}
	res.LogOutput = announced
	return res
}

func failed(reason, message string) stepexec.Result {
	return stepexec.Result{Outcome: stepexec.OutcomeFailed, Reason: reason, Message: message}
}

func interrupted(message string) stepexec.Result {
	return stepexec.Result{Outcome: stepexec.OutcomeInterrupted, Reason: v1alpha1.ReasonKilled, Message: message}
}

// withWord adds what the program left for people to the runner's own sentence.
func withWord(sentence, word string) string {
	if word == "" {
		return sentence
	}
	return sentence + "; the program's message: " + word
}

func orElse(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

func signalName(s syscall.Signal) string {
	if name := unix.SignalName(s); name != "" {
		return fmt.Sprintf("%s (%v)", name, s)
	}
	return fmt.Sprintf("%d", int(s))
}
