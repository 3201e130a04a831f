// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package runner

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/agenttask-dev/agenttask/internal/stepexec"
)

// The test binary plays three parts: the tests; the runner under test, in a process
// of its own, since it reaps every child of its process; and the programs it runs.
const (
	asRunner  = "as-runner"
	asProgram = "as-program"
	dirEnv    = "RUNNER_TEST_DIR"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 2 {
		switch os.Args[1] {
		case asRunner:
			os.Exit(playRunner(os.Args[2]))
		case asProgram:
			os.Exit(programs[os.Args[2]](os.Args[3:]))
		}
	}
	os.Exit(m.Run())
}

// attempt is one run of the runner under test.
type attempt struct {
	Options Options
	// ExpireWhen lets the timeout pass when the program has said this (ready, told),
	// instead of by the clock.
	ExpireWhen string
	// HTTP, where given, sends a request instead.
	HTTP *HTTPOptions

	dir string
	env []string
}

// newAttempt is an attempt at command in a directory of its own.
func newAttempt(t *testing.T, command ...string) *attempt {
	t.Helper()
	dir := t.TempDir()
	for _, fifo := range []string{"ready", "told"} {
		if err := syscall.Mkfifo(filepath.Join(dir, fifo), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return &attempt{Options: Options{Command: command, Output: "File"}, dir: dir}
}

// program is the command line of one of the test programs.
func program(name string, args ...string) []string {
	if programs[name] == nil {
		panic("no program " + name)
	}
	return append([]string{self(), asProgram, name}, args...)
}

func self() string {
	path, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return path
}

func playRunner(setup string) int {
	var a attempt
	if err := json.Unmarshal([]byte(setup), &a); err != nil {
		panic(err)
	}
	dir := os.Getenv(dirEnv)
	r := &Runner{
		Dir:             dir,
		TerminationPath: filepath.Join(dir, "termination-log"),
		CgroupDir:       filepath.Join(dir, "cgroup"),
		Stdout:          os.Stdout,
		Stderr:          os.Stderr,
	}
	if a.ExpireWhen != "" {
		r.after = func(d time.Duration) <-chan time.Time {
			if d != a.Options.Timeout {
				return time.After(d)
			}
			passed := make(chan time.Time, 1)
			go func() {
				await(dir, a.ExpireWhen)
				passed <- time.Now()
			}()
			return passed
		}
	}
	if a.HTTP != nil {
		return r.HTTP(*a.HTTP)
	}
	return r.Exec(a.Options)
}

// await returns when the program has called tell with the same word.
func await(dir, word string) {
	if _, err := os.ReadFile(filepath.Join(dir, word)); err != nil {
		panic(err)
	}
}

// ended is what an attempt left.
type ended struct {
	result         stepexec.Result
	code           int
	stdout, stderr string
}

// run runs the attempt to its end; during, if given, acts while it runs.
func (a *attempt) run(t *testing.T, during func(runner *os.Process)) ended {
	t.Helper()
	setup, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var stdout, stderr bytes.Buffer
	c := exec.CommandContext(ctx, self(), asRunner, string(setup))
	c.Env = append(os.Environ(), dirEnv+"="+a.dir, "RUNNER_TEST_GIVEN=yes",
		"GORACE=atexit_sleep_ms=0") // the race detector's second at each exit
	c.Env = append(c.Env, a.env...)
	c.Stdout, c.Stderr = &stdout, &stderr
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if during != nil {
		during(c.Process)
	}
	if err := c.Wait(); err != nil && !errors.As(err, new(*exec.ExitError)) {
		t.Fatal(err)
	}
	if ctx.Err() != nil {
		t.Fatalf("the runner did not end; stderr:\n%s", &stderr)
	}
	return ended{
		result: readResult(t, filepath.Join(a.dir, "termination-log")),
		code:   c.ProcessState.ExitCode(),
		stdout: stdout.String(),
		stderr: stderr.String(),
	}
}

func (a *attempt) file(t *testing.T, name, content string) {
	t.Helper()
	path := filepath.Join(a.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func (a *attempt) read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(a.dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func readResult(t *testing.T, path string) stepexec.Result {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(text) > stepexec.MaxResult {
		t.Errorf("the result is %d bytes, want at most %d", len(text), stepexec.MaxResult)
	}
	var res stepexec.Result
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&res); err != nil {
		t.Fatalf("the result %q cannot be read: %v", text, err)
	}
	return res
}

// gone fails the test where a process that a program noted in the file name lives.
func (a *attempt) gone(t *testing.T, name string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(a.dir, name))
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Sscan(strings.TrimSpace(string(text)), &pid); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("process %d of %s still exists (kill: %v)", pid, name, err)
	}
}
