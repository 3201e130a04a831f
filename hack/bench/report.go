// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"time"
)

// report prints a Markdown table: what, operator, bare loop, their ratio, and what is
// to be reached where a bound is set.
func report(w io.Writer, results map[string][]result, scale int) {
	fmt.Fprintln(w, "\n| what | operator | bare loop | ratio | to reach |")
	fmt.Fprintln(w, "|---|---|---|---|---|")
	row := func(what, format string, value func(result) float64, scenario, goal string) {
		a, b := value(results[scenario][0]), value(results[scenario][1])
		ratio := "-"
		if b != 0 {
			ratio = fmt.Sprintf("%.2f", a/b)
		}
		fmt.Fprintf(w, "| %s | "+format+" | "+format+" | %s | %s |\n", what, a, b, ratio, goal)
	}
	gap := func(q float64) func(result) float64 {
		return func(r result) float64 { return ms(r.quantile(q)) }
	}
	for _, s := range []string{shortPlan, longPlan} {
		goal := ""
		if s == shortPlan {
			goal = "≤ 2"
		}
		row("step gap p50, "+s, "%.1f ms", gap(0.50), s, goal)
		row("step gap p99, "+s, "%.1f ms", gap(0.99), s, "")
		row("CPU a step, "+s, "%.2f ms", cpuAStep, s, "")
	}
	row(fmt.Sprintf("steps a second, %d tasks of 5", scale), "%.1f", func(r result) float64 { return float64(r.steps) / r.elapsed.Seconds() }, throughput, "≥ 0.7")
	row("CPU a step, throughput", "%.2f ms", cpuAStep, throughput, "")
	row("peak memory, throughput", "%.0f MB", func(r result) float64 { return float64(r.peak) / 1e6 }, throughput, "")
	for _, s := range []string{shortPlan, longPlan, throughput} {
		row("writes a step, "+s, "%.2f", func(r result) float64 { return float64(r.writes) / float64(r.steps) }, s, "")
	}
	row("events a step, throughput", "%.2f", func(r result) float64 { return float64(r.events) / float64(r.steps) }, throughput, "")

	operator := func(s string) result { return results[s][0] }
	fmt.Fprintf(w, "\nCPU a step at 200 steps, over that at 20: %.2f (to reach: ≤ 1.5)\n", cpuAStep(operator(longPlan))/cpuAStep(operator(shortPlan)))
	for _, s := range []string{shortPlan, longPlan, throughput} {
		fmt.Fprintf(w, "Rejected writes of the operator, %s: %d (to reach: 0)\n", s, operator(s).bad)
		for _, line := range operator(s).rejectedLines {
			fmt.Fprintln(w, "  ", line)
		}
	}
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func cpuAStep(r result) float64 { return ms(r.cpu) / float64(r.steps) }
