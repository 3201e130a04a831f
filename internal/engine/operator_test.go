// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
)

// operator is a model of one operator process: what the controllers do around Decide, one
// write at a time, so that it can be killed or paused between any two of them.
type operator struct {
	c *cluster
	// task as it was last read or written; nil: it is to be read.
	task *v1alpha1.AgentTask
	// jobs, pods and decisions are its caches, behind the API server as far as they like.
	jobs      map[string]*batchv1.Job
	pods      map[string]*corev1.Pod
	decisions []*v1alpha1.AgentDecision

	vanishedJobs map[string]types.UID
	vanishedPods map[string]*corev1.Pod
	vanishFinal  map[types.UID]bool
	settled      map[types.UID]bool
	done         map[types.UID]bool

	// paused is for how many turns it stands still.
	paused int
	// What it is at: a decision that is to be written, then its actions.
	world   World
	write   bool
	status  v1alpha1.AgentTaskStatus
	actions []Action
	rounds  int
	requeue time.Duration
	// hasty counts looks in a row, soon after one another, that changed nothing.
	hasty int
}

func newOperator(c *cluster) *operator {
	o := &operator{c: c}
	o.restart()
	return o
}

// restart is what is left of a process that was killed: nothing. Its caches are filled
// anew.
func (o *operator) restart() {
	*o = operator{c: o.c, jobs: map[string]*batchv1.Job{}, pods: map[string]*corev1.Pod{}, vanishedJobs: map[string]types.UID{},
		vanishedPods: map[string]*corev1.Pod{}, vanishFinal: map[types.UID]bool{}, settled: map[types.UID]bool{}, done: map[types.UID]bool{}}
	o.hear(true)
}

// concerns says whether an object's name is that of the current attempt.
func (o *operator) concerns(name string) bool {
	if o.task == nil {
		return true
	}
	current := CurrentOf(o.task)
	return current != nil && current.JobName == name
}

// hear takes in what the API server's watch has to tell, or some of it.
func (o *operator) hear(all bool) {
	c := o.c
	names := maps.Clone(o.pods)
	maps.Copy(names, c.pods)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if !all && c.IntN(3) == 0 {
			continue
		}
		was, live := o.pods[name], c.pods[name]
		if was != nil && (live == nil || live.UID != was.UID) && o.concerns(name) {
			last, final := c.gone[was.UID], true
			if c.one(6) { // a relist shows that it is gone, not how it ended
				last, final = was, false
			}
			o.vanishedPods[name] = last
			o.vanishFinal[last.UID] = final && last.DeletionTimestamp != nil
		}
		switch {
		case live == nil:
			delete(o.pods, name)
		case was == nil || was.ResourceVersion != live.ResourceVersion:
			o.pods[name] = live.DeepCopy()
		}
	}
	jobs := maps.Clone(o.jobs)
	maps.Copy(jobs, c.jobs)
	for _, name := range slices.Sorted(maps.Keys(jobs)) {
		if !all && c.IntN(3) == 0 {
			continue
		}
		was, live := o.jobs[name], c.jobs[name]
		if was != nil && (live == nil || live.UID != was.UID) && o.concerns(name) && !o.settled[was.UID] {
			o.vanishedJobs[name] = was.UID
		}
		switch {
		case live == nil:
			delete(o.jobs, name)
		case was == nil || was.ResourceVersion != live.ResourceVersion:
			o.jobs[name] = live.DeepCopy()
		}
	}
	if all || c.IntN(2) == 0 {
		o.decisions = nil
		for _, d := range c.decisions {
			if len(c.answers[d.UID]) == 0 {
				o.decisions = append(o.decisions, d.DeepCopy())
			}
		}
	}
}

// step is one thing that it does: to read and decide, to write, or one action.
func (o *operator) step() {
	switch {
	case o.paused > 0 && !o.c.calm:
		o.paused--
	case o.write:
		o.writeStatus()
	case len(o.actions) > 0:
		a := o.actions[0]
		o.actions = o.actions[1:]
		o.act(a)
	default:
		o.hear(o.c.calm)
		o.look()
	}
}

// idle says whether it has nothing at hand.
func (o *operator) idle() bool { return !o.write && len(o.actions) == 0 }

// look reads the task, and decides upon what it sees.
func (o *operator) look() {
	c := o.c
	if o.task == nil || c.calm || c.IntN(3) > 0 {
		if o.task == nil || o.task.ResourceVersion != c.task.ResourceVersion {
			o.task = c.task.DeepCopy()
		}
	}
	world, ok := o.observe()
	if !ok {
		o.task = nil
		return
	}
	o.world, o.rounds = world, 0
	o.decide()
}

// observe is what the controllers gather: see controllers.observe.
func (o *operator) observe() (World, bool) {
	w := World{}
	for _, name := range slices.Sorted(maps.Keys(o.pods)) {
		pod := o.pods[name]
		if stepexec.Held(pod) && pod.Annotations[v1alpha1.AnnotationTaskUID] == string(o.task.UID) && !o.done[pod.UID] {
			w.Held = append(w.Held, pod)
		}
	}
	for _, d := range o.decisions {
		if !o.done[d.UID] {
			w.Decisions = append(w.Decisions, d)
		}
	}
	current := CurrentOf(o.task)
	for _, name := range slices.Sorted(maps.Keys(o.jobs)) {
		job := o.jobs[name]
		if (current == nil || current.JobName != name) && len(job.Status.Conditions) == 0 && !o.settled[job.UID] && job.DeletionTimestamp == nil && o.owned(job) {
			w.Ended = append(w.Ended, job)
		}
	}
	if current == nil {
		return w, true
	}
	attempt := o.lookAt(current, o.jobs, o.pods)
	if o.c.one(8) || attempt.Job == nil || attempt.Pod == nil || jobSuspended(attempt.Job) {
		if o.task.ResourceVersion != o.c.task.ResourceVersion {
			return w, false
		}
		attempt = o.lookAt(current, o.c.jobs, o.c.pods)
		attempt.Job, attempt.Pod = attempt.Job.DeepCopy(), attempt.Pod.DeepCopy()
	}
	attempt.Ended, attempt.Held, attempt.Decisions = w.Ended, w.Held, w.Decisions
	o.keepOutput(&attempt)
	if o.c.one(15) {
		attempt.Refusal = &Refusal{Reason: v1alpha1.ReasonUnavailable, Message: "connection refused", Retry: time.Second}
	}
	return attempt, true
}

// keepOutput stores the large output of an attempt that has succeeded.
func (o *operator) keepOutput(w *World) {
	pod := w.SeenPod()
	if pod == nil {
		return
	}
	result := ResultOf(pod)
	if result == nil || result.LogOutput == nil {
		return
	}
	w.Output = &v1alpha1.OutputRef{URI: "configmap:" + pod.Name, SHA256: result.LogOutput.SHA256, Bytes: 5000}
	if o.c.one(3) {
		w.Output = nil
		if o.c.IntN(2) == 0 {
			w.OutputProblem = "the pod's log is gone"
		} else {
			w.Refusal = &Refusal{Reason: v1alpha1.ReasonUnavailable, Message: "no route to the node", Retry: time.Second}
		}
	}
}

// load reads the outputs that a decision asks for.
func (o *operator) load(d Decision, outputs map[string]Loaded) map[string]Loaded {
	if outputs == nil {
		outputs = map[string]Loaded{}
	}
	for _, name := range d.Load {
		var ref *v1alpha1.OutputRef
		if current := CurrentOf(o.task); current != nil && current.Step == name {
			ref = o.world.Output
		} else {
			ref = o.task.Status.Steps[slices.IndexFunc(o.task.Status.Steps, func(r v1alpha1.StepStatus) bool { return r.Name == name })].OutputRef
		}
		switch {
		case ref == nil || o.c.logs[ref.SHA256] == nil:
			o.c.problem("the output of step %s is asked for, and there is none", name)
			outputs[name] = Loaded{Problem: "none"}
		case o.c.one(4):
			outputs[name] = Loaded{Unavailable: "connection refused"}
		default:
			outputs[name] = Loaded{Output: o.c.logs[ref.SHA256]}
		}
	}
	return outputs
}

func (o *operator) owned(job *batchv1.Job) bool {
	owner := metav1.GetControllerOf(job)
	return owner != nil && owner.UID == o.c.task.UID
}

// lookAt reads the current attempt's Job and pod and says whose they are.
func (o *operator) lookAt(current *Current, jobs map[string]*batchv1.Job, pods map[string]*corev1.Pod) World {
	w, name := World{}, current.JobName
	switch job := jobs[name]; {
	case job == nil:
		w.JobVanished = o.vanishedJobs[name] != ""
	case !o.owned(job) || job.Annotations[v1alpha1.AnnotationActionHash] != current.ActionHash:
		w.Conflict = &Problem{v1alpha1.ReasonNameConflict, "Job " + name + " is a stranger's"}
	default:
		w.Job = job
	}
	pod := pods[name]
	switch {
	case pod == nil, current.PodUID != "" && pod.UID != current.PodUID:
		last := o.vanishedPods[name]
		if last != nil && (last.UID == current.PodUID || current.PodUID == "" && o.podOf(last, w.Job)) {
			w.PodVanished, w.LastPod, w.LastPodFinal = true, last, o.vanishFinal[last.UID]
		}
	case current.PodUID != "" || o.podOf(pod, w.Job):
		w.Pod = pod
	case w.Conflict == nil:
		w.Blocked, w.Conflict = foreign(pod, name)
	}
	return w
}

func (o *operator) podOf(pod *corev1.Pod, job *batchv1.Job) bool {
	owner := metav1.GetControllerOf(pod)
	return owner != nil && (job != nil && owner.UID == job.UID || owner.UID == o.vanishedJobs[pod.Name])
}

// foreign says what a pod of the attempt's name is that is not the attempt's.
func foreign(pod *corev1.Pod, name string) (blocked, conflict *Problem) {
	if owner := metav1.GetControllerOf(pod); owner != nil && owner.Kind == "Job" && owner.Name == name {
		return &Problem{v1alpha1.ReasonPodLost, "pod of a deleted Job"}, nil
	}
	return nil, &Problem{v1alpha1.ReasonNameConflict, "pod " + name + " is a stranger's"}
}

// decide decides upon what was observed, and holds the decision against the invariants.
func (o *operator) decide() {
	c := o.c
	draw := float64(c.IntN(1000)) / 1000
	in := Input{Task: o.task, World: o.world, Now: c.now, Rand: func() float64 { return draw }}
	before, closely := in, c.IntN(16) == 0
	if closely {
		before = copyInput(in)
	}
	d := Decide(in)
	for len(d.Load) > 0 {
		in.Outputs = o.load(d, in.Outputs)
		before.Outputs = in.Outputs
		d = Decide(in)
	}
	for _, p := range broken(before, in, d) {
		c.problem("%s", p)
	}
	if closely {
		if twice := Decide(in); !reflect.DeepEqual(d, twice) {
			c.problem("the same input gave two decisions: %s", lazyDiff{d, twice})
		}
	}
	c.note("%d %s %s %s", slices.Index(c.operators, o), sketch(o.world), moved(&o.task.Status, &d.Status), kinds(d))
	o.write, o.status, o.actions, o.requeue = !equality.Semantic.DeepEqual(d.Status, o.task.Status), d.Status, d.Actions, d.RequeueAfter
	if !o.write && len(o.actions) == 0 && d.RequeueAfter > 0 && d.RequeueAfter < time.Second {
		o.hasty++
	} else {
		o.hasty = 0
	}
}

// sketch is a world in short, for the history of a walk that failed.
func sketch(w World) string {
	var out []string
	for i, is := range []bool{w.Job != nil, w.Pod != nil, w.JobVanished, w.PodVanished, w.Blocked != nil, w.Conflict != nil, w.Refusal != nil, len(w.Held) > 0, len(w.Decisions) > 0} {
		if is {
			out = append(out, []string{"job", "pod", "jobVanished", "podVanished", "blocked", "conflict", "refusal", "held", "decisions"}[i])
		}
	}
	if pod := w.SeenPod(); pod != nil {
		out = append(out, fmt.Sprintf("%s %s node=%s gated=%v deleted=%v", pod.UID, pod.Status.Phase, pod.Spec.NodeName, stepexec.Gated(pod), pod.DeletionTimestamp != nil))
	}
	return "[" + strings.Join(out, " ") + "]"
}

// moved is what of the last record changed.
func moved(old, now *v1alpha1.AgentTaskStatus) string {
	line := func(status *v1alpha1.AgentTaskStatus) string {
		if len(status.Steps) == 0 {
			return ""
		}
		r := &status.Steps[len(status.Steps)-1]
		role, work := atWork(r)
		return fmt.Sprintf("%s:%s/%d %s:%s/%d %s %s unknown=%v %s", r.Name, r.Phase, r.Attempt, role, work.Phase, work.Attempt, r.PodUID, work.Reason, r.Unknown, status.Phase)
	}
	if before, after := line(old), line(now); before != after {
		return before + " => " + after
	}
	return ""
}

func (o *operator) writeStatus() {
	o.write = false
	if o.c.one(15) || !o.c.swap(o.task, o.status) {
		o.stop()
		return
	}
	o.task = o.c.task.DeepCopy()
}

// stop ends a reconcile before its end.
func (o *operator) stop() {
	o.task, o.write, o.actions = nil, false, nil
}

// act does one action. Where it finds or makes what is to be decided upon, that is done.
func (o *operator) act(a Action) {
	c := o.c
	switch a.Kind {
	case MakeJob:
		o.makeAttempt(a)
	case StopPod:
		if pod := c.pods[a.Pod.Name]; pod != nil && pod.UID == a.Pod.UID {
			c.deletePod(pod, false)
		}
	case FinishJob:
		o.finishJob(a)
	case OpenFence:
		if o.done["opened "+a.Pod.UID] {
			return
		}
		if !c.openGate(a.Pod) {
			o.stop()
			return
		}
		o.done["opened "+a.Pod.UID] = true
	case ReleasePod:
		o.releasePod(a)
	case AnswerDecision:
		o.answer(a)
	case DeleteTask:
	}
}

func (o *operator) finishJob(a Action) {
	o.settled[a.Job.UID] = true
	job := o.c.jobs[a.Job.Name]
	if job == nil || job.UID != a.Job.UID {
		return
	}
	if !a.Keep {
		o.c.deleteJob(job, false)
		return
	}
	job.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobComplete}}
	o.c.stamp(job)
}

func (o *operator) releasePod(a Action) {
	if a.Leftover && o.c.task.ResourceVersion != o.task.ResourceVersion {
		o.stop()
		return
	}
	pod := o.c.pods[a.Pod.Name]
	if pod == nil || pod.UID != a.Pod.UID {
		return
	}
	if a.Leftover && stepexec.Gated(a.Pod) && a.Pod.DeletionTimestamp == nil {
		o.c.deletePod(pod, false)
	}
	if !stepexec.Held(pod) {
		o.stop()
		return
	}
	o.c.dropFinalizer(pod)
	o.done[a.Pod.UID] = true
}

func (o *operator) answer(a Action) {
	// Its resourceVersion may be another by now; and only who knows the newest checkpoint
	// may say that it does not hold the decision.
	old := a.Answer.Reason != v1alpha1.ReasonApplied && o.c.task.ResourceVersion != o.task.ResourceVersion
	if len(o.c.answers[a.Decision.UID]) > 0 || old {
		o.stop()
		return
	}
	o.c.answers[a.Decision.UID] = append(o.c.answers[a.Decision.UID], a.Answer)
	o.done[a.Decision.UID] = true
}

// makeAttempt makes an attempt's Job, and its pod unless the Job is suspended.
func (o *operator) makeAttempt(a Action) {
	c, name := o.c, a.Attempt.Record.JobName
	id := attemptID{a.Attempt.Step, a.Attempt.Role, a.Attempt.Record.Attempt, a.Attempt.Record.IdempotencyKey, a.Attempt.Once}
	if was, ok := c.made[name]; ok && was != id {
		c.problem("Job %s is made for %+v, and was for %+v", name, id, was)
	}
	c.made[name] = id
	job := c.jobs[name]
	if a.Job == nil {
		fresh := stepexec.Render(c.task, *a.Attempt, "runner")
		if c.createJob(fresh) {
			job = fresh
			job.Spec.Suspend = map[bool]*bool{true: new(true)}[c.one(20)]
		}
		if w := o.lookAt(&Current{ActionStatus: a.Attempt.Record}, c.jobs, nil); w.Conflict != nil {
			o.again(World{Conflict: w.Conflict})
			return
		}
		if job.DeletionTimestamp != nil {
			o.again(World{Blocked: &Problem{v1alpha1.ReasonJobDeleted, "the former Job is still being deleted"}})
			return
		}
	} else if job = a.Job.DeepCopy(); job.UID == "" {
		c.problem("a Job without UID")
	}
	if jobSuspended(job) {
		return
	}
	if c.one(20) {
		o.again(World{Job: job.DeepCopy(), Refusal: &Refusal{Reason: v1alpha1.ReasonRefused, Message: "quota", Retry: time.Second}})
		return
	}
	o.makePod(job, a)
}

func (o *operator) makePod(job *batchv1.Job, a Action) {
	c := o.c
	pod := stepexec.PodOf(job)
	if a.Attempt.Once {
		stepexec.Fence(pod, c.task)
	}
	if !c.createPod(pod) {
		pod = c.pods[pod.Name]
		if owner := metav1.GetControllerOf(pod); owner == nil || owner.UID != job.UID {
			blocked, conflict := foreign(pod, pod.Name)
			o.again(World{Job: job.DeepCopy(), Blocked: blocked, Conflict: conflict})
			return
		}
	} else {
		c.onePodOf(a.Attempt)
	}
	if a.Attempt.Once {
		o.again(World{Job: job.DeepCopy(), Pod: pod.DeepCopy()})
	}
}

// onePodOf checks that no other pod of an action lives when one is made; a check may be
// begun anew while an older one, which does no harm, is about to end. Of two operators
// one may be paused, and make a pod late: it is of no harm to a step that may run twice, and
// waits at the fence with any other.
func (c *cluster) onePodOf(a *stepexec.Attempt) {
	if c.rivals {
		return
	}
	base, _ := stepexec.SplitJobName(a.Record.JobName)
	for name, pod := range c.pods {
		if other, _ := stepexec.SplitJobName(name); other == base && name != a.Record.JobName && VerdictOf(pod) == nil && !neverGotNode(pod) && !c.strange(pod) {
			c.problem("%s is made while pod %s may still run", a.Record.JobName, name)
		}
	}
}

// again decides at once upon what an action has found or made, a few times.
func (o *operator) again(w World) {
	o.actions = nil
	if o.rounds++; o.rounds < 3 {
		o.world = w
		o.decide()
	}
}
