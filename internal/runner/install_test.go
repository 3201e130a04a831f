// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package runner

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func newInstall(t *testing.T) *Runner {
	t.Helper()
	dir := t.TempDir()
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { null.Close() })
	r := &Runner{
		Dir:             filepath.Join(dir, "volume"),
		InputSourceDir:  filepath.Join(dir, "source"),
		TerminationPath: filepath.Join(dir, "termination-log"),
		Stderr:          null,
	}
	// The input as a downward API volume has it: behind two symbolic links.
	for _, err := range []error{
		os.MkdirAll(filepath.Join(r.InputSourceDir, "..2026"), 0o755),
		os.WriteFile(filepath.Join(r.InputSourceDir, "..2026", "input.json"), []byte(`{"a":1}`), 0o644),
		os.Symlink("..2026", filepath.Join(r.InputSourceDir, "..data")),
		os.Symlink("..data/input.json", filepath.Join(r.InputSourceDir, "input.json")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return r
}

func TestInstall(t *testing.T) {
	t.Parallel()
	r := newInstall(t)
	for range 2 { // the second time over the first
		if err := r.Install(); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(self())
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range []struct {
		name string
		want []byte
		mode os.FileMode
	}{
		{"bin/runner", want, 0o755},
		{"input.json", []byte(`{"a":1}`), 0o444},
	} {
		path := filepath.Join(r.Dir, f.name)
		got, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, f.want) {
			t.Errorf("%s has not the content it should", f.name)
		}
		info, err := os.Lstat(path)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode() != f.mode {
			t.Errorf("%s has mode %v, want %v", f.name, info.Mode(), f.mode)
		}
	}
	left, err := filepath.Glob(filepath.Join(r.Dir, "*", ".install-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("temporary files are left: %v %v", left, err)
	}
}

func TestInstallFails(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		spoil func(r *Runner) error
		want  string
	}{
		"without an input": {
			spoil: func(r *Runner) error { return os.RemoveAll(r.InputSourceDir) },
			want:  "the step's input could not be installed: open DIR/source/input.json: no such file or directory",
		},
		"where a file is in the way": {
			spoil: func(r *Runner) error { return os.WriteFile(r.Dir, nil, 0o644) },
			want:  "the runner could not be installed: mkdir DIR/volume: not a directory",
		},
		"where a directory is in the way": {
			spoil: func(r *Runner) error { return os.MkdirAll(filepath.Join(r.Dir, "input.json"), 0o755) },
			want:  "the step's input could not be installed: rename TEMP DIR/volume/input.json: file exists",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newInstall(t)
			if err := tc.spoil(r); err != nil {
				t.Fatal(err)
			}
			err := r.Install()
			if err == nil {
				t.Fatal("no error")
			}
			r.InstallFailed(err)
			got, readErr := os.ReadFile(r.TerminationPath)
			if readErr != nil {
				t.Fatal(readErr)
			}
			words := strings.Fields(strings.ReplaceAll(string(got), filepath.Dir(r.Dir), "DIR"))
			for i := range words {
				if strings.Contains(words[i], ".install-") {
					words[i] = "TEMP"
				}
			}
			if diff := cmp.Diff(tc.want, strings.Join(words, " ")); diff != "" {
				t.Errorf("termination message (-want +got):\n%s", diff)
			}
			if left, _ := filepath.Glob(filepath.Join(r.Dir, ".install-*")); len(left) > 0 {
				t.Errorf("temporary files are left: %v", left)
			}
		})
	}
}
