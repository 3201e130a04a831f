// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package integration_test

import (
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/test/harness"
)

var _ = Describe("The API cost", func() {
	names := []string{"one", "two", "three", "four", "five"}

	for _, history := range []v1alpha1.JobHistory{v1alpha1.JobHistoryAll, v1alpha1.JobHistoryFailed, v1alpha1.JobHistoryNone} {
		It(fmt.Sprintf("is four writes a step, and one for the task, none rejected, with jobHistory %s", history), func() {
			w := newWorld(nil)
			w.create(w.make("task").JobHistory(history).Steps(names...).Obj())
			w.reaches("task", v1alpha1.TaskSucceeded)
			// What keeps the last Job is written after the status that says Succeeded.
			var list []harness.Request
			Eventually(func(g Gomega) {
				var err error
				list, err = w.writes()
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(len(list)).To(BeNumerically(">=", 4*len(names)+1), harness.List(list))
			}).Should(Succeed())
			Consistently(func() ([]harness.Request, error) { return w.writes() }).Should(HaveLen(len(list)))

			By("counting them")
			count := map[string]int{}
			for _, r := range list {
				Expect(r.Rejected()).To(BeFalse(), "rejected: %s\nof\n%s", r, harness.List(list))
				count[fmt.Sprintf("%s %s/%s", r.Verb, r.Resource, r.Subresource)]++
			}
			want := map[string]int{"update agenttasks/status": 6, "create jobs/": 5, "create pods/": 5, "patch jobs/status": 5}
			if history != v1alpha1.JobHistoryAll {
				delete(want, "patch jobs/status")
				want["delete jobs/"] = 5
			}
			Expect(count).To(Equal(want), harness.List(list))
		})
	}

	It("is nothing at all while a step runs", func() {
		w := newWorld(harness.Plan(map[string][]harness.Behaviour{"one": {harness.Hang()}}))
		w.create(w.make("task").Step("one").Obj())
		w.runningPod("task", "one", 1)
		Eventually(func() ([]harness.Request, error) { return w.writes() }).Should(HaveLen(3))
		Consistently(func() ([]harness.Request, error) { return w.writes() }).Should(HaveLen(3))
	})

	It("is seven writes for a step that must not start twice", func() {
		w := newWorld(nil)
		w.create(w.make("task").Step("one").Once().Step("two").Once().Obj())
		w.reaches("task", v1alpha1.TaskSucceeded)
		count := map[string]int{}
		Eventually(func(g Gomega) {
			list, err := w.writes()
			g.Expect(err).NotTo(HaveOccurred())
			clear(count)
			for _, r := range list {
				g.Expect(r.Rejected()).To(BeFalse(), "rejected: %s\nof\n%s", r, harness.List(list))
				count[fmt.Sprintf("%s %s/%s", r.Verb, r.Resource, r.Subresource)]++
			}
			g.Expect(list).To(HaveLen(2*7+1), harness.List(list))
		}).Should(Succeed())
		Expect(count).To(Equal(map[string]int{
			"update agenttasks/status": 5, "create jobs/": 2, "create pods/": 2, "patch pods/": 4, "patch jobs/status": 2,
		}))
		Consistently(func() ([]harness.Request, error) { return w.writes() }).Should(HaveLen(2*7 + 1))
	})
})
