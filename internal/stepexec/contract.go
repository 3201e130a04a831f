// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package stepexec

import (
	"encoding/json"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
)

// The contract between the operator, the runner and a step's program: paths,
// environment, exit codes and the result. The operator writes the pod by it and
// the runner, inside the pod, reads it.
const (
	// MountPath is the emptyDir that the runner, input and output stand in.
	MountPath = "/agenttask"
	// RunnerPath is where the init container puts the runner.
	RunnerPath = MountPath + "/bin/runner"
	// InputPath holds the rendered input as canonical JSON.
	InputPath = MountPath + "/input.json"
	// OutputPath is where the program leaves its output, any JSON document.
	OutputPath = MountPath + "/output.json"
	// MessagePath is where the program may leave a sentence for people, shown as the
	// record's message.
	MessagePath = MountPath + "/message"
	// RetryAfterPath is where a program that exits with 75 may leave the least wait
	// before its next attempt: seconds, or an HTTP date (RFC 9110, section 10.2.3).
	RetryAfterPath = MountPath + "/retry-after"
	// InputSourceDir is where the init container sees the pod's input annotation.
	InputSourceDir = "/agenttask-input"
	// TerminationPath is where the runner leaves the Result.
	TerminationPath = "/dev/termination-log"
)

// Environment of a step's program.
const (
	EnvKey       = "AGENTTASK_IDEMPOTENCY_KEY"
	EnvTask      = "AGENTTASK_TASK"
	EnvNamespace = "AGENTTASK_NAMESPACE"
	EnvRunID     = "AGENTTASK_RUN_ID"
	EnvStep      = "AGENTTASK_STEP"
	EnvAttempt   = "AGENTTASK_ATTEMPT"
	EnvSeed      = "AGENTTASK_SEED"
)

// ExitRetry is the exit code by which a program asks for another attempt: EX_TEMPFAIL
// of sysexits.h.
const ExitRetry = 75

// MaxResult is the most bytes of a container's termination message that kubelet keeps.
const MaxResult = 4096

// Names of the containers of a step's pod.
const (
	ContainerStep    = "step"
	ContainerInstall = "agenttask-install"
)

// Outcome is how an attempt ended, by its own word.
type Outcome string

const (
	// OutcomeSucceeded: the program exited with 0 and its output is valid.
	OutcomeSucceeded Outcome = "Succeeded"
	// OutcomeRetry: the program asks for another attempt.
	OutcomeRetry Outcome = "Retry"
	// OutcomeFailed: the program, or its output, is wrong; another attempt would not help.
	OutcomeFailed Outcome = "Failed"
	// OutcomeTimeout: the runner stopped the program at its timeout.
	OutcomeTimeout Outcome = "Timeout"
	// OutcomeInterrupted: the program was ended from outside (the pod was deleted, the
	// kernel killed it) and nobody knows how far it came.
	OutcomeInterrupted Outcome = "Interrupted"
)

// ResultVersion is the version of the Result format that this code writes.
const ResultVersion = 1

// Result is what the runner tells the operator: the termination message of the
// step's container, JSON of at most MaxResult bytes.
type Result struct {
	// Version is ResultVersion.
	Version int     `json:"v"`
	Outcome Outcome `json:"outcome"`
	// Reason is one of the attempt reasons of v1alpha1, empty on success.
	Reason string `json:"reason,omitempty"`
	// Message is a sentence for people, at most 1024 bytes.
	Message string `json:"message,omitempty"`
	// NotStarted says that the program provably never ran.
	NotStarted bool `json:"notStarted,omitempty"`
	// ExitCode is the program's, where it exited.
	ExitCode int `json:"exitCode,omitempty"`
	// RetryAfterSeconds is the least wait before the next attempt.
	RetryAfterSeconds int64 `json:"retryAfterSeconds,omitempty"`
	// Output is the canonical JSON of an output of at most v1alpha1.MaxInlineOutput bytes.
	Output json.RawMessage `json:"output,omitempty"`
	// LogOutput announces a larger output in the container's log.
	LogOutput *LogOutput `json:"logOutput,omitempty"`
}

// LogOutput announces an output in the container's log: a line LogBegin, base64 in
// lines that begin with LogData, and a line LogEnd. Lines of standard error may stand
// after and between them, since the container runtime copies the two streams apart.
type LogOutput struct {
	// SHA256 of the output's canonical JSON, in hex.
	SHA256 string `json:"sha256"`
	// Bytes of it.
	Bytes int64 `json:"bytes"`
	// Lines of the log that carry it, LogBegin and LogEnd included.
	Lines int64 `json:"lines"`
}

// LogBegin and LogEnd frame a large output in the log, each followed by a space and
// the output's sha256. Between them stand lines of LogData, a space and at most LogLine
// characters of base64.
const (
	LogBegin = "agenttask-output-begin"
	LogData  = "agenttask-output-data"
	LogEnd   = "agenttask-output-end"
	LogLine  = 4096
)

// Output limits, as the API names them.
const (
	MaxInlineOutput = v1alpha1.MaxInlineOutput
	MaxOutput       = v1alpha1.MaxOutput
)
