// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
)

// edit changes the spec as a user might.
func (c *cluster) edit() {
	spec := &c.task.Spec
	before := spec.DeepCopy()
	switch c.IntN(16) {
	case 0, 1:
		spec.Suspend = !spec.Suspend
	case 2:
		spec.Params = doc1(`{"a":2}`)
	case 3, 4:
		spec.Params = c.plan.Params
	case 5:
		if run := spec.Steps[c.IntN(len(spec.Steps))].Run; run != nil {
			run.Image = "tools:2"
		}
	case 6, 7:
		spec.Steps = c.plan.DeepCopy().Steps
	case 8:
		spec.Steps = slices.Concat(c.plan.DeepCopy().Steps, []v1alpha1.Step{MakeStep("z").Obj()})
	case 9:
		spec.Steps = append([]v1alpha1.Step{MakeStep("y").Obj()}, c.plan.DeepCopy().Steps...)
	case 10:
		spec.Steps = spec.Steps[:max(1, len(spec.Steps)-1)]
	case 11:
		spec.Cancel = spec.Cancel || c.IntN(3) == 0
	}
	if !equality.Semantic.DeepEqual(before, spec) {
		c.task.Generation++
		c.stamp(c.task)
	}
}

// outsiders lets somebody else meddle with the current attempt's Job or pod.
func (c *cluster) outsiders() {
	record := c.record()
	if record == nil {
		return
	}
	_, work := atWork(record)
	name := work.JobName
	job, pod := c.jobs[name], c.pods[name]
	if job != nil {
		switch c.IntN(8 + map[bool]int{true: 16}[c.stormy]) {
		case 0:
			c.note("  Job %s deleted", name)
			c.deleteJob(job, c.IntN(2) == 0)
		case 1, 2:
			job.Spec.Suspend = new(!jobSuspended(job))
			c.stamp(job)
		}
	} else if name != "" && c.IntN(6) == 0 {
		c.strangersJob(name)
	}
	if pod == nil {
		return
	}
	how := c.IntN(10)
	if c.stormy {
		how = []int{2, 2, 5, 0, 4}[c.IntN(5)]
	}
	c.note("  pod %s (%s) meddled with: %d", name, pod.UID, how)
	switch how {
	case 0, 1:
		c.deletePod(pod, false)
	case 2:
		c.deletePod(pod, true)
	case 3: // it does not even wait for the operator
		pod.Finalizers = nil
		c.deletePod(pod, true)
	case 4:
		c.evict(pod)
	case 5:
		c.podGC(pod)
	case 6:
		c.copyOf(pod)
	case 7:
		ended := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
		if p := c.processes[pod.UID]; !ended && p.starts > 0 && (p.running || p.once) {
			c.restartContainer(p, pod)
		}
	}
}

func (c *cluster) strangersJob(name string) {
	job := jobNamed(name)
	job.Annotations = map[string]string{"stranger": "yes"}
	c.createJob(job)
}

// copyOf makes a pod of another name just like one of an attempt, as whoever copies its
// manifest does.
func (c *cluster) copyOf(pod *corev1.Pod) {
	twin := pod.DeepCopy()
	twin.ObjectMeta = metav1.ObjectMeta{Name: pod.Name + "-copy", Namespace: pod.Namespace, Labels: pod.Labels, Annotations: pod.Annotations,
		OwnerReferences: pod.OwnerReferences, Finalizers: []string{v1alpha1.FenceFinalizer}}
	twin.Annotations = maps.Clone(twin.Annotations)
	twin.Annotations[v1alpha1.AnnotationTaskUID] = string(c.task.UID)
	twin.Spec.NodeName, twin.Status = "", corev1.PodStatus{}
	stepexec.Fence(twin, c.task)
	c.createPod(twin)
}

// strange says whether a pod is nobody's.
func (c *cluster) strange(pod *corev1.Pod) bool { return c.made[pod.Name] == attemptID{} }

// people lets somebody decide upon a step, rightly or wrongly.
func (c *cluster) people() {
	if len(c.task.Status.Steps) == 0 || c.alone {
		return
	}
	record := &c.task.Status.Steps[c.IntN(len(c.task.Status.Steps))]
	if c.IntN(3) > 0 || c.calm {
		record = &c.task.Status.Steps[len(c.task.Status.Steps)-1]
	}
	d := &v1alpha1.AgentDecision{ObjectMeta: metav1.ObjectMeta{UID: c.newUID("decision"), Generation: 1, CreationTimestamp: metav1.NewTime(c.now)}}
	d.Name = string(d.UID)
	d.Spec = v1alpha1.AgentDecisionSpec{Task: c.task.Name, TaskUID: string(c.task.UID), Step: record.Name, Attempt: record.Attempt,
		ActionHash: record.ActionHash, DecidedBy: "ann", Reason: "looked", Decision: c.judged(record)}
	if d.Spec.Decision == v1alpha1.DecisionComplete && c.IntN(2) == 0 {
		d.Spec.Output = doc1(`{"ok": true}`)
	}
	if !c.calm {
		c.mistake(d)
	}
	c.note("  decision %s: %s on %s/%d", d.UID, d.Spec.Decision, d.Spec.Step, d.Spec.Attempt)
	c.stamp(d)
	c.decisions = append(c.decisions, d)
}

// judged is what somebody who looks at the world decides.
func (c *cluster) judged(record *v1alpha1.StepStatus) v1alpha1.DecisionKind {
	p := c.processes[record.PodUID]
	careless := c.IntN(10) == 0 && !c.calm
	switch {
	case c.effects[record.IdempotencyKey] > 0 && !careless:
		return []v1alpha1.DecisionKind{v1alpha1.DecisionComplete, v1alpha1.DecisionComplete, v1alpha1.DecisionSkip, v1alpha1.DecisionAbort}[c.IntN(4)]
	case p == nil, !c.dead(p), careless:
		c.atRisk[record.IdempotencyKey] = true
	}
	return []v1alpha1.DecisionKind{v1alpha1.DecisionRetry, v1alpha1.DecisionRetry, v1alpha1.DecisionSkip, v1alpha1.DecisionAbort}[c.IntN(4)]
}

// mistake makes a decision one that cannot be applied, at times.
func (c *cluster) mistake(d *v1alpha1.AgentDecision) {
	how := c.IntN(16)
	c.wrong[d.UID] = how < 6
	switch how {
	case 0:
		d.Spec.TaskUID = "another"
	case 1:
		d.Spec.Attempt += 99
	case 2:
		d.Spec.ActionHash = "sha256:another"
	case 3:
		d.Generation = 2
	case 4:
		d.Spec.Step = "nobody"
	case 5:
		d.Spec.Output = doc1(`1e400`) // with any decision
	}
}
