// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package integration_test

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/test/harness"
)

var _ = Describe("An operator that dies", func() {
	const steps, writes = 3, 4*3 + 1

	for at := int64(1); at <= writes; at++ {
		for kind, what := range map[harness.FaultKind]string{harness.DieBefore: "before", harness.DieAfter: "after"} {
			It(fmt.Sprintf("%s write %d of %d was done is only a pause", what, at, writes), func() {
				w := emptyWorld(nil)
				faults := harness.NewFaults(harness.Fault{At: at, Kind: kind})
				m := w.operator(harness.ManagerOptions{Name: "first", Faults: faults})
				w.create(w.make("task").Steps("one", "two", "three").Obj())
				Eventually(faults.Hit()).Should(BeClosed(), func() string { return summary(w.get("task")) })
				Expect(m.Stop()).To(Succeed())

				w.operator(harness.ManagerOptions{Name: "second"})
				task := w.reaches("task", v1alpha1.TaskSucceeded)
				Expect(attempts(task)).To(Equal(map[string]int32{"one": 1, "two": 1, "three": 1}))
				expectEachOnce(w, steps)
			})
		}
	}

	// Status, Job, pod; then status (Stopping), pod, status (Cancelled), Job.
	for at := int64(4); at <= 7; at++ {
		for kind, what := range map[harness.FaultKind]string{harness.DieBefore: "before", harness.DieAfter: "after"} {
			It(fmt.Sprintf("%s write %d of a task that is cancelled while it runs, still cancels it", what, at), func() {
				w := emptyWorld(harness.Plan(map[string][]harness.Behaviour{"one": {harness.Hang()}}))
				faults := harness.NewFaults(harness.Fault{At: at, Kind: kind})
				m := w.operator(harness.ManagerOptions{Name: "first", Faults: faults})
				w.create(w.make("task").Steps("one", "two").Obj())
				pod := w.runningPod("task", "one", 1)
				w.edit("task", func(s *v1alpha1.AgentTaskSpec) { s.Cancel = true })
				Eventually(faults.Hit()).Should(BeClosed(), func() string { return summary(w.get("task")) })
				Expect(m.Stop()).To(Succeed())

				w.operator(harness.ManagerOptions{Name: "second"})
				task := w.reaches("task", v1alpha1.TaskCancelled)
				Expect(record(task, "one").Phase).To(Equal(v1alpha1.StepCancelled))
				w.waitGone(pod)
				expectEachOnce(w, 1)
				Eventually(func() int32 { return w.job(pod.Name).Status.Failed }).Should(BeEquivalentTo(1))
			})
		}
	}

	It("in a step with a retry neither forgets nor repeats an attempt", func() {
		w := emptyWorld(harness.Plan(map[string][]harness.Behaviour{"one": {harness.TryAgain(0), harness.Succeed(1)}}))
		for at := int64(1); at <= 6; at++ {
			faults := harness.NewFaults(harness.Fault{At: 2, Kind: []harness.FaultKind{harness.DieBefore, harness.DieAfter}[at%2]})
			m := w.operator(harness.ManagerOptions{Name: fmt.Sprintf("operator-%d", at), Faults: faults})
			if at == 1 {
				w.create(w.make("task").Step("one").RetryFast(1).Step("two").Obj())
			}
			select {
			case <-faults.Hit():
			case <-time.After(2 * time.Second): // fewer writes than that were left to do
			}
			Expect(m.Stop()).To(Succeed())
		}
		w.operator(harness.ManagerOptions{Name: "last"})
		task := w.reaches("task", v1alpha1.TaskSucceeded)
		Expect(attempts(task)).To(Equal(map[string]int32{"one": 2, "two": 1}))
		expectEachOnce(w, 3)
	})
})

var _ = Describe("An operator", func() {
	It("that misses what its pods do finds out when it looks again", func() {
		deaf := harness.NewWatches("pods")
		done := make(chan struct{})
		w := newWorld(harness.Plan(map[string][]harness.Behaviour{"one": {harness.HangUntil(done)}}),
			harness.ManagerOptions{Wrap: deaf.Wrap, RecheckInterval: time.Second})
		w.create(w.make("task").Steps("one", "two").Obj())
		w.runningPod("task", "one", 1)
		deaf.Freeze("pods")
		close(done)
		task := w.reaches("task", v1alpha1.TaskSucceeded)
		Expect(attempts(task)).To(Equal(map[string]int32{"one": 1, "two": 1}))
		expectEachOnce(w, 2)
	})

	It("that misses what becomes of its Jobs goes on as well", func() {
		deaf := harness.NewWatches("jobs")
		w := newWorld(nil, harness.ManagerOptions{Wrap: deaf.Wrap, RecheckInterval: time.Second})
		deaf.Freeze("jobs")
		w.create(w.make("task").Steps("one", "two").Obj())
		Expect(attempts(w.reaches("task", v1alpha1.TaskSucceeded))).To(Equal(map[string]int32{"one": 1, "two": 1}))
		expectEachOnce(w, 2)
	})

	It("hears of a pod's end though it came before the answer to the pod's making", func() {
		deaf := harness.NewWatches("jobs")
		var w *world
		slow := harness.Each(func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
			response, err := next.RoundTrip(r)
			if err == nil && r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/pods") {
				w.allPodsEnd()
			}
			return response, err
		})
		wrap := func(next http.RoundTripper) http.RoundTripper { return slow(deaf.Wrap(next)) }
		w = newWorld(harness.Instantly(harness.Plan(nil)), harness.ManagerOptions{Wrap: wrap})
		deaf.Freeze("jobs")
		w.create(w.make("task").Steps("one", "two", "three").Obj())
		w.reaches("task", v1alpha1.TaskSucceeded)
		expectEachOnce(w, 3)
	})

	It("that misses an edit of a task finds out when it looks again", func() {
		deaf := harness.NewWatches("agenttasks")
		w := newWorld(harness.Plan(map[string][]harness.Behaviour{"two": {harness.Hang()}}),
			harness.ManagerOptions{Wrap: deaf.Wrap, RecheckInterval: time.Second})
		w.create(w.make("task").Steps("one", "two").Obj())
		w.runningPod("task", "two", 1)
		deaf.Freeze("agenttasks")
		w.edit("task", func(s *v1alpha1.AgentTaskSpec) { s.Cancel = true })
		w.reaches("task", v1alpha1.TaskCancelled)
	})

	It("whose writes get lost on the way there or back does everything once all the same", func() {
		flaky := &harness.Flaky{Lose: func(n int64) bool { return n%3 == 0 }}
		w := newWorld(nil, harness.ManagerOptions{Wrap: flaky.Wrap})
		for i := range 5 {
			w.create(w.make(fmt.Sprintf("task%d", i)).Steps("one", "two", "three").Obj())
		}
		for i := range 5 {
			task := w.reaches(fmt.Sprintf("task%d", i), v1alpha1.TaskSucceeded)
			Expect(attempts(task)).To(Equal(map[string]int32{"one": 1, "two": 1, "three": 1}))
		}
		Expect(flaky.Lost()).To(BeNumerically(">", 20))
		expectEachOnce(w, 15)
		for _, job := range w.jobs() {
			Eventually(func() int32 { return w.job(job.Name).Status.Succeeded }).Should(BeEquivalentTo(1), job.Name)
		}
	})

	It("that is not the only one, without leader election, still runs each step once", func() {
		w := newWorld(nil, harness.ManagerOptions{Name: "first"})
		w.operator(harness.ManagerOptions{Name: "second"})
		for i := range 5 {
			w.create(w.make(fmt.Sprintf("task%d", i)).Steps("one", "two", "three").Obj())
		}
		for i := range 5 {
			task := w.reaches(fmt.Sprintf("task%d", i), v1alpha1.TaskSucceeded)
			Expect(attempts(task)).To(Equal(map[string]int32{"one": 1, "two": 1, "three": 1}))
		}
		expectEachOnce(w, 15)
	})

	It("runs many tasks at once", func() {
		w := newWorld(harness.Instantly(harness.Plan(nil)))
		for i := range 30 {
			w.create(w.make(fmt.Sprintf("task%d", i)).Steps("one", "two", "three").Obj())
		}
		for i := range 30 {
			w.reaches(fmt.Sprintf("task%d", i), v1alpha1.TaskSucceeded)
		}
		expectEachOnce(w, 90)
	})
})

// expectEachOnce looks at what was made of Jobs and pods: so many, each once.
func expectEachOnce(w *world, count int) {
	GinkgoHelper()
	for _, resource := range []string{"jobs", "pods"} {
		names := w.created(resource)
		seen := map[string]int{}
		for _, name := range names {
			seen[name]++
		}
		Expect(seen).To(HaveLen(count), "%s: %v", resource, names)
		Expect(names).To(HaveLen(count), "%s: %v", resource, names)
	}
}
