// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"fmt"
	"maps"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
)

// OutsiderAgent is the user agent of an Outsider in the audit log.
const OutsiderAgent = "outsider"

// StrangerLabel, with the value "true", is on what an Outsider makes.
const StrangerLabel = "stranger"

// Outsider does to a task's objects what the operator does not expect: as an
// administrator, or as another part of Kubernetes. Jobs and pods are named by what the
// operator calls them. The errors are the API server's own: NotFound where there is nothing
// to do it to, Invalid or Forbidden where a policy refuses.
type Outsider struct{ client client.Client }

// Outsider is one.
func (c *Cluster) Outsider() *Outsider { return c.outsider }

func (c *Cluster) newOutsider() (*Outsider, error) {
	config := rest.CopyConfig(c.Config)
	config.UserAgent = OutsiderAgent
	made, err := client.New(config, client.Options{Scheme: c.Scheme, Mapper: c.Client.RESTMapper()})
	return &Outsider{made}, err
}

func named(key client.ObjectKey) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}
}

// DeleteJob deletes a Job.
func (o *Outsider) DeleteJob(ctx context.Context, key client.ObjectKey, policy metav1.DeletionPropagation) error {
	return o.client.Delete(ctx, &batchv1.Job{ObjectMeta: named(key)}, client.PropagationPolicy(policy))
}

// DeletePod deletes a pod, by force where it is given no seconds to end.
func (o *Outsider) DeletePod(ctx context.Context, key client.ObjectKey, seconds int64) error {
	return o.client.Delete(ctx, &corev1.Pod{ObjectMeta: named(key)}, client.GracePeriodSeconds(seconds))
}

// StripAndDeletePod takes a pod's finalizers away and deletes it by force.
func (o *Outsider) StripAndDeletePod(ctx context.Context, key client.ObjectKey) error {
	strip := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
	if err := o.client.Patch(ctx, &corev1.Pod{ObjectMeta: named(key)}, strip); err != nil {
		return err
	}
	return client.IgnoreNotFound(o.DeletePod(ctx, key, 0))
}

// Evict asks for a pod's eviction, as kubectl drain does.
func (o *Outsider) Evict(ctx context.Context, key client.ObjectKey) error {
	return o.client.SubResource("eviction").Create(ctx, &corev1.Pod{ObjectMeta: named(key)}, &policyv1.Eviction{ObjectMeta: named(key)})
}

// CollectPod does at once what the pod garbage collector does to a pod whose node is gone:
// it writes that the pod has failed, which it does not know, and deletes it by force.
func (o *Outsider) CollectPod(ctx context.Context, key client.ObjectKey) error {
	pod := &corev1.Pod{}
	if err := o.client.Get(ctx, key, pod); err != nil {
		return err
	}
	if pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed {
		patch := mustJSON(map[string]any{
			"metadata": map[string]any{"uid": pod.UID},
			"status": map[string]any{"phase": corev1.PodFailed, "conditions": []corev1.PodCondition{{
				Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "DeletionByPodGC",
				Message: "PodGC: node no longer exists", LastTransitionTime: metav1.Now(), LastProbeTime: metav1.Now(),
			}}},
		})
		if err := o.client.Status().Patch(ctx, pod, client.RawPatch(types.StrategicMergePatchType, patch)); err != nil {
			return err
		}
	}
	return o.DeletePod(ctx, key, 0)
}

// DeleteNode takes a node away. The pod garbage collector deletes its pods after 40 to 60
// seconds.
func (o *Outsider) DeleteNode(ctx context.Context, name string) error {
	return o.client.Delete(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
}

// SuspendJob suspends a Job, or resumes it.
func (o *Outsider) SuspendJob(ctx context.Context, key client.ObjectKey, suspend bool) error {
	patch := mustJSON(map[string]any{"spec": map[string]any{"suspend": suspend}})
	return o.client.Patch(ctx, &batchv1.Job{ObjectMeta: named(key)}, client.RawPatch(types.MergePatchType, patch))
}

// StrangerJob makes a suspended Job that belongs to nobody.
func (o *Outsider) StrangerJob(ctx context.Context, key client.ObjectKey) error {
	job := &batchv1.Job{ObjectMeta: named(key)}
	job.Labels = map[string]string{StrangerLabel: "true"}
	job.Spec.Suspend = new(true)
	job.Spec.Template.Spec = strangerSpec()
	return o.client.Create(ctx, job)
}

// StrangerPod makes a pod that belongs to nobody and never starts.
func (o *Outsider) StrangerPod(ctx context.Context, key client.ObjectKey) error {
	pod := &corev1.Pod{ObjectMeta: named(key), Spec: strangerSpec()}
	pod.Labels = map[string]string{StrangerLabel: "true"}
	pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/never"}}
	return o.client.Create(ctx, pod)
}

func strangerSpec() corev1.PodSpec {
	return corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever,
		Containers:    []corev1.Container{{Name: "stranger", Image: "stranger.invalid/stranger:1"}},
	}
}

// SecondPod makes another pod that a Job controls, from the Job's template but without the
// fence.
func (o *Outsider) SecondPod(ctx context.Context, key client.ObjectKey, name string) error {
	job := &batchv1.Job{}
	if err := o.client.Get(ctx, key, job); err != nil {
		return err
	}
	template := job.Spec.Template.DeepCopy()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: key.Namespace, Name: name, Labels: maps.Clone(template.Labels), Annotations: template.Annotations,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(job, batchv1.SchemeGroupVersion.WithKind("Job"))},
		},
		Spec: template.Spec,
	}
	pod.Labels[StrangerLabel] = "true"
	pod.Spec.SchedulingGates = nil
	return o.client.Create(ctx, pod)
}

// PatchImage changes the image of a pod's first container.
func (o *Outsider) PatchImage(ctx context.Context, key client.ObjectKey, image string) error {
	patch := mustJSON([]map[string]any{{"op": "replace", "path": "/spec/containers/0/image", "value": image}})
	return o.client.Patch(ctx, &corev1.Pod{ObjectMeta: named(key)}, client.RawPatch(types.JSONPatchType, patch))
}

// RecreateTask deletes a task, and makes it again under its name when it is gone.
func (o *Outsider) RecreateTask(ctx context.Context, key client.ObjectKey) (*v1alpha1.AgentTask, error) {
	old := &v1alpha1.AgentTask{}
	if err := o.client.Get(ctx, key, old); err != nil {
		return nil, err
	}
	if err := o.client.Delete(ctx, old.DeepCopy(), client.PropagationPolicy(metav1.DeletePropagationBackground)); err != nil {
		return nil, err
	}
	err := wait.PollUntilContextTimeout(ctx, 10*time.Millisecond, startTimeout, true, func(ctx context.Context) (bool, error) {
		err := o.client.Get(ctx, key, &v1alpha1.AgentTask{})
		return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
	})
	if err != nil {
		return nil, fmt.Errorf("task %s does not go: %w", key, err)
	}
	task := &v1alpha1.AgentTask{ObjectMeta: named(key), Spec: old.Spec}
	task.Labels, task.Annotations = old.Labels, old.Annotations
	return task, o.client.Create(ctx, task)
}

// StartContainerAgain writes what a kubelet says that has lost its record of a running
// container and so starts it once more, though the pod's restartPolicy is Never. If the
// second start is to end, it ends as the runner ends it that finds its marker. A pod whose
// container does not run is left as it is, as kubelets do.
func (o *Outsider) StartContainerAgain(ctx context.Context, key client.ObjectKey, end bool) error {
	for {
		pod := &corev1.Pod{}
		if err := o.client.Get(ctx, key, pod); err != nil {
			return err
		}
		if !startAgain(&pod.Status, end) {
			return nil
		}
		if err := o.client.Status().Update(ctx, pod); !apierrors.IsConflict(err) {
			return err
		}
	}
}

// startAgain changes a pod's status, if its container runs.
func startAgain(s *corev1.PodStatus, end bool) bool {
	for i := range s.ContainerStatuses {
		c := &s.ContainerStatuses[i]
		if c.Name != stepexec.ContainerStep || c.State.Running == nil {
			continue
		}
		now := metav1.Now()
		c.RestartCount++
		c.LastTerminationState = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			ExitCode: 137, Reason: "ContainerStatusUnknown", Message: "the container's record was lost while it ran",
		}}
		c.State.Running.StartedAt = now
		if end {
			c.State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
				ExitCode: 143, Reason: "Error", StartedAt: now, FinishedAt: now, Message: startedTwice.message(),
			}}
			c.Ready, c.Started = false, new(false)
			s.Phase = corev1.PodFailed
		}
		return true
	}
	return false
}

// startedTwice is what the runner leaves that finds its marker.
var startedTwice = Behaviour{Result: &stepexec.Result{
	Outcome: stepexec.OutcomeInterrupted, Reason: v1alpha1.ReasonStartedTwice,
	Message: "the container was started a second time, and ran nothing",
}}
