// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
)

// dice is where a cluster's luck comes from: a seeded source or the fuzzer's bytes.
type dice interface {
	// IntN gives a number from 0 up to but not including n.
	IntN(n int) int
}

// cluster is a small model of a cluster in which everything goes wrong that may: pods
// die in every way, Jobs are deleted, the operator is killed between any two of its
// writes and forgets what it saw. It keeps what the engine must never see broken.
type cluster struct {
	dice
	task *v1alpha1.AgentTask
	now  time.Time
	jobs map[string]*batchv1.Job
	pods map[string]*corev1.Pod
	uids int

	// What this operator process remembers, as the controller's memory does.
	vanishedJobs map[string]types.UID
	vanishedPods map[string]*corev1.Pod

	// calm is set once nothing goes wrong any more.
	calm bool
	// paramsA is what the params were at first.
	paramsA *v1alpha1.AgentTaskSpec

	problems []string
	history  []string
}

func newCluster(d dice) *cluster {
	c := &cluster{dice: d, now: epoch, jobs: map[string]*batchv1.Job{}, pods: map[string]*corev1.Pod{}}
	b := MakeTask().Params(`{"a":1}`)
	for i := range 1 + d.IntN(4) {
		step := MakeStep(string(rune('a'+i))).Limit(int32(d.IntN(5))).Backoff(time.Second, 4*time.Second).StartTimeout(time.Minute)
		if d.IntN(2) == 0 {
			step.Input(`{"p":"${params.a}"}`)
		}
		if d.IntN(3) == 0 {
			step.OnTimeout()
		}
		b.Step(step.Obj())
	}
	if d.IntN(4) == 0 {
		b.Deadline(int64(30 + d.IntN(600)))
	}
	if d.IntN(4) == 0 {
		b.TTL(60)
	}
	b.History([]v1alpha1.JobHistory{"", v1alpha1.JobHistoryAll, v1alpha1.JobHistoryFailed, v1alpha1.JobHistoryNone}[d.IntN(4)])
	c.task = b.Obj()
	c.paramsA = c.task.Spec.DeepCopy()
	c.restart()
	return c
}

func (c *cluster) restart() {
	c.vanishedJobs, c.vanishedPods = map[string]types.UID{}, map[string]*corev1.Pod{}
}

func (c *cluster) problem(format string, args ...any) {
	c.problems = append(c.problems, fmt.Sprintf(format, args...))
}

// record is the current record, where an attempt is meant to run.
func (c *cluster) record() *v1alpha1.StepStatus {
	if n := len(c.task.Status.Steps); n > 0 && !c.task.Status.Steps[n-1].Phase.Finished() {
		return &c.task.Status.Steps[n-1]
	}
	return nil
}

// world is what the controller would observe: see controllers.observe.
func (c *cluster) world() World {
	w := World{}
	record := c.record()
	for name, job := range c.jobs {
		if (record == nil || record.JobName != name) && len(job.Status.Conditions) == 0 {
			w.Ended = append(w.Ended, job)
		}
	}
	if len(w.Ended) > 1 { // in one order, whatever the map's
		w.Ended = nil
	}
	if record == nil || record.Phase == v1alpha1.StepRetrying {
		return w
	}
	name := record.JobName
	w.Job = c.jobs[name]
	w.JobVanished = w.Job == nil && c.vanishedJobs[name] != ""
	if pod := c.pods[name]; pod != nil {
		owner := metav1.GetControllerOf(pod).UID
		if (w.Job != nil && owner == w.Job.UID) || owner == c.vanishedJobs[name] {
			w.Pod = pod
		} else {
			w.Blocked = &Problem{v1alpha1.ReasonPodLost, "pod of a deleted Job"}
		}
	} else if last := c.vanishedPods[name]; last != nil {
		w.PodVanished, w.LastPod = true, last
	}
	return w
}

// reconcile decides, and does what the decision says as far as the operator lives.
func (c *cluster) reconcile() Decision {
	draw := float64(c.IntN(1000)) / 1000
	in := Input{Task: c.task, World: c.world(), Now: c.now, Rand: func() float64 { return draw }}
	before := copyInput(in)
	d := Decide(in)
	for _, p := range broken(before, in, d) {
		c.problem("%s", p)
	}
	if twice := Decide(in); !reflect.DeepEqual(d, twice) {
		c.problem("the same input gave two decisions: %s", lazyDiff{d, twice})
	}
	c.history = append(c.history, c.sketch(in.World)+" "+changes(&c.task.Status, &d.Status)+" "+kinds(d))
	if !c.calm && c.IntN(12) == 0 { // killed, or in conflict, before its write
		c.restart()
		return d
	}
	c.task.Status = persisted(d.Status)
	for _, a := range d.Actions {
		if !c.calm && c.IntN(12) == 0 { // killed before the action
			c.restart()
			return d
		}
		c.act(a)
	}
	return d
}

// sketch is a world in short, for the history of a walk that failed.
func (c *cluster) sketch(w World) string {
	out := ""
	for i, is := range []bool{w.Job != nil, w.Pod != nil, w.JobVanished, w.PodVanished, w.Blocked != nil} {
		if is {
			out += " " + []string{"job", "pod", "jobVanished", "podVanished", "blocked"}[i]
		}
	}
	if w.Pod != nil {
		out += fmt.Sprintf(" %s", w.Pod.Status.Phase)
	}
	return "[" + out + "]"
}

// persisted is a status as it is read back: times lose what their JSON does not hold.
func persisted(status v1alpha1.AgentTaskStatus) v1alpha1.AgentTaskStatus {
	doc, err := json.Marshal(status)
	if err != nil {
		panic(err)
	}
	var out v1alpha1.AgentTaskStatus
	if err := json.Unmarshal(doc, &out); err != nil {
		panic(err)
	}
	return out
}

func (c *cluster) act(a Action) {
	switch a.Kind {
	case MakeJob:
		c.makeJob(a)
	case StopPod:
		if pod := c.pods[a.Pod.Name]; pod != nil {
			pod.DeletionTimestamp = &metav1.Time{Time: c.now}
		}
	case FinishJob:
		if job := c.jobs[a.Job.Name]; job != nil {
			if pod := c.pods[job.Name]; pod != nil && alive(pod) {
				c.problem("Job %s is finished and its pod may still run", job.Name)
			}
			job.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobComplete}}
			if !a.Keep {
				delete(c.jobs, job.Name)
				delete(c.pods, job.Name)
			}
		}
	case DeleteTask:
	}
}

func (c *cluster) makeJob(a Action) {
	name := a.Attempt.Record.JobName
	for other, pod := range c.pods {
		if other != name && alive(pod) {
			c.problem("%s is made while the pod of %s may still run", name, other)
		}
	}
	job := c.jobs[name]
	if job == nil {
		job = stepexec.Render(c.task, *a.Attempt, "runner")
		c.uids++
		job.UID, job.CreationTimestamp = types.UID(fmt.Sprintf("job-%d", c.uids)), metav1.NewTime(c.now)
		c.jobs[name] = job
		if !c.calm && c.IntN(20) == 0 {
			job.Spec.Suspend = new(true)
			return
		}
	}
	if c.pods[name] == nil && (c.calm || c.IntN(12) > 0) {
		pod := stepexec.PodOf(job)
		c.uids++
		pod.UID, pod.CreationTimestamp = types.UID(fmt.Sprintf("pod-%d", c.uids)), metav1.NewTime(c.now)
		pod.Status.Phase = corev1.PodPending
		c.pods[name] = pod
	}
}

// alive says whether a pod's program may run, now or later.
func alive(pod *corev1.Pod) bool {
	return !over(pod)
}

// over says whether kubelet has said its last word about a pod.
func over(pod *corev1.Pod) bool {
	return stepEnd(pod) != nil || pod.Status.Phase == corev1.PodFailed && disruption(pod) == ""
}

// happen lets one thing happen to the current attempt.
func (c *cluster) happen() {
	record := c.record()
	if record == nil {
		return
	}
	job, pod := c.jobs[record.JobName], c.pods[record.JobName]
	switch {
	case c.calm:
		c.goWell(job, pod)
		return
	case job != nil && c.IntN(25) == 0:
		c.vanishedJobs[job.Name] = job.UID
		delete(c.jobs, job.Name)
		return
	case job != nil && c.IntN(15) == 0:
		job.Spec.Suspend = new(!jobSuspended(job))
		return
	case pod == nil:
		return
	}
	switch c.IntN(12) {
	case 0, 1, 2:
		c.goWell(job, pod)
	case 3:
		c.vanish(pod)
	case 4:
		pod.DeletionTimestamp = &metav1.Time{Time: c.now}
	case 5:
		if over(pod) {
			return
		}
		pod.Status.Phase = corev1.PodFailed
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "DeletionByPodGC"})
	default:
		c.endBadly(pod)
	}
}

// goWell starts a pod, lets its program succeed, or lets what is being deleted go.
func (c *cluster) goWell(job *batchv1.Job, pod *corev1.Pod) {
	b := podBuilder{pod}
	switch {
	case c.calm && jobSuspended(job):
		job.Spec.Suspend = new(false)
	case pod == nil:
	case !pod.DeletionTimestamp.IsZero(), job == nil && c.calm, c.calm && pod.Status.Phase == corev1.PodFailed:
		c.vanish(pod)
	case over(pod):
	case !started(pod):
		b.Running()
	default:
		b.Succeeded(`{"ok":true}`)
	}
}

func (c *cluster) vanish(pod *corev1.Pod) {
	c.vanishedPods[pod.Name] = pod
	delete(c.pods, pod.Name)
}

func (c *cluster) endBadly(pod *corev1.Pod) {
	if over(pod) {
		return
	}
	b := podBuilder{pod}
	switch c.IntN(9) {
	case 0:
		b.Result(75, again)
	case 1:
		b.Result(3, stepexec.Result{Outcome: stepexec.OutcomeFailed, Reason: v1alpha1.ReasonExitCode, Message: "exit code 3"})
	case 2:
		b.Result(124, stepexec.Result{Outcome: stepexec.OutcomeTimeout, Reason: v1alpha1.ReasonTimeout})
	case 3:
		b.Ended(137, "OOMKilled", "")
	case 4:
		b.Ended(137, "Error", "").Phase(corev1.PodFailed, "Evicted", "low on memory")
	case 5:
		b.Ended(0, "Completed", "not a result")
	case 6:
		b.Waiting("ImagePullBackOff", "not found")
	case 7:
		b.Waiting("PodInitializing", "").Init("agenttask-install", 1, "Error", "").Phase(corev1.PodFailed, "", "")
	case 8:
		b.Running()
	}
}

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
		spec.Params = c.paramsA.Params
	case 5:
		spec.Steps[c.IntN(len(spec.Steps))].Run.Image = "tools:2"
	case 6, 7:
		spec.Steps = c.paramsA.DeepCopy().Steps
	case 8:
		spec.Steps = slices.Concat(c.paramsA.DeepCopy().Steps, []v1alpha1.Step{MakeStep("z").Obj()})
	case 9:
		spec.Steps = append([]v1alpha1.Step{MakeStep("y").Obj()}, c.paramsA.DeepCopy().Steps...)
	case 10:
		spec.Steps = spec.Steps[:max(1, len(spec.Steps)-1)]
	case 11:
		spec.Cancel = spec.Cancel || c.IntN(3) == 0
	}
	if !equality.Semantic.DeepEqual(before, spec) {
		c.task.Generation++
	}
}
