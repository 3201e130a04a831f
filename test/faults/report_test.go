// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package faults_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agenttask-dev/agenttask/test/faults"
)

// report counts cases and what they violate, by fault and invariant.
type report struct {
	bases []*baseline
	start time.Time

	mu   sync.Mutex
	rows []*row
}

// row is what became of the cases of one fault.
type row struct {
	class, fault  string
	cases, failed int
	violations    map[string]int
}

// newReport has a row for each fault of the cases, in their order.
func newReport(bases []*baseline, cases []tried) *report {
	r := &report{bases: bases, start: time.Now()}
	for _, c := range cases {
		r.of(c)
	}
	order := []string{classTransport, classFrozen, classNetwork, classWatch, classOutsider, classRestore, classPair}
	slices.SortStableFunc(r.rows, func(a, b *row) int { return slices.Index(order, a.class) - slices.Index(order, b.class) })
	return r
}

// of is the row of a case. The lock is held.
func (r *report) of(c tried) *row {
	name := c.name
	if c.class == classPair {
		name = "die, and die again"
	}
	for _, row := range r.rows {
		if row.class == c.class && row.fault == name {
			return row
		}
	}
	r.rows = append(r.rows, &row{class: c.class, fault: name, violations: map[string]int{}})
	return r.rows[len(r.rows)-1]
}

// add notes what a case violates: each invariant once.
func (r *report) add(c tried, found []faults.Violation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	seen := map[string]bool{}
	for _, v := range found {
		if !seen[v.Invariant] {
			r.of(c).violations[v.Invariant]++
		}
		seen[v.Invariant] = true
	}
}

// done notes that a case was run.
func (r *report) done(c tried, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	row := r.of(c)
	row.cases++
	if !ok {
		row.failed++
	}
}

// ids are the invariants' IDs, I9 included.
func ids() []string {
	var list []string
	for _, i := range faults.Invariants {
		list = append(list, i.ID)
	}
	return append(list, faults.SameEnd.ID)
}

// table is Markdown.
func (r *report) table() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	lines := []string{"| fault | cases | failed | " + strings.Join(ids(), " | ") + " |", "|---|---|---|" + strings.Repeat("---|", len(ids()))}
	total := row{violations: map[string]int{}}
	for _, row := range r.rows {
		lines = append(lines, row.line(row.class+": "+row.fault))
		total.cases, total.failed = total.cases+row.cases, total.failed+row.failed
		for id, n := range row.violations {
			total.violations[id] += n
		}
	}
	return strings.Join(append(lines, total.line("all")), "\n") + "\n"
}

func (r *row) line(name string) string {
	cells := []string{name, fmt.Sprint(r.cases), fmt.Sprint(r.failed)}
	for _, id := range ids() {
		cells = append(cells, fmt.Sprint(r.violations[id]))
	}
	return "| " + strings.Join(cells, " | ") + " |"
}

// write prints the table, and writes it to the file that is asked for.
func (r *report) write(t *testing.T) {
	t.Helper()
	text := r.table()
	for _, b := range r.bases {
		name := b.plan.name
		if name == "" {
			name = "plain"
		}
		fmt.Printf("plan %s: an undisturbed run makes %d writes\n", name, len(b.writes))
	}
	fmt.Printf("%s%s\n", text, time.Since(r.start).Round(time.Second))
	path := os.Getenv(envReport)
	if path == "" {
		return
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Errorf("%s: %v", envReport, err)
	}
}
