// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

// The runner stands between a step's container and its program; see
// internal/runner. The operator writes the command lines that call it.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/runner"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
	"github.com/agenttask-dev/agenttask/internal/version"
)

const usage = `The runner of AgentTask runs one attempt of a step inside the step's pod.

Usage:
  runner install
        in the init container: copy this binary to ` + stepexec.RunnerPath + `
        and the step's input from ` + stepexec.InputSourceDir + ` to ` + stepexec.InputPath + `
  runner exec [flags] -- command [args...]
        in the step's container: run the command, stop it at its timeout, check its
        output and leave the result in ` + stepexec.TerminationPath + `
  runner http [flags]
        in the step's container: send the request that stands in ` + stepexec.InputPath + `
        and leave the result in ` + stepexec.TerminationPath + `
  runner version
  runner help

Flags of exec:
  --timeout=DURATION    SIGTERM to the command after this time, such as 90s or 2h;
                        0 (the default): never
  --grace=DURATION      SIGKILL this long after the timeout's SIGTERM; default 30s
  --output=File|Stdout  where the command leaves its output: one JSON document in
                        ` + stepexec.OutputPath + ` (the default), or on its standard output
  --once                run nothing where the container was started before

Flags of http:
  --once                send nothing where the container was started before, and ask
                        for no other attempt where this one may have taken effect
  --grace=DURATION      with --once: wait this long for the answer of a request that
                        was sent when the container is told to stop; default 20s

The command, by the step contract:
  reads its input from    ` + stepexec.InputPath + `
  may leave a message in  ` + stepexec.MessagePath + `
  may leave a wait in     ` + stepexec.RetryAfterPath + ` (seconds or an HTTP date, with exit code 75)
  exits with              0: done, 75: try again, anything else: failed

Exit code of exec and http:
  0 succeeded, 75 another attempt is asked for, 124 stopped at its timeout, 137 killed,
  143 stopped from outside or its outcome is not known, 2 called wrongly; else the
  command's own code (128+n where signal n ended it), or 1
`

func main() {
	os.Exit(run(os.Args[1:], runner.InContainer()))
}

// run calls what args ask for and returns the exit code.
func run(args []string, r *runner.Runner) int {
	if len(args) == 0 {
		return badUsage(r, errors.New("no command given"))
	}
	switch args[0] {
	case "install":
		if len(args) > 1 {
			return badUsage(r, errors.New("install takes no arguments"))
		}
		if err := r.Install(); err != nil {
			r.InstallFailed(err)
			return 1
		}
		return 0
	case "exec":
		o, err := parseExec(args[1:])
		if err != nil {
			return badFlags(r, err)
		}
		return r.Exec(o)
	case "http":
		o, err := parseHTTP(args[1:])
		if err != nil {
			return badFlags(r, err)
		}
		return r.HTTP(o)
	case "version", "--version", "-version":
		fmt.Fprintln(r.Stdout, version.Version)
		return 0
	case "help", "--help", "-help", "-h":
		fmt.Fprint(r.Stdout, usage)
		return 0
	}
	return badUsage(r, fmt.Errorf("unknown command %q", args[0]))
}

func badUsage(r *runner.Runner, err error) int {
	fmt.Fprintf(r.Stderr, "runner: %v\n\n%s", err, usage)
	return r.BadUsage(err)
}

// badFlags answers what the flags could not be read for, which may be a call for help.
func badFlags(r *runner.Runner, err error) int {
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(r.Stdout, usage)
		return 0
	}
	return badUsage(r, err)
}

// parseExec reads the arguments of exec.
func parseExec(args []string) (runner.Options, error) {
	o := runner.Options{Output: v1alpha1.OutputFile, Grace: 30 * time.Second}
	fs := flag.NewFlagSet("exec", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.DurationVar(&o.Timeout, "timeout", o.Timeout, "")
	fs.DurationVar(&o.Grace, "grace", o.Grace, "")
	fs.BoolVar(&o.Once, "once", o.Once, "")
	fs.Func("output", "", func(s string) error {
		o.Output = v1alpha1.OutputSource(s)
		if o.Output != v1alpha1.OutputFile && o.Output != v1alpha1.OutputStdout {
			return fmt.Errorf("must be %s or %s", v1alpha1.OutputFile, v1alpha1.OutputStdout)
		}
		return nil
	})
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	o.Command = fs.Args()
	switch {
	case len(o.Command) == 0 || o.Command[0] == "":
		return o, errors.New("exec needs a command, after --")
	case o.Timeout < 0 || o.Grace < 0:
		return o, errors.New("--timeout and --grace must not be negative")
	}
	return o, nil
}

// parseHTTP reads the arguments of http.
func parseHTTP(args []string) (runner.HTTPOptions, error) {
	o := runner.HTTPOptions{Grace: 20 * time.Second}
	fs := flag.NewFlagSet("http", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.BoolVar(&o.Once, "once", o.Once, "")
	fs.DurationVar(&o.Grace, "grace", o.Grace, "")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	switch {
	case fs.NArg() > 0:
		return o, errors.New("http takes no arguments; the request stands in " + stepexec.InputPath)
	case o.Grace < 0:
		return o, errors.New("--grace must not be negative")
	}
	return o, nil
}
