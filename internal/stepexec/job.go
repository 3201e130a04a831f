// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package stepexec

import (
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
)

// Defaults of a step's pod.
const (
	// DefaultUser is who a step's program runs as where nothing else is set.
	DefaultUser = 65532
	// DefaultGrace is a pod's terminationGracePeriodSeconds where nothing else is set.
	DefaultGrace = 30

	volumeWork  = "agenttask"
	volumeInput = "agenttask-input"
	inputFile   = "input.json"

	// backstop is how far the pod's own deadline stands above the runner's.
	backstop = time.Minute

	// graceMargin is how many seconds before its pod's SIGKILL a request that may not be
	// sent twice stops to wait for its answer.
	graceMargin = 5
)

// Attempt is all that an attempt's Job is made from.
type Attempt struct {
	// Step is the step's name, Role what the action is for it.
	Step string
	Role v1alpha1.Role
	// Record is the attempt's record: its number, key, action hash and Job name.
	Record *v1alpha1.ActionStatus
	// Run or HTTP is what it does.
	Run  *v1alpha1.RunAction
	HTTP *v1alpha1.HTTPAction
	// Input is the rendered input of Run, or the HTTPRequest that HTTP became.
	Input []byte
	// Timeout is how long its program may run, StartTimeout how long its pod may take to
	// start it.
	Timeout, StartTimeout time.Duration
	// Once says that it must not start twice: its pod is fenced.
	Once bool
}

// Render makes an attempt's Job. It is pure: the same arguments give the same Job.
func Render(task *v1alpha1.AgentTask, a Attempt, runnerImage string) *batchv1.Job {
	template := podTemplate(task, a, runnerImage)
	labels := managedLabels(task, a)
	return &batchv1.Job{
		TypeMeta: metav1.TypeMeta{APIVersion: "batch/v1", Kind: "Job"},
		ObjectMeta: metav1.ObjectMeta{
			Name:      a.Record.JobName,
			Namespace: task.Namespace,
			Labels:    withQueueLabels(labels, template.Labels),
			Annotations: map[string]string{
				v1alpha1.AnnotationActionHash: a.Record.ActionHash,
				v1alpha1.AnnotationGeneration: strconv.FormatInt(task.Generation, 10),
			},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(task, v1alpha1.GroupVersion.WithKind("AgentTask"))},
		},
		Spec: batchv1.JobSpec{
			Parallelism:  new(int32(1)),
			Completions:  new(int32(1)),
			BackoffLimit: new(int32(0)),
			ManagedBy:    new(v1alpha1.ManagedBy),
			Template:     template,
		},
	}
}

// PodOf makes the one pod of a Job from the Job's template as it stands, whoever
// changed it since (a queue adds node selectors, for example).
func PodOf(job *batchv1.Job) *corev1.Pod {
	template := job.Spec.Template.DeepCopy()
	return &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Name:            job.Name,
			Namespace:       job.Namespace,
			Labels:          template.Labels,
			Annotations:     template.Annotations,
			Finalizers:      template.Finalizers,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(job, batchv1.SchemeGroupVersion.WithKind("Job"))},
		},
		Spec: template.Spec,
	}
}

func managedLabels(task *v1alpha1.AgentTask, a Attempt) map[string]string {
	labels := map[string]string{
		v1alpha1.LabelManaged: "true",
		v1alpha1.LabelTask:    taskLabel(task.Name),
		v1alpha1.LabelStep:    a.Step,
		v1alpha1.LabelAttempt: strconv.Itoa(int(a.Record.Attempt)),
	}
	if a.Role != v1alpha1.RoleMain {
		labels[v1alpha1.LabelRole] = string(a.Role)
	}
	return labels
}

// taskLabel is a task's name as a label's value, which has at most 63 characters and
// ends with a letter or digit.
func taskLabel(name string) string {
	return strings.TrimRight(name[:min(len(name), 63)], "-.")
}

// withQueueLabels carries Kueue's labels from the pod template to the Job, where
// Kueue reads them.
func withQueueLabels(labels, template map[string]string) map[string]string {
	for key, value := range template {
		if strings.HasPrefix(key, "kueue.x-k8s.io/") {
			labels[key] = value
		}
	}
	return labels
}

func podTemplate(task *v1alpha1.AgentTask, a Attempt, runnerImage string) corev1.PodTemplateSpec {
	template := corev1.PodTemplateSpec{}
	if task.Spec.PodTemplate != nil {
		template = *task.Spec.PodTemplate.DeepCopy()
	}
	template.Labels = merged(template.Labels, managedLabels(task, a))
	template.Annotations = merged(template.Annotations, map[string]string{
		v1alpha1.AnnotationInput: string(a.Input),
		// So that kubectl logs does not say which container it took.
		"kubectl.kubernetes.io/default-container": ContainerStep,
	})

	spec := &template.Spec
	defaultPodSpec(spec)
	main := stepContainer(spec.Containers, task, a, *spec.TerminationGracePeriodSeconds, runnerImage)
	spec.Containers = []corev1.Container{main}
	spec.InitContainers = slices.Concat([]corev1.Container{installContainer(runnerImage, main.Resources)}, spec.InitContainers)
	spec.Volumes = append(spec.Volumes, workVolumes()...)
	spec.RestartPolicy = corev1.RestartPolicyNever
	limit := a.StartTimeout + a.Timeout + time.Duration(*spec.TerminationGracePeriodSeconds)*time.Second + backstop
	spec.ActiveDeadlineSeconds = new(int64(math.Ceil(limit.Seconds())))
	if a.Once {
		fence(&template, task)
	}
	return template
}

// defaultPodSpec fills in what makes a step's pod restricted, where the template
// does not say otherwise.
func defaultPodSpec(spec *corev1.PodSpec) {
	if spec.AutomountServiceAccountToken == nil {
		spec.AutomountServiceAccountToken = new(false)
	}
	if spec.EnableServiceLinks == nil {
		spec.EnableServiceLinks = new(false)
	}
	if spec.TerminationGracePeriodSeconds == nil {
		spec.TerminationGracePeriodSeconds = new(int64(DefaultGrace))
	}
	if spec.SecurityContext == nil {
		spec.SecurityContext = &corev1.PodSecurityContext{}
	}
	security := spec.SecurityContext
	if security.SeccompProfile == nil {
		security.SeccompProfile = &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}
	}
	root := security.RunAsUser != nil && *security.RunAsUser == 0
	if security.RunAsNonRoot == nil && !root {
		security.RunAsNonRoot = new(true)
	}
	if security.RunAsUser == nil && *security.RunAsNonRoot {
		security.RunAsUser = new(int64(DefaultUser))
	}
}

// restrictContainer fills in what Pod Security "restricted" asks of a container.
func restrictContainer(c *corev1.Container) {
	if c.SecurityContext == nil {
		c.SecurityContext = &corev1.SecurityContext{}
	}
	if c.SecurityContext.AllowPrivilegeEscalation == nil && (c.SecurityContext.Privileged == nil || !*c.SecurityContext.Privileged) {
		c.SecurityContext.AllowPrivilegeEscalation = new(false)
	}
	if c.SecurityContext.Capabilities == nil {
		c.SecurityContext.Capabilities = &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}
	}
}

// stepContainer builds the step's container on the base that the pod template gives.
func stepContainer(base []corev1.Container, task *v1alpha1.AgentTask, a Attempt, grace int64, runnerImage string) corev1.Container {
	c := corev1.Container{}
	if len(base) > 0 {
		c = base[0]
	}
	c.Name = ContainerStep
	c.Env = slices.Concat(contractEnv(task, a), withoutContract(c.Env))
	if a.HTTP != nil {
		requestContainer(&c, a, grace, runnerImage)
	} else {
		programContainer(&c, a, grace)
	}
	c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: volumeWork, MountPath: MountPath})
	c.TerminationMessagePath = TerminationPath
	c.TerminationMessagePolicy = corev1.TerminationMessageReadFile
	restrictContainer(&c)
	return c
}

// programContainer lets a container run a program under the runner.
func programContainer(c *corev1.Container, a Attempt, grace int64) {
	run := a.Run
	c.Image = run.Image
	if run.ImagePullPolicy != "" {
		c.ImagePullPolicy = run.ImagePullPolicy
	}
	if run.WorkingDir != "" {
		c.WorkingDir = run.WorkingDir
	}
	if run.Resources != nil {
		c.Resources = *run.Resources.DeepCopy()
	}
	c.Command = []string{RunnerPath, "exec", "--timeout=" + a.Timeout.String(), "--grace=" + strconv.FormatInt(grace, 10) + "s"}
	if run.Output != "" {
		c.Command = append(c.Command, "--output="+string(run.Output))
	}
	if a.Once {
		c.Command = append(c.Command, "--once")
	}
	c.Command = append(append(c.Command, "--"), run.Command...)
	c.Args = run.Args
	c.Env = slices.Concat(c.Env, withoutContract(run.Env))
	c.EnvFrom = slices.Concat(c.EnvFrom, run.EnvFrom)
	c.VolumeMounts = slices.Concat(c.VolumeMounts, run.VolumeMounts)
}

// requestContainer lets a container send a request: the runner does, in its own image.
func requestContainer(c *corev1.Container, a Attempt, grace int64, runnerImage string) {
	c.Image, c.ImagePullPolicy = runnerImage, corev1.PullIfNotPresent
	c.Command, c.Args = []string{RunnerPath, "http"}, nil
	if a.Once {
		c.Command = append(c.Command, "--once", "--grace="+strconv.FormatInt(max(grace-graceMargin, 0), 10)+"s")
	}
	c.Env = append(c.Env, requestEnv(a.HTTP)...)
}

// requestEnv are the secrets of a request, and whom to trust: what may not stand in the
// pod's annotations.
func requestEnv(http *v1alpha1.HTTPAction) []corev1.EnvVar {
	var env []corev1.EnvVar
	for i, h := range http.Headers {
		if h.SecretKeyRef != nil {
			env = append(env, corev1.EnvVar{Name: EnvHTTPHeader(i), ValueFrom: &corev1.EnvVarSource{SecretKeyRef: h.SecretKeyRef}})
		}
	}
	if http.TLS != nil && http.TLS.CA != nil {
		env = append(env, corev1.EnvVar{Name: EnvHTTPCA, ValueFrom: &corev1.EnvVarSource{
			ConfigMapKeyRef: http.TLS.CA.ConfigMapKeyRef, SecretKeyRef: http.TLS.CA.SecretKeyRef,
		}})
	}
	return env
}

// contractEnv comes first, so that a step's own variables may use it as $(NAME).
func contractEnv(task *v1alpha1.AgentTask, a Attempt) []corev1.EnvVar {
	return []corev1.EnvVar{
		{Name: EnvKey, Value: a.Record.IdempotencyKey},
		{Name: EnvTask, Value: task.Name},
		{Name: EnvNamespace, Value: task.Namespace},
		{Name: EnvRunID, Value: task.Status.RunID},
		{Name: EnvStep, Value: a.Step},
		{Name: EnvAttempt, Value: strconv.Itoa(int(a.Record.Attempt))},
		{Name: EnvSeed, Value: Seed(a.Record.IdempotencyKey)},
	}
}

func withoutContract(env []corev1.EnvVar) []corev1.EnvVar {
	return slices.DeleteFunc(slices.Clone(env), func(e corev1.EnvVar) bool { return strings.HasPrefix(e.Name, "AGENTTASK_") })
}

// installContainer puts the runner and the input where the step's container finds
// them. It asks for what the step asks for, which costs nothing (they run one after
// the other) and satisfies quotas and limit ranges whenever the step does.
func installContainer(image string, resources corev1.ResourceRequirements) corev1.Container {
	c := corev1.Container{
		Name:            ContainerInstall,
		Image:           image,
		ImagePullPolicy: corev1.PullIfNotPresent,
		Command:         []string{"/runner", "install"},
		Resources:       *resources.DeepCopy(),
		VolumeMounts: []corev1.VolumeMount{
			{Name: volumeWork, MountPath: MountPath},
			{Name: volumeInput, MountPath: InputSourceDir, ReadOnly: true},
		},
	}
	c.SecurityContext = &corev1.SecurityContext{ReadOnlyRootFilesystem: new(true)}
	restrictContainer(&c)
	return c
}

func workVolumes() []corev1.Volume {
	return []corev1.Volume{
		{Name: volumeWork, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		{Name: volumeInput, VolumeSource: corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{
			Items: []corev1.DownwardAPIVolumeFile{{
				Path:     inputFile,
				FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.annotations['" + v1alpha1.AnnotationInput + "']"},
			}},
		}}},
	}
}

// merged is base with over on top; neither is changed.
func merged(base, over map[string]string) map[string]string {
	out := make(map[string]string, len(base)+len(over))
	maps.Copy(out, base)
	maps.Copy(out, over)
	return out
}
