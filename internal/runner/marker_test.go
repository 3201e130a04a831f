// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package runner

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
)

// whenStarted stands for the time in the message of a second start.
var whenStarted = regexp.MustCompile(`at \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ`)

const startedTwice = "the container was started a second time, and ran nothing; what came of its first start at TIME is not known"

func TestExecOfOnceStartsTheProgramOnce(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		script string
		first  stepexec.Result
	}{
		"that succeeded": {`echo ran >>"$RUNNER_TEST_DIR/ran"; echo 1 >"$RUNNER_TEST_DIR/output.json"`, withOutput("1")},
		"that asked for another attempt": {`echo ran >>"$RUNNER_TEST_DIR/ran"; exit 75`,
			result(stepexec.OutcomeRetry, v1alpha1.ReasonRetryRequested, "asked for another attempt (exit code 75)", 75)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newAttempt(t, "sh", "-c", tc.script)
			a.Options.Once = true
			if diff := cmp.Diff(tc.first, a.run(t, nil).result); diff != "" {
				t.Errorf("first start: result (-want +got):\n%s", diff)
			}
			for range 2 {
				got := a.run(t, nil)
				got.result.Message = whenStarted.ReplaceAllString(got.result.Message, "at TIME")
				if diff := cmp.Diff(result(stepexec.OutcomeInterrupted, v1alpha1.ReasonStartedTwice, startedTwice, 0), got.result); diff != "" {
					t.Errorf("later start: result (-want +got):\n%s", diff)
				}
				if got.code != 143 {
					t.Errorf("later start: the runner exited with %d, want 143", got.code)
				}
			}
			if got := a.read(t, "ran"); got != "ran\n" {
				t.Errorf("the program left %q, want it to have run once", got)
			}
		})
	}
}

func TestExecWithoutOnceStartsTheProgramEachTime(t *testing.T) {
	t.Parallel()
	a := newAttempt(t, "sh", "-c", `echo ran >>"$RUNNER_TEST_DIR/ran"`)
	for range 2 {
		if diff := cmp.Diff(withOutput("null"), a.run(t, nil).result); diff != "" {
			t.Errorf("result (-want +got):\n%s", diff)
		}
	}
	if got := a.read(t, "ran"); got != "ran\nran\n" {
		t.Errorf("the program left %q, want it to have run twice", got)
	}
	if _, err := os.Lstat(filepath.Join(a.dir, "started")); !os.IsNotExist(err) {
		t.Errorf("there is a marker (%v)", err)
	}
}

func TestExecOfOnceLeavesTheMarkerBeforeTheProgramRuns(t *testing.T) {
	t.Parallel()
	before := time.Now().UTC().Truncate(time.Second)
	a := newAttempt(t, "sh", "-c", `cp "$RUNNER_TEST_DIR/started" "$RUNNER_TEST_DIR/seen"`)
	a.Options.Once = true
	if diff := cmp.Diff(withOutput("null"), a.run(t, nil).result); diff != "" {
		t.Fatalf("result (-want +got):\n%s", diff)
	}
	at, err := time.Parse(time.RFC3339, strings.TrimSpace(a.read(t, "seen")))
	if err != nil || at.Before(before) || at.After(time.Now()) {
		t.Errorf("the marker holds %q, want the time of the start", a.read(t, "seen"))
	}
}

// What stands at the marker's path is the marker, whatever it is.
func TestMarkFindsWhatStandsThere(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		put  func(path string) error
		want string
	}{
		"a marker": {func(p string) error { return os.WriteFile(p, []byte("2026-01-02T03:04:05Z\n"), 0o600) },
			strings.Replace(startedTwice, "TIME", "2026-01-02T03:04:05Z", 1)},
		"a marker that was not finished": {func(p string) error { return os.WriteFile(p, nil, 0o600) },
			strings.Replace(startedTwice, " at TIME", "", 1)},
		"words of somebody else": {func(p string) error { return os.WriteFile(p, []byte("hunter2"), 0o600) },
			strings.Replace(startedTwice, " at TIME", "", 1)},
		"a directory":         {func(p string) error { return os.Mkdir(p, 0o700) }, strings.Replace(startedTwice, " at TIME", "", 1)},
		"a link that dangles": {func(p string) error { return os.Symlink("nowhere", p) }, strings.Replace(startedTwice, " at TIME", "", 1)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := &Runner{Dir: t.TempDir()}
			if err := tc.put(filepath.Join(r.Dir, "started")); err != nil {
				t.Fatal(err)
			}
			want := stepexec.Result{Outcome: stepexec.OutcomeInterrupted, Reason: v1alpha1.ReasonStartedTwice, Message: tc.want}
			if diff := cmp.Diff(&want, r.mark()); diff != "" {
				t.Errorf("result (-want +got):\n%s", diff)
			}
		})
	}
}

func TestMarkOnceAndNeverAgain(t *testing.T) {
	t.Parallel()
	r := &Runner{Dir: t.TempDir(), Stderr: os.Stderr}
	if res := r.mark(); res != nil {
		t.Fatalf("the first start is refused: %+v", res)
	}
	r.removeLeftovers()
	if res := r.mark(); res == nil || res.Reason != v1alpha1.ReasonStartedTwice {
		t.Errorf("the second start gives %+v", res)
	}
}

func TestNothingStartsWithoutAMarker(t *testing.T) {
	t.Parallel()
	want := stepexec.Result{Outcome: stepexec.OutcomeInterrupted, Reason: v1alpha1.ReasonKilled, NotStarted: true,
		Message: "nothing was started: the file that keeps it from starting twice (/agenttask/started) could not be written: no such file or directory"}
	r := &Runner{Dir: filepath.Join(t.TempDir(), "none"), Stderr: os.Stderr}
	if diff := cmp.Diff(want, r.attempt(Options{Command: []string{"true"}, Once: true})); diff != "" {
		t.Errorf("result of a program (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want, r.request(HTTPOptions{Once: true}, nil)); diff != "" {
		t.Errorf("result of a request (-want +got):\n%s", diff)
	}
}

func TestNotStartedSaysSo(t *testing.T) {
	t.Parallel()
	want := stepexec.Result{Outcome: stepexec.OutcomeInterrupted, Reason: v1alpha1.ReasonKilled, NotStarted: true,
		Message: "the program could not be started: resource temporarily unavailable"}
	err := &os.PathError{Op: "fork/exec", Path: "/bin/true", Err: syscall.EAGAIN}
	if diff := cmp.Diff(want, notRunnable("true", err)); diff != "" {
		t.Errorf("result (-want +got):\n%s", diff)
	}
}

func TestHTTPOfOnceSendsOneRequest(t *testing.T) {
	t.Parallel()
	server := record(t, status(500))
	s := aSending(server.URL)
	s.opts.Once = true
	for i, want := range []string{v1alpha1.ReasonHTTPStatus, v1alpha1.ReasonStartedTwice, v1alpha1.ReasonStartedTwice} {
		got := s.run(t)
		if got.Outcome != stepexec.OutcomeInterrupted || got.Reason != want || got.NotStarted {
			t.Errorf("start %d: %+v, want it Interrupted, %s", i, got, want)
		}
	}
	if n := len(server.got()); n != 1 {
		t.Errorf("the server got %d requests, want 1", n)
	}
}
