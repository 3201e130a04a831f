// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package runner

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// oomKills is how many processes of the container the kernel has killed for its
// memory limit: the line oom_kill of cgroup v2's memory.events or v1's
// memory.oom_control. 0 where neither can be read.
func oomKills(cgroupDir string) int64 {
	for _, name := range []string{"memory.events", "memory/memory.oom_control"} {
		text, err := os.ReadFile(filepath.Join(cgroupDir, name))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			if count, ok := strings.CutPrefix(line, "oom_kill "); ok {
				n, _ := strconv.ParseInt(strings.TrimSpace(count), 10, 64)
				return n
			}
		}
	}
	return 0
}
