// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package stepexec

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
)

func once(a *attempt) { a.once = true }

func TestPodOfAStepThatMustNotRunTwice(t *testing.T) {
	plain, fenced := makeAttempt(nil).render().Spec.Template, makeAttempt(once).render().Spec.Template
	if diff := cmp.Diff([]string{"agenttask.dev/fence"}, fenced.Finalizers); diff != "" {
		t.Errorf("finalizers (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]corev1.PodSchedulingGate{{Name: "agenttask.dev/fence"}}, fenced.Spec.SchedulingGates); diff != "" {
		t.Errorf("gates (-want +got):\n%s", diff)
	}
	want := merged(plain.Annotations, map[string]string{
		"agenttask.dev/task-uid": string(uid), "agenttask.dev/task": "orders",
		"cluster-autoscaler.kubernetes.io/safe-to-evict": "false", "karpenter.sh/do-not-disrupt": "true",
	})
	if diff := cmp.Diff(want, fenced.Annotations); diff != "" {
		t.Errorf("annotations (-want +got):\n%s", diff)
	}
	command := []string{RunnerPath, "exec", "--timeout=1h0m0s", "--grace=30s", "--once", "--", "refund", "--now"}
	if diff := cmp.Diff(command, fenced.Spec.Containers[0].Command); diff != "" {
		t.Errorf("command (-want +got):\n%s", diff)
	}

	// Nothing else is different: what a step may do does not depend on its effect.
	fenced.Annotations, fenced.Finalizers, fenced.Spec.SchedulingGates = plain.Annotations, nil, nil
	fenced.Spec.Containers[0].Command = slices.DeleteFunc(fenced.Spec.Containers[0].Command, func(arg string) bool { return arg == "--once" })
	if diff := cmp.Diff(plain, fenced); diff != "" {
		t.Errorf("the rest (-plain +fenced):\n%s", diff)
	}
	if len(plain.Finalizers)+len(plain.Spec.SchedulingGates) != 0 || plain.Annotations[v1alpha1.AnnotationTaskUID] != "" {
		t.Errorf("a step that may run twice is fenced: %+v", plain.ObjectMeta)
	}
}

func TestFenceOnWhatTheTemplateSays(t *testing.T) {
	pod := makeAttempt(func(a *attempt) {
		a.once = true
		a.task.Spec.PodTemplate = &corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{
				Finalizers: []string{"example.com/audit", v1alpha1.FenceFinalizer},
				Annotations: map[string]string{
					"karpenter.sh/do-not-disrupt": "false", "note": "kept", v1alpha1.AnnotationTaskUID: "stolen", v1alpha1.AnnotationTask: "stolen"}},
			Spec: corev1.PodSpec{SchedulingGates: []corev1.PodSchedulingGate{{Name: "example.com/queue"}}},
		}
	}).render().Spec.Template
	want := map[string]string{
		"karpenter.sh/do-not-disrupt": "false", "cluster-autoscaler.kubernetes.io/safe-to-evict": "false", "note": "kept",
		v1alpha1.AnnotationTaskUID: string(uid), v1alpha1.AnnotationTask: "orders",
	}
	for key, value := range want {
		if pod.Annotations[key] != value {
			t.Errorf("annotation %s is %q, want %q", key, pod.Annotations[key], value)
		}
	}
	if diff := cmp.Diff([]string{"example.com/audit", v1alpha1.FenceFinalizer}, pod.Finalizers); diff != "" {
		t.Errorf("finalizers (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]corev1.PodSchedulingGate{{Name: "example.com/queue"}, {Name: v1alpha1.FenceGate}}, pod.Spec.SchedulingGates); diff != "" {
		t.Errorf("gates (-want +got):\n%s", diff)
	}
}

// A webhook or a person may have changed the Job's template since it was made.
func TestPodIsFencedWhateverBecameOfItsJobsTemplate(t *testing.T) {
	a := makeAttempt(once)
	intact := PodOf(a.render())
	Fence(intact, a.task)
	if diff := cmp.Diff(PodOf(a.render()), intact); diff != "" {
		t.Errorf("a pod that is fenced is changed (-before +after):\n%s", diff)
	}

	stripped := a.render()
	stripped.Spec.Template.ObjectMeta = metav1.ObjectMeta{}
	stripped.Spec.Template.Spec.SchedulingGates = nil
	pod := PodOf(stripped)
	if Gated(pod) || Held(pod) {
		t.Fatal("it was fenced all the same")
	}
	before := stripped.DeepCopy()
	Fence(pod, a.task)
	if !Gated(pod) || !Held(pod) || pod.Labels[v1alpha1.LabelManaged] != "true" || pod.Annotations[v1alpha1.AnnotationTaskUID] != string(uid) || pod.Annotations[v1alpha1.AnnotationTask] != "orders" {
		t.Errorf("fenced again: %+v with gates %v", pod.ObjectMeta, pod.Spec.SchedulingGates)
	}
	if diff := cmp.Diff(before, stripped); diff != "" {
		t.Errorf("the Job was changed:\n%s", diff)
	}
}

func TestGatedAndHeldSayWhichGateAndFinalizer(t *testing.T) {
	pod := &corev1.Pod{}
	pod.Finalizers = []string{"example.com/audit"}
	pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/queue"}}
	if Gated(pod) || Held(pod) {
		t.Error("somebody else's gate or finalizer is taken for the fence's")
	}
	Fence(pod, makeAttempt(nil).task)
	if !Gated(pod) || !Held(pod) || len(pod.Finalizers) != 2 || len(pod.Spec.SchedulingGates) != 2 {
		t.Errorf("finalizers %v, gates %v", pod.Finalizers, pod.Spec.SchedulingGates)
	}
}

// request is an attempt that sends a request, with two secrets and a bundle to trust.
func request(change func(*attempt)) attempt {
	return makeAttempt(func(a *attempt) {
		a.step.Run = nil
		a.step.HTTP = &v1alpha1.HTTPAction{Method: "POST", URL: "https://api.test/refunds",
			Headers: []v1alpha1.HTTPHeader{
				{Name: "Authorization", SecretKeyRef: secret("token")}, {Name: "X-Trace", Value: "plain"}, {Name: "X-Tenant", SecretKeyRef: secret("tenant")}},
			TLS: &v1alpha1.HTTPTLS{CA: &v1alpha1.CASource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "trust"}, Key: "ca.pem"}}}}
		a.input = []byte(`{"method":"POST"}`)
		if change != nil {
			change(a)
		}
	})
}

func secret(key string) *corev1.SecretKeySelector {
	return &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "api"}, Key: key}
}

func TestPodOfARequest(t *testing.T) {
	template := request(nil).render().Spec.Template
	c := template.Spec.Containers[0]
	if c.Name != ContainerStep || c.Image != "runner:1" || c.ImagePullPolicy != corev1.PullIfNotPresent || len(c.Args) != 0 {
		t.Errorf("container %+v", c)
	}
	if diff := cmp.Diff([]string{RunnerPath, "http"}, c.Command); diff != "" {
		t.Errorf("command (-want +got):\n%s", diff)
	}
	want := []corev1.EnvVar{
		{Name: "AGENTTASK_HTTP_HEADER_0", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: secret("token")}},
		{Name: "AGENTTASK_HTTP_HEADER_2", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: secret("tenant")}},
		{Name: "AGENTTASK_HTTP_CA", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "trust"}, Key: "ca.pem"}}},
	}
	if diff := cmp.Diff(want, c.Env[7:]); diff != "" {
		t.Errorf("environment behind the contract's (-want +got):\n%s", diff)
	}
	if c.Env[0].Name != EnvKey || template.Annotations[v1alpha1.AnnotationInput] != `{"method":"POST"}` {
		t.Errorf("the first variable is %s, the input %s", c.Env[0].Name, template.Annotations[v1alpha1.AnnotationInput])
	}
	spec := template.Spec
	if problems := restricted(&spec); len(problems) > 0 {
		t.Errorf("the pod is not restricted: %v", problems)
	}
	if got := len(template.Spec.InitContainers); got != 1 || template.Spec.InitContainers[0].Image != "runner:1" {
		t.Errorf("%d init containers", got)
	}

	plain := request(func(a *attempt) { a.step.HTTP.Headers, a.step.HTTP.TLS = nil, nil }).render()
	if got := len(plain.Spec.Template.Spec.Containers[0].Env); got != 7 {
		t.Errorf("a request without secrets has %d variables, want the contract's 7", got)
	}
	own := request(func(a *attempt) { a.step.HTTP.TLS.CA = &v1alpha1.CASource{SecretKeyRef: secret("ca.pem")} }).render()
	env := own.Spec.Template.Spec.Containers[0].Env
	if last := env[len(env)-1]; last.Name != EnvHTTPCA || last.ValueFrom.SecretKeyRef == nil || last.ValueFrom.ConfigMapKeyRef != nil {
		t.Errorf("a bundle in a Secret: %+v", last)
	}
}

// An answer that is on its way is worth the wait: the runner is told how long it may take
// before the pod's SIGKILL.
func TestRequestThatMustNotBeSentTwice(t *testing.T) {
	for grace, want := range map[int64]string{30: "--grace=25s", 5: "--grace=0s", 0: "--grace=0s", 90: "--grace=85s"} {
		a := request(func(a *attempt) {
			template(corev1.PodSpec{TerminationGracePeriodSeconds: &grace})(a)
			a.once = true
		})
		pod := a.render().Spec.Template
		if diff := cmp.Diff([]string{RunnerPath, "http", "--once", want}, pod.Spec.Containers[0].Command); diff != "" {
			t.Errorf("command with a grace of %d (-want +got):\n%s", grace, diff)
		}
		if len(pod.Finalizers) != 1 || len(pod.Spec.SchedulingGates) != 1 {
			t.Errorf("finalizers %v, gates %v", pod.Finalizers, pod.Spec.SchedulingGates)
		}
	}
}

func TestRequestOnTheTemplatesContainer(t *testing.T) {
	c := request(func(a *attempt) {
		template(corev1.PodSpec{Containers: []corev1.Container{{
			Name: "step", Image: "ignored", Command: []string{"ignored"}, Args: []string{"ignored"}, ImagePullPolicy: corev1.PullAlways,
			Env: []corev1.EnvVar{{Name: "HTTPS_PROXY", Value: "http://proxy"}, {Name: "AGENTTASK_HTTP_HEADER_0", Value: "stolen"}},
		}}})(a)
	}).render().Spec.Template.Spec.Containers[0]
	var names []string
	for _, e := range c.Env[7:] {
		names = append(names, e.Name)
	}
	if diff := cmp.Diff([]string{"HTTPS_PROXY", "AGENTTASK_HTTP_HEADER_0", "AGENTTASK_HTTP_HEADER_2", "AGENTTASK_HTTP_CA"}, names); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
	if c.Env[8].Value != "" || c.Image != "runner:1" || len(c.Args) != 0 || c.ImagePullPolicy != corev1.PullIfNotPresent {
		t.Errorf("container %+v", c)
	}
}
