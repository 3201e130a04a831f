// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agenttask-dev/agenttask/internal/runner"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
)

func TestParseExec(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		args    []string
		want    runner.Options
		wantErr string
	}{
		"all flags": {
			args: []string{"--timeout=2m", "--grace=5s", "--output=Stdout", "--", "echo", "--timeout=1s", "--", "x"},
			want: runner.Options{Timeout: 2 * time.Minute, Grace: 5 * time.Second, Output: "Stdout",
				Command: []string{"echo", "--timeout=1s", "--", "x"}},
		},
		"defaults": {
			args: []string{"--", "true"},
			want: runner.Options{Grace: 30 * time.Second, Output: "File", Command: []string{"true"}},
		},
		"no command":        {args: []string{"--timeout=2m", "--"}, wantErr: "exec needs a command, after --"},
		"an empty command":  {args: []string{"--", ""}, wantErr: "exec needs a command, after --"},
		"a negative time":   {args: []string{"--grace=-1s", "--", "true"}, wantErr: "must not be negative"},
		"an unknown output": {args: []string{"--output=Log", "--", "true"}, wantErr: "must be File or Stdout"},
		"an unknown flag":   {args: []string{"--fast", "--", "true"}, wantErr: "not defined: -fast"},
		"no duration":       {args: []string{"--timeout=5", "--", "true"}, wantErr: "invalid value"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := parseExec(tc.args)
			if tc.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wantErr) {
					t.Fatalf("error %v, want one with %q", err, tc.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got, cmp.Comparer(func(a, b runner.Options) bool {
				return cmp.Equal(a.Command, b.Command) && a.Timeout == b.Timeout && a.Grace == b.Grace && a.Output == b.Output
			})); diff != "" {
				t.Errorf("options (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRun(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		args       []string
		wantCode   int
		wantStdout string
		wantStderr string
		wantResult string
	}{
		"no command":         {nil, 2, "", "no command given", "the runner was called wrongly: no command given"},
		"an unknown command": {[]string{"start"}, 2, "", `unknown command "start"`, `the runner was called wrongly: unknown command "start"`},
		"exec of nothing":    {[]string{"exec"}, 2, "", "Usage:", "the runner was called wrongly: exec needs a command, after --"},
		"too much":           {[]string{"install", "x"}, 2, "", "takes no arguments", "the runner was called wrongly: install takes no arguments"},
		"help":               {[]string{"--help"}, 0, "runner exec [flags] -- command", "", ""},
		"help of exec":       {[]string{"exec", "--help"}, 0, "--grace=DURATION", "", ""},
		"version":            {[]string{"version"}, 0, "dev", "", ""},
		"a failing install":  {[]string{"install"}, 1, "", "input could not be installed", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			stdout, stderr := create(t, dir, "stdout"), create(t, dir, "stderr")
			r := &runner.Runner{Dir: dir, InputSourceDir: filepath.Join(dir, "none"),
				TerminationPath: filepath.Join(dir, "termination-log"), Stdout: stdout, Stderr: stderr}
			if code := run(tc.args, r); code != tc.wantCode {
				t.Errorf("exit code %d, want %d", code, tc.wantCode)
			}
			for f, want := range map[*os.File]string{stdout: tc.wantStdout, stderr: tc.wantStderr} {
				got := read(t, f.Name())
				if !strings.Contains(got, want) || (want == "" && got != "") {
					t.Errorf("%s is %q, want it to hold %q", filepath.Base(f.Name()), got, want)
				}
			}
			if tc.wantResult == "" {
				return
			}
			var got stepexec.Result
			if err := json.Unmarshal([]byte(read(t, r.TerminationPath)), &got); err != nil {
				t.Fatal(err)
			}
			want := stepexec.Result{Version: 1, Outcome: stepexec.OutcomeFailed, Reason: "ResultInvalid", Message: tc.wantResult}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("result (-want +got):\n%s", diff)
			}
		})
	}
}

func create(t *testing.T, dir, name string) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
