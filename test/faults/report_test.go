// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package faults_test

import (
	"fmt"
	"os"
	"slices"
	"strconv"
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

func newRow(class, fault string) *row {
	return &row{class: class, fault: fault, violations: map[string]int{}}
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
	r.rows = append(r.rows, newRow(c.class, name))
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

// add counts another row's cases into this one.
func (r *row) add(other *row) {
	r.cases, r.failed = r.cases+other.cases, r.failed+other.failed
	for id, n := range other.violations {
		r.violations[id] += n
	}
}

// text is Markdown: what was run, a table by class of faults, and one by fault.
func (r *report) text() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	lines := []string{}
	for _, b := range r.bases {
		lines = append(lines, fmt.Sprintf("Plan %s: %d steps, %d writes in an undisturbed run.", b.plan.title(), len(b.end.Steps), len(b.plan.writes)))
	}
	head := []string{"", "| fault | cases | failed | " + strings.Join(ids(), " | ") + " |", "|---|---|---|" + strings.Repeat("---|", len(ids()))}
	total, classes := newRow("", "all"), []*row{}
	for _, row := range r.rows {
		if len(classes) == 0 || classes[len(classes)-1].fault != row.class {
			classes = append(classes, newRow("", row.class))
		}
		classes[len(classes)-1].add(row)
		total.add(row)
	}
	for _, list := range [][]*row{append(classes, total), r.rows} {
		lines = append(lines, head...)
		for _, row := range list {
			lines = append(lines, row.line())
		}
	}
	return strings.Join(lines, "\n") + "\n"
}

func (r *row) line() string {
	name := r.fault
	if r.class != "" {
		name = r.class + ": " + name
	}
	cells := []string{name, strconv.Itoa(r.cases), strconv.Itoa(r.failed)}
	for _, id := range ids() {
		cells = append(cells, strconv.Itoa(r.violations[id]))
	}
	return "| " + strings.Join(cells, " | ") + " |"
}

// write prints the table, and writes it to the file that is asked for.
func (r *report) write(t *testing.T) {
	t.Helper()
	text := r.text()
	fmt.Printf("%s\n%s\n", text, time.Since(r.start).Round(time.Second))
	path := os.Getenv(envReport)
	if path == "" {
		return
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Errorf("%s: %v", envReport, err)
	}
}
