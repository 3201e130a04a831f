// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package sample

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agenttask-dev/agenttask/internal/stepexec"
)

// step is a program in a directory of its own, as a step's container sees it.
func step(t *testing.T, input string) Program {
	t.Helper()
	p := Program{Dir: t.TempDir(), Client: NewClient(), Pause: pause, Kill: func() {}, Stderr: io.Discard}
	p.Getenv = environment(map[string]string{
		envKey: "research-publish-1", envRunID: "run-1", envTask: "research", envStep: "publish", envAttempt: "1", envSeed: "7",
	})
	if input != "" {
		if err := os.WriteFile(filepath.Join(p.Dir, inputFile), []byte(input), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

func environment(env map[string]string) func(string) string {
	return func(name string) string { return env[name] }
}

// left is what a step left in a file, empty where it left none.
func left(t *testing.T, p Program, name string) string {
	t.Helper()
	doc, err := os.ReadFile(filepath.Join(p.Dir, name))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return string(doc)
}

func leftJSON[T any](t *testing.T, p Program) T {
	t.Helper()
	var v T
	if err := json.Unmarshal([]byte(left(t, p, outputFile)), &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func asJSON(t *testing.T, v any) string {
	t.Helper()
	doc, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(doc)
}

func TestNamesAreThoseOfTheContract(t *testing.T) {
	got := []string{
		Dir, path.Join(Dir, inputFile), path.Join(Dir, outputFile), path.Join(Dir, messageFile), path.Join(Dir, retryAfterFile),
		envKey, envRunID, envTask, envStep, envAttempt, envSeed,
	}
	want := []string{
		stepexec.MountPath, stepexec.InputPath, stepexec.OutputPath, stepexec.MessagePath, stepexec.RetryAfterPath,
		stepexec.EnvKey, stepexec.EnvRunID, stepexec.EnvTask, stepexec.EnvStep, stepexec.EnvAttempt, stepexec.EnvSeed,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("names (-contract +sample):\n%s", diff)
	}
	if exitRetry != stepexec.ExitRetry {
		t.Errorf("the exit code that asks for another attempt is %d, the contract's is %d", exitRetry, stepexec.ExitRetry)
	}
}

func TestFinish(t *testing.T) {
	for name, tc := range map[string]struct {
		err            error
		wantCode       int
		wantMessage    string
		wantRetryAfter string
	}{
		"success leaves nothing":              {nil, 0, "", ""},
		"a plain error fails":                 {errors.New("boom"), 1, "boom", ""},
		"another attempt with a floor":        {&Exit{Code: 75, Message: "busy", RetryAfter: "30"}, 75, "busy", "30"},
		"an exit is found below other errors": {errors.Join(retryf("busy")), 75, "busy", ""},
		"a long message is cut":               {failf("%s", strings.Repeat("x", 2000)), 1, strings.Repeat("x", 1024), ""},
		"no character is cut in two":          {failf("%s€", strings.Repeat("x", 1023)), 1, strings.Repeat("x", 1023), ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := step(t, "")
			if got := p.Finish(tc.err); got != tc.wantCode {
				t.Errorf("exit code %d, want %d", got, tc.wantCode)
			}
			if got := left(t, p, messageFile); got != tc.wantMessage {
				t.Errorf("message %q, want %q", got, tc.wantMessage)
			}
			if got := left(t, p, retryAfterFile); got != tc.wantRetryAfter {
				t.Errorf("retry-after %q, want %q", got, tc.wantRetryAfter)
			}
		})
	}
}

func TestFinishOutsideAStep(t *testing.T) {
	p := step(t, "")
	p.Dir = filepath.Join(p.Dir, "missing")
	var log strings.Builder
	p.Stderr = &log
	if code := p.Finish(errors.New("boom")); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	if log.String() != "boom\n" {
		t.Errorf("log %q, want only the message", log.String())
	}
}

func TestWorkEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	p := step(t, "")
	if code := p.Finish(p.work(ctx, time.Hour)); code != 143 {
		t.Errorf("exit code %d, want 143", code)
	}
	if err := p.work(t.Context(), time.Nanosecond); err != nil {
		t.Errorf("work that is not stopped: %v", err)
	}
}

func TestInputThatDoesNotFitIsNamed(t *testing.T) {
	for name, tc := range map[string]struct{ input, want string }{
		"missing":       {"", "run this program as a step"},
		"unknown field": {`{"topik": "solar panels"}`, `unknown field "topik"`},
		"not JSON":      {`{`, "does not fit"},
	} {
		t.Run(name, func(t *testing.T) {
			p := step(t, tc.input)
			code := p.Finish(Plan(t.Context(), p, 0))
			if got := left(t, p, messageFile); code != 1 || !strings.Contains(got, tc.want) {
				t.Errorf("exit code %d, message %q; want 1 and %q", code, got, tc.want)
			}
		})
	}
}
