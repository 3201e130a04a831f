// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package integration_test

import (
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/test/harness"
)

var _ = Describe("An output of more than 2 KiB", func() {
	large := map[string]any{"text": strings.Repeat("long ", 2000), "id": 42}
	configMap := func(w *world, name string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name}}
	}

	It("comes by the pod's log into a ConfigMap that the task owns, and later steps read it", func() {
		w := newWorld(harness.Plan(map[string][]harness.Behaviour{"one": {harness.SucceedLarge(large)}, "two": {harness.Succeed(nil)}}))
		w.create(w.make("task").Step("one").Step("two").Input(`{"id": "${steps['one'].output.id}", "all": "${steps['one'].output}"}`).Obj())
		task := w.reaches("task", v1alpha1.TaskSucceeded)
		r := record(task, "one")
		Expect(r.Output).To(BeNil())
		Expect(r.OutputRef.URI).To(Equal("configmap:" + r.JobName))
		Expect(r.OutputRef.Bytes).To(BeNumerically(">", 10000))
		Expect(r.OutputRef.SHA256).To(HaveLen(64))
		kept := configMap(w, r.JobName)
		Expect(cluster.Client.Get(ctx, client.ObjectKeyFromObject(kept), kept)).To(Succeed())
		Expect(metav1.IsControlledBy(kept, task)).To(BeTrue())
		Expect(kept.Data["output.json"]).To(HaveLen(int(r.OutputRef.Bytes)))
		Expect(harness.InputOf(w.pod("task", "two", 1, nil))).To(And(HavePrefix(`{"all":{"id":42,"text":"long `), HaveSuffix(`"id":42}`)))

		By("going with the task")
		Expect(cluster.Client.Delete(ctx, task.DeepCopy())).To(Succeed())
		w.waitGone(kept)
	})

	It("whose ConfigMap is gone fails the step that needs it, with a clear reason", func() {
		done := make(chan struct{})
		w := newWorld(harness.Plan(map[string][]harness.Behaviour{"one": {harness.SucceedLarge(large)}, "two": {harness.HangUntil(done)}}))
		w.create(w.make("task").Steps("one", "two").Step("three").Input(`{"id": "${steps['one'].output.id}"}`).Obj())
		w.runningPod("task", "two", 1)
		name := record(w.get("task"), "one").JobName
		Expect(cluster.Client.Delete(ctx, configMap(w, name))).To(Succeed())
		close(done)
		task := w.reaches("task", v1alpha1.TaskFailed)
		Expect(record(task, "three").Reason).To(Equal(v1alpha1.ReasonInputInvalid))
		Expect(record(task, "three").Message).To(And(ContainSubstring("output of step one"), ContainSubstring("ConfigMap "+name+", which kept it, is gone")))
	})

	DescribeTable("that cannot be read back whole is lost, and the step is tried again",
		func(spoil func(log string) string, message string) {
			spoiled := harness.SucceedLarge(large)
			spoiled.Log = spoil(spoiled.Log)
			w := newWorld(harness.Plan(map[string][]harness.Behaviour{"one": {spoiled, harness.SucceedLarge(large)}}), harness.ManagerOptions{Rand: func() float64 { return 0.999 }})
			w.create(w.make("task").Step("one").Retry(2, time.Second, time.Second).Obj())
			r := w.stepIs("task", "one", v1alpha1.StepRetrying, v1alpha1.ReasonOutputLost)
			Expect(r.Message).To(ContainSubstring(message))
			task := w.reaches("task", v1alpha1.TaskSucceeded)
			Expect(attempts(task)).To(Equal(map[string]int32{"one": 2}))
			Expect(record(task, "one").OutputRef.URI).To(HaveSuffix("-2"))
		},
		Entry("cut at its beginning", func(log string) string { _, rest, _ := strings.Cut(log, "data"); return rest }, "does not hold it whole"),
		Entry("cut at its end", func(log string) string { return log[:len(log)/2] }, "does not hold it whole"),
		Entry("with another line in place of one of its own", func(log string) string {
			lines := strings.Split(log, "\n")
			lines[2] = lines[2][:len(lines[2])-8] + "AAAAAAAA"
			return strings.Join(lines, "\n")
		}, "sha256"),
	)

	It("is kept once though the operator dies after the ConfigMap was made", func() {
		w := emptyWorld(harness.Plan(map[string][]harness.Behaviour{"one": {harness.SucceedLarge(large)}}))
		faults := harness.NewFaults(harness.Fault{At: 4, Kind: harness.DieAfter}) // status, Job, pod, ConfigMap
		m := w.operator(harness.ManagerOptions{Name: "first", Faults: faults})
		w.create(w.make("task").Steps("one", "two").Obj())
		Eventually(faults.Hit()).Should(BeClosed())
		Expect(m.Stop()).To(Succeed())
		Expect(w.created("configmaps")).To(HaveLen(1))
		w.operator(harness.ManagerOptions{Name: "second"})
		Expect(attempts(w.reaches("task", v1alpha1.TaskSucceeded))).To(Equal(map[string]int32{"one": 1, "two": 1}))
		Expect(w.created("configmaps")).To(HaveLen(1))
		expectEachOnce(w, 2)
	})

	It("whose ConfigMap a quota refuses waits for room, and is not run again", func() {
		w := newWorld(harness.Plan(map[string][]harness.Behaviour{"one": {harness.SucceedLarge(large)}}))
		quota := &corev1.ResourceQuota{
			ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "few"},
			Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourceConfigMaps: quantity("0")}},
		}
		w.create(quota)
		Eventually(func(g Gomega) {
			g.Expect(cluster.Client.Get(ctx, client.ObjectKeyFromObject(quota), quota)).To(Succeed())
			g.Expect(quota.Status.Hard).NotTo(BeEmpty())
		}).Should(Succeed())
		w.create(w.make("task").Step("one").Obj())
		Expect(w.waitsFor("task", v1alpha1.ReasonRefused)).To(And(ContainSubstring("ConfigMap"), ContainSubstring("exceeded quota: few")))
		Expect(cluster.Client.Delete(ctx, quota)).To(Succeed())
		Expect(attempts(w.reaches("task", v1alpha1.TaskSucceeded))).To(Equal(map[string]int32{"one": 1}))
	})

	// down answers 500 in place of the API server, to requests that match, while on is true.
	down := func(on *atomic.Bool, match func(r *http.Request) bool) harness.ManagerOptions {
		return harness.ManagerOptions{Wrap: harness.Each(func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
			if !on.Load() || !match(r) {
				return next.RoundTrip(r)
			}
			body := `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"InternalError","code":500,"message":"dial tcp 10.0.0.1:10250: no route to host"}`
			return &http.Response{StatusCode: 500, Status: "500 Internal Server Error", Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
				Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body)), ContentLength: int64(len(body)), Request: r}, nil
		})}
	}
	readsLog := func(r *http.Request) bool { return strings.HasSuffix(r.URL.Path, "/log") }

	It("whose log cannot be read just now is waited for, and the task says so; cancel ends it", func() {
		on := &atomic.Bool{}
		on.Store(true)
		w := newWorld(harness.Plan(map[string][]harness.Behaviour{"one": {harness.SucceedLarge(large)}}), down(on, readsLog))
		w.create(w.make("task").Steps("one", "two").Obj())
		Expect(w.waitsFor("task", v1alpha1.ReasonUnavailable)).To(And(HavePrefix("step one: "), ContainSubstring("log of pod"), ContainSubstring("no route to host")))
		task := w.get("task")
		Expect(task.Status.Phase).To(Equal(v1alpha1.TaskWaiting))
		Expect(kstatus(task)).To(Equal("InProgress"))
		Expect(attempts(task)).To(Equal(map[string]int32{"one": 1}))
		w.edit("task", func(s *v1alpha1.AgentTaskSpec) { s.Cancel = true })
		task = w.reaches("task", v1alpha1.TaskCancelled)
		Expect(record(task, "one").Phase).To(Equal(v1alpha1.StepCancelled))
	})

	It("whose log can be read again is kept, and the step is not run again", func() {
		on := &atomic.Bool{}
		on.Store(true)
		w := newWorld(harness.Plan(map[string][]harness.Behaviour{"one": {harness.SucceedLarge(large)}}), down(on, readsLog))
		w.create(w.make("task").Step("one").Obj())
		w.waitsFor("task", v1alpha1.ReasonUnavailable)
		on.Store(false)
		Expect(attempts(w.reaches("task", v1alpha1.TaskSucceeded))).To(Equal(map[string]int32{"one": 1}))
	})
})
