// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package runner

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/agenttask-dev/agenttask/internal/stepexec"
)

// Install copies the runner itself and the step's input into the shared volume.
func (r *Runner) Install() error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("the runner does not find its own file: %w", err)
	}
	if err := install(self, r.in(stepexec.RunnerPath), 0o755); err != nil {
		return fmt.Errorf("the runner could not be installed: %w", err)
	}
	input := filepath.Join(r.InputSourceDir, "input.json")
	if err := install(input, r.in(stepexec.InputPath), 0o444); err != nil {
		return fmt.Errorf("the step's input could not be installed: %w", err)
	}
	return nil
}

// InstallFailed leaves err as the init container's termination message, for people,
// and on standard error.
func (r *Runner) InstallFailed(err error) {
	r.complain(err)
	if err := writeOnce(r.TerminationPath, []byte(shorten(err.Error(), maxMessage))); err != nil {
		r.complain(err)
	}
}

// install copies the file from to the path to, whole or not at all, in place of
// what is there.
func install(from, to string, mode os.FileMode) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(to), ".install-*")
	if err != nil {
		return err
	}
	if err := fill(f, source, mode); err != nil {
		os.Remove(f.Name())
		return err
	}
	if err := os.Rename(f.Name(), to); err != nil {
		os.Remove(f.Name())
		return err
	}
	return nil
}

// fill copies source to f, which it closes.
func fill(f *os.File, source io.Reader, mode os.FileMode) error {
	if _, err := io.Copy(f, source); err != nil {
		f.Close()
		return err
	}
	if err := f.Chmod(mode); err != nil { // whatever the umask
		f.Close()
		return err
	}
	return f.Close()
}
