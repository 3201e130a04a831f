// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Package runner is the process that stands between a step's container and its
// program. It runs in the user's image, so it is one static binary that needs
// nothing of it.
//
// As an init container (Install) it copies itself and the step's input into the
// volume that the step's container mounts. As the entry of the step's container
// (Runner.Exec) it runs the program, is a proper init to it, stops it at its
// timeout, reads and checks its output, and leaves a stepexec.Result in the
// container's termination message. Where the action is a request, there is no program:
// Runner.HTTP sends it and leaves the result.
//
// The guarantees:
//
//   - The result is written when the program and everything it started are gone:
//     nothing prints after a large output's frame, and nothing acts after the
//     attempt is recorded.
//   - What a program writes on standard error, and the content of an invalid
//     output, never go into the result: they may hold secrets.
//   - A program that was told to stop (its timeout, the pod's deletion) and still
//     exits with 0 has succeeded if, and only if, it left a valid output. Without
//     one its exit code alone does not tell a finished program from one that shut
//     down politely halfway, so that attempt counts as stopped.
//
// How an attempt's end becomes an outcome, first match wins:
//
//	the program                                outcome      reason            runner's exit code
//	exits 0, output valid                      Succeeded                      0
//	exits 0, output wrong                      Failed       OutputInvalid     1
//	                                                        OutputMissing     1
//	                                                        OutputTooLarge    1
//	is stopped at its timeout                  Timeout      Timeout           124
//	is killed for its memory limit             Interrupted  OutOfMemory       137
//	exits 75                                   Retry        RetryRequested    75
//	is stopped from outside (TERM, INT, QUIT)  Interrupted  Killed            143, or 137 if it took SIGKILL
//	is killed by SIGKILL                       Interrupted  Killed            137
//	dies of another signal n                   Failed       ExitCode          128+n
//	exits with another code n                  Failed       ExitCode          n
//	cannot be run                              Failed       CommandNotFound   1
//	cannot be started for want of processes    Interrupted  Killed            143
//	or memory, or of a marker (Options.Once)
//	was started before (Options.Once)          Interrupted  StartedTwice      143
//	(the runner itself is called wrongly)      Failed       ResultInvalid     2
//
// A program stopped at its timeout that then exits 75 is a Timeout: whether a
// timeout is tried again is for retry.onTimeout to say.
//
// Where the program provably never ran, the result says so too (NotStarted).
//
// Where the kernel kills a whole container for its memory limit
// (memory.oom.group, kubelet's default on cgroup v2), the runner dies with the
// program and leaves no result; kubelet then reports OOMKilled by itself.
package runner

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
)

// Runner is where the runner reads and writes. The zero value is of no use; see
// InContainer.
type Runner struct {
	// Dir is the shared volume, stepexec.MountPath.
	Dir string
	// InputSourceDir is where the init container finds the input.
	InputSourceDir string
	// TerminationPath is where the result goes.
	TerminationPath string
	// CgroupDir is where the cgroup file system is mounted.
	CgroupDir string
	// Stdout and Stderr are the container's log.
	Stdout, Stderr *os.File

	// after is time.After, and lookupEnv os.LookupEnv, but for tests.
	after     func(time.Duration) <-chan time.Time
	lookupEnv func(string) (string, bool)
}

// InContainer is the Runner of a real container: the paths of the contract.
func InContainer() *Runner {
	return &Runner{
		Dir:             stepexec.MountPath,
		InputSourceDir:  stepexec.InputSourceDir,
		TerminationPath: stepexec.TerminationPath,
		CgroupDir:       "/sys/fs/cgroup",
		Stdout:          os.Stdout,
		Stderr:          os.Stderr,
	}
}

// Options are what to run, and how.
type Options struct {
	// Command is the program and its arguments, at least one entry.
	Command []string
	// Timeout is how long the program may run. 0: for ever.
	Timeout time.Duration
	// Grace is how long it may go on after the SIGTERM of the timeout.
	Grace time.Duration
	// Output is where it leaves its output.
	Output v1alpha1.OutputSource
	// Once lets the program start at most once in the shared volume's life, whatever
	// happens to the container.
	Once bool
}

// Exec runs the program to its end, writes the result and returns the exit code
// for the runner itself. It may be called once in a process, and the process must
// have no other children: Exec reaps whatever ends.
func (r *Runner) Exec(o Options) int {
	return r.report(r.attempt(o))
}

// BadUsage writes the result of a runner that was called wrongly, and returns its
// exit code.
func (r *Runner) BadUsage(err error) int {
	r.report(neverRan(failed(v1alpha1.ReasonResultInvalid, "the runner was called wrongly: "+err.Error())))
	return 2
}

// report writes res and returns the exit code that goes with it.
func (r *Runner) report(res stepexec.Result) int {
	if err := writeResult(r.TerminationPath, res); err != nil {
		r.complain(err)
	}
	return exitCode(res)
}

func (r *Runner) complain(err error) {
	fmt.Fprintf(r.Stderr, "runner: %v\n", err)
}

// attempt runs the program and judges its end.
func (r *Runner) attempt(o Options) stepexec.Result {
	if o.Once {
		if refused := r.mark(); refused != nil {
			return *refused
		}
	}
	path, err := exec.LookPath(o.Command[0])
	if err != nil && !errors.Is(err, exec.ErrDot) { // a PATH with "." in it is the image's own choice
		return notRunnable(o.Command[0], err)
	}
	r.removeLeftovers()
	if err := becomeSubreaper(); err != nil {
		r.complain(err)
	}

	stdin, err := os.Open(os.DevNull)
	if err != nil {
		return notStarted(err)
	}
	defer stdin.Close()
	stdout, out := r.Stdout, (*capture)(nil)
	if o.Output == v1alpha1.OutputStdout {
		if stdout, out, err = newCapture(r.Stdout); err != nil {
			return notStarted(err)
		}
	}
	oomBefore := oomKills(r.CgroupDir)
	p, err := start(path, o.Command, stdin, stdout, r.Stderr)
	if out != nil {
		stdout.Close() // the program has its own
	}
	if err != nil {
		return notRunnable(o.Command[0], err)
	}

	end := p.supervise(o.Timeout, o.Grace, r.timer())
	if end.left {
		r.complain(fmt.Errorf("some of the program's processes could not be killed within %v", reapLimit))
	}
	if out != nil {
		out.finish()
	}
	return r.judge(o, end, out, oomKills(r.CgroupDir) > oomBefore)
}

func (r *Runner) timer() func(time.Duration) <-chan time.Time {
	if r.after != nil {
		return r.after
	}
	return time.After
}

// env reads the container's environment.
func (r *Runner) env(name string) (string, bool) {
	if r.lookupEnv != nil {
		return r.lookupEnv(name)
	}
	return os.LookupEnv(name)
}

// in gives the path, below r.Dir, of one of the contract's paths.
func (r *Runner) in(contractPath string) string {
	return filepath.Join(r.Dir, strings.TrimPrefix(contractPath, stepexec.MountPath))
}

// removeLeftovers takes away what an earlier run in the same volume may have left,
// so that it is not taken for this one's word.
func (r *Runner) removeLeftovers() {
	for _, p := range []string{stepexec.OutputPath, stepexec.MessagePath, stepexec.RetryAfterPath} {
		if err := os.Remove(r.in(p)); err != nil && !errors.Is(err, os.ErrNotExist) {
			r.complain(err)
		}
	}
}

// neverRan adds to a result that the program did not start, or the request was not sent.
func neverRan(res stepexec.Result) stepexec.Result {
	res.NotStarted = true
	return res
}

// notRunnable is the result of a command that did not start.
func notRunnable(command string, err error) stepexec.Result {
	return neverRan(unrunnable(command, err))
}

func unrunnable(command string, err error) stepexec.Result {
	if e := (*exec.Error)(nil); errors.As(err, &e) {
		err = e.Err
	}
	switch {
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.ENOMEM):
		return notStarted(err)
	case errors.Is(err, exec.ErrNotFound):
		return failed(v1alpha1.ReasonCommandNotFound, fmt.Sprintf("the image has no program %q in its PATH", command))
	case errors.Is(err, syscall.ENOEXEC):
		return failed(v1alpha1.ReasonCommandNotFound, fmt.Sprintf("%q cannot be run: %v; it is built for another "+
			"architecture, or is a script without a #! line", command, syscall.ENOEXEC))
	case errors.Is(err, syscall.ENOENT) && exists(command):
		return failed(v1alpha1.ReasonCommandNotFound, fmt.Sprintf("%q cannot be run: the interpreter or loader it "+
			"names is not in the image", command))
	}
	return failed(v1alpha1.ReasonCommandNotFound, fmt.Sprintf("%q cannot be run: %v", command, cause(err)))
}

// exists says whether command, looked up in PATH, is there.
func exists(command string) bool {
	path, err := exec.LookPath(command)
	if err != nil && !errors.Is(err, exec.ErrDot) {
		return false
	}
	_, err = os.Stat(path)
	return err == nil
}

// notStarted is the result where the node, not the program, was the hindrance.
func notStarted(err error) stepexec.Result {
	return neverRan(interrupted(fmt.Sprintf("the program could not be started: %v", cause(err))))
}

// cause is the system's error without the call and path around it.
func cause(err error) error {
	if e := syscall.Errno(0); errors.As(err, &e) {
		return e
	}
	return err
}
