// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package runner

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
)

func result(outcome stepexec.Outcome, reason, message string, code int) stepexec.Result {
	return stepexec.Result{Version: 1, Outcome: outcome, Reason: reason, Message: message, ExitCode: code}
}

func withOutput(doc string) stepexec.Result {
	return stepexec.Result{Version: 1, Outcome: stepexec.OutcomeSucceeded, Output: []byte(doc)}
}

func TestExecByWhatTheProgramDoes(t *testing.T) {
	t.Parallel()
	said := withOutput("null")
	said.Message = "found 3 orders"
	later := result(stepexec.OutcomeRetry, v1alpha1.ReasonRetryRequested, "the shop is closed", 75)
	later.RetryAfterSeconds = 30
	noted := result(stepexec.OutcomeRetry, v1alpha1.ReasonRetryRequested,
		"asked for another attempt (exit code 75) (/agenttask/retry-after was ignored: it must hold seconds or an HTTP date)", 75)

	for name, tc := range map[string]struct {
		command    []string
		want       stepexec.Result
		wantCode   int
		wantStderr string
	}{
		"exits 0 without output": {
			command: program("leave", "0"),
			want:    withOutput("null"),
		},
		"leaves an output, which is made canonical": {
			command: program("leave", "0", `output.json= { "b" : 1.0, "a" : "<&>" } `),
			want:    withOutput(`{"a":"<&>","b":1}`),
		},
		"leaves a message": {
			command: program("leave", "0", "message=found 3 orders\n"),
			want:    said,
		},
		"gets its arguments, environment, no input and a session of its own": {
			command: program("describe", "--timeout=1s", "", "a b"),
			want:    withOutput(`{"args":["--timeout=1s","","a b"],"env":"yes","leadsGroup":true,"leadsSession":true,"stdin":0}`),
		},
		"asks for another attempt": {
			command:  program("leave", "75"),
			want:     result(stepexec.OutcomeRetry, v1alpha1.ReasonRetryRequested, "asked for another attempt (exit code 75)", 75),
			wantCode: 75,
		},
		"asks for another attempt after a while": {
			command:  program("leave", "75", "retry-after=30\n", "message=the shop is closed"),
			want:     later,
			wantCode: 75,
		},
		"asks for another attempt after a while that makes no sense": {
			command:  program("leave", "75", "retry-after=soon"),
			want:     noted,
			wantCode: 75,
		},
		"fails": {
			command:  program("leave", "3", "output.json={}"),
			want:     result(stepexec.OutcomeFailed, v1alpha1.ReasonExitCode, "exited with code 3", 3),
			wantCode: 3,
		},
		"fails with a message": {
			command:  program("leave", "3", "message=no such order"),
			want:     result(stepexec.OutcomeFailed, v1alpha1.ReasonExitCode, "exited with code 3: no such order", 3),
			wantCode: 3,
		},
		"fails and prints a secret on standard error": {
			command:    program("say", "1", "", "password=hunter2"),
			want:       result(stepexec.OutcomeFailed, v1alpha1.ReasonExitCode, "exited with code 1", 1),
			wantCode:   1,
			wantStderr: "password=hunter2",
		},
		"dies of a signal": {
			command:  []string{"sh", "-c", "ulimit -c 0; kill -SEGV $$"},
			want:     result(stepexec.OutcomeFailed, v1alpha1.ReasonExitCode, "ended by signal SIGSEGV (segmentation fault)", 139),
			wantCode: 139,
		},
		"ends itself with the signal that stops it": {
			command:  []string{"sh", "-c", "kill -TERM $$"},
			want:     result(stepexec.OutcomeFailed, v1alpha1.ReasonExitCode, "ended by signal SIGTERM (terminated)", 143),
			wantCode: 143,
		},
		"is killed": {
			command:  []string{"sh", "-c", "kill -KILL $$"},
			want:     result(stepexec.OutcomeInterrupted, v1alpha1.ReasonKilled, "killed from outside while it ran (SIGKILL)", 137),
			wantCode: 137,
		},
		"reaps an orphan while it runs": {
			command: program("orphan"),
			want:    withOutput("null"),
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newAttempt(t, tc.command...)
			a.file(t, "output.json", `"left over"`)
			a.file(t, "message", "left over")
			a.file(t, "retry-after", "99")
			got := a.run(t, nil)
			if diff := cmp.Diff(tc.want, got.result); diff != "" {
				t.Errorf("result (-want +got):\n%s", diff)
			}
			if got.code != tc.wantCode {
				t.Errorf("the runner exited with %d, want %d", got.code, tc.wantCode)
			}
			if got.stderr != tc.wantStderr {
				t.Errorf("stderr is %q, want %q", got.stderr, tc.wantStderr)
			}
		})
	}
}

func TestExecOfACommandThatCannotRun(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(name, content string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	plain := file("plain", "#!/bin/sh\n", 0o644)
	garbage := file("garbage", "neither a script nor a binary\n", 0o755)
	script := file("script", "#!/no/such/interpreter\n", 0o755)

	for name, tc := range map[string]struct{ command, want string }{
		"not in PATH":          {"no-such-program", `the image has no program "no-such-program" in its PATH`},
		"no such file":         {"/no/such", `"/no/such" cannot be run: no such file or directory`},
		"not executable":       {plain, `"` + plain + `" cannot be run: permission denied`},
		"a directory":          {dir, `"` + dir + `" cannot be run: is a directory`},
		"of an unknown format": {garbage, `"` + garbage + `" cannot be run: exec format error; it is built for another architecture, or is a script without a #! line`},
		"without interpreter":  {script, `"` + script + `" cannot be run: the interpreter or loader it names is not in the image`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, output := range []v1alpha1.OutputSource{v1alpha1.OutputFile, v1alpha1.OutputStdout} {
				a := newAttempt(t, tc.command)
				a.Options.Output = output
				got := a.run(t, nil)
				want := neverRan(result(stepexec.OutcomeFailed, v1alpha1.ReasonCommandNotFound, tc.want, 0))
				if diff := cmp.Diff(want, got.result); diff != "" {
					t.Errorf("result (-want +got):\n%s", diff)
				}
				if got.code != 1 {
					t.Errorf("the runner exited with %d, want 1", got.code)
				}
			}
		})
	}
}

func TestExecOfOutputsThatAreWrong(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		command []string
		stdout  bool
		reason  string
		want    string
	}{
		"two documents": {
			command: program("leave", "0", "output.json={\n  \"key\": 1} {}"),
			reason:  v1alpha1.ReasonOutputInvalid,
			want:    "/agenttask/output.json is not one JSON document: line 2, column 13 (byte 14): invalid character after top-level value",
		},
		"an empty file": {
			command: program("leave", "0", "output.json=\n"),
			reason:  v1alpha1.ReasonOutputInvalid,
			want:    "/agenttask/output.json is not one JSON document: it is empty",
		},
		"a symbolic link": {
			command: program("odd-output", "symlink"),
			reason:  v1alpha1.ReasonOutputInvalid,
			want:    "/agenttask/output.json is a symbolic link, not a regular file",
		},
		"a FIFO": {
			command: program("odd-output", "fifo"),
			reason:  v1alpha1.ReasonOutputInvalid,
			want:    "/agenttask/output.json is not a regular file",
		},
		"a directory": {
			command: program("odd-output", "directory"),
			reason:  v1alpha1.ReasonOutputInvalid,
			want:    "/agenttask/output.json is not a regular file",
		},
		"a socket": {
			command: program("odd-output", "socket"),
			reason:  v1alpha1.ReasonOutputInvalid,
			want:    "/agenttask/output.json is not a regular file",
		},
		"a file just too large": {
			command: program("big-output", "921601"),
			reason:  v1alpha1.ReasonOutputTooLarge,
			want:    "the output is 921601 bytes, the limit is 921600; write less, or keep it elsewhere and return a reference",
		},
		"a file that is not read at all": {
			command: program("big-output", "3000000"),
			reason:  v1alpha1.ReasonOutputTooLarge,
			want:    "the output is 3000000 bytes, the limit is 921600; write less, or keep it elsewhere and return a reference",
		},
		"a flood on standard output": {
			command: program("flood", "5000000"),
			stdout:  true,
			reason:  v1alpha1.ReasonOutputTooLarge,
			want:    "the output is 5000000 bytes, the limit is 921600; write less, or keep it elsewhere and return a reference",
		},
		"nothing on standard output": {
			command: program("say", "0", " \n", ""),
			stdout:  true,
			reason:  v1alpha1.ReasonOutputMissing,
			want:    "run.output is Stdout and the program printed nothing; print one JSON document, null for none",
		},
		"words on standard output": {
			command: program("say", "0", "{\"secret\": hunter2}", ""),
			stdout:  true,
			reason:  v1alpha1.ReasonOutputInvalid,
			want:    "standard output is not one JSON document: line 1, column 12 (byte 11): invalid character at start of value",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newAttempt(t, tc.command...)
			if tc.stdout {
				a.Options.Output = v1alpha1.OutputStdout
			}
			got := a.run(t, nil)
			if diff := cmp.Diff(result(stepexec.OutcomeFailed, tc.reason, tc.want, 0), got.result); diff != "" {
				t.Errorf("result (-want +got):\n%s", diff)
			}
			if got.code != 1 {
				t.Errorf("the runner exited with %d, want 1", got.code)
			}
			if name == "a flood on standard output" && got.stdout != bigString(5000000) {
				t.Errorf("the log holds %d bytes, want all the program printed", len(got.stdout))
			}
		})
	}
}

func TestExecTakesStandardOutput(t *testing.T) {
	t.Parallel()
	a := newAttempt(t, program("say", "0", "[1,\n 2]\n", "some words")...)
	a.Options.Output = v1alpha1.OutputStdout
	got := a.run(t, nil)
	if diff := cmp.Diff(withOutput("[1,2]"), got.result); diff != "" {
		t.Errorf("result (-want +got):\n%s", diff)
	}
	if got.stdout != "[1,\n 2]\n" || got.stderr != "some words" {
		t.Errorf("the log holds %q and %q, want what the program printed", got.stdout, got.stderr)
	}
}

func TestExecPutsALargeOutputAtTheEndOfTheLog(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		command []string
		stdout  bool
		bytes   int
		before  string
	}{
		"just too large for the result":            {program("big-output", "2049"), false, 2049, "no newline at the end\n"},
		"as large as may be":                       {program("big-output", "921600"), false, 921600, "no newline at the end\n"},
		"from standard output":                     {program("flood", "3072"), true, 3072, bigString(3072) + "\n"},
		"of full lines only":                       {program("big-output", "3072"), false, 3072, "no newline at the end\n"},
		"where the program made the log non-block": {program("nonblocking", "900000"), false, 900000, "\n"},
		"where children print for ever":            {program("leave-children", "chatter", "chatter\n"), false, 10000, "chatter"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newAttempt(t, tc.command...)
			if tc.stdout {
				a.Options.Output = v1alpha1.OutputStdout
			}
			got := a.run(t, nil)
			doc := bigString(tc.bytes)
			sum := stepexec.SHA256Hex([]byte(doc))
			want := stepexec.Result{Version: 1, Outcome: stepexec.OutcomeSucceeded, LogOutput: &stepexec.LogOutput{
				SHA256: sum, Bytes: int64(tc.bytes), Lines: int64((base64.StdEncoding.EncodedLen(tc.bytes)+4095)/4096) + 2}}
			if diff := cmp.Diff(want, got.result); diff != "" {
				t.Fatalf("result (-want +got):\n%s", diff)
			}
			coded, begin, end := framed(got.stdout, want.LogOutput.Lines)
			if diff := cmp.Diff([]string{"agenttask-output-begin " + sum, "agenttask-output-end " + sum}, []string{begin, end}); diff != "" {
				t.Errorf("frame (-want +got):\n%s", diff)
			}
			if back, err := base64.StdEncoding.DecodeString(string(coded)); err != nil || string(back) != doc {
				t.Errorf("the output does not come back from the log (error %v)", err)
			}
			if !strings.HasPrefix(got.stdout, tc.before) {
				t.Errorf("the log begins with %.40q, want %.40q", got.stdout, tc.before)
			}
		})
	}
}

func TestExecPutsAnOutputOfTheInlineLimitIntoTheResult(t *testing.T) {
	t.Parallel()
	got := newAttempt(t, program("big-output", "2048")...).run(t, nil)
	if diff := cmp.Diff(withOutput(bigString(2048)), got.result); diff != "" {
		t.Errorf("result (-want +got):\n%s", diff)
	}
}

func TestExecKillsWhatTheProgramLeavesBehind(t *testing.T) {
	t.Parallel()
	for name, output := range map[string]v1alpha1.OutputSource{
		"that holds the log":  v1alpha1.OutputFile,
		"that holds the pipe": v1alpha1.OutputStdout,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newAttempt(t, program("leave-children", "chatter", "")...)
			a.Options.Output = output
			a.run(t, nil)
			a.gone(t, "child-0")
			a.gone(t, "child-1")
		})
	}
}

func TestExecWritesTheResultOverAnEarlierOne(t *testing.T) {
	t.Parallel()
	a := newAttempt(t, program("leave", "0")...)
	a.file(t, "termination-log", strings.Repeat("x", 5000))
	if diff := cmp.Diff(withOutput("null"), a.run(t, nil).result); diff != "" {
		t.Errorf("result (-want +got):\n%s", diff)
	}
}

func TestExecKnowsTheMemoryLimit(t *testing.T) {
	t.Parallel()
	const v2, v1 = "cgroup/memory.events", "cgroup/memory/memory.oom_control"
	oom := result(stepexec.OutcomeInterrupted, v1alpha1.ReasonOutOfMemory,
		"killed by the kernel for its memory limit; raise resources.limits.memory, or use less", 137)
	for name, tc := range map[string]struct {
		file, before string
		command      []string
		want         stepexec.Result
	}{
		"cgroup v2 counts a kill": {
			file: v2, before: "low 0\noom 3\noom_kill 3\noom_group_kill 0\n",
			command: program("out-of-memory", v2, "low 0\noom 4\noom_kill 4\noom_group_kill 0\n"),
			want:    oom,
		},
		"cgroup v1 counts a kill": {
			file: v1, before: "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n",
			command: program("out-of-memory", v1, "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n"),
			want:    oom,
		},
		"the kill was before it started": {
			file: v2, before: "oom 3\noom_kill 3\n",
			command: program("out-of-memory", v2, "oom 4\noom_kill 3\n"),
			want:    result(stepexec.OutcomeInterrupted, v1alpha1.ReasonKilled, "killed from outside while it ran (SIGKILL)", 137),
		},
		"a child of the program is killed and the program fails": {
			file: v2, before: "oom_kill 0\n",
			command: program("exhaust", "137", v2, "oom_kill 1\n"),
			want: result(stepexec.OutcomeFailed, v1alpha1.ReasonExitCode, "exited with code 137; the kernel killed one of "+
				"its processes for the container's memory limit, see resources.limits.memory", 137),
		},
		"a child of the program is killed and the program copes": {
			file: v2, before: "oom_kill 0\n",
			command: program("exhaust", "0", v2, "oom_kill 1\n"),
			want:    withOutput("null"),
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newAttempt(t, tc.command...)
			a.file(t, tc.file, tc.before)
			if diff := cmp.Diff(tc.want, a.run(t, nil).result); diff != "" {
				t.Errorf("result (-want +got):\n%s", diff)
			}
		})
	}
}
