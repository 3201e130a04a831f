// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package faults_test

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/agenttask-dev/agenttask/test/faults"
)

// What is run. By default a spread of cases over all faults and writes.
const (
	// envCase runs the cases whose ID matches a regular expression from end to end.
	envCase = "AGENTTASK_FAULT_CASE"
	// envAll runs all single faults, where it is set.
	envAll = "AGENTTASK_FAULTS_ALL"
	// envPairs runs the pairs of crashes, where it is set.
	envPairs = "AGENTTASK_FAULTS_PAIRS"
	// envReport is the path of a file that the table is written to.
	envReport = "AGENTTASK_FAULTS_REPORT"
	// envWorkers is how many cases run at once.
	envWorkers = "AGENTTASK_FAULTS_WORKERS"
)

// defaultWorkers is how many cases run at once on two cores: much of a case is waiting.
const defaultWorkers = 8

func workers() int {
	if n, err := strconv.Atoi(os.Getenv(envWorkers)); err == nil && n > 0 {
		return n
	}
	return defaultWorkers
}

// run runs one case and returns its history.
func (l *lab) run(t *testing.T, p *plan, do func(*world)) *faults.History {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 6*bound)
	defer cancel()
	w, err := l.newWorld(ctx, p)
	if err != nil {
		t.Fatal(err)
	}
	defer w.close()
	do(w)
	h, err := w.history()
	if err != nil {
		t.Fatal(err)
	}
	h.Touched = w.touched
	if err := w.failed(); err != nil {
		t.Errorf("the case could not be run as it was meant to: %v", err)
	}
	t.Logf("what the operators wrote:\n%s", strings.Join(w.writes(), "\n"))
	return h
}

// try runs a case and says what it violates.
func (l *lab) try(t *testing.T, c tried) []faults.Violation {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Logf("to run it alone: make test-faults CASE='%s'", c.id())
		}
	}()
	h := l.run(t, c.base.plan, func(w *world) {
		c.run(w, c.base, c.n)
		w.sameWrite(c.base, c.n)
	})
	found := append(faults.Check(h), faults.CheckEnd(h, c.base.end, c.may)...)
	for _, v := range found {
		t.Errorf("%s at write %d, %s: %s", c.name, c.n, c.base.plan.writes[c.n-1], v)
	}
	return found
}

func TestFaultMatrix(t *testing.T) {
	l := theLab(t)
	var bases []*baseline
	for _, p := range plans {
		bases = append(bases, undisturbed(t, l, p))
	}
	cases := chosen(t, bases)
	report := newReport(bases, cases)
	var alone []tried
	queue := make(chan tried)
	var pool sync.WaitGroup
	for range workers() {
		pool.Go(func() {
			for c := range queue {
				ok := t.Run(c.id(), func(t *testing.T) { report.add(c, l.try(t, c)) })
				report.done(c, ok)
			}
		})
	}
	for _, c := range cases {
		if c.class == classRestore {
			alone = append(alone, c)
		} else {
			queue <- c
		}
	}
	close(queue)
	pool.Wait()
	runRestores(t, report, alone)
	report.write(t)
}

// chosen are the cases that are asked for.
func chosen(t *testing.T, bases []*baseline) []tried {
	t.Helper()
	all := append(enumerate(singles(), bases), restores(bases[0])...)
	switch {
	case os.Getenv(envCase) != "":
		return matching(t, append(all, pairs(bases[0])...), os.Getenv(envCase))
	case os.Getenv(envPairs) != "":
		return pairs(bases[0])
	case os.Getenv(envAll) != "":
		return all
	}
	return spread(all)
}

func matching(t *testing.T, all []tried, pattern string) []tried {
	t.Helper()
	id, err := regexp.Compile("^(?:" + pattern + ")$")
	if err != nil {
		t.Fatalf("%s: %v", envCase, err)
	}
	var cases []tried
	for _, c := range all {
		if id.MatchString(c.id()) {
			cases = append(cases, c)
		}
	}
	if len(cases) == 0 {
		t.Fatalf("no case has the ID %s; they are like %s", pattern, all[0].id())
	}
	return cases
}

// place names the write of a case.
func (c tried) place() string { return fmt.Sprintf("%s write %d", c.base.plan.title(), c.n) }

// spreadOver is how many cases one of the spread stands for.
const spreadOver = 8

// spread chooses the same cases every time, so that each fault and each write of each plan
// is among them: along the diagonals of the matrix of faults and writes, and then what is
// still missing.
func spread(all []tried) []tried {
	numbers, seen := map[string]int64{}, map[string]bool{}
	var cases []tried
	for _, diagonal := range []bool{true, false} {
		for _, c := range all {
			if _, ok := numbers[c.name]; !ok {
				numbers[c.name] = int64(len(numbers))
			}
			if diagonal && (c.n+3*numbers[c.name])%spreadOver != 0 || !diagonal && seen[c.name] && seen[c.place()] {
				continue
			}
			cases = append(cases, c)
			seen[c.name], seen[c.place()] = true, true
		}
	}
	return cases
}
