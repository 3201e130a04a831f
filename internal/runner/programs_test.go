// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package runner

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// programs are what the runner under test runs. Each gives its exit code.
var programs map[string]func(args []string) int

func init() {
	programs = map[string]func(args []string) int{
		"leave":          leave,
		"say":            say,
		"big-output":     bigOutput,
		"flood":          flood,
		"describe":       describe,
		"odd-output":     oddOutput,
		"out-of-memory":  outOfMemory,
		"exhaust":        exhaust,
		"hang":           hang,
		"object":         object,
		"on-term":        onTerm,
		"on-usr1":        onUsr1,
		"leave-children": leaveChildren,
		"chatter":        chatter,
		"orphan":         orphan,
		"parent":         parent,
		"wait-for-eof":   waitForEOF,
		"nonblocking":    nonblocking,
	}
}

func path(name string) string { return filepath.Join(os.Getenv(dirEnv), name) }

func put(name, content string) {
	must(os.WriteFile(path(name), []byte(content), 0o644))
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func number(s string) int {
	n, err := strconv.Atoi(s)
	must(err)
	return n
}

// tell lets await return.
func tell(word string) {
	f, err := os.OpenFile(path(word), os.O_WRONLY, 0)
	must(err)
	must(f.Close())
}

func forever() int {
	for {
		_ = syscall.Pause()
	}
}

// leave CODE NAME=CONTENT... writes files and exits with CODE.
func leave(args []string) int {
	for _, arg := range args[1:] {
		name, content, _ := strings.Cut(arg, "=")
		put(name, content)
	}
	return number(args[0])
}

// say CODE STDOUT STDERR prints and exits with CODE.
func say(args []string) int {
	fmt.Print(args[1])
	fmt.Fprint(os.Stderr, args[2])
	return number(args[0])
}

// big-output N leaves a JSON string of N bytes.
func bigOutput(args []string) int {
	put("output.json", bigString(number(args[0])))
	fmt.Print("no newline at the end")
	return 0
}

// bigString is a JSON string of n bytes.
func bigString(n int) string {
	return `"` + strings.Repeat("0123456789", n/10+1)[:n-2] + `"`
}

// flood N prints N bytes.
func flood(args []string) int {
	_, err := os.Stdout.WriteString(bigString(number(args[0])))
	must(err)
	return 0
}

// describe leaves what it sees of itself.
func describe(args []string) int {
	in, err := io.ReadAll(os.Stdin)
	must(err)
	sid, _, errno := syscall.Syscall(syscall.SYS_GETSID, 0, 0, 0)
	if errno != 0 {
		panic(errno)
	}
	out, err := json.Marshal(map[string]any{
		"args": args, "stdin": len(in), "env": os.Getenv("RUNNER_TEST_GIVEN"),
		"leadsGroup": syscall.Getpgrp() == os.Getpid(), "leadsSession": int(sid) == os.Getpid(),
	})
	must(err)
	put("output.json", string(out))
	return 0
}

// odd-output KIND leaves something else than a file as output.
func oddOutput(args []string) int {
	out := path("output.json")
	switch args[0] {
	case "symlink":
		put("elsewhere", "{}")
		must(os.Symlink(path("elsewhere"), out))
	case "fifo":
		must(syscall.Mkfifo(out, 0o600))
	case "directory":
		must(os.Mkdir(out, 0o700))
	case "socket":
		fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
		must(err)
		must(os.Chdir(os.Getenv(dirEnv))) // the address is short
		must(syscall.Bind(fd, &syscall.SockaddrUnix{Name: "output.json"}))
	}
	return 0
}

// out-of-memory NAME CONTENT writes the cgroup file NAME, as the kernel would, and
// is killed.
func outOfMemory(args []string) int {
	put(args[0], args[1])
	must(syscall.Kill(os.Getpid(), syscall.SIGKILL))
	return forever()
}

// exhaust CODE NAME CONTENT writes the cgroup file NAME and exits with CODE.
func exhaust(args []string) int {
	put(args[1], args[2])
	return number(args[0])
}

// hang takes no notice of SIGTERM.
func hang([]string) int {
	signal.Ignore(syscall.SIGTERM)
	tell("ready")
	return forever()
}

// object says when it gets SIGTERM, and takes no further notice.
func object([]string) int {
	came := make(chan os.Signal, 1)
	signal.Notify(came, syscall.SIGTERM)
	tell("ready")
	<-came
	tell("told")
	return forever()
}

// on-term CODE NAME=CONTENT... waits for SIGTERM, then does as leave.
func onTerm(args []string) int {
	return on(syscall.SIGTERM, args)
}

// on-usr1 does so for SIGUSR1.
func onUsr1(args []string) int {
	return on(syscall.SIGUSR1, args)
}

func on(sig os.Signal, args []string) int {
	came := make(chan os.Signal, 1)
	signal.Notify(came, sig)
	tell("ready")
	<-came
	return leave(args)
}

// leave-children starts a child in its session and one in another, waits until both
// print, leaves a large output and exits.
func leaveChildren(args []string) int {
	for i, attr := range []*syscall.SysProcAttr{{}, {Setsid: true}} {
		r, w, err := os.Pipe()
		must(err)
		c := exec.Command(self(), append([]string{asProgram}, args...)...)
		c.Stdout, c.SysProcAttr, c.ExtraFiles = os.Stdout, attr, []*os.File{w}
		must(c.Start())
		put(fmt.Sprintf("child-%d", i), strconv.Itoa(c.Process.Pid))
		must(w.Close())
		_, err = r.Read(make([]byte, 1))
		must(err)
	}
	put("output.json", bigString(10000))
	return 0
}

// chatter LINE prints LINE for ever.
func chatter(args []string) int {
	signal.Ignore(syscall.SIGTERM, syscall.SIGHUP)
	fmt.Print(args[0])
	_, err := os.NewFile(3, "started").Write([]byte{1})
	must(err)
	for args[0] != "" {
		fmt.Print(args[0])
	}
	return forever()
}

// orphan starts a parent, which starts a process and ends, and exits with 0 once
// that process is the runner's child and, having ended, has been reaped.
func orphan([]string) int {
	r, w, err := os.Pipe()
	must(err)
	c := exec.Command(self(), asProgram, "parent")
	c.Stdin = r
	out, err := c.Output()
	must(err)
	pid := number(strings.TrimSpace(string(out)))
	ppid, err := parentOf(pid)
	must(err)
	if ppid != os.Getppid() {
		fmt.Fprintf(os.Stderr, "the orphan's parent is %d, not the runner %d\n", ppid, os.Getppid())
		return 1
	}
	must(w.Close())
	tick := time.NewTicker(time.Millisecond)
	for range tick.C {
		if syscall.Kill(pid, 0) == syscall.ESRCH {
			return 0
		}
	}
	return 1
}

// parent starts a process that lives until the end of standard input, and ends.
func parent([]string) int {
	c := exec.Command(self(), asProgram, "wait-for-eof")
	c.Stdin = os.Stdin
	must(c.Start())
	fmt.Println(c.Process.Pid)
	return 0
}

func waitForEOF([]string) int {
	_, err := io.Copy(io.Discard, os.Stdin)
	must(err)
	return 0
}

// nonblocking makes the container's standard output non-blocking, as some language
// runtimes do, and leaves a large output.
func nonblocking(args []string) int {
	must(syscall.SetNonblock(1, true))
	put("output.json", bigString(number(args[0])))
	return 0
}

// framed reads back the output that a result announces in the log.
func framed(log string, lines int64) (doc []byte, begin, end string) {
	all := bytes.Split(bytes.TrimSuffix([]byte(log), []byte("\n")), []byte("\n"))
	all = all[int64(len(all))-lines:]
	for _, line := range all[1 : lines-1] {
		data, ok := bytes.CutPrefix(line, []byte("agenttask-output-data "))
		if !ok {
			return nil, "a line of data that does not say so", string(line)
		}
		doc = append(doc, data...)
	}
	return doc, string(all[0]), string(all[lines-1])
}
