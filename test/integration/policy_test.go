// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package integration_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/controllers"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
	"github.com/agenttask-dev/agenttask/test/harness"
)

// operatorAccount is the operator's user name as config/policy has it.
const operatorAccount = "system:serviceaccount:agenttask-system:agenttask-operator"

// Users who may do everything that no policy refuses.
var (
	adminUser     = "system:admin"
	operatorUser  = harness.OperatorUser
	kubeletUser   = "system:node:node"
	schedulerUser = "system:kube-scheduler"
	collectorUser = "system:serviceaccount:kube-system:generic-garbage-collector"
	podGCUser     = "system:serviceaccount:kube-system:pod-garbage-collector"
)

// readPolicies reads config/policy, with the operator's user instead of its account.
func readPolicies() ([]*admissionv1.ValidatingAdmissionPolicy, []*admissionv1.ValidatingAdmissionPolicyBinding) {
	GinkgoHelper()
	files, err := filepath.Glob("../../config/policy/*.yaml")
	Expect(err).NotTo(HaveOccurred())
	var policies []*admissionv1.ValidatingAdmissionPolicy
	var bindings []*admissionv1.ValidatingAdmissionPolicyBinding
	for _, file := range files {
		if filepath.Base(file) == "kustomization.yaml" {
			continue
		}
		text, err := os.ReadFile(file)
		Expect(err).NotTo(HaveOccurred())
		first, second, found := strings.Cut(strings.ReplaceAll(string(text), operatorAccount, operatorUser), "\n---\n")
		Expect(found).To(BeTrue(), "%s has one document", file)
		policy, binding := &admissionv1.ValidatingAdmissionPolicy{}, &admissionv1.ValidatingAdmissionPolicyBinding{}
		Expect(yaml.UnmarshalStrict([]byte(first), policy)).To(Succeed(), file)
		Expect(yaml.UnmarshalStrict([]byte(second), binding)).To(Succeed(), file)
		policies, bindings = append(policies, policy), append(bindings, binding)
	}
	return policies, bindings
}

// installPolicies puts config/policy in force in one namespace, until the end of the
// container or spec, and returns the policies' names there.
func installPolicies(ns string) []string {
	GinkgoHelper()
	policies, bindings := readPolicies()
	var names []string
	for i, policy := range policies {
		policy.Name += "-" + ns
		bindings[i].Name, bindings[i].Spec.PolicyName = bindings[i].Name+"-"+ns, policy.Name
		bindings[i].Spec.MatchResources = &admissionv1.MatchResources{
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: ns}},
		}
		for _, obj := range []client.Object{policy, bindings[i]} {
			Expect(cluster.Client.Create(ctx, obj)).To(Succeed())
			DeferCleanup(func() { Expect(client.IgnoreNotFound(cluster.Client.Delete(ctx, obj))).To(Succeed()) })
		}
		names = append(names, policy.Name)
	}
	return names
}

// actingAs is a configuration of a user with every right.
func actingAs(user string) *rest.Config {
	config := rest.CopyConfig(cluster.Config)
	config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:masters", "system:authenticated"}}
	return config
}

// as is a client of a user with every right.
func as(user string) client.Client {
	GinkgoHelper()
	c, err := client.New(actingAs(user), client.Options{Scheme: cluster.Scheme})
	Expect(err).NotTo(HaveOccurred())
	return c
}

// stepJob is a step's Job as the operator makes it, of a task that is not there.
func stepJob(ns, task string, once bool, template corev1.PodSpec) *batchv1.Job {
	owner := &v1alpha1.AgentTask{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: task, UID: types.UID("uid-of-" + task)}}
	owner.Spec.PodTemplate = &corev1.PodTemplateSpec{Spec: template}
	job := stepexec.Render(owner, stepexec.Attempt{
		Step: "pay",
		Record: &v1alpha1.ActionStatus{
			Attempt: 1, IdempotencyKey: "key", ActionHash: "hash",
			JobName: stepexec.JobName(task, owner.UID, "pay", v1alpha1.RoleMain, 1),
		},
		Run:     &v1alpha1.RunAction{Image: "tools.invalid/tools:1", Command: []string{"pay"}},
		Input:   []byte(`{"amount":1}`),
		Timeout: time.Minute, StartTimeout: time.Minute,
		Once: once,
	}, "runner.invalid/runner:1")
	job.OwnerReferences = nil // the garbage collector would miss the task
	return job
}

// stepPod makes a step's Job and its pod, as the operator does.
func stepPod(ns, task string, once bool, template corev1.PodSpec) *corev1.Pod {
	GinkgoHelper()
	job := stepJob(ns, task, once, template)
	Expect(as(operatorUser).Create(ctx, job)).To(Succeed())
	pod := stepexec.PodOf(job)
	Expect(as(operatorUser).Create(ctx, pod)).To(Succeed())
	return pod
}

// act is something that somebody does to a pod or Job: a JSON patch, of the object or of a
// subresource. Nothing is kept.
type act struct{ subresource, patch string }

func (a act) by(user string, obj client.Object) error {
	GinkgoHelper()
	c, patch := as(user), client.RawPatch(types.JSONPatchType, []byte(a.patch))
	target := obj.DeepCopyObject().(client.Object)
	if a.subresource == "" {
		return c.Patch(ctx, target, patch, client.DryRunAll)
	}
	return c.SubResource(a.subresource).Patch(ctx, target, patch, client.DryRunAll)
}

func remove(path string) string { return fmt.Sprintf(`[{"op":"remove","path":%q}]`, path) }

func set(path, value string) string {
	return fmt.Sprintf(`[{"op":"add","path":%q,"value":%q}]`, path, value)
}

const (
	gatePath      = "/spec/schedulingGates/0"
	finalizerPath = "/metadata/finalizers/0"
)

// labelPath and annotationPath are places of ours in an object's metadata, as JSON patches
// write them.
func labelPath(key string) string {
	return "/metadata/labels/" + strings.ReplaceAll(key, "/", "~1")
}

func annotationPath(key string) string {
	return "/metadata/annotations/" + strings.ReplaceAll(key, "/", "~1")
}

// sidecar is an init container that goes on running beside the step.
func sidecar() corev1.Container {
	return corev1.Container{Name: "sidecar", Image: "sidecar.invalid/sidecar:1", RestartPolicy: new(corev1.ContainerRestartPolicyAlways)}
}

func restartRules(action corev1.ContainerRestartRuleAction) []corev1.ContainerRestartRule {
	return []corev1.ContainerRestartRule{{
		Action:    action,
		ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{Operator: corev1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{1}},
	}}
}

// refusal is how a refused request's error reads, from the policy's name on.
func refusal(err error) string {
	GinkgoHelper()
	Expect(err).To(HaveOccurred())
	Expect(err.Error()).To(ContainSubstring("ValidatingAdmissionPolicy"))
	return err.Error()
}

var _ = Describe("The admission policies", Ordered, func() {
	var (
		w     *world
		names []string
		// fenced is a pod that nobody has let through the fence, plain a pod of nobody's.
		fenced, plain *corev1.Pod
		managed       *batchv1.Job
	)
	BeforeAll(func() {
		w = emptyWorld(func(*corev1.Pod) harness.Behaviour { return harness.Succeed("done") })
		names = installPolicies(w.ns)
		fenced = stepPod(w.ns, "order", true, corev1.PodSpec{InitContainers: []corev1.Container{sidecar()}})
		plain = waitingPod(w.ns, "plain")
		plain.Finalizers = []string{"example.com/hold"}
		w.create(plain)
		managed = w.job(fenced.Name)
		DeferCleanup(func() {
			for _, pod := range []*corev1.Pod{fenced, plain} {
				Expect(as(operatorUser).Patch(ctx, pod, client.RawPatch(types.JSONPatchType, []byte(remove(finalizerPath))))).To(Succeed())
			}
		})
		// The API server takes a moment to know each policy.
		decision := newDecision(w.ns, "nobody")
		Eventually(func(g Gomega) {
			g.Expect(act{patch: remove(gatePath)}.by(adminUser, fenced)).To(MatchError(ContainSubstring("agenttask-fence")))
			g.Expect(as(adminUser).Create(ctx, otherPod(fenced), client.DryRunAll)).To(MatchError(ContainSubstring("agenttask-step-pods")))
			g.Expect(writeStatus(adminUser, managed)).To(MatchError(ContainSubstring("agenttask-jobs")))
			g.Expect(as(adminUser).Create(ctx, decision.DeepCopy(), client.DryRunAll)).To(MatchError(ContainSubstring("agenttask-decisions")))
		}).Should(Succeed())
	})

	It("are read by the API server without a complaint", func() {
		Expect(names).To(HaveLen(len(controllers.Policies)))
		for _, name := range names {
			Eventually(func(g Gomega) {
				policy := &admissionv1.ValidatingAdmissionPolicy{}
				g.Expect(cluster.Client.Get(ctx, client.ObjectKey{Name: name}, policy)).To(Succeed())
				g.Expect(policy.Status.TypeChecking).NotTo(BeNil(), name)
				g.Expect(policy.Status.ObservedGeneration).To(Equal(policy.Generation), name)
				g.Expect(policy.Status.TypeChecking.ExpressionWarnings).To(BeEmpty(), name)
			}).Should(Succeed())
		}
	})

	DescribeTable("refuse what only the operator may do to a fenced pod, and let the operator",
		func(a act, message string) {
			Expect(refusal(a.by(adminUser, fenced))).To(And(
				ContainSubstring("only "+operatorUser+" may "+message), ContainSubstring("and not "+adminUser)))
			Expect(apierrors.IsForbidden(a.by(kubeletUser, fenced))).To(BeTrue(), "nor a kubelet")
			Expect(a.by(operatorUser, fenced)).To(Succeed())
		},
		Entry("removing its gate", act{"", remove(gatePath)}, "remove the scheduling gate agenttask.dev/fence"),
		Entry("removing its finalizer", act{"", remove(finalizerPath)}, "add or remove the finalizer agenttask.dev/fence"),
		Entry("removing its finalizer by a write of its status", act{"status", remove(finalizerPath)}, "add or remove the finalizer agenttask.dev/fence"),
	)

	It("let nobody but the operator hold a pod by its finalizer", func() {
		a := act{"", `[{"op":"add","path":"/metadata/finalizers/-","value":"agenttask.dev/fence"}]`}
		Expect(refusal(a.by(adminUser, plain))).To(ContainSubstring("may add or remove the finalizer agenttask.dev/fence"))
		Expect(a.by(operatorUser, plain)).To(Succeed())
	})

	DescribeTable("refuse, to everybody, a change of what a fenced pod does",
		func(a act, message string) {
			for _, user := range []string{adminUser, operatorUser} {
				Expect(refusal(a.by(user, fenced))).To(ContainSubstring(message))
			}
		},
		Entry("its image", act{"", set("/spec/containers/0/image", "other")}, "the images of a fenced pod cannot be changed"),
		Entry("an init container's image", act{"", set("/spec/initContainers/0/image", "other")}, "the images of a fenced pod cannot be changed"),
		Entry("a sidecar's image", act{"", set("/spec/initContainers/1/image", "other")}, "the images of a fenced pod cannot be changed"),
		Entry("its input", act{"", set(annotationPath(v1alpha1.AnnotationInput), `{"amount":2}`)}, "agenttask.dev/task-uid cannot be changed"),
		Entry("its task", act{"", set(annotationPath(v1alpha1.AnnotationTask), "another")}, "agenttask.dev/task-uid cannot be changed"),
		Entry("its task's UID, by a write of its status", act{"status", remove(annotationPath(v1alpha1.AnnotationTaskUID))}, "agenttask.dev/task-uid cannot be changed"),
		Entry("the label by which the operator sees it", act{"", remove(labelPath(v1alpha1.LabelManaged))}, "the label agenttask.dev/managed"),
		Entry("the value of that label", act{"status", set(labelPath(v1alpha1.LabelManaged), "false")}, "the label agenttask.dev/managed"),
	)

	DescribeTable("know a fenced pod by each of its marks alone",
		func(name string, mark func(*corev1.Pod)) {
			pod := waitingPod(w.ns, name)
			mark(pod)
			Expect(as(operatorUser).Create(ctx, pod)).To(Succeed())
			DeferCleanup(func() {
				pod.Finalizers = nil
				Expect(as(operatorUser).Update(ctx, pod)).To(Succeed())
			})
			image, release := act{"", set("/spec/containers/0/image", "other")}, act{"", remove("/metadata/finalizers")}
			Expect(refusal(image.by(adminUser, pod))).To(ContainSubstring("the images of a fenced pod"))
			if len(pod.Finalizers) > 0 {
				Expect(refusal(release.by(adminUser, pod))).To(ContainSubstring("remove the finalizer"))
			}
		},
		Entry("the gate", "gated", func(p *corev1.Pod) {
			p.Spec.SchedulingGates = append(p.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: v1alpha1.FenceGate})
		}),
		Entry("the finalizer", "held", func(p *corev1.Pod) { p.Finalizers = []string{v1alpha1.FenceFinalizer} }),
		Entry("the annotation", "released", func(p *corev1.Pod) { p.Annotations = map[string]string{v1alpha1.AnnotationTaskUID: "uid"} }),
	)

	DescribeTable("let others do to a fenced pod what they always do",
		func(user string, a act) { Expect(a.by(user, fenced)).To(Succeed()) },
		Entry("a kubelet says that it runs", kubeletUser, act{"status", set("/status/phase", "Running")}),
		Entry("the scheduler says that it fits nowhere", schedulerUser,
			act{"status", `[{"op":"add","path":"/status/conditions","value":[{"type":"PodScheduled","status":"False","reason":"Unschedulable"}]}]`}),
		Entry("the garbage collector of pods gives it up", podGCUser, act{"status", set("/status/phase", "Failed")}),
		Entry("the garbage collector orphans it", collectorUser, act{"", remove("/metadata/ownerReferences/0")}),
		Entry("the garbage collector waits for it", collectorUser, act{"", `[{"op":"add","path":"/metadata/finalizers/-","value":"foregroundDeletion"}]`}),
		Entry("a queue chooses nodes", "queue", act{"", `[{"op":"add","path":"/spec/nodeSelector","value":{"pool":"spot"}}]`}),
		Entry("people label it", "jane", act{"", set("/metadata/labels/mine", "yes")}),
		Entry("people annotate it", "jane", act{"", set("/metadata/annotations/mine", "yes")}),
		Entry("people look into it", "jane", act{"ephemeralcontainers", `[{"op":"add","path":"/spec/ephemeralContainers","value":[{"name":"look","image":"busybox"}]}]`}),
	)

	DescribeTable("leave pods of others alone",
		func(a act) { Expect(a.by("jane", plain)).To(Succeed()) },
		Entry("whose gate is removed", act{"", remove(gatePath)}),
		Entry("whose finalizer is removed", act{"", remove(finalizerPath)}),
		Entry("whose image is changed", act{"", set("/spec/containers/0/image", "other")}),
		Entry("whose status is written", act{"status", set("/status/phase", "Failed")}),
	)

	It("let a fenced pod live and die, its finalizer last", func() {
		pod := stepPod(w.ns, "live", true, corev1.PodSpec{})
		key, operator := client.ObjectKeyFromObject(pod), as(operatorUser)
		Expect(operator.Patch(ctx, pod, client.RawPatch(types.JSONPatchType, []byte(remove(gatePath))))).To(Succeed())
		Eventually(func(g Gomega) { // the kubelet binds it, starts it and says how it ended
			g.Expect(cluster.Client.Get(ctx, key, pod)).To(Succeed())
			g.Expect(pod.Status.Phase).To(Equal(corev1.PodSucceeded))
		}).Should(Succeed())
		Expect(cluster.Client.Delete(ctx, w.job(pod.Name), client.PropagationPolicy(metav1.DeletePropagationForeground))).To(Succeed())
		Eventually(func(g Gomega) { // the garbage collector asks for its deletion
			g.Expect(cluster.Client.Get(ctx, key, pod)).To(Succeed())
			g.Expect(pod.DeletionTimestamp).NotTo(BeNil())
		}).Should(Succeed())
		Expect(cluster.Client.Delete(ctx, pod, gracePeriod(0))).To(Succeed())
		Expect(cluster.Client.Get(ctx, key, pod)).To(Succeed(), "the finalizer holds it")

		finalizer := slices.Index(pod.Finalizers, v1alpha1.FenceFinalizer)
		Expect(finalizer).To(BeNumerically(">=", 0))
		Expect(operator.Patch(ctx, pod, client.RawPatch(types.JSONPatchType, []byte(remove(fmt.Sprintf("/metadata/finalizers/%d", finalizer)))))).To(Succeed())
		w.waitGone(pod)
	})

	DescribeTable("refuse a step's pod that somebody else makes",
		func(change func(*corev1.Pod)) {
			pod := ownPod(w.ns, "mine")
			change(pod)
			message := refusal(as(adminUser).Create(ctx, pod.DeepCopy(), client.DryRunAll))
			Expect(message).To(And(ContainSubstring("only "+operatorUser+" may make the pod of an AgentTask's step"),
				ContainSubstring("and not "+adminUser), ContainSubstring("for a pod of your own leave out")))
			Expect(as(operatorUser).Create(ctx, pod, client.DryRunAll)).To(Succeed())
		},
		Entry("with our label", func(p *corev1.Pod) { p.Labels = map[string]string{v1alpha1.LabelManaged: "true"} }),
		Entry("with the annotation of a fenced pod", func(p *corev1.Pod) { p.Annotations = map[string]string{v1alpha1.AnnotationTaskUID: "uid"} }),
		Entry("with the finalizer", func(p *corev1.Pod) { p.Finalizers = []string{v1alpha1.FenceFinalizer} }),
		Entry("with the gate", func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: v1alpha1.FenceGate}} }),
		Entry("for a Job of ours, without a label", func(p *corev1.Pod) { controlBy(p, "order-pay-abcdefgh27-1") }),
	)

	DescribeTable("let others make pods of their own",
		func(change func(*corev1.Pod)) {
			pod := ownPod(w.ns, "mine")
			change(pod)
			Expect(as("jane").Create(ctx, pod, client.DryRunAll)).To(Succeed())
		},
		Entry("without anything of ours", func(*corev1.Pod) {}),
		Entry("of which our label says no", func(p *corev1.Pod) { p.Labels = map[string]string{v1alpha1.LabelManaged: "false"} }),
		Entry("of a Job, under the Job's name", func(p *corev1.Pod) { controlBy(p, "nightly-backup") }),
		Entry("of a Job whose name looks like one of ours", func(p *corev1.Pod) {
			controlBy(p, "prod-daily-statistics-29384756")
			p.Name += "-x7k2p"
		}),
		Entry("that a Job of ours owns and does not control", func(p *corev1.Pod) {
			controlBy(p, "order-pay-abcdefgh27-1")
			p.OwnerReferences[0].Controller = nil
		}),
		Entry("that something of another kind controls", func(p *corev1.Pod) {
			controlBy(p, "order-pay-abcdefgh27-1")
			p.OwnerReferences[0].APIVersion, p.OwnerReferences[0].Kind = "apps/v1", "ReplicaSet"
		}),
		Entry("with restart rules", func(p *corev1.Pod) {
			p.Spec.RestartPolicy = corev1.RestartPolicyAlways
			p.Spec.Containers[0].RestartPolicy = new(corev1.ContainerRestartPolicyNever)
			p.Spec.Containers[0].RestartPolicyRules = restartRules(corev1.ContainerRestartRuleActionRestart)
		}),
	)

	It("refuse to give a pod that is there to a Job of ours", func() {
		pod := waitingPod(w.ns, "order-pay-abcdefgh27-1")
		w.create(pod)
		controlBy(pod, pod.Name)
		Expect(refusal(as(adminUser).Update(ctx, pod.DeepCopy(), client.DryRunAll))).To(And(
			ContainSubstring("only "+operatorUser+" may give the pod of an AgentTask's step to its Job"), ContainSubstring("and not "+adminUser)))
		Expect(as(operatorUser).Update(ctx, pod, client.DryRunAll)).To(Succeed())
	})

	It("let the built-in Job controller work, also on a Job whose name looks like one of ours", func() {
		job := plainJob(w.ns, "prod-daily-statistics-29384756")
		w.create(job)
		Eventually(func(g Gomega) {
			g.Expect(w.job(job.Name).Status.Succeeded).To(BeEquivalentTo(1))
		}).WithTimeout(later).Should(Succeed())
	})

	It("refuse pods of the built-in Job controller that are copies of a step", func() {
		job := stepJob(w.ns, "copy", true, corev1.PodSpec{})
		job.Name, job.Spec.ManagedBy = "by-hand", nil
		w.create(job)
		Eventually(func(g Gomega) {
			events := &corev1.EventList{}
			g.Expect(cluster.Client.List(ctx, events, client.InNamespace(w.ns))).To(Succeed())
			g.Expect(events.Items).To(ContainElement(HaveField("Message", ContainSubstring("may make the pod of an AgentTask's step"))))
		}).WithTimeout(later).Should(Succeed())
	})

	DescribeTable("let only the operator say how a step's Job ended",
		func(user string, allowed bool) {
			err := writeStatus(user, managed)
			if allowed {
				Expect(err).NotTo(HaveOccurred())
				return
			}
			Expect(apierrors.IsForbidden(err)).To(BeTrue())
			Expect(refusal(err)).To(And(
				ContainSubstring("only "+operatorUser+" may write the status of a Job with spec.managedBy agenttask.dev/operator"), ContainSubstring("and not "+user)))
		},
		Entry("an administrator", adminUser, false),
		Entry("the built-in Job controller", "system:serviceaccount:kube-system:job-controller", false),
		Entry("the operator", operatorUser, true),
	)

	DescribeTable("let others do to a step's Job what they always do",
		func(a act) { Expect(a.by("queue", managed)).To(Succeed()) },
		Entry("suspend it", act{"", `[{"op":"add","path":"/spec/suspend","value":true}]`}),
		Entry("label it", act{"", set("/metadata/labels/mine", "yes")}),
		Entry("take our label away", act{"", remove(labelPath(v1alpha1.LabelManaged))}),
	)

	It("leave the status of others' Jobs alone", func() {
		job := plainJob(w.ns, "others")
		job.Spec.Suspend = new(true)
		w.create(job)
		Expect(writeStatus("jane", job)).To(Succeed())
	})

	It("let a queue choose nodes for a suspended Job of a step, and not what the step is told", func() {
		job := stepJob(w.ns, "queued", false, corev1.PodSpec{})
		job.Spec.Suspend = new(true)
		Expect(as(operatorUser).Create(ctx, job)).To(Succeed())
		Expect(act{"", `[{"op":"add","path":"/spec/template/spec/nodeSelector","value":{"pool":"spot"}}]`}.by("queue", job)).To(Succeed())
		Expect(act{"", set("/spec/template/metadata/labels/queue", "fast")}.by("queue", job)).To(Succeed())
		input := act{"", set("/spec/template"+annotationPath(v1alpha1.AnnotationInput), `{"amount":2}`)}
		Expect(refusal(input.by("queue", job))).To(ContainSubstring("say what the step does; change the step in its AgentTask"))
	})

	DescribeTable("refuse containers that start again by themselves, whoever asks",
		func(change func(*corev1.PodSpec), what string) {
			job, operator := stepJob(w.ns, "again", false, corev1.PodSpec{InitContainers: []corev1.Container{sidecar()}}), as(operatorUser)
			job.UID = "some"
			Expect(operator.Create(ctx, job.DeepCopy(), client.DryRunAll)).To(Succeed(), "with a sidecar alone")
			Expect(operator.Create(ctx, stepexec.PodOf(job), client.DryRunAll)).To(Succeed(), "with a sidecar alone")
			change(&job.Spec.Template.Spec)
			Expect(refusal(operator.Create(ctx, job.DeepCopy(), client.DryRunAll))).To(And(
				ContainSubstring(what+" in spec.template.spec."), ContainSubstring("see steps[].retry")))
			Expect(refusal(operator.Create(ctx, stepexec.PodOf(job), client.DryRunAll))).To(And(
				ContainSubstring(what+" in spec."), ContainSubstring("see steps[].retry")))
		},
		Entry("a container's restartPolicy", func(s *corev1.PodSpec) { s.Containers[0].RestartPolicy = new(corev1.ContainerRestartPolicyOnFailure) }, "no restartPolicy nor restartPolicyRules"),
		Entry("a container's restartPolicyRules", func(s *corev1.PodSpec) {
			s.Containers[0].RestartPolicy = new(corev1.ContainerRestartPolicyNever)
			s.Containers[0].RestartPolicyRules = restartRules(corev1.ContainerRestartRuleActionRestart)
		}, "no restartPolicy nor restartPolicyRules"),
		Entry("an init container's restartPolicyRules", func(s *corev1.PodSpec) {
			s.InitContainers[0].RestartPolicy = new(corev1.ContainerRestartPolicyNever)
			s.InitContainers[0].RestartPolicyRules = restartRules(corev1.ContainerRestartRuleActionRestart)
		}, "no restartPolicyRules"),
	)

	It("refuse a step's pod that would start again by itself", func() {
		job := stepJob(w.ns, "always", false, corev1.PodSpec{})
		job.UID = "some"
		pod := stepexec.PodOf(job)
		pod.Spec.RestartPolicy = corev1.RestartPolicyOnFailure
		Expect(refusal(as(operatorUser).Create(ctx, pod, client.DryRunAll))).To(ContainSubstring("needs spec.restartPolicy Never"))
	})

	It("let a user decide in no other's name", func() {
		err := as("jane").Create(ctx, newDecision(w.ns, "john"), client.DryRunAll)
		Expect(refusal(err)).To(ContainSubstring(
			"spec.decidedBy must be the user who creates the decision, as kubectl auth whoami tells: set it to jane, or let john create it"))
		Expect(as("jane").Create(ctx, newDecision(w.ns, "jane"), client.DryRunAll)).To(Succeed())
	})
})

var _ = Describe("Under the admission policies", func() {
	It("the operator runs tasks, through the fence too", func() {
		w := emptyWorld(nil)
		installPolicies(w.ns)
		probe := ownPod(w.ns, "probe")
		probe.Labels = map[string]string{v1alpha1.LabelManaged: "true"}
		Eventually(func() error { return as(adminUser).Create(ctx, probe.DeepCopy(), client.DryRunAll) }).
			Should(MatchError(ContainSubstring("agenttask-step-pods")), "the API server takes a moment to know the policies")

		w.operator()
		w.create(w.make("task").Step("one").Step("two").Last(func(s *v1alpha1.Step) { s.Effect = v1alpha1.EffectOnce }).Step("three").Obj())
		task := w.reaches("task", v1alpha1.TaskSucceeded)
		for _, pod := range w.pods("task") {
			Eventually(func(g Gomega) {
				g.Expect(w.job(pod.Name).Status.Succeeded).To(BeEquivalentTo(1))
				g.Expect(cluster.Client.Get(ctx, client.ObjectKeyFromObject(&pod), &pod)).To(Succeed())
				g.Expect(stepexec.Held(&pod)).To(BeFalse())
			}).Should(Succeed())
		}
		writes, err := w.writes()
		Expect(err).NotTo(HaveOccurred())
		for _, write := range writes {
			Expect(write.Code).NotTo(BeElementOf(int32(403), int32(422)), harness.List(writes))
		}

		pod := w.pod("task", "two", 1, nil)
		Expect(string(pod.UID)).To(Equal(string(record(task, "two").PodUID)))
		Expect(refusal(act{"", set("/spec/containers/0/image", "other")}.by(adminUser, pod))).To(ContainSubstring("agenttask-fence"))
		Expect(refusal(writeStatus(adminUser, w.job(pod.Name)))).To(ContainSubstring("agenttask-jobs"))
	})
})

var _ = Describe("The manifests of the admission policies", func() {
	It("have the names that the operator looks for, and refuse what cannot be judged", func() {
		policies, bindings := readPolicies()
		var names []string
		for i, policy := range policies {
			names = append(names, policy.Name)
			Expect(bindings[i].Name).To(Equal(policy.Name))
			Expect(bindings[i].Spec.PolicyName).To(Equal(policy.Name))
			Expect(bindings[i].Spec.ValidationActions).To(ConsistOf(admissionv1.Deny))
			Expect(policy.Spec.FailurePolicy).To(HaveValue(Equal(admissionv1.Fail)))
		}
		Expect(names).To(ConsistOf(controllers.Policies))
	})

	It("are part of the install, and name the service account of its Deployment", func() {
		out, err := cluster.Kubectl(ctx, "kustomize", "../../config/default")
		Expect(err).NotTo(HaveOccurred())
		for _, name := range controllers.Policies {
			Expect(out).To(ContainSubstring("policyName: " + name))
		}
		deployment := &struct {
			Metadata struct{ Namespace string }
			Spec     struct {
				Template struct {
					Spec struct{ ServiceAccountName string }
				}
			}
		}{}
		text, err := os.ReadFile("../../config/manager/deployment.yaml")
		Expect(err).NotTo(HaveOccurred())
		Expect(yaml.Unmarshal(text, deployment)).To(Succeed())
		Expect(operatorAccount).To(Equal("system:serviceaccount:" + deployment.Metadata.Namespace + ":" + deployment.Spec.Template.Spec.ServiceAccountName))
		Expect(strings.Count(out, operatorAccount)).To(Equal(3), "once in each policy that asks who")
	})

	It("can be patched for another service account as their kustomization says", func() {
		text, err := os.ReadFile("../../config/policy/kustomization.yaml")
		Expect(err).NotTo(HaveOccurred())
		_, example, found := strings.Cut(string(text), "#   resources:")
		Expect(found).To(BeTrue())
		var overlay []string
		for line := range strings.Lines("#   resources:" + example) {
			if strings.HasPrefix(line, "#") {
				overlay = append(overlay, strings.TrimPrefix(strings.TrimRight(line, "\n"), "#   "))
			}
		}
		dir, err := filepath.EvalSymlinks(GinkgoT().TempDir())
		Expect(err).NotTo(HaveOccurred())
		base, err := filepath.Abs("../../config/default")
		Expect(err).NotTo(HaveOccurred())
		base, err = filepath.Rel(dir, base)
		Expect(err).NotTo(HaveOccurred())
		local := strings.ReplaceAll(strings.Join(overlay, "\n"), "github.com/agenttask-dev/agenttask/config/default", base)
		Expect(os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(local), 0o600)).To(Succeed())
		out, err := cluster.Kubectl(ctx, "kustomize", dir)
		Expect(err).NotTo(HaveOccurred())
		Expect(out).NotTo(ContainSubstring(operatorAccount))
		Expect(strings.Count(out, "system:serviceaccount:tasks:agenttask-operator")).To(Equal(3))
	})
})

// writeStatus writes, as a user, what may stand in the status of any Job. Nothing is kept.
func writeStatus(user string, job *batchv1.Job) error {
	GinkgoHelper()
	clientset, err := kubernetes.NewForConfig(actingAs(user))
	Expect(err).NotTo(HaveOccurred())
	_, err = clientset.BatchV1().Jobs(job.Namespace).Patch(ctx, job.Name, types.MergePatchType,
		[]byte(`{"status":{"ready":0}}`), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}, "status")
	return err
}

func ownPod(ns, name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name},
		Spec:       corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "x", Image: "x"}}},
	}
}

// waitingPod is one that somebody else's gate keeps from every node.
func waitingPod(ns, name string) *corev1.Pod {
	pod := ownPod(ns, name)
	pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/gate"}}
	return pod
}

// controlBy names a Job as the pod's controller, and the pod after it.
func controlBy(pod *corev1.Pod, job string) {
	pod.Name = job
	pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: job, UID: "uid-of-a-job", Controller: new(true)}}
}

// otherPod is a second pod like one of ours.
func otherPod(pod *corev1.Pod) *corev1.Pod {
	other := pod.DeepCopy()
	other.ObjectMeta = metav1.ObjectMeta{Namespace: pod.Namespace, Name: "other", Labels: pod.Labels}
	return other
}

func newDecision(ns, by string) *v1alpha1.AgentDecision {
	return &v1alpha1.AgentDecision{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "decision"},
		Spec: v1alpha1.AgentDecisionSpec{
			Task: "order", TaskUID: "uid-of-order", Step: "pay", Attempt: 1, ActionHash: "hash",
			Decision: v1alpha1.DecisionRetry, DecidedBy: by,
		},
	}
}
