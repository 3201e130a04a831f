// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package runner

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// killDescendants sends SIGKILL to every process below the runner, whatever its
// session and process group.
func killDescendants() error {
	pids, err := descendants(os.Getpid())
	for _, pid := range pids {
		_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended by now
	}
	return err
}

// descendants reads the processes below pid from /proc.
func descendants(pid int) ([]int, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	children := map[int][]int{}
	for _, name := range names {
		child, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if parent, err := parentOf(child); err == nil { // else it has ended
			children[parent] = append(children[parent], child)
		}
	}
	if len(children) == 0 {
		return nil, fmt.Errorf("/proc holds no processes")
	}
	var below []int
	for next := []int{pid}; len(next) > 0; next = next[1:] {
		below = append(below, children[next[0]]...)
		next = append(next, children[next[0]]...)
	}
	return below, nil
}

// parentOf reads the parent of pid from /proc/<pid>/stat: "pid (name) state parent
// ...", where name may hold anything, ")" too.
func parentOf(pid int) (int, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	rest := string(stat)[strings.LastIndexByte(string(stat), ')')+1:]
	fields := strings.Fields(rest)
	if len(fields) < 2 {
		return 0, fmt.Errorf("/proc/%d/stat is not as expected", pid)
	}
	return strconv.Atoi(fields[1])
}
