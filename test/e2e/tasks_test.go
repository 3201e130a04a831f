// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
)

const (
	agentImage = "ghcr.io/agenttask-dev/sample-agent:dev"
	shellImage = "busybox:1.35"
	samples    = repository + "/config/samples"
)

// taskBuilder builds a task.
type taskBuilder struct{ task v1alpha1.AgentTask }

func makeTask(namespace, name string) *taskBuilder {
	return &taskBuilder{v1alpha1.AgentTask{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}}
}

func (b *taskBuilder) Steps(steps ...*stepBuilder) *taskBuilder {
	for _, s := range steps {
		b.task.Spec.Steps = append(b.task.Spec.Steps, s.step)
	}
	return b
}

// Grace is how long the step's programs may go on after SIGTERM.
func (b *taskBuilder) Grace(d time.Duration) *taskBuilder {
	b.task.Spec.PodTemplate = &corev1.PodTemplateSpec{Spec: corev1.PodSpec{TerminationGracePeriodSeconds: new(int64(d.Seconds()))}}
	return b
}

// Create creates the task and returns its name.
func (b *taskBuilder) Create() string {
	GinkgoHelper()
	Expect(api.Create(ctx, &b.task)).To(Succeed())
	return b.task.Name
}

// stepBuilder builds a step.
type stepBuilder struct{ step v1alpha1.Step }

// agentStep runs the sample agent.
func agentStep(name string, command ...string) *stepBuilder {
	return makeStep(name, agentImage, append([]string{"/sample-agent"}, command...))
}

// shellStep runs a shell script.
func shellStep(name, script string) *stepBuilder {
	return makeStep(name, shellImage, []string{"/bin/sh", "-c", script})
}

func makeStep(name, image string, command []string) *stepBuilder {
	return &stepBuilder{v1alpha1.Step{
		Name:   name,
		Effect: v1alpha1.EffectNone,
		Run:    &v1alpha1.RunAction{Image: image, ImagePullPolicy: corev1.PullIfNotPresent, Command: command},
	}}
}

func (b *stepBuilder) Idempotent() *stepBuilder {
	b.step.Effect = v1alpha1.EffectIdempotent
	return b
}

func (b *stepBuilder) Image(image string) *stepBuilder {
	b.step.Run.Image = image
	return b
}

// Stdout makes what the program prints its output.
func (b *stepBuilder) Stdout() *stepBuilder {
	b.step.Run.Output = v1alpha1.OutputStdout
	return b
}

func (b *stepBuilder) Input(json string) *stepBuilder {
	b.step.Input = &apiextensionsv1.JSON{Raw: []byte(json)}
	return b
}

func (b *stepBuilder) Memory(limit string) *stepBuilder {
	b.step.Run.Resources = &corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(limit)}}
	return b
}

func (b *stepBuilder) Timeout(d time.Duration) *stepBuilder {
	b.step.Timeout = &metav1.Duration{Duration: d}
	return b
}

func (b *stepBuilder) StartTimeout(d time.Duration) *stepBuilder {
	b.step.StartTimeout = &metav1.Duration{Duration: d}
	return b
}

// Retry allows so many retries, soon.
func (b *stepBuilder) Retry(limit int32) *stepBuilder {
	b.step.Retry = &v1alpha1.RetryPolicy{Limit: new(limit), Backoff: &v1alpha1.Backoff{
		Base: &metav1.Duration{Duration: 100 * time.Millisecond}, Cap: &metav1.Duration{Duration: 500 * time.Millisecond},
	}}
	return b
}

// sampleFiles are the manifests of config/samples, the list of them left out.
func sampleFiles() []string {
	GinkgoHelper()
	files, err := filepath.Glob(samples + "/*.yaml")
	Expect(err).NotTo(HaveOccurred())
	return slices.DeleteFunc(files, func(file string) bool { return filepath.Base(file) == "kustomization.yaml" })
}

// researchTask is the sample of eight steps under another name, each step of which
// works for so long.
func researchTask(namespace, name string, work time.Duration) *taskBuilder {
	GinkgoHelper()
	manifest, err := os.ReadFile(samples + "/agenttask_research.yaml")
	Expect(err).NotTo(HaveOccurred())
	b := &taskBuilder{}
	Expect(yaml.UnmarshalStrict(manifest, &b.task)).To(Succeed())
	b.task.Namespace, b.task.Name = namespace, name
	for _, step := range b.task.Spec.Steps {
		flag := slices.Index(step.Run.Command, "--work")
		Expect(flag).To(BeNumerically(">", 0), "step %s of the sample has the flag --work", step.Name)
		step.Run.Command[flag+1] = work.String()
	}
	return b
}

// readTask reads a task.
func readTask(g Gomega, namespace, name string) *v1alpha1.AgentTask {
	task := &v1alpha1.AgentTask{}
	g.Expect(api.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, task)).To(Succeed())
	return task
}

// awaitEnd waits until a task has ended, in the given phase, and returns it.
func awaitEnd(namespace, name string, phase v1alpha1.TaskPhase) *v1alpha1.AgentTask {
	GinkgoHelper()
	var task *v1alpha1.AgentTask
	Eventually(func(g Gomega) {
		task = readTask(g, namespace, name)
		g.Expect(task.Status.Phase.Finished()).To(BeTrue(), "task %s is %s at step %s, %s",
			name, task.Status.Phase, task.Status.CurrentStep, task.Status.Progress)
	}).WithTimeout(planTimeout).Should(Succeed())
	Expect(task.Status.Phase).To(Equal(phase), "task %s: %s", name, message(task))
	return task
}

// awaitRunning waits until the program of a task's current step runs, and returns the
// step's record.
func awaitRunning(namespace, name, step string) v1alpha1.StepStatus {
	GinkgoHelper()
	var record v1alpha1.StepStatus
	Eventually(func(g Gomega) {
		task := readTask(g, namespace, name)
		g.Expect(task.Status.CurrentStep).To(Equal(step))
		record = lastRecord(task)
		pod := &corev1.Pod{}
		g.Expect(api.Get(ctx, client.ObjectKey{Namespace: namespace, Name: record.JobName}, pod)).To(Succeed())
		g.Expect(pod.Status.ContainerStatuses).NotTo(BeEmpty())
		g.Expect(pod.Status.ContainerStatuses[0].State.Running).NotTo(BeNil(), "the container of pod %s", pod.Name)
	}).WithTimeout(planTimeout).Should(Succeed())
	return record
}

func lastRecord(task *v1alpha1.AgentTask) v1alpha1.StepStatus {
	if len(task.Status.Steps) == 0 {
		return v1alpha1.StepStatus{}
	}
	return task.Status.Steps[len(task.Status.Steps)-1]
}

// outputOf is a step's output as it stands in the checkpoint.
func outputOf(task *v1alpha1.AgentTask, step string) string {
	for _, record := range task.Status.Steps {
		if record.Name == step && record.Output != nil {
			return string(record.Output.Raw)
		}
	}
	return ""
}

// message is what the condition Ready says.
func message(task *v1alpha1.AgentTask) string {
	if ready := meta.FindStatusCondition(task.Status.Conditions, v1alpha1.ConditionReady); ready != nil {
		return ready.Reason + ": " + ready.Message
	}
	return ""
}

// conditions are a task's conditions in short, such as "Ready=True".
func conditions(task *v1alpha1.AgentTask) []string {
	var all []string
	for _, c := range task.Status.Conditions {
		all = append(all, c.Type+"="+string(c.Status))
	}
	return all
}

// eventsOf are the events about a task, as "reason: note".
func eventsOf(g Gomega, namespace, name string) []string {
	events, err := clientset.EventsV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: "regarding.name=" + name})
	g.Expect(err).NotTo(HaveOccurred())
	var notes []string
	for _, e := range events.Items {
		notes = append(notes, strings.TrimSpace(e.Reason+": "+e.Note))
	}
	return notes
}
