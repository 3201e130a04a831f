// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
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
			args: []string{"--timeout=2m", "--grace=5s", "--output=Stdout", "--once", "--", "echo", "--timeout=1s", "--", "x"},
			want: runner.Options{Timeout: 2 * time.Minute, Grace: 5 * time.Second, Output: "Stdout", Once: true,
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
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("options (-want +got):\n%s", diff)
			}
		})
	}
}

func TestParseHTTP(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		args    []string
		want    runner.HTTPOptions
		wantErr string
	}{
		"all flags":       {args: []string{"--once", "--grace=5s"}, want: runner.HTTPOptions{Once: true, Grace: 5 * time.Second}},
		"defaults":        {want: runner.HTTPOptions{Grace: 20 * time.Second}},
		"no grace":        {args: []string{"--grace=0"}, want: runner.HTTPOptions{}},
		"an argument":     {args: []string{"--once", "https://a"}, wantErr: "http takes no arguments; the request stands in /agenttask/input.json"},
		"a negative time": {args: []string{"--grace=-1s"}, wantErr: "must not be negative"},
		"an unknown flag": {args: []string{"--timeout=1s"}, wantErr: "not defined: -timeout"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := parseHTTP(tc.args)
			if tc.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wantErr) {
					t.Fatalf("error %v, want one with %q", err, tc.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
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
		"help of http":       {[]string{"http", "-h"}, 0, "runner http [flags]", "", ""},
		"http with too much": {[]string{"http", "x"}, 2, "", "Usage:", "the runner was called wrongly: http takes no arguments; the request stands in /agenttask/input.json"},
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
			want := stepexec.Result{Version: 1, Outcome: stepexec.OutcomeFailed, Reason: "ResultInvalid", Message: tc.wantResult, NotStarted: true}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("result (-want +got):\n%s", diff)
			}
		})
	}
}

// TestRunHTTP sets the environment, so it runs alone.
func TestRunHTTP(t *testing.T) {
	var keys []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		keys = append(keys, r.Header.Get("Idempotency-Key")+" "+r.Header.Get("Authorization"))
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"refund": "re_1"}`)
	}))
	defer server.Close()
	t.Setenv(stepexec.EnvKey, "run.refund.0123")
	t.Setenv(stepexec.EnvHTTPHeader(0), "Bearer hunter2")
	input, err := (&stepexec.HTTPRequest{
		Method:    "POST",
		URL:       server.URL,
		Timeout:   metav1.Duration{Duration: time.Minute},
		Headers:   []stepexec.HTTPHeader{{Name: "Authorization", FromEnv: stepexec.EnvHTTPHeader(0)}},
		KeyHeader: &stepexec.HTTPKeyHeader{},
	}).Encode()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "input.json"), input, 0o600); err != nil {
		t.Fatal(err)
	}
	for i, want := range []struct {
		code   int
		result stepexec.Result
	}{
		{0, stepexec.Result{Version: 1, Outcome: stepexec.OutcomeSucceeded, Output: json.RawMessage(`{"refund":"re_1"}`)}},
		{143, stepexec.Result{Version: 1, Outcome: stepexec.OutcomeInterrupted, Reason: v1alpha1.ReasonStartedTwice}},
	} {
		r := &runner.Runner{Dir: dir, TerminationPath: filepath.Join(dir, "termination-log"),
			Stdout: create(t, dir, "stdout"), Stderr: create(t, dir, "stderr")}
		if code := run([]string{"http", "--once"}, r); code != want.code {
			t.Errorf("start %d: exit code %d, want %d", i, code, want.code)
		}
		var got stepexec.Result
		if err := json.Unmarshal([]byte(read(t, r.TerminationPath)), &got); err != nil {
			t.Fatal(err)
		}
		got.Message = ""
		if diff := cmp.Diff(want.result, got); diff != "" {
			t.Errorf("start %d: result (-want +got):\n%s", i, diff)
		}
		if got := read(t, r.Stdout.Name()) + read(t, r.Stderr.Name()); got != "" {
			t.Errorf("start %d: the log holds %q", i, got)
		}
	}
	if diff := cmp.Diff([]string{`"run.refund.0123" Bearer hunter2`}, keys); diff != "" {
		t.Errorf("keys that the server got (-want +got):\n%s", diff)
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
