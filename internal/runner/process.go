// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package runner

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// reapLimit is how long to wait for killed descendants to be gone. Only a process
// that the kernel cannot end (stuck in I/O) or that runs as another user takes it.
const reapLimit = 10 * time.Second

// forwardedSignals go on to the program's process group.
var forwardedSignals = []os.Signal{
	syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2,
}

// process is the running program and the ends of all processes below the runner.
type process struct {
	pid     int
	reaped  <-chan reaped
	signals <-chan os.Signal
}

// reaped is a process that has ended and been waited for.
type reaped struct {
	pid    int
	status syscall.WaitStatus
}

// stopCause is why the program was told to stop; the first cause stays.
type stopCause int

const (
	causeNone stopCause = iota
	causeTimeout
	causeOutside
)

// ending is how the program ended.
type ending struct {
	status syscall.WaitStatus
	cause  stopCause
	// sent holds the signals that came from outside and were forwarded.
	sent []os.Signal
	// left says that some descendants outlived reapLimit.
	left bool
}

func (e *ending) stopped() bool { return e.cause != causeNone }

// exitCode is the program's exit code, 128+n where signal n ended it.
func (e *ending) exitCode() int {
	if e.status.Signaled() {
		return 128 + int(e.status.Signal())
	}
	return e.status.ExitStatus()
}

// becomeSubreaper makes orphans below the runner its children. As the first process
// of a container it has them anyway; where containers share a process namespace it
// has not.
func becomeSubreaper() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil && os.Getpid() != 1 {
		return fmt.Errorf("orphaned processes will not be seen: PR_SET_CHILD_SUBREAPER: %w", err)
	}
	return nil
}

// takeSignals gives the signals from outside. A log that nobody reads any more must not
// kill the runner: SIGPIPE is taken, not ignored, since a program inherits what is
// ignored.
func takeSignals() <-chan os.Signal {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, forwardedSignals...)
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	return signals
}

// start starts the program in a session, and so a process group, of its own, with
// files as its standard input, output and error.
//
// It does not use os/exec: its Wait and a wait for any child would take each
// other's children. Here one goroutine waits for all.
func start(path string, argv []string, files ...*os.File) (*process, error) {
	// Signals that come before the program runs wait in the channel.
	signals := takeSignals()

	var fds []uintptr
	for _, f := range files {
		fds = append(fds, f.Fd())
	}
	pid, err := syscall.ForkExec(path, argv, &syscall.ProcAttr{
		Env:   os.Environ(),
		Files: fds,
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return nil, err
	}
	ends := make(chan reaped)
	go reap(ends)
	return &process{pid: pid, reaped: ends, signals: signals}, nil
}

// reap waits for every child until there is none, then closes ends.
func reap(ends chan<- reaped) {
	defer close(ends)
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch err {
		case nil:
			ends <- reaped{pid, status}
		case syscall.EINTR:
		default: // ECHILD: no child, hence no descendant
			return
		}
	}
}

// supervise forwards signals and keeps the timeout until the program has ended,
// then ends what it left behind.
func (p *process) supervise(timeout, grace time.Duration, after func(time.Duration) <-chan time.Time) ending {
	var end ending
	var expired, killTime <-chan time.Time
	if timeout > 0 {
		expired = after(timeout)
	}
	for {
		select {
		case x, ok := <-p.reaped:
			if ok && x.pid != p.pid {
				continue // an orphan
			}
			end.status = x.status
			if !ok { // cannot be; nobody saw how the program ended
				end.status = syscall.WaitStatus(syscall.SIGKILL)
			}
			end.settle()
			end.left = !p.killRest()
			return end
		case sig := <-p.signals:
			end.note(sig)
			p.signal(sig.(syscall.Signal))
		case <-expired:
			if end.cause == causeNone {
				end.cause = causeTimeout
			}
			p.signal(syscall.SIGTERM)
			killTime = after(grace)
		case <-killTime:
			p.signal(syscall.SIGKILL)
			_ = killDescendants()
		}
	}
}

// note remembers a signal from outside.
func (e *ending) note(sig os.Signal) {
	e.sent = append(e.sent, sig)
	if stops(sig) && e.cause == causeNone {
		e.cause = causeOutside
	}
}

// stops says whether sig is one that runtimes stop a container with; the others mean
// "reload" or "report" to many programs.
func stops(sig os.Signal) bool {
	return sig == syscall.SIGTERM || sig == syscall.SIGINT || sig == syscall.SIGQUIT
}

// settle puts a death by a forwarded HUP, USR1 or USR2 down to the outside.
func (e *ending) settle() {
	if e.cause != causeNone || !e.status.Signaled() {
		return
	}
	for _, sig := range e.sent {
		if sig == e.status.Signal() {
			e.cause = causeOutside
		}
	}
}

// signal sends sig to the program's process group. Errors are of no use: the group
// has ended, or may not be signalled.
func (p *process) signal(sig syscall.Signal) {
	_ = syscall.Kill(-p.pid, sig)
}

// killRest kills what the ended program left behind, and waits until it is gone. It
// says whether it is.
//
// Each death makes the dead one's children the runner's, so the tree is read again
// after each; a child forked between reading and killing is found then.
func (p *process) killRest() bool {
	limit := time.After(reapLimit)
	for {
		if err := killDescendants(); err != nil {
			p.signal(syscall.SIGKILL)
		}
		select {
		case _, ok := <-p.reaped:
			if !ok {
				return true
			}
		case <-limit:
			return false
		}
	}
}
