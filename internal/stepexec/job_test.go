// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package stepexec

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
)

// attempt is what Render takes.
type attempt struct {
	task   *v1alpha1.AgentTask
	step   *v1alpha1.Step
	record *v1alpha1.ActionStatus
	input  []byte
	// once says that the attempt is fenced.
	once bool
}

// makeAttempt is the second attempt of step refund in task orders.
func makeAttempt(change func(*attempt)) attempt {
	a := attempt{
		task: &v1alpha1.AgentTask{
			ObjectMeta: metav1.ObjectMeta{Name: "orders", Namespace: "team", UID: uid},
			Status:     v1alpha1.AgentTaskStatus{RunID: "run-7"},
		},
		step:   &v1alpha1.Step{Name: "refund", Run: &v1alpha1.RunAction{Image: "tools:1.4", Command: []string{"refund", "--now"}, Args: []string{"-v"}}},
		record: &v1alpha1.ActionStatus{Phase: v1alpha1.StepRunning, Attempt: 2, IdempotencyKey: "run-7.refund.abc", ActionHash: "sha256:def", JobName: "orders-refund-xyz-2"},
		input:  []byte(`{"order":"123"}`),
	}
	if change != nil {
		change(&a)
	}
	return a
}

func template(spec corev1.PodSpec) func(*attempt) {
	return func(a *attempt) { a.task.Spec.PodTemplate = &corev1.PodTemplateSpec{Spec: spec} }
}

func (a attempt) render() *batchv1.Job {
	return Render(a.task, Attempt{
		Step: a.step.Name, Role: v1alpha1.RoleMain, Record: a.record, Run: a.step.Run, HTTP: a.step.HTTP, Input: a.input,
		Timeout: a.step.RunTimeout(), StartTimeout: a.step.StartDeadline(), Once: a.once,
	}, "runner:1")
}

func TestJob(t *testing.T) {
	job := makeAttempt(nil).render()
	labels := map[string]string{v1alpha1.LabelManaged: "true", v1alpha1.LabelTask: "orders", v1alpha1.LabelStep: "refund", v1alpha1.LabelAttempt: "2"}
	got := job.DeepCopy()
	got.Spec.Template = corev1.PodTemplateSpec{}
	want := &batchv1.Job{
		TypeMeta: metav1.TypeMeta{APIVersion: "batch/v1", Kind: "Job"},
		ObjectMeta: metav1.ObjectMeta{
			Name: "orders-refund-xyz-2", Namespace: "team", Labels: labels,
			Annotations: map[string]string{v1alpha1.AnnotationActionHash: "sha256:def", v1alpha1.AnnotationGeneration: "0"},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "agenttask.dev/v1alpha1", Kind: "AgentTask", Name: "orders", UID: uid, Controller: new(true), BlockOwnerDeletion: new(true)}},
		},
		Spec: batchv1.JobSpec{Parallelism: new(int32(1)), Completions: new(int32(1)), BackoffLimit: new(int32(0)), ManagedBy: new("agenttask.dev/operator")},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Job (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(labels, job.Spec.Template.Labels); diff != "" {
		t.Errorf("labels of the pod template (-want +got):\n%s", diff)
	}
	annotations := map[string]string{v1alpha1.AnnotationInput: `{"order":"123"}`, "kubectl.kubernetes.io/default-container": "step"}
	if diff := cmp.Diff(annotations, job.Spec.Template.Annotations); diff != "" {
		t.Errorf("annotations of the pod template (-want +got):\n%s", diff)
	}
}

func TestPodOfAPlainStep(t *testing.T) {
	spec := makeAttempt(nil).render().Spec.Template.Spec
	container := &corev1.SecurityContext{AllowPrivilegeEscalation: new(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}}
	install := container.DeepCopy()
	install.ReadOnlyRootFilesystem = new(true)
	want := corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever, TerminationGracePeriodSeconds: new(int64(30)),
		ActiveDeadlineSeconds:        new(int64(600 + 3600 + 30 + 60)),
		AutomountServiceAccountToken: new(false), EnableServiceLinks: new(false),
		SecurityContext: &corev1.PodSecurityContext{RunAsNonRoot: new(true), RunAsUser: new(int64(65532)), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
		InitContainers: []corev1.Container{{
			Name: "agenttask-install", Image: "runner:1", ImagePullPolicy: corev1.PullIfNotPresent, Command: []string{"/runner", "install"}, SecurityContext: install,
			VolumeMounts: []corev1.VolumeMount{{Name: "agenttask", MountPath: "/agenttask"}, {Name: "agenttask-input", MountPath: "/agenttask-input", ReadOnly: true}},
		}},
		Containers: []corev1.Container{{
			Name: "step", Image: "tools:1.4",
			Command: []string{"/agenttask/bin/runner", "exec", "--timeout=1h0m0s", "--grace=30s", "--", "refund", "--now"}, Args: []string{"-v"},
			Env: []corev1.EnvVar{
				{Name: "AGENTTASK_IDEMPOTENCY_KEY", Value: "run-7.refund.abc"}, {Name: "AGENTTASK_TASK", Value: "orders"}, {Name: "AGENTTASK_NAMESPACE", Value: "team"},
				{Name: "AGENTTASK_RUN_ID", Value: "run-7"}, {Name: "AGENTTASK_STEP", Value: "refund"}, {Name: "AGENTTASK_ATTEMPT", Value: "2"},
				{Name: "AGENTTASK_SEED", Value: Seed("run-7.refund.abc")},
			},
			VolumeMounts:           []corev1.VolumeMount{{Name: "agenttask", MountPath: "/agenttask"}},
			TerminationMessagePath: "/dev/termination-log", TerminationMessagePolicy: corev1.TerminationMessageReadFile, SecurityContext: container,
		}},
		Volumes: []corev1.Volume{
			{Name: "agenttask", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
			{Name: "agenttask-input", VolumeSource: corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: []corev1.DownwardAPIVolumeFile{{
				Path: "input.json", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.annotations['agenttask.dev/input']"}}}}}},
		},
	}
	if diff := cmp.Diff(want, spec, cmp.Comparer(func(a, b resource.Quantity) bool { return a.Cmp(b) == 0 })); diff != "" {
		t.Errorf("pod (-want +got):\n%s", diff)
	}
}

// restricted is what Pod Security "restricted" asks of what Render decides:
// https://kubernetes.io/docs/concepts/security/pod-security-standards/#restricted
func restricted(spec *corev1.PodSpec) []string {
	var out []string
	must := func(ok bool, format string, args ...any) {
		if !ok {
			out = append(out, fmt.Sprintf(format, args...))
		}
	}
	pod := spec.SecurityContext
	must(!spec.HostNetwork && !spec.HostPID && !spec.HostIPC, "host namespaces")
	must(pod != nil && pod.SeccompProfile != nil && pod.SeccompProfile.Type == corev1.SeccompProfileTypeRuntimeDefault, "seccompProfile")
	for _, v := range spec.Volumes {
		must(v.HostPath == nil, "volume %s is a hostPath", v.Name)
	}
	for _, list := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for _, c := range list {
			s := c.SecurityContext
			must(s != nil && s.AllowPrivilegeEscalation != nil && !*s.AllowPrivilegeEscalation, "%s: allowPrivilegeEscalation", c.Name)
			must(s != nil && s.Capabilities != nil && cmp.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) && len(s.Capabilities.Add) == 0, "%s: capabilities", c.Name)
			must(s == nil || s.Privileged == nil || !*s.Privileged, "%s: privileged", c.Name)
			nonRoot := pod != nil && pod.RunAsNonRoot != nil && *pod.RunAsNonRoot
			if s != nil && s.RunAsNonRoot != nil {
				nonRoot = *s.RunAsNonRoot
			}
			must(nonRoot, "%s: runAsNonRoot", c.Name)
			must(s == nil || s.RunAsUser == nil || *s.RunAsUser != 0, "%s: runAsUser 0", c.Name)
			must(len(c.Ports) == 0 || c.Ports[0].HostPort == 0, "%s: hostPort", c.Name)
		}
	}
	return out
}

func TestStepPodsAreRestrictedUnlessTheTemplateSaysOtherwise(t *testing.T) {
	tests := map[string]struct {
		spec corev1.PodSpec
		want bool
	}{
		"no template":                      {corev1.PodSpec{}, true},
		"a template with a user":           {corev1.PodSpec{SecurityContext: &corev1.PodSecurityContext{RunAsUser: new(int64(1000)), FSGroup: new(int64(1))}}, true},
		"a read-only root":                 {corev1.PodSpec{Containers: []corev1.Container{{Name: "step", SecurityContext: &corev1.SecurityContext{ReadOnlyRootFilesystem: new(true)}}}}, true},
		"root, as the template says":       {corev1.PodSpec{SecurityContext: &corev1.PodSecurityContext{RunAsUser: new(int64(0))}}, false},
		"privileged, as the template says": {corev1.PodSpec{Containers: []corev1.Container{{Name: "step", SecurityContext: &corev1.SecurityContext{Privileged: new(true)}}}}, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			spec := makeAttempt(template(tt.spec)).render().Spec.Template.Spec
			if problems := restricted(&spec); (len(problems) == 0) != tt.want {
				t.Errorf("problems: %v, want restricted %v", problems, tt.want)
			}
		})
	}

	root := makeAttempt(template(corev1.PodSpec{SecurityContext: &corev1.PodSecurityContext{RunAsUser: new(int64(0))}})).render().Spec.Template.Spec.SecurityContext
	if root.RunAsNonRoot != nil || *root.RunAsUser != 0 {
		t.Errorf("a template that asks for root gets %+v, which kubelet refuses to run", root)
	}
	free := makeAttempt(template(corev1.PodSpec{SecurityContext: &corev1.PodSecurityContext{RunAsNonRoot: new(false)}})).render().Spec.Template.Spec.SecurityContext
	if free.RunAsUser != nil {
		t.Errorf("a template that leaves the user to the image gets user %d", *free.RunAsUser)
	}
	privileged := makeAttempt(template(corev1.PodSpec{Containers: []corev1.Container{{Name: "step", SecurityContext: &corev1.SecurityContext{Privileged: new(true)}}}})).render()
	if got := privileged.Spec.Template.Spec.Containers[0].SecurityContext.AllowPrivilegeEscalation; got != nil {
		t.Errorf("privileged with allowPrivilegeEscalation %v is what the API server refuses", *got)
	}
}

func TestTemplateIsTheBase(t *testing.T) {
	a := makeAttempt(func(a *attempt) {
		a.task.Spec.PodTemplate = &corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{
				Labels:      map[string]string{"team": "refunds", "kueue.x-k8s.io/queue-name": "batch", v1alpha1.LabelStep: "stolen"},
				Annotations: map[string]string{"note": "kept", v1alpha1.AnnotationInput: "stolen"}},
			Spec: corev1.PodSpec{
				ServiceAccountName: "refunds", AutomountServiceAccountToken: new(true), TerminationGracePeriodSeconds: new(int64(5)),
				NodeSelector:   map[string]string{"gpu": "no"},
				Volumes:        []corev1.Volume{{Name: "cache"}},
				InitContainers: []corev1.Container{{Name: "sidecar", Image: "proxy:1", RestartPolicy: new(corev1.ContainerRestartPolicyAlways)}},
				Containers: []corev1.Container{{
					Name: "step", Image: "ignored", Command: []string{"ignored"}, Args: []string{"ignored"}, WorkingDir: "/base", ImagePullPolicy: corev1.PullAlways,
					Env:          []corev1.EnvVar{{Name: "A", Value: "base"}, {Name: "AGENTTASK_SEED", Value: "stolen"}},
					VolumeMounts: []corev1.VolumeMount{{Name: "cache", MountPath: "/cache"}},
					Resources:    corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}},
				}},
			},
		}
		a.step.Run.Env = []corev1.EnvVar{{Name: "B", Value: "$(AGENTTASK_STEP)"}, {Name: "AGENTTASK_IDEMPOTENCY_KEY", Value: "stolen"}, {Name: "A", Value: "step"}}
		a.step.Run.VolumeMounts = []corev1.VolumeMount{{Name: "cache", MountPath: "/data"}}
		a.step.Run.Output = v1alpha1.OutputStdout
		a.step.Timeout = &metav1.Duration{Duration: 90 * time.Second}
	})
	job := a.render()
	pod := job.Spec.Template
	c := pod.Spec.Containers[0]
	var env []string
	for _, e := range c.Env[7:] {
		env = append(env, e.Name+"="+e.Value)
	}
	if diff := cmp.Diff([]string{"A=base", "B=$(AGENTTASK_STEP)", "A=step"}, env); diff != "" {
		t.Errorf("environment behind the contract's (-want +got):\n%s", diff)
	}
	if c.Env[0].Value != "run-7.refund.abc" || c.Image != "tools:1.4" || c.WorkingDir != "/base" || c.ImagePullPolicy != corev1.PullAlways || len(c.Args) != 1 || len(c.VolumeMounts) != 3 {
		t.Errorf("container %+v", c)
	}
	if diff := cmp.Diff([]string{RunnerPath, "exec", "--timeout=1m30s", "--grace=5s", "--output=Stdout", "--", "refund", "--now"}, c.Command); diff != "" {
		t.Errorf("command (-want +got):\n%s", diff)
	}
	if got := *pod.Spec.ActiveDeadlineSeconds; got != 600+90+5+60 {
		t.Errorf("activeDeadlineSeconds %d", got)
	}
	if pod.Labels["team"] != "refunds" || pod.Labels[v1alpha1.LabelStep] != "refund" || pod.Annotations["note"] != "kept" || pod.Annotations[v1alpha1.AnnotationInput] != `{"order":"123"}` {
		t.Errorf("labels %v, annotations %v", pod.Labels, pod.Annotations)
	}
	if job.Labels["kueue.x-k8s.io/queue-name"] != "batch" || job.Labels["team"] != "" {
		t.Errorf("labels of the Job: %v; want Kueue's, and no other of the template", job.Labels)
	}
	if !*pod.Spec.AutomountServiceAccountToken || pod.Spec.ServiceAccountName != "refunds" || pod.Spec.NodeSelector["gpu"] != "no" || len(pod.Spec.Volumes) != 3 {
		t.Errorf("pod spec %+v", pod.Spec)
	}
	if pod.Spec.InitContainers[0].Name != ContainerInstall || pod.Spec.InitContainers[1].Name != "sidecar" {
		t.Error("the runner is not installed first")
	}
	if !equality.Semantic.DeepEqual(pod.Spec.InitContainers[0].Resources, c.Resources) {
		t.Error("the install container does not ask for what the step asks for")
	}
}

func TestDeadlineOfThePodStandsAboveTheRunners(t *testing.T) {
	for _, timeout := range []time.Duration{0, time.Millisecond, 1500 * time.Millisecond, time.Hour, 8760 * time.Hour} {
		for _, grace := range []int64{0, 1, 30, 86400} {
			a := makeAttempt(template(corev1.PodSpec{TerminationGracePeriodSeconds: &grace}))
			a.step.Timeout, a.step.StartTimeout = &metav1.Duration{Duration: timeout}, &metav1.Duration{Duration: timeout}
			limit := time.Duration(*a.render().Spec.Template.Spec.ActiveDeadlineSeconds) * time.Second
			least := a.step.StartDeadline() + a.step.RunTimeout() + time.Duration(grace)*time.Second + time.Minute
			if limit < least || limit > least+time.Second || limit.Seconds() > 1<<31-1 {
				t.Errorf("timeout %s, grace %d: %s, want %s", timeout, grace, limit, least)
			}
		}
	}
}

func TestRenderIsPure(t *testing.T) {
	a := makeAttempt(func(a *attempt) {
		a.task.Spec.PodTemplate = &corev1.PodTemplateSpec{Spec: corev1.PodSpec{
			SecurityContext: &corev1.PodSecurityContext{}, Volumes: make([]corev1.Volume, 1, 8),
			Containers: []corev1.Container{{Name: "step", SecurityContext: &corev1.SecurityContext{}, Env: make([]corev1.EnvVar, 1, 8), VolumeMounts: make([]corev1.VolumeMount, 0, 8)}}}}
		a.step.Run.Command = append(make([]string, 0, 8), "refund")
		a.step.Run.Env = append(make([]corev1.EnvVar, 0, 8), corev1.EnvVar{Name: "AGENTTASK_X"}, corev1.EnvVar{Name: "B"})
	})
	task, step, record := a.task.DeepCopy(), a.step.DeepCopy(), a.record.DeepCopy()
	first, second := a.render(), a.render()
	if diff := cmp.Diff(first, second); diff != "" {
		t.Errorf("the same input gave two Jobs:\n%s", diff)
	}
	if !equality.Semantic.DeepEqual(task, a.task) || !equality.Semantic.DeepEqual(step, a.step) || !equality.Semantic.DeepEqual(record, a.record) {
		t.Error("the input was changed")
	}
}

func TestPodOfTheJobAsItStands(t *testing.T) {
	job := makeAttempt(nil).render()
	job.UID = "job-uid"
	job.Spec.Template.Labels["batch.kubernetes.io/job-name"] = job.Name
	job.Spec.Template.Spec.NodeSelector = map[string]string{"flavor": "spot"} // a queue's doing
	before := job.DeepCopy()
	pod := PodOf(job)
	want := &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Name: job.Name, Namespace: "team", Labels: job.Spec.Template.Labels, Annotations: job.Spec.Template.Annotations,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: job.Name, UID: "job-uid", Controller: new(true), BlockOwnerDeletion: new(true)}},
		},
		Spec: job.Spec.Template.Spec,
	}
	if diff := cmp.Diff(want, pod); diff != "" {
		t.Errorf("pod (-want +got):\n%s", diff)
	}
	pod.Labels["changed"], pod.Spec.NodeSelector["changed"] = "yes", "yes"
	if diff := cmp.Diff(before, job); diff != "" {
		t.Errorf("the pod shares with the Job:\n%s", diff)
	}
}
