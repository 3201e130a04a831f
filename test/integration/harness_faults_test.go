// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package integration_test

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/test/harness"
)

// fails waits until all of a line's faults have struck.
func fails(w *world, faults *harness.Faults) {
	GinkgoHelper()
	Eventually(faults.Hit()).Should(BeClosed(), func() string { return summary(w.get("task")) })
}

var _ = Describe("The harness's faults", func() {
	It("number the operator's writes and say what each was", func() {
		faults := harness.NewFaults()
		w := newWorld(nil, harness.ManagerOptions{Faults: faults})
		w.create(w.make("task").Step("one").Obj())
		w.reaches("task", v1alpha1.TaskSucceeded)
		Eventually(func() int { return len(faults.Writes()) }).Should(BeNumerically(">=", 5))
		job := record(w.get("task"), "one").JobName
		list := faults.Writes()
		Expect(list[0].String()).To(Equal("write 1: update agenttasks/status task"))
		Expect(list[1].String()).To(Equal("write 2: create jobs " + job))
		Expect(list[2].String()).To(Equal("write 3: create pods " + job))
		Expect(string(list[2].Body)).To(ContainSubstring(`"kind":"Job"`), "the pod's owner")
		Expect(list[2].Code).To(Equal(201))
	})

	for _, kind := range []harness.FaultKind{
		harness.Conflict, harness.TooMany, harness.ErrorBefore, harness.ErrorAfter, harness.TimeoutAfter, harness.ResetBefore, harness.ResetAfter,
	} {
		It("are ones that the operator gets over: "+string(kind), func() {
			faults := harness.NewFaults(harness.Fault{At: 3, Kind: kind})
			w := newWorld(nil, harness.ManagerOptions{Faults: faults})
			w.create(w.make("task").Steps("one", "two").Obj())
			fails(w, faults)
			Expect(attempts(w.reaches("task", v1alpha1.TaskSucceeded))).To(Equal(map[string]int32{"one": 1, "two": 1}))
			expectEachOnce(w, 2)
		})
	}

	for kind, made := range map[harness.FaultKind]bool{harness.FreezeBefore: false, harness.FreezeAfter: true} {
		It("freeze an operator, which goes on where it was: "+string(kind), func() {
			w := emptyWorld(nil)
			faults := harness.NewFaults(harness.Fault{At: 3, Kind: kind})
			w.operator(harness.ManagerOptions{Name: "first", Faults: faults})
			DeferCleanup(faults.Thaw)
			w.create(w.make("task").Steps("one", "two").Obj())
			fails(w, faults)
			write := faults.Writes()[2]
			Expect(write.Is("create", "pods")).To(BeTrue(), write.String())
			err := cluster.Client.Get(ctx, client.ObjectKey{Namespace: w.ns, Name: write.Name}, &corev1.Pod{})
			Expect(apierrors.IsNotFound(err)).To(Equal(!made), "%v", err)

			w.operator(harness.ManagerOptions{Name: "second"})
			w.reaches("task", v1alpha1.TaskSucceeded)
			Expect(faults.Writes()).To(HaveLen(3), "it writes nothing while it is frozen")
			faults.Thaw()
			Eventually(func() int { return faults.Writes()[2].Code }).ShouldNot(BeZero(), "the late write got through")
			expectEachOnce(w, 2)
		})
	}

	It("let somebody else act at a write", func() {
		w := emptyWorld(harness.Plan(map[string][]harness.Behaviour{"one": {harness.Hang(), harness.Succeed(2)}}))
		outsider := cluster.Outsider()
		faults := harness.NewFaults(harness.Fault{At: 3, Kind: harness.ActAfter, Act: func(write harness.Write) {
			defer GinkgoRecover()
			Expect(outsider.DeletePod(ctx, client.ObjectKey{Namespace: w.ns, Name: write.Name}, 0)).To(Succeed())
		}})
		w.operator(harness.ManagerOptions{Faults: faults})
		w.create(w.make("task").Step("one").RetryFast(3).Obj())
		task := w.reaches("task", v1alpha1.TaskSucceeded)
		Expect(attempts(task)).To(Equal(map[string]int32{"one": 2}))
	})

	It("kill an operator, of which nothing comes any more", func() {
		w := emptyWorld(harness.Plan(map[string][]harness.Behaviour{"one": {harness.Hang()}}))
		m := w.operator(harness.ManagerOptions{Name: "first"})
		w.create(w.make("task").Step("one").Obj())
		w.runningPod("task", "one", 1)
		m.Kill()
		Expect(m.Ended()).To(BeClosed())
		Expect(m.Stop()).To(Succeed())
		before, err := w.writes()
		Expect(err).NotTo(HaveOccurred())
		w.edit("task", func(s *v1alpha1.AgentTaskSpec) { s.Cancel = true })
		Consistently(func() ([]harness.Request, error) { return w.writes() }).Should(HaveLen(len(before)))
	})
})

var _ = Describe("A cut network", func() {
	It("that lasts longer than the Lease gives the work to another, and the first one ends", func() {
		done := make(chan struct{})
		w := emptyWorld(harness.Plan(map[string][]harness.Behaviour{"one": {harness.HangUntil(done)}}))
		first := w.operator(harness.ManagerOptions{Name: "first", LeaderElection: &harness.LeaderElection{}})
		Eventually(first.Elected()).Should(BeClosed())
		second := w.operator(harness.ManagerOptions{Name: "second", LeaderElection: &harness.LeaderElection{}})
		w.create(w.make("task").Steps("one", "two").Obj())
		w.runningPod("task", "one", 1)
		Expect(second.Elected()).NotTo(BeClosed())
		lease := &coordinationv1.Lease{}
		key := client.ObjectKey{Namespace: w.ns, Name: "operator.agenttask.dev"}
		Expect(cluster.Client.Get(ctx, key, lease)).To(Succeed())
		holder := *lease.Spec.HolderIdentity

		first.Faults.Cut()
		Eventually(second.Elected()).Should(BeClosed())
		Eventually(first.Ended()).Should(BeClosed())
		Expect(first.Err()).To(MatchError(ContainSubstring("leader election lost")))
		first.Faults.Heal()
		Expect(first.Stop()).To(Succeed())
		Expect(cluster.Client.Get(ctx, key, lease)).To(Succeed())
		Expect(*lease.Spec.HolderIdentity).NotTo(Equal(holder))

		close(done)
		Expect(attempts(w.reaches("task", v1alpha1.TaskSucceeded))).To(Equal(map[string]int32{"one": 1, "two": 1}))
		expectEachOnce(w, 2)
	})

	It("is no worse than a leader that stands still: thawed, its write is late, and then it ends", func() {
		w := emptyWorld(nil)
		faults := harness.NewFaults(harness.Fault{At: 2, Kind: harness.FreezeBefore})
		first := w.operator(harness.ManagerOptions{Name: "first", Faults: faults, LeaderElection: &harness.LeaderElection{}})
		DeferCleanup(faults.Thaw)
		Eventually(first.Elected()).Should(BeClosed())
		w.create(w.make("task").Steps("one", "two").Obj())
		fails(w, faults)
		second := w.operator(harness.ManagerOptions{Name: "second", LeaderElection: &harness.LeaderElection{}})
		Eventually(second.Elected()).Should(BeClosed())
		Expect(first.Ended()).NotTo(BeClosed())
		w.reaches("task", v1alpha1.TaskSucceeded)

		faults.Thaw()
		Expect(faults.Writes()[1].Code).To(Equal(409), "the Job was there")
		Eventually(first.Ended()).Should(BeClosed())
		Expect(first.Err()).To(MatchError(ContainSubstring("leader election lost")))
		expectEachOnce(w, 2)
	})

	It("that is healed in time changes nothing", func() {
		w := emptyWorld(nil)
		faults := harness.NewFaults()
		w.operator(harness.ManagerOptions{Faults: faults})
		faults.Cut()
		w.create(w.make("task").Steps("one", "two").Obj())
		Consistently(func() v1alpha1.TaskPhase { return w.get("task").Status.Phase }).Should(BeEmpty())
		faults.Heal()
		w.reaches("task", v1alpha1.TaskSucceeded)
		expectEachOnce(w, 2)
	})
})

var _ = Describe("The harness's watches", func() {
	for _, resource := range []string{"agenttasks", "jobs", "pods"} {
		It("fall silent and speak again: "+resource, func() {
			watches := harness.NewWatches("agenttasks", "jobs", "pods")
			w := newWorld(nil, harness.ManagerOptions{Wrap: watches.Wrap})
			watches.Freeze(resource)
			w.create(w.make("task").Steps("one", "two").Obj())
			Eventually(func() int64 { return watches.Events(resource) + watches.Events("agenttasks") }).ShouldNot(BeZero())
			watches.Resume(resource)
			w.reaches("task", v1alpha1.TaskSucceeded)
			Expect(watches.Events(resource)).NotTo(BeZero())
			expectEachOnce(w, 2)
		})
	}

	It("that were frozen keep from the operator what happens", func() {
		watches := harness.NewWatches("agenttasks")
		w := newWorld(nil, harness.ManagerOptions{Wrap: watches.Wrap})
		watches.Freeze("agenttasks")
		w.create(w.make("task").Step("one").Obj())
		Eventually(func() int64 { return watches.Events("agenttasks") }).Should(BeEquivalentTo(1))
		Consistently(func() v1alpha1.TaskPhase { return w.get("task").Status.Phase }).Should(BeEmpty())
		watches.Resume("agenttasks")
		w.reaches("task", v1alpha1.TaskSucceeded)
	})

	It("show an operator that starts an older view, from which it goes on", func() {
		w := emptyWorld(nil)
		w.create(w.make("task").Step("one").Suspend().Obj())
		old, err := cluster.Revision(ctx)
		Expect(err).NotTo(HaveOccurred())
		first := w.operator(harness.ManagerOptions{Name: "first"})
		w.edit("task", func(s *v1alpha1.AgentTaskSpec) { s.Suspend = false })
		w.reaches("task", v1alpha1.TaskSucceeded)
		Expect(first.Stop()).To(Succeed())

		watches := harness.NewWatches("agenttasks", "jobs", "pods")
		watches.ServeOld(old, "agenttasks", "jobs", "pods")
		watches.Freeze("jobs")
		second := w.operator(harness.ManagerOptions{Name: "second", Wrap: watches.Wrap})
		for _, resource := range []string{"agenttasks", "jobs", "pods"} {
			Expect(watches.ServedOld(resource)).To(BeTrue(), resource)
		}
		jobs := &batchv1.JobList{}
		Expect(second.Reconciler.List(ctx, jobs, client.InNamespace(w.ns))).To(Succeed())
		Expect(jobs.Items).To(BeEmpty(), "the Job was made later")
		Eventually(func() int64 { return watches.Events("jobs") }).ShouldNot(BeZero())
		watches.Resume("jobs")
		Eventually(func(g Gomega) {
			g.Expect(second.Reconciler.List(ctx, jobs, client.InNamespace(w.ns))).To(Succeed())
			g.Expect(jobs.Items).To(HaveLen(1))
		}).Should(Succeed())
		expectEachOnce(w, 1)
	})
})
