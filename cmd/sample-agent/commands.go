// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"flag"
	"time"

	"github.com/agenttask-dev/agenttask/internal/sample"
)

// action is a command with its flags read.
type action func(context.Context, sample.Program) error

// command is one verb: setup declares its flags.
type command struct {
	name, about string
	setup       func(*flag.FlagSet) action
}

var commands = []command{
	{"plan", "step: turn a topic into questions", stepCommand(sample.Plan)},
	{"gather", "step: answer the questions from a source", gatherCommand},
	{"compare", "step: put two sources side by side", stepCommand(sample.Compare)},
	{"draft", "step: write a recommendation", stepCommand(sample.Draft)},
	{"review", "step: go through a checklist", stepCommand(sample.Review)},
	{"publish", "step, effect: publish an approved report to the ledger", agentEffectCommand(sample.Publish)},
	{"notify", "step, effect: notify a recipient through the ledger", agentEffectCommand(sample.Notify)},
	{"effect", "step, effect: send the step's input to the ledger, once by its key", effectCommand(sample.Effect)},
	{"once-effect", "step, effect: the same, but asked for twice it happens twice", effectCommand(sample.OnceEffect)},
	{"check", "check: ask the ledger whether the effect of the step's key has happened", readCommand(sample.CheckEffect)},
	{"observe", "observer: show what effects the ledger has, by the step's input", readCommand(sample.ObserveEffects)},
	{"flaky", "step: ask for another attempt until one succeeds", flakyCommand},
	{"fail", "step: fail for good", failCommand},
	{"memhog", "step: use memory", memhogCommand},
	{"big", "step: leave a large output", bigCommand},
	{"block", "step: run until stopped", blockCommand},
	{"ledger", "server: record effects, each key once", ledgerCommand},
}

func workFlag(fs *flag.FlagSet) *time.Duration {
	return fs.Duration("work", 0, "simulate work that takes `DURATION`, for example 5s")
}

func stepCommand(step func(context.Context, sample.Program, time.Duration) error) func(*flag.FlagSet) action {
	return func(fs *flag.FlagSet) action {
		work := workFlag(fs)
		return func(ctx context.Context, p sample.Program) error { return step(ctx, p, *work) }
	}
}

func gatherCommand(fs *flag.FlagSet) action {
	work := workFlag(fs)
	source := fs.String("source", "", "`NAME` of the source: A or B")
	return func(ctx context.Context, p sample.Program) error { return sample.Gather(ctx, p, *source, *work) }
}

// defaultURL is the ledger of the samples.
const defaultURL = "http://ledger"

func effectFlags(fs *flag.FlagSet) *sample.EffectOptions {
	var o sample.EffectOptions
	fs.StringVar(&o.URL, "url", defaultURL, "`URL` of the ledger")
	fs.DurationVar(&o.Work, "work", 0, "simulate work that takes `DURATION` between the ledger's answer and the output")
	return &o
}

func agentEffectCommand(step func(context.Context, sample.Program, sample.EffectOptions) error) func(*flag.FlagSet) action {
	return func(fs *flag.FlagSet) action {
		o := effectFlags(fs)
		return func(ctx context.Context, p sample.Program) error { return step(ctx, p, *o) }
	}
}

func effectCommand(step func(context.Context, sample.Program, sample.EffectOptions) error) func(*flag.FlagSet) action {
	return func(fs *flag.FlagSet) action {
		o := effectFlags(fs)
		fs.StringVar(&o.Kind, "kind", "", "what `KIND` of effect it is, for example publish or notify")
		return func(ctx context.Context, p sample.Program) error { return step(ctx, p, *o) }
	}
}

func readCommand(read func(context.Context, sample.Program, string) error) func(*flag.FlagSet) action {
	return func(fs *flag.FlagSet) action {
		base := fs.String("url", defaultURL, "`URL` of the ledger")
		return func(ctx context.Context, p sample.Program) error { return read(ctx, p, *base) }
	}
}

func flakyCommand(fs *flag.FlagSet) action {
	n := fs.Int("succeed-on", 2, "`NUMBER` of the first attempt that succeeds")
	return func(_ context.Context, p sample.Program) error { return sample.Flaky(p, *n) }
}

func failCommand(fs *flag.FlagSet) action {
	code := fs.Int("exit", 3, "exit `CODE`")
	message := fs.String("message", "this step always fails: it is there to be looked at", "`TEXT` for people")
	return func(context.Context, sample.Program) error { return sample.Fail(*code, *message) }
}

func memhogCommand(fs *flag.FlagSet) action {
	mib := fs.Int("mib", 64, "how many `MIB` to use")
	return func(ctx context.Context, p sample.Program) error { return sample.Memhog(ctx, p, *mib) }
}

func bigCommand(fs *flag.FlagSet) action {
	size := fs.Int("bytes", 4096, "size of the output in `BYTES`")
	return func(_ context.Context, p sample.Program) error { return sample.Big(p, *size) }
}

func blockCommand(*flag.FlagSet) action {
	return func(ctx context.Context, _ sample.Program) error { return sample.Block(ctx) }
}

func ledgerCommand(fs *flag.FlagSet) action {
	var o sample.LedgerOptions
	fs.StringVar(&o.Addr, "addr", ":8080", "`ADDRESS` to listen on")
	fs.StringVar(&o.File, "file", "", "`PATH` of the file that keeps the records; default: memory")
	fs.DurationVar(&o.Policy.KeyTTL, "key-ttl", sample.DefaultKeyTTL, "how long to remember a key, a `DURATION`; then it is a new one")
	fs.BoolVar(&o.Policy.StrictKeys, "strict-keys", false, "refuse keys that do not stand in quotation marks")
	return func(ctx context.Context, p sample.Program) error { return sample.RunLedger(ctx, o, p.Stderr) }
}
