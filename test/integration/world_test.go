// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package integration_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/test/harness"
)

// world is a namespace with a kubelet of its own. It is gone when the spec ends.
type world struct {
	ns      string
	kubelet *harness.Kubelet
	mark    harness.Mark
}

// emptyWorld has no operator.
func emptyWorld(script harness.Script, labels ...map[string]string) *world {
	GinkgoHelper()
	var wanted map[string]string
	if len(labels) > 0 {
		wanted = labels[0]
	}
	ns, err := cluster.NewNamespace(ctx, "spec", wanted)
	Expect(err).NotTo(HaveOccurred())
	w := &world{ns: ns}
	w.mark, err = cluster.Audit.Mark()
	Expect(err).NotTo(HaveOccurred())
	w.kubelet, err = cluster.StartKubelet(harness.KubeletOptions{Namespace: ns, Script: script})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() {
		if CurrentSpecReport().Failed() {
			w.report()
		}
		Expect(errors.Join(cluster.DeleteNamespace(ctx, ns), w.kubelet.Stop())).To(Succeed())
	})
	return w
}

// newWorld has an operator.
func newWorld(script harness.Script, options ...harness.ManagerOptions) *world {
	GinkgoHelper()
	w := emptyWorld(script)
	w.operator(options...)
	return w
}

// operator starts an operator for the world, which the spec may stop.
func (w *world) operator(options ...harness.ManagerOptions) *harness.Manager {
	GinkgoHelper()
	o := harness.ManagerOptions{}
	if len(options) > 0 {
		o = options[0]
	}
	o.Namespaces, o.Logger = []string{w.ns}, logger.WithValues("namespace", w.ns, "manager", o.Name)
	m, err := cluster.StartManager(o)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() { Expect(m.Stop()).To(Succeed()) })
	return m
}

// report tells what there is, for a spec that failed.
func (w *world) report() {
	out, _ := cluster.Kubectl(ctx, "-n", w.ns, "get", "agenttasks,jobs,pods,events", "-o", "wide")
	AddReportEntry("objects", out)
	out, _ = cluster.Kubectl(ctx, "-n", w.ns, "get", "agenttasks", "-o", "yaml")
	AddReportEntry("tasks", out)
	if list, err := w.writes(); err == nil {
		AddReportEntry("the operator's writes", harness.List(list))
	}
}

func (w *world) make(name string) *harness.Task { return harness.MakeTask(w.ns, name) }

func (w *world) create(obj client.Object) {
	GinkgoHelper()
	Expect(cluster.Client.Create(ctx, obj)).To(Succeed())
}

func (w *world) get(name string) *v1alpha1.AgentTask {
	GinkgoHelper()
	task := &v1alpha1.AgentTask{}
	Expect(cluster.Client.Get(ctx, client.ObjectKey{Namespace: w.ns, Name: name}, task)).To(Succeed())
	return task
}

// edit changes a task's spec, whoever else writes it at the time.
func (w *world) edit(name string, change func(*v1alpha1.AgentTaskSpec)) {
	GinkgoHelper()
	edit(w.ns, name, &v1alpha1.AgentTask{}, func(task *v1alpha1.AgentTask) { change(&task.Spec) })
}

func edit[T client.Object](ns, name string, obj T, change func(T)) {
	GinkgoHelper()
	Eventually(func() error {
		if err := cluster.Client.Get(ctx, client.ObjectKey{Namespace: ns, Name: name}, obj); err != nil {
			return err
		}
		change(obj)
		return cluster.Client.Update(ctx, obj)
	}).Should(Succeed())
}

// eventually waits until a task is as check says, and returns it.
func (w *world) eventually(name string, check func(g Gomega, task *v1alpha1.AgentTask)) *v1alpha1.AgentTask {
	GinkgoHelper()
	task := &v1alpha1.AgentTask{}
	Eventually(func(g Gomega) {
		task = &v1alpha1.AgentTask{}
		g.Expect(cluster.Client.Get(ctx, client.ObjectKey{Namespace: w.ns, Name: name}, task)).To(Succeed())
		check(g, task)
	}).Should(Succeed())
	return task
}

// reaches waits for a task's phase.
func (w *world) reaches(name string, phase v1alpha1.TaskPhase) *v1alpha1.AgentTask {
	GinkgoHelper()
	return w.eventually(name, func(g Gomega, task *v1alpha1.AgentTask) {
		g.Expect(task.Status.Phase).To(Equal(phase), "%s", summary(task))
	})
}

// stepIs waits for the record of a step to have a phase and a reason.
func (w *world) stepIs(name, step string, phase v1alpha1.StepPhase, reason string) *v1alpha1.StepStatus {
	GinkgoHelper()
	task := w.eventually(name, func(g Gomega, task *v1alpha1.AgentTask) {
		r := record(task, step)
		g.Expect(r).NotTo(BeNil(), "%s", summary(task))
		g.Expect(r.Phase).To(Equal(phase), "%s", summary(task))
		g.Expect(r.Reason).To(Equal(reason), "%s", summary(task))
	})
	return record(task, step)
}

// waitsFor waits until the task's Ready condition has a reason, and returns its message.
func (w *world) waitsFor(name, reason string) string {
	GinkgoHelper()
	task := w.eventually(name, func(g Gomega, task *v1alpha1.AgentTask) {
		g.Expect(condition(task, v1alpha1.ConditionReady).Reason).To(Equal(reason), "%s", summary(task))
	})
	return condition(task, v1alpha1.ConditionReady).Message
}

// pod waits for the pod of a step's attempt.
func (w *world) pod(name, step string, attempt int, check func(g Gomega, pod *corev1.Pod)) *corev1.Pod {
	GinkgoHelper()
	var found *corev1.Pod
	Eventually(func(g Gomega) {
		list := w.pods(name)
		found = nil
		for i := range list {
			if harness.StepOf(&list[i]) == step && harness.AttemptOf(&list[i]) == attempt {
				found = &list[i]
			}
		}
		g.Expect(found).NotTo(BeNil(), "no pod of step %s attempt %d", step, attempt)
		if check != nil {
			check(g, found)
		}
	}).Should(Succeed())
	return found
}

// runningPod waits until the pod of a step's attempt runs.
func (w *world) runningPod(name, step string, attempt int) *corev1.Pod {
	GinkgoHelper()
	return w.pod(name, step, attempt, func(g Gomega, pod *corev1.Pod) {
		g.Expect(pod.Status.Phase).To(Equal(corev1.PodRunning))
	})
}

func (w *world) pods(name string) []corev1.Pod {
	GinkgoHelper()
	list := &corev1.PodList{}
	Expect(cluster.Client.List(ctx, list, client.InNamespace(w.ns))).To(Succeed())
	var kept []corev1.Pod
	for _, pod := range list.Items {
		if strings.HasPrefix(pod.Name, name+"-") {
			kept = append(kept, pod)
		}
	}
	return kept
}

// allPodsEnd waits until every pod that there is has ended. It may be called outside of a
// spec's goroutine.
func (w *world) allPodsEnd() {
	_ = wait.PollUntilContextTimeout(ctx, 5*time.Millisecond, 10*time.Second, true, func(ctx context.Context) (bool, error) {
		list := &corev1.PodList{}
		if err := cluster.Client.List(ctx, list, client.InNamespace(w.ns)); err != nil {
			return false, nil
		}
		return !slices.ContainsFunc(list.Items, func(pod corev1.Pod) bool { return pod.Status.Phase != corev1.PodSucceeded }), nil
	})
}

func (w *world) jobs() []batchv1.Job {
	GinkgoHelper()
	list := &batchv1.JobList{}
	Expect(cluster.Client.List(ctx, list, client.InNamespace(w.ns))).To(Succeed())
	return list.Items
}

func (w *world) job(name string) *batchv1.Job {
	GinkgoHelper()
	job := &batchv1.Job{}
	Expect(cluster.Client.Get(ctx, client.ObjectKey{Namespace: w.ns, Name: name}, job)).To(Succeed())
	return job
}

// waitGone waits until an object does not exist any more.
func (w *world) waitGone(obj client.Object) {
	GinkgoHelper()
	uid := obj.GetUID()
	Eventually(func(g Gomega) {
		err := cluster.Client.Get(ctx, client.ObjectKeyFromObject(obj), obj)
		if err == nil && obj.GetUID() != uid {
			return
		}
		g.Expect(apierrors.IsNotFound(err)).To(BeTrue(), "%s is still there", obj.GetName())
	}).WithTimeout(later).Should(Succeed())
}

// writes are those of the world's operators, events apart.
func (w *world) writes() ([]harness.Request, error) {
	return cluster.Audit.Since(ctx, w.mark, harness.InNamespace(w.ns), harness.OperatorWrite)
}

// created are the names of what operators made of a kind, "jobs" or "pods", in order.
func (w *world) created(resource string) []string {
	GinkgoHelper()
	list, err := w.writes()
	Expect(err).NotTo(HaveOccurred())
	var names []string
	for _, r := range list {
		if r.Is("create", resource) && !r.Rejected() {
			names = append(names, r.Name)
		}
	}
	return names
}

func record(task *v1alpha1.AgentTask, step string) *v1alpha1.StepStatus {
	for i := range task.Status.Steps {
		if task.Status.Steps[i].Name == step {
			return &task.Status.Steps[i]
		}
	}
	return nil
}

func condition(task *v1alpha1.AgentTask, kind string) metav1.Condition {
	if c := meta.FindStatusCondition(task.Status.Conditions, kind); c != nil {
		return *c
	}
	return metav1.Condition{}
}

// summary tells a task's state in a few lines, for failures.
func summary(task *v1alpha1.AgentTask) string {
	lines := []string{fmt.Sprintf("%s is %s: %s: %s", task.Name, task.Status.Phase,
		condition(task, v1alpha1.ConditionReady).Reason, condition(task, v1alpha1.ConditionReady).Message)}
	for _, r := range task.Status.Steps {
		lines = append(lines, fmt.Sprintf("  %s %s attempt %d %s %s", r.Name, r.Phase, r.Attempt, r.Reason, r.Message))
	}
	return strings.Join(lines, "\n")
}

// attempts are how many attempts each step of a task took.
func attempts(task *v1alpha1.AgentTask) map[string]int32 {
	out := map[string]int32{}
	for _, r := range task.Status.Steps {
		out[r.Name] = r.Attempt
	}
	return out
}

// kstatus is what tools such as Flux and Argo CD make of a task: the rules of
// sigs.k8s.io/cli-utils for a kind that they do not know.
func kstatus(task *v1alpha1.AgentTask) string {
	is := func(kind string, value metav1.ConditionStatus) bool { return condition(task, kind).Status == value }
	switch {
	case task.DeletionTimestamp != nil:
		return "Terminating"
	case task.Status.ObservedGeneration != task.Generation:
		return "InProgress"
	case is(v1alpha1.ConditionReconciling, metav1.ConditionTrue):
		return "InProgress"
	case is(v1alpha1.ConditionStalled, metav1.ConditionTrue):
		return "Failed"
	case is(v1alpha1.ConditionReady, metav1.ConditionFalse), is(v1alpha1.ConditionReady, metav1.ConditionUnknown):
		return "InProgress"
	}
	return "Current"
}

// editPodStatus changes a pod's status.
func editPodStatus(pod *corev1.Pod, change func(*corev1.Pod)) {
	GinkgoHelper()
	Eventually(func() error {
		if err := cluster.Client.Get(ctx, client.ObjectKeyFromObject(pod), pod); err != nil {
			return err
		}
		change(pod)
		return cluster.Client.Status().Update(ctx, pod)
	}).Should(Succeed())
}

func gracePeriod(seconds int64) client.DeleteOption { return client.GracePeriodSeconds(seconds) }

func quantity(text string) resource.Quantity { return resource.MustParse(text) }
