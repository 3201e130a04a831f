// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package runner

import (
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
)

const timedOut = "stopped after its timeout of 2m0s; set steps[].timeout to allow more, or retry.onTimeout to try again"

func TestExecAtTheTimeout(t *testing.T) {
	t.Parallel()
	timeout := func(message string, code int) stepexec.Result {
		return result(stepexec.OutcomeTimeout, v1alpha1.ReasonTimeout, message, code)
	}
	for name, tc := range map[string]struct {
		command  []string
		stdout   bool
		grace    time.Duration
		want     stepexec.Result
		wantCode int
	}{
		"a program that takes no notice is killed after the grace": {
			command: program("hang"), grace: time.Millisecond,
			want: timeout(timedOut, 137), wantCode: 124,
		},
		"a program without grace is killed": {
			command: program("hang"),
			want:    timeout(timedOut, 137), wantCode: 124,
		},
		"a program that ends within the grace has timed out": {
			command: program("on-term", "3", "message=tidied up"), grace: time.Hour,
			want: timeout(timedOut+"; the program's message: tidied up", 3), wantCode: 124,
		},
		"a program that asks for another attempt has timed out": {
			command: program("on-term", "75"), grace: time.Hour,
			want: timeout(timedOut, 75), wantCode: 124,
		},
		"a program that finishes its work within the grace has succeeded": {
			command: program("on-term", "0", "output.json=[1]"), grace: time.Hour,
			want: withOutput("[1]"),
		},
		"a program that exits 0 without an output has timed out": {
			command: program("on-term", "0"), grace: time.Hour,
			want: timeout(timedOut, 0), wantCode: 124,
		},
		"a program that exits 0 with half an output has timed out": {
			command: program("on-term", "0", "output.json=[1"), grace: time.Hour,
			want: timeout(timedOut, 0), wantCode: 124,
		},
		"a program that exits 0 and has printed nothing has timed out": {
			command: program("on-term", "0"), grace: time.Hour, stdout: true,
			want: timeout(timedOut, 0), wantCode: 124,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newAttempt(t, tc.command...)
			a.Options.Timeout, a.Options.Grace, a.ExpireWhen = 2*time.Minute, tc.grace, "ready"
			if tc.stdout {
				a.Options.Output = v1alpha1.OutputStdout
			}
			got := a.run(t, nil)
			if diff := cmp.Diff(tc.want, got.result); diff != "" {
				t.Errorf("result (-want +got):\n%s", diff)
			}
			if got.code != tc.wantCode {
				t.Errorf("the runner exited with %d, want %d", got.code, tc.wantCode)
			}
		})
	}
}

func TestExecAtTheTimeoutByTheClock(t *testing.T) {
	t.Parallel()
	a := newAttempt(t, "sh", "-c", "while :; do read x < "+os.DevNull+"; done")
	a.Options.Timeout, a.Options.Grace = 20*time.Millisecond, time.Hour
	got := a.run(t, nil)
	want := result(stepexec.OutcomeTimeout, v1alpha1.ReasonTimeout, "stopped after its timeout of 20ms; set "+
		"steps[].timeout to allow more, or retry.onTimeout to try again", 143)
	if diff := cmp.Diff(want, got.result); diff != "" {
		t.Errorf("result (-want +got):\n%s", diff)
	}
}

func TestExecStoppedFromOutside(t *testing.T) {
	t.Parallel()
	const stopped = "stopped from outside while it ran"
	killed := func(message string, code int) stepexec.Result {
		return result(stepexec.OutcomeInterrupted, v1alpha1.ReasonKilled, message, code)
	}
	for name, tc := range map[string]struct {
		signal   syscall.Signal
		command  []string
		want     stepexec.Result
		wantCode int
	}{
		"a program that fails": {
			signal: syscall.SIGTERM, command: program("on-term", "3", "message=half done"),
			want: killed(stopped+"; the program's message: half done", 3), wantCode: 143,
		},
		"a program that finishes its work": {
			signal: syscall.SIGTERM, command: program("on-term", "0", "output.json={}"),
			want: withOutput("{}"),
		},
		"a program that exits 0 without an output": {
			signal: syscall.SIGTERM, command: program("on-term", "0"),
			want: killed(stopped, 0), wantCode: 143,
		},
		"a program that asks for another attempt": {
			signal: syscall.SIGTERM, command: program("on-term", "75"),
			want:     result(stepexec.OutcomeRetry, v1alpha1.ReasonRetryRequested, "asked for another attempt (exit code 75)", 75),
			wantCode: 75,
		},
		"a program that dies of SIGINT": {
			signal: syscall.SIGINT, command: program("on-term", "0"),
			want: killed(stopped, 130), wantCode: 143,
		},
		"a program that dies of SIGHUP": {
			signal: syscall.SIGHUP, command: program("on-term", "0"),
			want: killed(stopped, 129), wantCode: 143,
		},
		"a program that takes SIGUSR1 for a report": {
			signal: syscall.SIGUSR1, command: program("on-usr1", "0"),
			want: withOutput("null"),
		},
		"a program that takes SIGUSR1 for a report and fails": {
			signal: syscall.SIGUSR1, command: program("on-usr1", "4"),
			want: result(stepexec.OutcomeFailed, v1alpha1.ReasonExitCode, "exited with code 4", 4), wantCode: 4,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newAttempt(t, tc.command...)
			got := a.run(t, func(runner *os.Process) {
				await(a.dir, "ready")
				if err := runner.Signal(tc.signal); err != nil {
					t.Error(err)
				}
			})
			if diff := cmp.Diff(tc.want, got.result); diff != "" {
				t.Errorf("result (-want +got):\n%s", diff)
			}
			if got.code != tc.wantCode {
				t.Errorf("the runner exited with %d, want %d", got.code, tc.wantCode)
			}
		})
	}
}

func TestExecStoppedFromOutsideThenTimedOut(t *testing.T) {
	t.Parallel()
	a := newAttempt(t, program("object")...)
	a.Options.Timeout, a.ExpireWhen = 2*time.Minute, "told"
	got := a.run(t, func(runner *os.Process) {
		await(a.dir, "ready")
		if err := runner.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
	})
	want := result(stepexec.OutcomeInterrupted, v1alpha1.ReasonKilled, "stopped from outside while it ran", 137)
	if diff := cmp.Diff(want, got.result); diff != "" {
		t.Errorf("result (-want +got):\n%s", diff)
	}
	if got.code != 137 {
		t.Errorf("the runner exited with %d, want 137", got.code)
	}
}
