// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package faults_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/test/faults"
	"github.com/agenttask-dev/agenttask/test/harness"
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

// baseline is the undisturbed run of a plan.
type baseline struct {
	plan   *plan
	writes []harness.Write
	end    faults.End
	// starts are the steps whose program the n-th write starts.
	starts map[int64]string
	// jobs and pods are those that were made, in order.
	jobs, pods []made
}

// made is a Job or pod that was made by the n-th write.
type made struct {
	n       int64
	step    string
	attempt int32
}

// name is what a deed after the n-th write is done to, or nil where there is none.
func (b *baseline) name(to aim, n int64) *made {
	list := b.jobs
	if to == lastPod || to == nextPod {
		list = b.pods
	}
	switch to {
	case lastJob, lastPod:
		for i := len(list) - 1; i >= 0; i-- {
			if list[i].n <= n {
				return &list[i]
			}
		}
	case nextJob, nextPod:
		for i := range list {
			if list[i].n > n {
				return &list[i]
			}
		}
	case theTask:
		return &made{}
	}
	return nil
}

// undisturbed runs a plan without faults.
func undisturbed(t *testing.T, l *lab, p *plan) *baseline {
	t.Helper()
	line := harness.NewFaults()
	h := l.run(t, p, func(w *world) {
		w.operator("only", line)
		w.create()
		w.rest()
	})
	for _, v := range faults.Check(h) {
		t.Errorf("an undisturbed run: %s", v)
	}
	b := &baseline{plan: p, writes: line.Writes(), end: faults.EndOf(h), starts: map[int64]string{}}
	for _, w := range b.writes {
		b.note(w)
	}
	if t.Failed() || b.end.Phase != v1alpha1.TaskSucceeded {
		t.Fatalf("an undisturbed run ends as %s", b.end.Phase)
	}
	if diff := cmp.Diff(p.writes, told(b.writes)); diff != "" {
		t.Fatalf("an undisturbed run does not write what it must (-want +have):\n%s", diff)
	}
	return b
}

// sameWrite checks that the n-th write was the undisturbed run's, so that the case is the
// one that its ID names.
func (w *world) sameWrite(b *baseline, n int64) {
	if len(w.managers) == 0 {
		return
	}
	if list := w.managers[0].Faults.Writes(); int64(len(list)) < n || brief(list[n-1]) != brief(b.writes[n-1]) {
		w.problem("write %d is not %s, as in an undisturbed run", n, brief(b.writes[n-1]))
	}
}

// brief is a write without what differs from run to run.
func brief(w harness.Write) string {
	resource := w.Resource
	if w.Subresource != "" {
		resource += "/" + w.Subresource
	}
	name := strings.Split(w.Name, "-")
	if len(name) > 2 { // task-STEP-HASH-ATTEMPT
		name = []string{name[1], name[len(name)-1]}
	}
	return fmt.Sprintf("%s %s %s", w.Verb, resource, strings.Join(name, "/"))
}

// note reads a write of the undisturbed run.
func (b *baseline) note(w harness.Write) {
	body := struct {
		Metadata struct{ Labels map[string]string }
		Spec     struct{ SchedulingGates []any }
	}{}
	switch {
	case w.Is("create", "jobs"), w.Is("create", "pods"):
		if json.Unmarshal(w.Body, &body) != nil {
			return
		}
		n, _ := strconv.Atoi(body.Metadata.Labels[v1alpha1.LabelAttempt])
		m := made{w.N, body.Metadata.Labels[v1alpha1.LabelStep], int32(n)}
		if w.Is("create", "jobs") {
			b.jobs = append(b.jobs, m)
			return
		}
		b.pods = append(b.pods, m)
		if len(body.Spec.SchedulingGates) == 0 {
			b.starts[w.N] = m.step
		}
	case w.Is("patch", "pods") && strings.Contains(string(w.Body), "schedulingGates"):
		b.starts[w.N] = b.pods[len(b.pods)-1].step
	}
}

func told(writes []harness.Write) []string {
	list := make([]string, len(writes))
	for i, w := range writes {
		list[i] = brief(w)
	}
	return list
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
	h := l.run(t, c.base.plan, func(w *world) {
		c.run(w, c.base, c.n)
		w.sameWrite(c.base, c.n)
	})
	found := append(faults.Check(h), faults.CheckEnd(h, c.base.end, c.may)...)
	if len(found) > 0 {
		lines := make([]string, len(found))
		for i, v := range found {
			lines[i] = v.String()
		}
		t.Errorf("%s at write %d, %s\n%s\nto run it alone: make test-faults CASE='%s'", c.name, c.n, brief(c.base.writes[c.n-1]), strings.Join(lines, "\n"), c.id())
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

// spreadOver is how many cases one of the spread stands for.
const spreadOver = 8

// spread chooses the same cases every time, so that each fault and each write of each plan
// is among them: along the diagonals of the matrix of faults and writes, and then what is
// still missing.
func spread(all []tried) []tried {
	numbers, seen := map[string]int64{}, map[string]bool{}
	place := func(c tried) string { return fmt.Sprintf("%s %d", c.base.plan.name, c.n) }
	var cases []tried
	for _, diagonal := range []bool{true, false} {
		for _, c := range all {
			if _, ok := numbers[c.name]; !ok {
				numbers[c.name] = int64(len(numbers))
			}
			if diagonal && (c.n+3*numbers[c.name])%spreadOver != 0 || !diagonal && seen[c.name] && seen[place(c)] {
				continue
			}
			cases = append(cases, c)
			seen[c.name], seen[place(c)] = true, true
		}
	}
	return cases
}
