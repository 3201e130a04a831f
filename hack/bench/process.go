// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// measured is a process whose CPU and memory are read from /proc.
type measured struct {
	command *exec.Cmd
	out     bytes.Buffer
	ended   chan struct{}
}

func startSide(s side, kubeconfig string) (*measured, error) {
	p := &measured{command: exec.Command(s.command[0], s.command[1:]...), ended: make(chan struct{})}
	p.command.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig)
	p.command.Stdout, p.command.Stderr = &p.out, &p.out
	if err := p.command.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = p.command.Wait()
		close(p.ended)
	}()
	return p, nil
}

// stopTimeout is how long a process may take to end by itself.
const stopTimeout = 20 * time.Second

func (p *measured) stop() {
	_ = p.command.Process.Signal(os.Interrupt)
	select {
	case <-p.ended:
	case <-time.After(stopTimeout):
		_ = p.command.Process.Kill()
		<-p.ended
	}
}

// output is what a process printed, once it has ended.
func (p *measured) output() string {
	p.stop()
	return p.out.String()
}

// ticks is how many clock ticks of /proc make a second: 100 on every Linux that Go runs on.
const ticks = 100

// cpu is the user and system time used so far.
func (p *measured) cpu() (time.Duration, error) {
	text, err := p.proc("stat")
	if err != nil {
		return 0, err
	}
	// Fields after the name in parentheses; utime and stime are numbers 14 and 15.
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	total := 0
	for _, field := range fields[11:13] {
		n, err := strconv.Atoi(field)
		if err != nil {
			return 0, err
		}
		total += n
	}
	return time.Duration(total) * time.Second / ticks, nil
}

// peak is the largest resident size so far, in bytes.
func (p *measured) peak() (int64, error) {
	text, err := p.proc("status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			n, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			return n << 10, err
		}
	}
	return 0, syscall.ENODATA
}

func (p *measured) proc(file string) (string, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", p.command.Process.Pid, file))
	return string(text), err
}
