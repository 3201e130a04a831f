// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

// Command bench measures the operator beside a bare loop that makes the same four
// writes a step and nothing else, on the same control plane in the same run: etcd with
// fsync, API server, controller-manager, and a kubelet whose pods end at once. It prints
// a table with ratios. Each side is a process of its own, so that CPU and memory are its
// own too; the API server shares the machine's cores with both.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	ctrl "sigs.k8s.io/controller-runtime"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/go-logr/logr"

	"github.com/agenttask-dev/agenttask/test/harness"
)

const (
	operatorAgent = "agenttask-operator"
	loopAgent     = "agenttask-bare-loop"
)

func main() {
	asLoop := flag.Bool("loop", false, "be the bare loop, against the cluster of KUBECONFIG (the benchmark starts it so)")
	scale := flag.Int("tasks", 200, "how many tasks of 5 steps the throughput is measured with")
	flag.Parse()
	logf.SetLogger(logr.Discard())
	var err error
	if *asLoop {
		err = beLoop()
	} else {
		err = bench(context.Background(), *scale)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		os.Exit(1)
	}
}

func beLoop() error {
	config, err := ctrl.GetConfig()
	if err != nil {
		return err
	}
	return runLoop(config)
}

// bench runs each scenario with the operator and then with the loop.
func bench(ctx context.Context, scale int) (err error) {
	dir, err := os.MkdirTemp("", "agenttask-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	sides, err := buildSides(ctx, dir)
	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, "starting etcd with fsync, API server and controller-manager")
	cluster, err := harness.Start(harness.Options{Fsync: true, AuditLevel: "Metadata"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cluster.Stop()) }()
	kubelet, err := cluster.StartKubelet(harness.KubeletOptions{Script: harness.Instantly(harness.Plan(nil))})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, kubelet.Stop()) }()

	results := map[string][]result{}
	for _, s := range scenarios(scale) {
		for _, side := range sides {
			fmt.Fprintf(os.Stderr, "%s: %s\n", side.name, s.name)
			r, err := s.run(ctx, cluster, side)
			if err != nil {
				return fmt.Errorf("%s, %s: %w", side.name, s.name, err)
			}
			results[s.name] = append(results[s.name], r)
		}
	}
	report(os.Stdout, results, scale)
	return nil
}

// side is one of the two that are measured.
type side struct {
	name, agent string
	command     []string
}

func buildSides(ctx context.Context, dir string) ([]side, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	manager := filepath.Join(dir, "manager")
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", manager, "./cmd/manager")
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		return nil, fmt.Errorf("building cmd/manager (run the benchmark from the repository's top): %w", err)
	}
	return []side{
		{"operator", operatorAgent, []string{manager, "--metrics-bind-address=0", "--health-probe-bind-address=0", "--log-level=error"}},
		{"bare loop", loopAgent, []string{self, "-loop"}},
	}, nil
}
