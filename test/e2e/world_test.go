// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/sample"
)

// history is all that has ever been seen in a namespace: a Job or pod that was made
// and deleted again counts, and so does a state that a task was in for a moment.
type history struct {
	mu     sync.Mutex
	states map[string][]string // of tasks, by name, as stateOf says them
	owners map[types.UID]types.UID
	kinds  map[types.UID]string
	broken error
}

// recordHistory begins to watch a namespace, until the end of the container or spec.
func recordHistory(namespace string) *history {
	GinkgoHelper()
	h := &history{states: map[string][]string{}, owners: map[types.UID]types.UID{}, kinds: map[types.UID]string{}}
	watching, stop := context.WithCancel(ctx)
	var ended sync.WaitGroup
	for _, list := range []client.ObjectList{&v1alpha1.AgentTaskList{}, &batchv1.JobList{}, &corev1.PodList{}} {
		w, err := api.Watch(watching, list, client.InNamespace(namespace))
		Expect(err).NotTo(HaveOccurred())
		ended.Go(func() {
			for event := range w.ResultChan() {
				h.note(event)
			}
			if watching.Err() == nil {
				h.note(watch.Event{Type: watch.Error})
			}
		})
	}
	DeferCleanup(func() {
		stop()
		ended.Wait()
	})
	return h
}

func (h *history) note(event watch.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch object := event.Object.(type) {
	case *v1alpha1.AgentTask:
		h.states[object.Name] = append(h.states[object.Name], stateOf(object))
	case *batchv1.Job:
		h.own(object, "Job")
	case *corev1.Pod:
		h.own(object, "Pod")
	default:
		h.broken = fmt.Errorf("a watch has ended: %v", event)
	}
}

func (h *history) own(object metav1.Object, kind string) {
	if owner := metav1.GetControllerOf(object); owner != nil {
		h.owners[object.GetUID()] = owner.UID
		h.kinds[object.GetUID()] = kind
	}
}

// stateOf is a task's state in short, for example
// "Waiting StepRetrying step=pay Retrying attempt=1 OutOfMemory".
func stateOf(task *v1alpha1.AgentTask) string {
	reason := ""
	if ready := meta.FindStatusCondition(task.Status.Conditions, v1alpha1.ConditionReady); ready != nil {
		reason = ready.Reason
	}
	record := lastRecord(task)
	return fmt.Sprintf("%s %s step=%s %s attempt=%d %s", task.Status.Phase, reason, record.Name, record.Phase, record.Attempt, record.Reason)
}

// statesOf are the states that a task has been in, in order.
func (h *history) statesOf(task string) []string {
	GinkgoHelper()
	h.mu.Lock()
	defer h.mu.Unlock()
	Expect(h.broken).NotTo(HaveOccurred())
	return slices.Compact(slices.Clone(h.states[task]))
}

// made is how many Jobs were ever made for a task, and how many pods for those.
func (h *history) made(task *v1alpha1.AgentTask) (jobs, pods int) {
	GinkgoHelper()
	h.mu.Lock()
	defer h.mu.Unlock()
	Expect(h.broken).NotTo(HaveOccurred())
	for uid, owner := range h.owners {
		switch {
		case h.kinds[uid] == "Job" && owner == task.UID:
			jobs++
		case h.kinds[uid] == "Pod" && h.owners[owner] == task.UID:
			pods++
		}
	}
	return jobs, pods
}

// startLedger starts the samples' ledger in a namespace.
func startLedger(namespace string) {
	GinkgoHelper()
	kubectl("-n", namespace, "apply", "-f", samples+"/ledger.yaml")
	kubectl("-n", namespace, "rollout", "status", "deployment/ledger", "--timeout="+rolloutTimeout.String())
}

// effectsOf are the effects that the ledger has of a task.
func effectsOf(namespace, task string) []sample.Entry {
	GinkgoHelper()
	raw, err := clientset.CoreV1().RESTClient().Get().
		AbsPath("/api/v1/namespaces", namespace, "services/ledger:http/proxy/effects").Param("task", task).DoRaw(ctx)
	Expect(err).NotTo(HaveOccurred())
	var effects []sample.Entry
	Expect(json.Unmarshal(raw, &effects)).To(Succeed(), "the ledger's answer: %s", raw)
	return effects
}

// expectEffectsOnce compares the ledger with a task that ran the research plan: each
// effect once, asked for once, under the step's key, in the plan's order.
func expectEffectsOnce(task *v1alpha1.AgentTask) {
	GinkgoHelper()
	type effect struct {
		Step, Kind, Key string
		Count           int64
	}
	var seen, want []effect
	effects := effectsOf(task.Namespace, task.Name)
	for _, e := range effects {
		seen = append(seen, effect{e.Step, e.Kind, e.Key, e.Count})
	}
	for _, record := range task.Status.Steps {
		if record.Name == sample.KindPublish || record.Name == sample.KindNotify {
			want = append(want, effect{record.Name, record.Name, record.IdempotencyKey, 1})
		}
	}
	Expect(seen).To(Equal(want), "the ledger's effects of task %s", task.Name)
	Expect(slices.IsSortedFunc(effects, func(a, b sample.Entry) int { return int(a.Seq - b.Seq) })).To(BeTrue())
}

// expectRanOnce checks that a task of the research plan is done and that each of its
// steps ran in one attempt, one Job, one pod and one container, one after the other.
func expectRanOnce(h *history, task *v1alpha1.AgentTask) {
	GinkgoHelper()
	Expect(task.Status.Progress).To(Equal("8/8"), "task %s", task.Name)
	Expect(task.Status.Steps).To(HaveLen(8))
	Expect(task.Status.Usage).To(HaveValue(Equal(v1alpha1.Usage{Attempts: 8})), "task %s", task.Name)
	var before *corev1.Pod
	for i, record := range task.Status.Steps {
		Expect(record.Name).To(Equal(task.Spec.Steps[i].Name))
		Expect(record.Phase).To(Equal(v1alpha1.StepSucceeded), "step %s of %s", record.Name, task.Name)
		Expect(record.Attempt).To(BeEquivalentTo(1), "attempts of step %s of %s", record.Name, task.Name)
		pod := &corev1.Pod{}
		Expect(api.Get(ctx, client.ObjectKey{Namespace: task.Namespace, Name: record.JobName}, pod)).To(Succeed())
		status := pod.Status.ContainerStatuses[0]
		Expect(status.RestartCount).To(BeZero())
		Expect(status.State.Terminated).NotTo(BeNil())
		if before != nil {
			Expect(pod.CreationTimestamp.Time).NotTo(BeTemporally("<", before.Status.ContainerStatuses[0].State.Terminated.FinishedAt.Time),
				"step %s of %s started before the step before it had ended", record.Name, task.Name)
		}
		before = pod
	}
	expectJobs(task, 8)
	jobs, pods := h.made(task)
	Expect([]int{jobs, pods}).To(Equal([]int{8, 8}), "Jobs and pods ever made for task %s", task.Name)
	expectEffectsOnce(task)
}

// expectJobs counts the Jobs of a task, and their pods.
func expectJobs(task *v1alpha1.AgentTask, count int) {
	GinkgoHelper()
	mine := metav1.ListOptions{LabelSelector: v1alpha1.LabelTask + "=" + task.Name}
	jobs, err := clientset.BatchV1().Jobs(task.Namespace).List(ctx, mine)
	Expect(err).NotTo(HaveOccurred())
	Expect(jobs.Items).To(HaveLen(count), "Jobs of task %s", task.Name)
	pods, err := clientset.CoreV1().Pods(task.Namespace).List(ctx, mine)
	Expect(err).NotTo(HaveOccurred())
	Expect(pods.Items).To(HaveLen(count), "pods of task %s", task.Name)
}
