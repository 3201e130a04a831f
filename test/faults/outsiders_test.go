// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package faults_test

import (
	"context"
	"fmt"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
	"github.com/agenttask-dev/agenttask/test/faults"
	"github.com/agenttask-dev/agenttask/test/harness"
)

// deed is what an outside actor does.
type deed struct {
	name string
	// to is what it is done to.
	to aim
	do func(ctx context.Context, w *world, o *harness.Outsider, key client.ObjectKey) error
	// ends says that it is done to a program that runs, which then never reports.
	ends bool
	may  []faults.Difference
}

// aim is what a deed is done to.
type aim int

const (
	theTask aim = iota
	lastJob     // that was made
	lastPod
	nextJob // that will be made
	nextPod
)

// What the deeds may cost.
var (
	podEnded   = []faults.Difference{faults.NextAttempt, faults.Decided}
	podDeleted = append([]faults.Difference{faults.PodGone}, podEnded...)
	jobDeleted = append([]faults.Difference{faults.JobGone}, podEnded...)
)

var deeds = []deed{
	{name: "delete-job", may: jobDeleted, to: lastJob, do: func(ctx context.Context, _ *world, o *harness.Outsider, key client.ObjectKey) error {
		return o.DeleteJob(ctx, key, metav1.DeletePropagationBackground)
	}},
	{name: "delete-job-foreground", may: jobDeleted, to: lastJob, do: func(ctx context.Context, _ *world, o *harness.Outsider, key client.ObjectKey) error {
		return o.DeleteJob(ctx, key, metav1.DeletePropagationForeground)
	}},
	{name: "delete-pod", may: podDeleted, to: lastPod, do: func(ctx context.Context, _ *world, o *harness.Outsider, key client.ObjectKey) error {
		return o.DeletePod(ctx, key, 30)
	}},
	{name: "force-delete-pod", may: podDeleted, to: lastPod, do: func(ctx context.Context, _ *world, o *harness.Outsider, key client.ObjectKey) error {
		return o.DeletePod(ctx, key, 0)
	}},
	{name: "strip-and-delete-pod", may: podDeleted, to: lastPod, do: func(ctx context.Context, _ *world, o *harness.Outsider, key client.ObjectKey) error {
		return o.StripAndDeletePod(ctx, key)
	}},
	{name: "evict", may: podDeleted, to: lastPod, do: func(ctx context.Context, _ *world, o *harness.Outsider, key client.ObjectKey) error {
		return o.Evict(ctx, key)
	}},
	{name: "collect-pod", may: podDeleted, to: lastPod, do: func(ctx context.Context, _ *world, o *harness.Outsider, key client.ObjectKey) error {
		return o.CollectPod(ctx, key)
	}},
	{name: "suspend-job", may: podDeleted, to: lastJob, do: suspendAndResume},
	{name: "second-pod", may: []faults.Difference{faults.SecondPod}, to: lastJob, do: secondPod},
	{name: "patch-image", to: lastPod, do: func(ctx context.Context, _ *world, o *harness.Outsider, key client.ObjectKey) error {
		return o.PatchImage(ctx, key, "tools.invalid/other:2")
	}},
	{name: "start-again", may: podEnded, to: lastPod, ends: true, do: func(ctx context.Context, _ *world, o *harness.Outsider, key client.ObjectKey) error {
		return o.StartContainerAgain(ctx, key, true)
	}},
	{name: "recreate-task", to: theTask, do: func(ctx context.Context, _ *world, o *harness.Outsider, key client.ObjectKey) error {
		_, err := o.RecreateTask(ctx, key)
		return err
	}},
	{name: "stranger-job", to: nextJob, do: func(ctx context.Context, _ *world, o *harness.Outsider, key client.ObjectKey) error {
		return o.StrangerJob(ctx, key)
	}},
	{name: "stranger-pod", to: nextPod, do: func(ctx context.Context, _ *world, o *harness.Outsider, key client.ObjectKey) error {
		return o.StrangerPod(ctx, key)
	}},
}

// suspendAndResume holds a Job as a queue does, until its operator has answered that or
// has nothing to answer.
func suspendAndResume(ctx context.Context, w *world, o *harness.Outsider, key client.ObjectKey) error {
	if err := o.SuspendJob(ctx, key, true); err != nil {
		return err
	}
	w.later(func() {
		w.silence()
		if err := o.SuspendJob(w.ctx, key, false); client.IgnoreNotFound(err) != nil {
			w.problem("resuming the Job: %w", err)
		}
	})
	return nil
}

// secondPod makes another pod under a Job, from the Job's template as the Job controller or
// another operator would.
func secondPod(ctx context.Context, w *world, _ *harness.Outsider, key client.ObjectKey) error {
	job := &batchv1.Job{}
	if err := w.Client.Get(ctx, key, job); err != nil {
		return err
	}
	pod := stepexec.PodOf(job)
	pod.Name += "-second"
	return w.Client.Create(ctx, pod)
}

// outsiderFaults are deeds after the n-th write is done and before the operator knows. The
// write may have started a program: then the deed is done while it runs, and in a case of
// its own when it has ended.
func outsiderFaults() []fault {
	var list []fault
	for _, d := range deeds {
		list = append(list, fault{name: d.name, class: classOutsider, may: d.may,
			strikes: func(b *baseline, n int64) bool { return b.name(d.to, n) != nil && (!d.ends || b.starts[n] != "") },
			run:     func(w *world, b *baseline, n int64) { outsider(w, b, n, d, false) },
		})
		if !d.ends && d.to != nextJob && d.to != nextPod {
			list = append(list, fault{name: d.name + "-at-its-end", class: classOutsider, may: d.may,
				strikes: func(b *baseline, n int64) bool { return b.starts[n] != "" },
				run:     func(w *world, b *baseline, n int64) { outsider(w, b, n, d, true) },
			})
		}
	}
	return list
}

// outsider lets a deed be done at a write, and settles what it left.
func outsider(w *world, b *baseline, n int64, d deed, late bool) {
	starts := b.starts[n] != ""
	line := harness.NewFaults(
		harness.Fault{At: n, Kind: harness.ActBefore, Act: func(harness.Write) {
			if starts && !late {
				w.hold.set()
			}
		}},
		harness.Fault{At: n, Kind: harness.ActAfter, Act: func(harness.Write) {
			if starts {
				w.programOf(b.starts[n], late)
			}
			w.doDeed(b, n, d)
			if d.ends {
				w.hold.forget()
			} else {
				w.hold.release()
			}
		}})
	first := w.begin(line)
	w.afterwards()
	w.restAgain()
	if d.to == nextJob || d.to == nextPod {
		w.removeStranger(d.to, first)
	}
	w.decide()
}

// doDeed does a deed and notes to whom.
func (w *world) doDeed(b *baseline, n int64, d deed) {
	ctx, cancel := context.WithTimeout(w.ctx, bound)
	defer cancel()
	key := client.ObjectKey{Namespace: w.ns, Name: taskName}
	if d.to != theTask {
		task, err := w.task()
		if err != nil {
			w.problem("%s: %w", d.name, err)
			return
		}
		made := b.name(d.to, n)
		key.Name = stepexec.JobName(taskName, task.UID, made.step, v1alpha1.RoleMain, made.attempt)
		w.touched = faults.Touched{Step: made.step, Attempt: made.attempt}
	}
	if err := d.do(ctx, w, w.Outsider(), key); err != nil {
		w.problem("%s: %w", d.name, err)
	}
}

// programOf waits until the program of a step runs, or has ended.
func (w *world) programOf(step string, ended bool) {
	err := wait.PollUntilContextTimeout(w.ctx, poll, bound, true, func(ctx context.Context) (bool, error) {
		list := &corev1.PodList{}
		if err := w.Client.List(ctx, list, client.InNamespace(w.ns), client.MatchingLabels{v1alpha1.LabelStep: step}); err != nil {
			return false, err
		}
		for i := range list.Items {
			for _, s := range list.Items[i].Status.ContainerStatuses {
				if (ended && s.State.Terminated != nil) || (!ended && s.State.Running != nil) {
					return true, nil
				}
			}
		}
		return false, nil
	})
	if err != nil {
		w.problem("the program of step %s: %w", step, err)
	}
}

// removeStranger takes away what was in the way, and lets another operator go on at once:
// the first would look again in half a minute.
func (w *world) removeStranger(kind aim, first *harness.Manager) {
	if first == nil {
		return
	}
	first.Kill()
	options := []client.DeleteAllOfOption{client.InNamespace(w.ns), client.MatchingLabels{harness.StrangerLabel: "true"}, client.GracePeriodSeconds(0)}
	var err error
	if kind == nextJob {
		err = w.Client.DeleteAllOf(w.ctx, &batchv1.Job{}, options...)
	} else {
		err = w.Client.DeleteAllOf(w.ctx, &corev1.Pod{}, options...)
	}
	if err != nil {
		w.problem("removing the stranger: %w", err)
	}
	if missing := w.until(noStranger); missing != "" {
		w.problem("removing the stranger: %s", missing)
	}
	w.operator("second", nil)
	if missing := w.until(notStalled); missing != "" {
		w.problem("the stranger is gone, and still %s", missing)
	}
	w.rest()
}

// noStranger says that a stranger is still there.
func noStranger(h *harness.History) string {
	there := map[types.UID]string{}
	for _, r := range h.Revisions {
		if obj := r.Object(); obj.GetLabels()[harness.StrangerLabel] != "" {
			there[obj.GetUID()] = obj.GetName()
			if r.Deleted {
				delete(there, obj.GetUID())
			}
		}
	}
	for _, name := range there {
		return name + " is still there"
	}
	return ""
}

// notStalled says that the task is stalled.
func notStalled(h *harness.History) string {
	for _, r := range slices.Backward(h.Revisions) {
		if r.Task == nil {
			continue
		}
		if meta.IsStatusConditionTrue(r.Task.Status.Conditions, v1alpha1.ConditionStalled) {
			return "the task is stalled"
		}
		break
	}
	return ""
}

// maxDecisions is how many outcomes of one case may be unknown.
const maxDecisions = 5

// decider is who decides in every case.
const decider = "somebody"

// decide settles an unknown outcome, as a person who looks at the outside world does: where
// the effect has happened the step is complete, and otherwise it is tried again.
func (w *world) decide() {
	for range maxDecisions {
		task, err := w.task()
		if err != nil {
			w.problem("deciding: %w", err)
			return
		}
		if task.Status.Phase != v1alpha1.TaskUnknown || w.failed() != nil {
			return
		}
		r := &task.Status.Steps[len(task.Status.Steps)-1]
		d := &v1alpha1.AgentDecision{
			ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: fmt.Sprintf("%s-%s-%d", taskName, r.Name, r.Attempt)},
			Spec: v1alpha1.AgentDecisionSpec{
				Task: task.Name, TaskUID: string(task.UID), Step: r.Name, Attempt: r.Attempt, ActionHash: r.ActionHash,
				Decision: v1alpha1.DecisionRetry, DecidedBy: decider, Reason: "the outside world says so",
			},
		}
		if w.happened(r.PodUID) {
			d.Spec.Decision, d.Spec.Output = v1alpha1.DecisionComplete, &apiextensionsv1.JSON{Raw: w.plan.output(r.Name)}
		}
		if err := w.Client.Create(w.ctx, d); err != nil {
			w.problem("deciding: %w", err)
			return
		}
		if d.Spec.Decision == v1alpha1.DecisionRetry { // which waits until the old pod is gone
			err := w.Outsider().DeletePod(w.ctx, client.ObjectKey{Namespace: w.ns, Name: r.JobName}, 0)
			if client.IgnoreNotFound(err) != nil {
				w.problem("deciding: %w", err)
			}
		}
		w.until(func(h *harness.History) string { return unseen(h, d.UID) })
		w.restAgain()
	}
}

// later is done when the operator has got the answer to the write that was struck.
func (w *world) later(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.deferred = append(w.deferred, f)
}

// afterwards does what was put off.
func (w *world) afterwards() {
	w.mu.Lock()
	list := w.deferred
	w.deferred = nil
	w.mu.Unlock()
	for _, f := range list {
		f()
	}
}

// unseen says that an object is not in a history yet.
func unseen(h *harness.History, uid types.UID) string {
	if slices.ContainsFunc(h.Revisions, func(r harness.Revision) bool { return r.Object().GetUID() == uid }) {
		return ""
	}
	return string(uid) + " has not been seen"
}

// happened says whether the program of a pod had its effect.
func (w *world) happened(pod types.UID) bool {
	return slices.ContainsFunc(w.effects(), func(e faults.Effect) bool { return e.Pod == pod && e.Done })
}
