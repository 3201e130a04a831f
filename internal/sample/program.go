// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package sample

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Dir is where a step's program finds its input and leaves its output.
const Dir = "/agenttask"

// Files in Dir.
const (
	inputFile      = "input.json"
	outputFile     = "output.json"
	messageFile    = "message"
	retryAfterFile = "retry-after"
)

// Environment of a step's program, as far as the samples read it.
const (
	envKey     = "AGENTTASK_IDEMPOTENCY_KEY"
	envTask    = "AGENTTASK_TASK"
	envRunID   = "AGENTTASK_RUN_ID"
	envStep    = "AGENTTASK_STEP"
	envAttempt = "AGENTTASK_ATTEMPT"
	envSeed    = "AGENTTASK_SEED"
)

// Exit codes of a step's program.
const (
	exitFailed  = 1
	exitRetry   = 75  // EX_TEMPFAIL: the operator starts another attempt
	exitKilled  = 137 // 128 + SIGKILL
	exitStopped = 143 // 128 + SIGTERM
)

// maxMessage is the most bytes of a message that the task's record shows.
const maxMessage = 1024

// Program is what a step's program sees of the world.
type Program struct {
	// Dir holds input and output.
	Dir string
	// Getenv reads the environment.
	Getenv func(string) string
	// Client sends effects. It must not retry: the operator does.
	Client *http.Client
	// Pause waits for d, or until ctx ends and then returns its error.
	Pause func(ctx context.Context, d time.Duration) error
	// Kill ends the program at once, by SIGKILL.
	Kill func()
	// Stderr takes messages for the pod's log.
	Stderr io.Writer
}

// NewProgram is the program as a step's container sees it.
func NewProgram() Program {
	return Program{Dir: Dir, Getenv: os.Getenv, Client: NewClient(), Pause: pause, Kill: kill, Stderr: os.Stderr}
}

// kill ends this process. The first process of a container is immune to its own SIGKILL
// and exits instead; in a step that is the runner.
func kill() {
	if self, err := os.FindProcess(os.Getpid()); err == nil {
		_ = self.Kill()
	}
	os.Exit(exitKilled)
}

// Exit is an error that says how the program ends.
type Exit struct {
	// Code is the exit code.
	Code int
	// Message is a sentence for people.
	Message string
	// RetryAfter is the least wait before the next attempt, as in an HTTP header:
	// seconds, or a date.
	RetryAfter string
	// Kill ends the program by SIGKILL, so that its exit code says nothing.
	Kill bool
}

func (e *Exit) Error() string { return e.Message }

// failf ends the program for good.
func failf(format string, args ...any) error {
	return &Exit{Code: exitFailed, Message: fmt.Sprintf(format, args...)}
}

// retryf asks for another attempt.
func retryf(format string, args ...any) error {
	return &Exit{Code: exitRetry, Message: fmt.Sprintf(format, args...)}
}

// unknownf ends the program without an outcome.
func unknownf(format string, args ...any) error {
	return &Exit{Code: exitKilled, Message: fmt.Sprintf(format, args...), Kill: true}
}

// stopped ends a program that was told to stop.
func stopped(doing string) error {
	return &Exit{Code: exitStopped, Message: "stopped by a signal while " + doing}
}

// Finish leaves err's message, where there is one, in the step's directory and in
// the log, and returns the exit code.
func (p Program) Finish(err error) int {
	if err == nil {
		return 0
	}
	exit := &Exit{Code: exitFailed, Message: err.Error()}
	errors.As(err, &exit)
	if exit.Message != "" {
		fmt.Fprintln(p.Stderr, exit.Message)
		p.leave(messageFile, strings.ToValidUTF8(truncate(exit.Message, maxMessage), ""))
	}
	if exit.RetryAfter != "" {
		p.leave(retryAfterFile, exit.RetryAfter)
	}
	if exit.Kill {
		p.Kill()
	}
	return exit.Code
}

// leave writes a file that the program can do without: outside a step there is no
// directory for it.
func (p Program) leave(name, text string) {
	err := os.WriteFile(filepath.Join(p.Dir, name), []byte(text), 0o644)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		fmt.Fprintln(p.Stderr, err)
	}
}

// rawInput is the step's input as it stands in the file.
func (p Program) rawInput() ([]byte, error) {
	raw, err := os.ReadFile(filepath.Join(p.Dir, inputFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil, failf("there is no %s: run this program as a step of an AgentTask", filepath.Join(p.Dir, inputFile))
	}
	if err != nil {
		return nil, failf("reading the step's input: %v", err)
	}
	return raw, nil
}

// input reads the step's input into v. A field that v does not have is an error: it
// is most likely misspelt in the task.
func (p Program) input(v any) error {
	raw, err := p.rawInput()
	if err != nil {
		return err
	}
	return decodeInput(raw, v)
}

func decodeInput(doc []byte, v any) error {
	dec := json.NewDecoder(bytes.NewReader(doc))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return failf("the step's input does not fit this program: %v; mend input in the task's step", err)
	}
	return nil
}

// output writes v as the step's output.
func (p Program) output(v any) error {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return failf("encoding the step's output: %v", err)
	}
	return p.rawOutput(bytes.TrimSpace(buf.Bytes()))
}

func (p Program) rawOutput(doc []byte) error {
	if err := os.WriteFile(filepath.Join(p.Dir, outputFile), doc, 0o644); err != nil {
		return failf("writing the step's output: %v", err)
	}
	return nil
}

// env reads a variable that every step has.
func (p Program) env(name string) (string, error) {
	v := p.Getenv(name)
	if v == "" {
		return "", failf("%s is not set: run this program as a step of an AgentTask, or set it", name)
	}
	return v, nil
}

// work simulates work that takes d, so that a demo can be watched and stopped in the
// middle.
func (p Program) work(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	if err := p.Pause(ctx, d); err != nil {
		return stopped("working")
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// truncate shortens s to at most n bytes.
func truncate(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return s[:n]
}
