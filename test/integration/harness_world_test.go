// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package integration_test

import (
	"context"
	"path/filepath"
	"slices"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/test/harness"
)

// plainStepPod is a pod of a plain Job's, with the fence's gate and finalizer, as the operator
// makes it for a step.
func plainStepPod(w *world, gated bool) (*batchv1.Job, *corev1.Pod) {
	GinkgoHelper()
	job := plainJob(w.ns, "job")
	job.Spec.Suspend = new(true)
	job.Spec.Template.Annotations = map[string]string{v1alpha1.AnnotationInput: "{}"}
	w.create(job)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: w.ns, Name: job.Name, Annotations: job.Spec.Template.Annotations,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(job, batchv1.SchemeGroupVersion.WithKind("Job"))},
		},
		Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{
			Name: "step", Image: "tools.invalid/tools:1",
			Env: []corev1.EnvVar{{Name: "AGENTTASK_STEP", Value: "one"}, {Name: "AGENTTASK_ATTEMPT", Value: "2"}, {Name: "AGENTTASK_IDEMPOTENCY_KEY", Value: "key"}},
		}}},
	}
	if gated {
		pod.Finalizers = []string{v1alpha1.FenceFinalizer}
		pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: v1alpha1.FenceGate}}
	}
	w.create(pod)
	return job, pod
}

// tells are the states that a record has of a kind, in a word each.
func tells(g Gomega, recorder *harness.Recorder, tell func(harness.Revision) string) []string {
	history, err := recorder.History(ctx)
	g.Expect(err).NotTo(HaveOccurred())
	var list []string
	for _, r := range history.Revisions {
		if word := tell(r); word != "" {
			list = append(list, word)
		}
	}
	return list
}

// within waits until the last change that was recorded is as check says.
func within(recorder *harness.Recorder, check func(last harness.Revision) bool) {
	GinkgoHelper()
	limited, cancel := context.WithTimeout(ctx, soon)
	defer cancel()
	Expect(recorder.Wait(limited, func(list []harness.Revision) bool {
		return len(list) > 0 && check(list[len(list)-1])
	})).To(Succeed())
}

var _ = Describe("The harness's history", func() {
	It("holds every state of every object in order, and every request", func() {
		w := emptyWorld(nil)
		recorder, err := cluster.Record(ctx, w.ns)
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(recorder.Close)
		w.operator()
		w.create(w.make("task").Step("one").Obj())
		within(recorder, func(last harness.Revision) bool { return last.Job != nil && last.Job.Status.Succeeded == 1 })
		task := w.get("task")
		Expect(cluster.Client.Delete(ctx, task)).To(Succeed())
		w.waitGone(task)

		var revision int64
		phases := tells(Default, recorder, func(r harness.Revision) string {
			Expect(r.RV).To(BeNumerically(">", revision))
			revision = r.RV
			Expect(r.Object().GetNamespace()).To(Equal(w.ns))
			switch {
			case r.Deleted && r.Task != nil:
				return "deleted"
			case r.Task != nil:
				return string(r.Task.Status.Phase) + "."
			}
			return ""
		})
		Expect(phases).To(HaveExactElements(".", "Running.", "Succeeded.", "deleted"))
		Expect(recorder.Revision()).To(BeNumerically(">=", revision))
		Eventually(func(g Gomega) {
			pods := tells(g, recorder, func(r harness.Revision) string {
				switch {
				case r.Pod == nil:
					return ""
				case r.Created:
					return "created"
				case r.Deleted:
					return "deleted"
				}
				return string(r.Pod.Status.Phase)
			})
			g.Expect(slices.Compact(pods)).To(HaveExactElements("created", "Pending", "Running", "Succeeded", "deleted"))
		}).Should(Succeed())

		history, err := recorder.History(ctx)
		Expect(err).NotTo(HaveOccurred())
		writes, err := w.writes()
		Expect(err).NotTo(HaveOccurred())
		var operators []harness.Request
		for _, r := range history.Requests {
			if harness.OperatorWrite(r) {
				operators = append(operators, r)
			}
		}
		Expect(operators).To(Equal(writes))
		Expect(string(operators[0].Body)).To(ContainSubstring(`"resourceVersion"`))
	})
})

var _ = Describe("The harness's kubelet", func() {
	It("leaves a gated pod alone, and starts it when the gate is gone", func() {
		w := emptyWorld(nil)
		recorder, err := cluster.Record(ctx, w.ns)
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(recorder.Close)
		_, pod := plainStepPod(w, true)
		Consistently(func() []harness.ContainerStart { return w.kubelet.Starts(w.ns) }).Should(BeEmpty())
		patch := client.RawPatch("application/json-patch+json", []byte(`[{"op":"remove","path":"/spec/schedulingGates"}]`))
		Expect(cluster.Client.Patch(ctx, pod, patch)).To(Succeed())
		within(recorder, func(last harness.Revision) bool {
			return last.Pod != nil && last.Pod.Status.Phase == corev1.PodSucceeded
		})
		starts := w.kubelet.Starts(w.ns)
		Expect(starts).To(HaveLen(1))
		Expect(starts[0]).To(And(HaveField("UID", pod.UID), HaveField("Step", "one"), HaveField("Attempt", 2), HaveField("Key", "key"), HaveField("Fenced", true)))
	})

	It("counts no start of a pod that ends instantly or finds no node", func() {
		w := emptyWorld(harness.Instantly(harness.Plan(nil)))
		_, pod := plainStepPod(w, false)
		Eventually(func(g Gomega) {
			g.Expect(cluster.Client.Get(ctx, client.ObjectKeyFromObject(pod), pod)).To(Succeed())
			g.Expect(pod.Status.Phase).To(Equal(corev1.PodSucceeded))
		}).Should(Succeed())
		Expect(w.kubelet.Starts(w.ns)).To(BeEmpty())
	})

	It("plays all namespaces, each by its own script, in one write a pod where it is quick", func() {
		kubelet, err := cluster.StartKubelet(harness.KubeletOptions{Node: "quick", Quick: true, Script: func(*corev1.Pod) harness.Behaviour { return harness.NoNode() }})
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func() { Expect(kubelet.Stop()).To(Succeed()) })
		ns, err := cluster.NewNamespace(ctx, "quick", nil)
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func() { Expect(cluster.DeleteNamespace(ctx, ns)).To(Succeed()) })
		recorder, err := cluster.Record(ctx, ns)
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(recorder.Close)
		kubelet.Play(ns, func(*corev1.Pod) harness.Behaviour { return harness.Fail(3, "no") })
		plainStepPod(&world{ns: ns}, false)
		within(recorder, func(last harness.Revision) bool { return last.Pod != nil && last.Pod.Status.Phase == corev1.PodFailed })
		Expect(tells(Default, recorder, func(r harness.Revision) string {
			if r.Pod == nil {
				return ""
			}
			return string(r.Pod.Status.Phase) + " on " + r.Pod.Spec.NodeName
		})).To(HaveExactElements("Pending on ", "Pending on quick", "Failed on quick"))
		Expect(kubelet.Starts(ns)).To(HaveLen(1))
		kubelet.Forget(ns)
		Expect(kubelet.Starts(ns)).To(BeEmpty())
	})

	It("ends a fenced pod that is deleted, whose object stays until the finalizer goes", func() {
		w := emptyWorld(func(*corev1.Pod) harness.Behaviour { return harness.Hang() })
		_, pod := plainStepPod(w, true)
		patch := client.RawPatch("application/json-patch+json", []byte(`[{"op":"remove","path":"/spec/schedulingGates"}]`))
		Expect(cluster.Client.Patch(ctx, pod, patch)).To(Succeed())
		Eventually(func() []harness.ContainerStart { return w.kubelet.Starts(w.ns) }).Should(HaveLen(1))
		key := client.ObjectKeyFromObject(pod)
		Expect(cluster.Outsider().DeletePod(ctx, key, 30)).To(Succeed())
		Eventually(func(g Gomega) {
			g.Expect(cluster.Client.Get(ctx, key, pod)).To(Succeed())
			g.Expect(pod.Status.Phase).To(Equal(corev1.PodFailed))
			g.Expect(*pod.DeletionGracePeriodSeconds).To(BeZero())
		}).Should(Succeed())
		Expect(cluster.Outsider().StripAndDeletePod(ctx, key)).To(Succeed())
		w.waitGone(pod)
	})
})

var _ = Describe("The harness's outsider", func() {
	outsider := func() *harness.Outsider { return cluster.Outsider() }
	hanging := func() (*world, client.ObjectKey) {
		GinkgoHelper()
		w := emptyWorld(func(*corev1.Pod) harness.Behaviour { return harness.Hang() })
		job, pod := plainStepPod(w, false)
		Eventually(func(g Gomega) {
			g.Expect(cluster.Client.Get(ctx, client.ObjectKeyFromObject(pod), pod)).To(Succeed())
			g.Expect(pod.Status.Phase).To(Equal(corev1.PodRunning))
		}).Should(Succeed())
		return w, client.ObjectKeyFromObject(job)
	}
	gone := func(key client.ObjectKey) {
		GinkgoHelper()
		Eventually(func() bool { return apierrors.IsNotFound(cluster.Client.Get(ctx, key, &corev1.Pod{})) }).Should(BeTrue())
	}

	for name, do := range map[string]func(client.ObjectKey) error{
		"deletes a Job in the background": func(key client.ObjectKey) error {
			return outsider().DeleteJob(ctx, key, metav1.DeletePropagationBackground)
		},
		"deletes a Job in the foreground": func(key client.ObjectKey) error {
			return outsider().DeleteJob(ctx, key, metav1.DeletePropagationForeground)
		},
		"deletes a pod":          func(key client.ObjectKey) error { return outsider().DeletePod(ctx, key, 30) },
		"deletes a pod by force": func(key client.ObjectKey) error { return outsider().DeletePod(ctx, key, 0) },
		"evicts a pod":           func(key client.ObjectKey) error { return outsider().Evict(ctx, key) },
		"collects a pod":         func(key client.ObjectKey) error { return outsider().CollectPod(ctx, key) },
	} {
		It(name, func() {
			_, key := hanging()
			Expect(do(key)).To(Succeed())
			gone(key)
		})
	}

	It("collects a pod as the pod garbage collector does", func() {
		w := emptyWorld(func(*corev1.Pod) harness.Behaviour { return harness.Hang() })
		_, pod := plainStepPod(w, true)
		key := client.ObjectKeyFromObject(pod)
		Expect(outsider().CollectPod(ctx, key)).To(Succeed())
		Expect(cluster.Client.Get(ctx, key, pod)).To(Succeed())
		Expect(pod.Status.Phase).To(Equal(corev1.PodFailed))
		Expect(pod.Status.Conditions).To(ContainElement(And(HaveField("Type", corev1.DisruptionTarget), HaveField("Reason", "DeletionByPodGC"))))
		Expect(pod.DeletionTimestamp).NotTo(BeNil())
		Expect(outsider().StripAndDeletePod(ctx, key)).To(Succeed())
		gone(key)
	})

	It("takes a node away, which stays away", func() {
		w, key := hanging()
		Expect(outsider().DeleteNode(ctx, w.kubelet.Node)).To(Succeed())
		Expect(cluster.Client.Get(ctx, client.ObjectKey{Name: w.kubelet.Node}, &corev1.Node{})).To(MatchError(apierrors.IsNotFound, "IsNotFound"))
		Expect(cluster.Client.Get(ctx, key, &corev1.Pod{})).To(Succeed())
	})

	It("suspends and resumes a Job", func() {
		w := emptyWorld(func(*corev1.Pod) harness.Behaviour { return harness.NoNode() })
		w.create(plainJob(w.ns, "job"))
		key := client.ObjectKey{Namespace: w.ns, Name: "job"}
		Expect(outsider().SuspendJob(ctx, key, true)).To(Succeed())
		Expect(*w.job("job").Spec.Suspend).To(BeTrue())
		Expect(outsider().SuspendJob(ctx, key, false)).To(Succeed())
		Expect(*w.job("job").Spec.Suspend).To(BeFalse())
	})

	It("makes Jobs and pods of others, and one more pod of a Job", func() {
		w := emptyWorld(nil)
		stranger := client.ObjectKey{Namespace: w.ns, Name: "stranger"}
		Expect(outsider().StrangerJob(ctx, stranger)).To(Succeed())
		Expect(outsider().StrangerPod(ctx, stranger)).To(Succeed())
		Expect(metav1.GetControllerOf(w.job("stranger"))).To(BeNil())
		job, _ := plainStepPod(w, true)
		Expect(outsider().SecondPod(ctx, client.ObjectKeyFromObject(job), "second")).To(Succeed())
		second := &corev1.Pod{}
		Expect(cluster.Client.Get(ctx, client.ObjectKey{Namespace: w.ns, Name: "second"}, second)).To(Succeed())
		Expect(metav1.GetControllerOf(second).UID).To(Equal(job.UID))
		Expect(second.Spec.SchedulingGates).To(BeEmpty())
	})

	It("changes a pod's image", func() {
		_, key := hanging()
		Expect(outsider().PatchImage(ctx, key, "other.invalid/other:2")).To(Succeed())
		pod := &corev1.Pod{}
		Expect(cluster.Client.Get(ctx, key, pod)).To(Succeed())
		Expect(pod.Spec.Containers[0].Image).To(Equal("other.invalid/other:2"))
	})

	It("makes a task again", func() {
		w := emptyWorld(nil)
		w.create(w.make("task").Steps("one", "two").Obj())
		old := w.get("task")
		task, err := outsider().RecreateTask(ctx, client.ObjectKeyFromObject(old))
		Expect(err).NotTo(HaveOccurred())
		Expect(task.UID).NotTo(Equal(old.UID))
		Expect(task.Spec).To(Equal(old.Spec))
	})

	It("says that a container was started again", func() {
		_, key := hanging()
		pod := &corev1.Pod{}
		Expect(outsider().StartContainerAgain(ctx, key, false)).To(Succeed())
		Expect(cluster.Client.Get(ctx, key, pod)).To(Succeed())
		Expect(pod.Status.ContainerStatuses[0]).To(And(HaveField("RestartCount", int32(1)), HaveField("State.Running", Not(BeNil())), HaveField("LastTerminationState.Terminated", Not(BeNil()))))
		Expect(outsider().StartContainerAgain(ctx, key, true)).To(Succeed())
		Expect(cluster.Client.Get(ctx, key, pod)).To(Succeed())
		Expect(pod.Status.Phase).To(Equal(corev1.PodFailed))
		Expect(pod.Status.ContainerStatuses[0].State.Terminated.Message).To(ContainSubstring(v1alpha1.ReasonStartedTwice))
		Expect(outsider().StartContainerAgain(ctx, key, false)).To(Succeed(), "a pod that has ended is left alone")
		Expect(cluster.Client.Get(ctx, key, pod)).To(Succeed())
		Expect(pod.Status.Phase).To(Equal(corev1.PodFailed))
	})
})

var _ = Describe("The harness's policies", func() {
	It("are those of config/policy, and come and go", func() {
		w := emptyWorld(nil)
		_, pod := plainStepPod(w, true)
		Expect(cluster.InstallPolicies(ctx)).To(Succeed())
		DeferCleanup(func() { Expect(cluster.RemovePolicies(ctx)).To(Succeed()) })
		patch := client.RawPatch("application/json-patch+json", []byte(`[{"op":"remove","path":"/spec/schedulingGates"}]`))
		Expect(cluster.Client.Patch(ctx, pod, patch)).To(MatchError(ContainSubstring("denied request")))
		Expect(cluster.RemovePolicies(ctx)).To(Succeed())
		Expect(cluster.Client.Patch(ctx, pod, patch)).To(Succeed())
	})
})

var _ = Describe("A restore of etcd", func() {
	It("goes back to the snapshot, with a raised revision, and all goes on", func() {
		other, err := harness.Start(harness.Options{})
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func() { Expect(other.Stop()).To(Succeed()) })
		ns, err := other.NewNamespace(ctx, "restore", nil)
		Expect(err).NotTo(HaveOccurred())
		recorder, err := other.Record(ctx, ns)
		Expect(err).NotTo(HaveOccurred())
		note := func(name, text string) error {
			obj := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}, Data: map[string]string{"note": text}}
			if err := other.Client.Create(ctx, obj); !apierrors.IsAlreadyExists(err) {
				return err
			}
			return other.Client.Update(ctx, obj)
		}
		Expect(note("a", "kept")).To(Succeed())
		path := filepath.Join(GinkgoT().TempDir(), "snapshot.db")
		Expect(other.Snapshot(ctx, path)).To(Succeed())
		Expect(note("a", "undone")).To(Succeed())
		Expect(note("b", "undone")).To(Succeed())
		before, err := other.Revision(ctx)
		Expect(err).NotTo(HaveOccurred())

		Expect(other.Restore(ctx, path)).To(Succeed())
		after, err := other.Revision(ctx)
		Expect(err).NotTo(HaveOccurred())
		Expect(after).To(HaveLen(len("1000000000")), "%s follows %s", after, before)
		list := &corev1.ConfigMapList{}
		Expect(other.Client.List(ctx, list, client.InNamespace(ns))).To(Succeed())
		Expect(list.Items).To(ContainElement(HaveField("Data", HaveKeyWithValue("note", "kept"))))
		Expect(list.Items).NotTo(ContainElement(HaveField("Data", HaveKeyWithValue("note", "undone"))))
		Expect(note("a", "later")).To(Succeed())
		Expect(tells(Default, recorder, func(r harness.Revision) string {
			if r.ConfigMap == nil {
				return ""
			}
			return r.ConfigMap.Name + " " + r.ConfigMap.Data["note"]
		})).To(HaveExactElements("a kept", "a undone", "b undone", "a later"))
		history, err := recorder.History(ctx)
		Expect(err).NotTo(HaveOccurred())
		Expect(history.Restores).To(HaveLen(1))

		By("the controllers work on")
		_, err = other.NewNamespace(ctx, "later", nil)
		Expect(err).NotTo(HaveOccurred())
	})
})
