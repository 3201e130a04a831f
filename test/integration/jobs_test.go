// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package integration_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/test/harness"
)

var _ = Describe("A step's Job", func() {
	It("is ours: the built-in controller leaves it alone, and kubectl understands it", func() {
		done := make(chan struct{})
		w := newWorld(harness.Plan(map[string][]harness.Behaviour{"one": {harness.HangUntil(done)}, "two": {harness.Fail(1, "broken")}}))
		w.create(w.make("task").Steps("one", "two").Obj())
		pod := w.runningPod("task", "one", 1)
		job := w.job(pod.Name)
		Expect(*job.Spec.ManagedBy).To(Equal(v1alpha1.ManagedBy))
		Expect(metav1.IsControlledBy(pod, job)).To(BeTrue())
		Expect(metav1.IsControlledBy(job, w.get("task"))).To(BeTrue())
		Expect(job.Labels).To(And(HaveKeyWithValue(v1alpha1.LabelTask, "task"), HaveKeyWithValue(v1alpha1.LabelStep, "one"), HaveKeyWithValue(v1alpha1.LabelAttempt, "1")))

		By("having an untouched status while it runs")
		Consistently(func(g Gomega) {
			g.Expect(w.job(pod.Name).Status).To(Equal(batchv1.JobStatus{}))
			g.Expect(w.pods("task")).To(HaveLen(1))
		}).Should(Succeed())

		By("ending as Complete and as Failed")
		close(done)
		task := w.reaches("task", v1alpha1.TaskFailed)
		one, two := record(task, "one").JobName, record(task, "two").JobName
		_, err := cluster.Kubectl(ctx, "-n", w.ns, "wait", "--for=condition=complete", "job/"+one, "--timeout=20s")
		Expect(err).NotTo(HaveOccurred())
		_, err = cluster.Kubectl(ctx, "-n", w.ns, "wait", "--for=condition=failed", "job/"+two, "--timeout=20s")
		Expect(err).NotTo(HaveOccurred())
		out, err := cluster.Kubectl(ctx, "-n", w.ns, "get", "jobs")
		Expect(err).NotTo(HaveOccurred())
		Expect(out).To(MatchRegexp(one + ` +Complete +1/1 `))
		Expect(out).To(MatchRegexp(two + ` +Failed +0/1 `))
		Expect(w.job(two).Status.Conditions).To(ContainElement(And(
			HaveField("Type", batchv1.JobFailed), HaveField("Reason", v1alpha1.ReasonExitCode), HaveField("Message", "broken"))))
	})

	It("gives its log to kubectl logs", func() {
		b := harness.Succeed(1)
		b.Log = "hello from the program\n"
		w := newWorld(harness.Plan(map[string][]harness.Behaviour{"one": {b}}))
		w.create(w.make("task").Step("one").Obj())
		task := w.reaches("task", v1alpha1.TaskSucceeded)
		out, err := cluster.Kubectl(ctx, "-n", w.ns, "logs", "job/"+record(task, "one").JobName, "-c", "step")
		Expect(err).NotTo(HaveOccurred())
		Expect(out).To(Equal("hello from the program\n"))
	})

	DescribeTable("stays or goes by jobHistory",
		func(history v1alpha1.JobHistory, want ...string) {
			w := newWorld(harness.Plan(map[string][]harness.Behaviour{"two": {harness.Fail(1, "broken")}}))
			w.create(w.make("task").JobHistory(history).Steps("one", "two").Obj())
			w.reaches("task", v1alpha1.TaskFailed)
			Eventually(func(g Gomega) {
				steps := []string{}
				for _, job := range w.jobs() {
					steps = append(steps, job.Labels[v1alpha1.LabelStep])
				}
				g.Expect(steps).To(ConsistOf(want))
				pods := []string{}
				for _, pod := range w.pods("task") {
					pods = append(pods, pod.Labels[v1alpha1.LabelStep])
				}
				g.Expect(pods).To(ConsistOf(want))
			}).Should(Succeed())
		},
		Entry("All keeps each", v1alpha1.JobHistoryAll, "one", "two"),
		Entry("Failed keeps what did not succeed", v1alpha1.JobHistoryFailed, "two"),
		Entry("None keeps none", v1alpha1.JobHistoryNone),
	)

	It("may be held by a queue, and then runs from the template as the queue left it", func() {
		w := newWorld(nil, harness.ManagerOptions{Wrap: harness.Each(suspendJobs)})
		w.create(w.make("task").Step("one").Obj())
		message := w.waitsFor("task", v1alpha1.ReasonJobSuspended)
		Expect(message).To(ContainSubstring("spec.suspend"))
		task := w.reaches("task", v1alpha1.TaskWaiting)
		Expect(kstatus(task)).To(Equal("InProgress"))
		Consistently(func() []corev1.Pod { return w.pods("task") }).Should(BeEmpty())

		edit(w.ns, record(task, "one").JobName, &batchv1.Job{}, func(job *batchv1.Job) {
			job.Spec.Template.Labels["queue"] = "gold"
			job.Spec.Template.Spec.NodeSelector = map[string]string{"pool": "a"}
			job.Spec.Suspend = new(false)
		})
		task = w.reaches("task", v1alpha1.TaskSucceeded)
		Expect(attempts(task)).To(Equal(map[string]int32{"one": 1}))
		pod := w.pod("task", "one", 1, nil)
		Expect(pod.Spec.NodeSelector).To(HaveKeyWithValue("pool", "a"))
		Expect(pod.Labels).To(HaveKeyWithValue("queue", "gold"))
	})

	It("that is suspended while it runs is stopped, and tried again", func() {
		w := newWorld(harness.Plan(map[string][]harness.Behaviour{"one": {harness.Hang(), harness.Succeed(2)}}))
		w.create(w.make("task").Step("one").RetryFast(2).Obj())
		pod := w.runningPod("task", "one", 1)
		edit(w.ns, pod.Name, &batchv1.Job{}, func(job *batchv1.Job) { job.Spec.Suspend = new(true) })
		task := w.reaches("task", v1alpha1.TaskSucceeded)
		Expect(attempts(task)).To(Equal(map[string]int32{"one": 2}))
		w.waitGone(pod)
		Expect(w.job(pod.Name).Status.Conditions).To(ContainElement(And(
			HaveField("Type", batchv1.JobFailed), HaveField("Reason", v1alpha1.ReasonJobSuspended))))
	})

	It("on a server that drops managedBy is taken away again, and the task says what is needed", func() {
		drop := changeJobs(func(job *batchv1.Job) {
			job.Spec.ManagedBy = nil
			job.Spec.Suspend = new(true) // so that the built-in controller does not run it in the meantime
		})
		w := newWorld(nil, harness.ManagerOptions{Wrap: harness.Each(drop)})
		w.create(w.make("task").Step("one").Obj())
		Expect(w.waitsFor("task", v1alpha1.ReasonManagedByUnsupported)).To(ContainSubstring("Kubernetes 1.35 or later is needed"))
		Expect(kstatus(w.get("task"))).To(Equal("Failed"))
		Eventually(func() []batchv1.Job { return w.jobs() }).Should(BeEmpty())
		Expect(w.created("pods")).To(BeEmpty())
		Consistently(func() []string { return w.created("jobs") }).WithTimeout(time.Second).Should(HaveLen(1))
	})

	It("starts from the task's pod template, and its pod is restricted by default", func() {
		w := newWorld(nil)
		w.create(w.make("task").Step("one").PodTemplate(corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"team": "refunds"}, Annotations: map[string]string{"note": "x"}},
			Spec: corev1.PodSpec{
				PriorityClassName: "system-cluster-critical", TerminationGracePeriodSeconds: new(int64(5)),
				Containers: []corev1.Container{{Name: "step", Env: []corev1.EnvVar{{Name: "A", Value: "b"}}}},
			},
		}).Obj())
		w.reaches("task", v1alpha1.TaskSucceeded)
		pod := w.pod("task", "one", 1, nil)
		Expect(pod.Labels).To(HaveKeyWithValue("team", "refunds"))
		Expect(pod.Annotations).To(HaveKeyWithValue("note", "x"))
		Expect(pod.Spec.PriorityClassName).To(Equal("system-cluster-critical"))
		Expect(pod.Spec.Containers).To(HaveLen(1))
		Expect(pod.Spec.Containers[0].Env).To(ContainElement(corev1.EnvVar{Name: "A", Value: "b"}))
		Expect(pod.Spec.RestartPolicy).To(Equal(corev1.RestartPolicyNever))
		Expect(*pod.Spec.AutomountServiceAccountToken).To(BeFalse())
		Expect(pod.Spec.Volumes).To(HaveLen(2), "no token is mounted")
		Expect(pod.Spec.InitContainers[0].Image).To(Equal(harness.RunnerImage))
	})
})

// suspendJobs changes each Job that is made to a suspended one, as Kueue's webhook does.
var suspendJobs = changeJobs(func(job *batchv1.Job) { job.Spec.Suspend = new(true) })

// changeJobs changes each Job on the way to the API server, which makes it.
func changeJobs(change func(*batchv1.Job)) func(*http.Request, http.RoundTripper) (*http.Response, error) {
	return func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
		return changeJob(r, next, change)
	}
}

func changeJob(r *http.Request, next http.RoundTripper, change func(*batchv1.Job)) (*http.Response, error) {
	if r.Method != http.MethodPost || !strings.HasSuffix(r.URL.Path, "/jobs") {
		return next.RoundTrip(r)
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	job, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	if err != nil {
		return nil, err
	}
	change(job.(*batchv1.Job))
	return next.RoundTrip(withBody(r, job))
}

// withBody is a request with another object, as JSON.
func withBody(r *http.Request, obj runtime.Object) *http.Request {
	obj.GetObjectKind().SetGroupVersionKind(batchv1.SchemeGroupVersion.WithKind("Job"))
	text, err := json.Marshal(obj)
	if err != nil {
		panic(err)
	}
	r = r.Clone(r.Context())
	r.Body, r.ContentLength, r.GetBody = io.NopCloser(bytes.NewReader(text)), int64(len(text)), nil
	r.Header.Set("Content-Type", "application/json")
	return r
}
