// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

// Command sample-agent is the program of the samples: the steps of a small agent,
// the ledger that its effects go to, and steps that misbehave on purpose. Package
// sample says what each does.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"text/tabwriter"

	"github.com/agenttask-dev/agenttask/internal/sample"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	code := run(ctx, sample.NewProgram(), os.Args[1:])
	stop()
	os.Exit(code)
}

// run runs a command and returns the exit code.
func run(ctx context.Context, p sample.Program, args []string) int {
	if len(args) == 0 {
		return p.Finish(wrongUsage("a command is missing"))
	}
	name, args := args[0], args[1:]
	if name == "help" || name == "-h" || name == "--help" {
		usage(p.Stderr)
		return 0
	}
	for _, c := range commands {
		if c.name == name {
			return start(ctx, p, c, args)
		}
	}
	return p.Finish(wrongUsage(fmt.Sprintf("there is no command %q", name)))
}

// start reads a command's flags and runs it.
func start(ctx context.Context, p sample.Program, c command, args []string) int {
	fs := flag.NewFlagSet("sample-agent "+c.name, flag.ContinueOnError)
	fs.SetOutput(p.Stderr)
	action := c.setup(fs)
	if err := fs.Parse(args); errors.Is(err, flag.ErrHelp) {
		return 0
	} else if err != nil {
		return p.Finish(wrongUsage(err.Error()))
	}
	if fs.NArg() > 0 {
		return p.Finish(wrongUsage(fmt.Sprintf("%s takes flags only, not %q", c.name, fs.Arg(0))))
	}
	return p.Finish(action(ctx, p))
}

func wrongUsage(what string) error {
	return &sample.Exit{Code: 2, Message: "sample-agent: " + what + "; see sample-agent help"}
}

func usage(w io.Writer) {
	fmt.Fprintln(w, "Usage: sample-agent COMMAND [flags]   (COMMAND -h shows its flags)")
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, c := range commands {
		fmt.Fprintf(tw, "  %s\t%s\n", c.name, c.about)
	}
	_ = tw.Flush()
}
