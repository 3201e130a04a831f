// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
)

const (
	// kills is how often the operator is killed, inFlight how many tasks run meanwhile.
	kills    = 20
	inFlight = 3
	// longestLife is the most that an operator lives before it is killed: about two
	// steps, so that some lives end before the caches are filled and others span a
	// step's end and the next one's start.
	longestLife = 4 * time.Second
	// shortWork makes a plan of eight steps last 10 to 20 seconds.
	shortWork = 300 * time.Millisecond

	leaseName     = "operator.agenttask.dev"
	leaseDuration = 15 * time.Second
)

var _ = Describe("An operator that dies", Ordered, func() {
	var namespace string
	var seen *history
	var build operatorBuild

	BeforeAll(func() {
		build = buildOperator()
		withoutDeployedOperator()
		namespace = makeNamespace("crash")
		seen = recordHistory(namespace)
		startLedger(namespace)
	})

	It("by SIGKILL at 20 random moments does nothing twice and leaves nothing out", func() {
		random := seededRandom()
		var tasks []string
		for kill := 1; kill <= kills; kill++ {
			if countActive(namespace) < inFlight { // one at a time, so that they are at different steps
				tasks = append(tasks, researchTask(namespace, fmt.Sprintf("killed-%d", len(tasks)+1), shortWork).Create())
			}
			operator := build.start(fmt.Sprintf("killed %d", kill))
			life := time.Duration(random.Int64N(int64(longestLife)))
			select {
			case <-operator.exited:
				Fail("the operator ended by itself")
			case <-time.After(life):
			}
			operator.kill()
			GinkgoWriter.Printf("kill %2d after %4d ms: %s\n", kill, life.Milliseconds(), progressIn(namespace))
		}

		build.start("that lives")
		for _, name := range tasks {
			expectRanOnce(seen, awaitEnd(namespace, name, v1alpha1.TaskSucceeded))
		}
	})

	It("leaves its lease to run out, and the other replica takes over", func() {
		leader, standby := startPair(build)
		name := researchTask(namespace, "leader-killed", shortWork).Create()
		awaitProgress(namespace, name, 3)
		leader.kill()
		was := leaseHolder(Default)

		expectTakeover(was)
		expectRanOnce(seen, awaitEnd(namespace, name, v1alpha1.TaskSucceeded))
		Expect(standby.exited).NotTo(BeClosed())
	})

	It("and starts again under its own name leads at once, before its lease has run out", func() {
		mine := []string{"--leader-elect", "--leader-elect-namespace=" + operatorNamespace, "--leader-elect-identity=the-same"}
		first := build.start("that is killed", mine...)
		Eventually(first.printed).WithTimeout(2 * leaseDuration).Should(ContainSubstring("Starting workers"))
		Expect(leaseHolder(Default)).To(Equal("the-same"))
		first.kill()
		again := build.start("that starts again", mine...)
		const atOnce = leaseDuration / 2
		Eventually(again.printed).WithTimeout(atOnce).Should(ContainSubstring("Starting workers"))
	})

	It("only seemingly, ends when it wakes and finds that it leads no more", func() {
		leader, standby := startPair(build)
		const work = time.Second // so that the task still runs when the old leader wakes
		name := researchTask(namespace, "leader-frozen", work).Create()
		awaitProgress(namespace, name, 2)
		leader.freeze()
		was, frozenAt := leaseHolder(Default), progressOf(readTask(Default, namespace, name))

		expectTakeover(was)
		awaitProgress(namespace, name, frozenAt+2)
		leader.thaw()
		Eventually(leader.exited).WithTimeout(leaseDuration).Should(BeClosed())
		Expect(leader.cmd.ProcessState.ExitCode()).To(Equal(1), "an operator that has lost its lease says so and fails")
		Expect(leader.printed()).To(ContainSubstring("leader election lost"))
		expectRanOnce(seen, awaitEnd(namespace, name, v1alpha1.TaskSucceeded))
		Expect(standby.exited).NotTo(BeClosed())
	})

	It("leaves tasks of namespaces alone that it does not watch", func() {
		other := makeNamespace("unwatched")
		build.start("of one namespace", "--watch-namespaces="+namespace)
		greet := shellStep("greet", `echo '"hello"'`).Stdout()
		ignored := makeTask(other, "ignored").Steps(greet).Create()
		awaitEnd(namespace, makeTask(namespace, "watched").Steps(greet).Create(), v1alpha1.TaskSucceeded)
		Expect(readTask(Default, other, ignored).Status).To(Equal(v1alpha1.AgentTaskStatus{}))
	})
})

// The operator as it is deployed, its pod deleted while a step runs.
var _ = Describe("A deployed operator", Ordered, func() {
	It("goes on with a task where its deleted pod left it", func() {
		namespace := makeNamespace("moved")
		seen := recordHistory(namespace)
		startLedger(namespace)
		name := researchTask(namespace, "moved", shortWork).Create()
		awaitProgress(namespace, name, 3)
		step := readTask(Default, namespace, name).Status.CurrentStep
		kubectl("-n", operatorNamespace, "delete", "pod", "-l", operatorSelector, "--wait=false")
		GinkgoWriter.Printf("the operator's pod was deleted while step %s ran\n", step)
		expectRanOnce(seen, awaitEnd(namespace, name, v1alpha1.TaskSucceeded))
		awaitOperator()
	})

	It("hands over between two replicas when the leader's pod is deleted", func() {
		namespace := makeNamespace("replicas")
		seen := recordHistory(namespace)
		startLedger(namespace)
		DeferCleanup(scaleOperator, 1)
		scaleOperator(2)
		name := researchTask(namespace, "replicas", shortWork).Create()
		awaitProgress(namespace, name, 2)
		was := leaseHolder(Default)
		kubectl("-n", operatorNamespace, "delete", "pod", podOfHolder(was), "--grace-period=0", "--force")
		expectTakeover(was)
		expectRanOnce(seen, awaitEnd(namespace, name, v1alpha1.TaskSucceeded))
	})
})

// seededRandom is a random source whose seed is printed and can be set.
func seededRandom() *rand.Rand {
	GinkgoHelper()
	seed := rand.Uint64()
	if text := os.Getenv("AGENTTASK_E2E_SEED"); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		Expect(err).NotTo(HaveOccurred(), "AGENTTASK_E2E_SEED")
	}
	GinkgoWriter.Printf("AGENTTASK_E2E_SEED=%d\n", seed)
	AddReportEntry("seed", fmt.Sprintf("AGENTTASK_E2E_SEED=%d", seed), ReportEntryVisibilityAlways)
	return rand.New(rand.NewPCG(seed, seed))
}

func tasksIn(namespace string) []v1alpha1.AgentTask {
	GinkgoHelper()
	list := &v1alpha1.AgentTaskList{}
	Expect(api.List(ctx, list, client.InNamespace(namespace))).To(Succeed())
	return list.Items
}

// countActive is how many tasks of a namespace have not ended.
func countActive(namespace string) int {
	GinkgoHelper()
	active := 0
	for _, task := range tasksIn(namespace) {
		if !task.Status.Phase.Finished() {
			active++
		}
	}
	return active
}

// progressIn says how far the tasks of a namespace are that have not ended.
func progressIn(namespace string) string {
	GinkgoHelper()
	var all []string
	for _, task := range tasksIn(namespace) {
		if !task.Status.Phase.Finished() {
			all = append(all, fmt.Sprintf("%s %s %s", task.Name, task.Status.Progress, task.Status.CurrentStep))
		}
	}
	return strings.Join(all, ", ")
}

// progressOf is how many steps of a task are done.
func progressOf(task *v1alpha1.AgentTask) int {
	done, _, _ := strings.Cut(task.Status.Progress, "/")
	count, _ := strconv.Atoi(done) // nothing is done before the first checkpoint
	return count
}

// awaitProgress waits until so many steps of a task are done and it still runs.
func awaitProgress(namespace, name string, steps int) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		task := readTask(g, namespace, name)
		g.Expect(progressOf(task)).To(BeNumerically(">=", steps), "steps done of task %s, at %s", name, task.Status.CurrentStep)
		g.Expect(task.Status.Phase.Finished()).To(BeFalse(), "task %s has ended", name)
	}).WithTimeout(planTimeout).Should(Succeed())
}

// startPair starts an operator that leads, and another that stands by.
func startPair(build operatorBuild) (leader, standby *operator) {
	GinkgoHelper()
	before := leaseHolder(Default)
	elect := []string{"--leader-elect", "--leader-elect-namespace=" + operatorNamespace}
	leader = build.start("that leads", elect...)
	Eventually(func(g Gomega) {
		g.Expect(leaseHolder(g)).NotTo(Or(BeEmpty(), Equal(before)))
	}).WithTimeout(2 * leaseDuration).Should(Succeed())
	standby = build.start("that stands by", elect...)
	return leader, standby
}

// leaseHolder is who leads, or who did when the Lease was last written.
func leaseHolder(g Gomega) string {
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: operatorNamespace, Name: leaseName}}
	g.Expect(client.IgnoreNotFound(api.Get(ctx, client.ObjectKeyFromObject(lease), lease))).To(Succeed())
	return ptr.Deref(lease.Spec.HolderIdentity, "")
}

// podOfHolder is the operator's pod that holds the Lease under its UID.
func podOfHolder(holder string) string {
	GinkgoHelper()
	pods, err := clientset.CoreV1().Pods(operatorNamespace).List(ctx, metav1.ListOptions{LabelSelector: operatorSelector})
	Expect(err).NotTo(HaveOccurred())
	for _, pod := range pods.Items {
		if string(pod.UID) == holder {
			return pod.Name
		}
	}
	Fail("no pod of the operator has the UID " + holder)
	return ""
}

// expectTakeover waits until another than before leads.
func expectTakeover(before string) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		g.Expect(leaseHolder(g)).NotTo(Or(BeEmpty(), Equal(before)))
	}).WithTimeout(3 * leaseDuration).Should(Succeed())
}
