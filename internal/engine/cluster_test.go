// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
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

// cluster is a small model of a cluster in which everything goes wrong that may. This
// file is its API server and its garbage collector; node_test.go has kubelet, the programs
// and what they do to the world, operator_test.go the operators, people_test.go all others.
// It keeps what must never be seen broken.
type cluster struct {
	dice
	now time.Time

	// What the API server holds.
	task      *v1alpha1.AgentTask
	jobs      map[string]*batchv1.Job
	pods      map[string]*corev1.Pod
	decisions []*v1alpha1.AgentDecision
	// gone is each pod that was deleted, as it was then.
	gone          map[types.UID]*corev1.Pod
	version, uids int

	operators []*operator
	processes map[types.UID]*process
	// made is what each Job's name stands for.
	made map[string]attemptID
	// logs holds outputs that are too large for a status, by their sum.
	logs map[string]json.RawMessage
	// effects counts what has happened in the world, by key.
	effects map[string]int
	// named are pods that a written status has named.
	named map[types.UID]bool
	// applied are decisions that a written status holds, and answers what each was answered.
	applied map[types.UID]bool
	answers map[types.UID][]Problem
	// sloppy are steps whose program does its work again, whatever its key.
	sloppy map[string]bool
	// wrong are decisions that can never be applied.
	wrong map[types.UID]bool
	// atRisk are keys whose effect may happen twice, by somebody's will.
	atRisk map[string]bool

	// plan is the spec as it was at first.
	plan *v1alpha1.AgentTaskSpec
	// calm is set once nothing goes wrong any more.
	calm bool
	// alone says that nobody comes to decide, and stormy that nodes and pods are lost again
	// and again.
	alone, stormy bool
	// rivals says that there were two operators at first.
	rivals bool

	problems []string
	history  []string
	// seen counts what a walk has come through.
	seen map[string]int
}

// attemptID is what a Job is for.
type attemptID struct {
	step   string
	role   v1alpha1.Role
	number int32
	key    string
	once   bool
}

func newCluster(d dice) *cluster {
	c := &cluster{
		dice: d, now: epoch, jobs: map[string]*batchv1.Job{}, pods: map[string]*corev1.Pod{}, gone: map[types.UID]*corev1.Pod{},
		processes: map[types.UID]*process{}, made: map[string]attemptID{}, effects: map[string]int{}, named: map[types.UID]bool{},
		applied: map[types.UID]bool{}, answers: map[types.UID][]Problem{}, atRisk: map[string]bool{}, sloppy: map[string]bool{}, wrong: map[types.UID]bool{}, seen: map[string]int{}, logs: map[string]json.RawMessage{},
	}
	c.task = c.anyTask()
	c.plan = c.task.Spec.DeepCopy()
	c.stamp(c.task)
	c.alone, c.stormy = d.IntN(8) == 0, d.IntN(3) == 0
	c.rivals = d.IntN(2) == 0
	for range 1 + map[bool]int{true: 1}[c.rivals] {
		c.operators = append(c.operators, newOperator(c))
	}
	return c
}

// anyTask is a task with a plan of one to four steps.
func (c *cluster) anyTask() *v1alpha1.AgentTask {
	b := MakeTask().Params(`{"a":1}`).RunID("run")
	for i := range 1 + c.IntN(4) {
		b.Step(c.anyOfSteps(string(rune('a' + i))))
	}
	if c.IntN(6) == 0 {
		b.Deadline(int64(30 + c.IntN(600)))
	}
	if c.IntN(4) == 0 {
		b.TTL(60)
	}
	if c.IntN(6) == 0 {
		b.task.Spec.Verify = &v1alpha1.Verify{Mode: v1alpha1.VerifyRunTwice,
			Observe: v1alpha1.Observe{Run: &v1alpha1.RunAction{Image: "tools:1.4", Command: []string{"observe"}}}}
		c.sloppy[string(rune('a'+c.IntN(4)))] = true
	}
	b.History([]v1alpha1.JobHistory{"", v1alpha1.JobHistoryAll, v1alpha1.JobHistoryFailed, v1alpha1.JobHistoryNone}[c.IntN(4)])
	return b.Obj()
}

func (c *cluster) anyOfSteps(name string) v1alpha1.Step {
	step := MakeStep(name).Limit([]int32{0, 1, 3, 9, 20}[c.IntN(5)]).Backoff(time.Second, 4*time.Second).StartTimeout([]time.Duration{time.Minute, time.Hour, time.Hour}[c.IntN(3)])
	switch {
	case c.IntN(4) == 0:
		step.HTTP("POST", "https://api.test/"+name, `{"p":"${params.a}"}`)
	case name > "a" && c.IntN(3) == 0:
		step.Input(`{"all":"${steps['` + string(name[0]-1) + `'].output}"}`)
	case c.IntN(2) == 0:
		step.Input(`{"p":"${params.a}"}`)
	}
	if c.IntN(3) == 0 {
		step.OnTimeout()
	}
	step.step.Effect = []v1alpha1.Effect{"", v1alpha1.EffectNone, v1alpha1.EffectIdempotent, v1alpha1.EffectOnce, v1alpha1.EffectOnce, v1alpha1.EffectOnce}[c.IntN(6)]
	if step.step.Effect == v1alpha1.EffectOnce {
		step.OnUnknown([]v1alpha1.OnUnknown{"", v1alpha1.UnknownPause, v1alpha1.UnknownCheck, v1alpha1.UnknownCheck, v1alpha1.UnknownCheck, v1alpha1.UnknownRetry, v1alpha1.UnknownRetry, v1alpha1.UnknownFail}[c.IntN(8)])
	}
	if step.step.OnUnknown == v1alpha1.UnknownCheck || c.IntN(5) == 0 {
		step.Check([]v1alpha1.CheckWhen{"", v1alpha1.CheckUnknown, v1alpha1.CheckBefore}[c.IntN(3)])
		if c.IntN(2) == 0 {
			step.Done("${result.done}", `{"was":"${result.done}"}`)
		}
	}
	if c.IntN(5) == 0 {
		step.Key([]string{"order-1", "order-${params.a}", "order-" + name}[c.IntN(3)])
	}
	obj := step.Obj()
	if obj.Check != nil && obj.Check.When == v1alpha1.CheckBefore && obj.IdempotencyKey == "order-"+name && c.IntN(2) == 0 {
		c.effects[obj.IdempotencyKey] = 1 // it has happened long ago
	}
	return obj
}

func (c *cluster) problem(format string, args ...any) {
	c.problems = append(c.problems, fmt.Sprintf(format, args...))
}

func (c *cluster) note(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	if !slices.Contains(c.history[max(0, len(c.history)-2):], line) {
		c.history = append(c.history, line)
	}
}

// one says that something happens that does so every n-th time, while anything may.
func (c *cluster) one(n int) bool { return !c.calm && c.IntN(n) == 0 }

func (c *cluster) newUID(kind string) types.UID {
	c.uids++
	return types.UID(fmt.Sprintf("%s-%d", kind, c.uids))
}

// stamp gives an object that was changed its new resourceVersion.
func (c *cluster) stamp(obj metav1.Object) {
	c.version++
	obj.SetResourceVersion(strconv.Itoa(c.version))
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

// swap writes a status, where nothing was written since the task was read.
func (c *cluster) swap(read *v1alpha1.AgentTask, status v1alpha1.AgentTaskStatus) bool {
	if read.ResourceVersion != c.task.ResourceVersion {
		return false
	}
	status = persisted(status)
	c.written(&c.task.Status, &status)
	c.task.Status = status
	c.stamp(c.task)
	return true
}

// createJob makes a Job, unless one of its name exists.
func (c *cluster) createJob(job *batchv1.Job) bool {
	if c.jobs[job.Name] != nil {
		return false
	}
	job.UID, job.CreationTimestamp = c.newUID("job"), metav1.NewTime(c.now)
	c.stamp(job)
	c.jobs[job.Name] = job
	return true
}

// createPod makes a pod, unless one of its name exists. Whether its owner exists is not
// looked at.
func (c *cluster) createPod(pod *corev1.Pod) bool {
	if c.pods[pod.Name] != nil {
		return false
	}
	pod.UID, pod.CreationTimestamp = c.newUID("pod"), metav1.NewTime(c.now)
	pod.Status.Phase = corev1.PodPending
	c.stamp(pod)
	c.pods[pod.Name] = pod
	c.processes[pod.UID] = &process{pod: pod.UID, name: pod.Name, attemptID: c.made[pod.Name]}
	return true
}

// deletePod asks for a pod's end: at once, or when its node has reported it.
func (c *cluster) deletePod(pod *corev1.Pod, force bool) {
	grace := int64(30)
	if force || pod.Spec.NodeName == "" || pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded {
		grace = 0
	}
	if grace == 0 && len(pod.Finalizers) == 0 {
		c.removePod(pod)
		return
	}
	if pod.DeletionTimestamp == nil || grace < *pod.DeletionGracePeriodSeconds {
		pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = &metav1.Time{Time: c.now}, &grace
		c.stamp(pod)
	}
}

func (c *cluster) removePod(pod *corev1.Pod) {
	c.gone[pod.UID] = pod.DeepCopy()
	delete(c.pods, pod.Name)
}

// dropFinalizer takes the fence's finalizer from a pod.
func (c *cluster) dropFinalizer(pod *corev1.Pod) {
	pod.Finalizers = nil
	c.stamp(pod)
	if pod.DeletionTimestamp != nil && *pod.DeletionGracePeriodSeconds == 0 {
		c.removePod(pod)
	}
}

// deleteJob deletes a Job and lets the garbage collector have its pod, or, in the
// foreground, the other way round.
func (c *cluster) deleteJob(job *batchv1.Job, foreground bool) {
	if !foreground {
		delete(c.jobs, job.Name)
		return
	}
	if job.DeletionTimestamp == nil {
		job.DeletionTimestamp = &metav1.Time{Time: c.now}
		c.stamp(job)
	}
}

// collect is one round of the garbage collector.
func (c *cluster) collect() {
	for _, name := range slices.Sorted(maps.Keys(c.pods)) {
		pod := c.pods[name]
		owner := metav1.GetControllerOf(pod)
		if owner == nil || pod.DeletionTimestamp != nil {
			continue
		}
		if job := c.jobs[owner.Name]; job == nil || job.UID != owner.UID || job.DeletionTimestamp != nil {
			c.deletePod(pod, false)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.jobs)) {
		job := c.jobs[name]
		owned := func(pod *corev1.Pod) bool {
			owner := metav1.GetControllerOf(pod)
			return owner != nil && owner.UID == job.UID
		}
		if job.DeletionTimestamp != nil && !slices.ContainsFunc(slices.Collect(maps.Values(c.pods)), owned) {
			delete(c.jobs, name)
		}
	}
}

// openGate removes the fence's gate from a pod, as it was when it was read.
func (c *cluster) openGate(read *corev1.Pod) bool {
	pod := c.pods[read.Name]
	if pod == nil || pod.UID != read.UID || pod.ResourceVersion != read.ResourceVersion || !stepexec.Gated(pod) {
		return false
	}
	if !c.named[pod.UID] {
		c.problem("pod %s (%s) is let through, and no written status names it", pod.Name, pod.UID)
	}
	for i := range c.task.Status.Steps {
		r := &c.task.Status.Steps[i]
		if c.made[pod.Name].step == r.Name && (r.PodUID != pod.UID || r.Phase.Finished()) {
			c.problem("pod %s (%s) is let through, and step %s is at attempt %d with pod %q, %s", pod.Name, pod.UID, r.Name, r.Attempt, r.PodUID, r.Phase)
		}
	}
	pod.Spec.SchedulingGates = nil
	c.stamp(pod)
	return true
}

// record is the current record, where the task goes on.
func (c *cluster) record() *v1alpha1.StepStatus {
	if n := len(c.task.Status.Steps); n > 0 && !c.task.Status.Steps[n-1].Phase.Finished() {
		return &c.task.Status.Steps[n-1]
	}
	return nil
}

// stepNamed is a step of the plan as it is now, or nil.
func (c *cluster) stepNamed(name string) *v1alpha1.Step {
	for i := range c.task.Spec.Steps {
		if c.task.Spec.Steps[i].Name == name {
			return &c.task.Spec.Steps[i]
		}
	}
	return nil
}

// written holds a status that is written against the one before it, and against what has
// really happened.
func (c *cluster) written(old, now *v1alpha1.AgentTaskStatus) {
	c.note("  written %s", moved(old, now))
	for i := range now.Steps {
		n, o := &now.Steps[i], &v1alpha1.StepStatus{}
		if i < len(old.Steps) {
			o = &old.Steps[i]
		}
		if n.PodUID != "" {
			c.named[n.PodUID] = true
		}
		if n.Decision != nil {
			c.applied[n.Decision.UID] = true
		}
		if n.Effect != v1alpha1.EffectOnce {
			c.verified(o, n)
			continue
		}
		c.sight(o, n)
		if n.Attempt > o.Attempt && o.Attempt > 0 {
			c.licensed(o)
		}
		if n.Phase.Done() && !o.Phase.Done() {
			c.done(n)
		}
	}
}

// sight counts what is rare, so that a test can tell that it was come through at all.
func (c *cluster) sight(o, n *v1alpha1.StepStatus) {
	if n.Unknown == nil {
		return
	}
	alive := map[bool]string{true: "dead", false: "alive"}[n.Unknown.PodDead]
	if o.Unknown == nil {
		c.seen["unknown, its pod "+alive]++
	} else if !o.Unknown.PodDead && n.Unknown.PodDead {
		c.seen["unknown, its pod dies"]++
	}
	if o.Phase == v1alpha1.StepUnknown && n.Phase == v1alpha1.StepChecking {
		c.seen["checked, its pod "+alive]++
	}
	if o.Phase == v1alpha1.StepChecking && n.Phase == v1alpha1.StepUnknown {
		c.seen["not settled by its check, its pod "+alive]++
	}
	if retryDecided(n) && !retryDecided(o) {
		c.seen["to be tried again, its pod "+alive]++
	}
}

// verified holds the result of a test by spec.verify against what the program is like.
func (c *cluster) verified(o, n *v1alpha1.StepStatus) {
	if c.task.Spec.Verify == nil || o.Phase.Finished() {
		return
	}
	if n.Phase == v1alpha1.StepSucceeded && n.Reason == "" && c.sloppy[n.Name] {
		c.problem("step %s has passed its test, and does its work again each time", n.Name)
	}
	if n.Reason == v1alpha1.ReasonNotIdempotent && !c.sloppy[n.Name] {
		c.problem("step %s has not passed its test, and does its work once: %s", n.Name, n.Message)
	}
}

// licensed says whether another attempt of a step with effect Once may follow one.
func (c *cluster) licensed(o *v1alpha1.StepStatus) {
	p := c.processes[o.PodUID]
	if p == nil { // never named, so it never started
		return
	}
	gone := c.pods[p.name] == nil || c.pods[p.name].UID != p.pod
	decided := o.Decision != nil && o.Decision.Attempt == o.Attempt && o.Decision.Decision == v1alpha1.DecisionRetry
	step := c.stepNamed(o.Name)
	switch {
	case decided && (gone || c.dead(p)):
		if !c.dead(p) {
			c.atRisk[o.IdempotencyKey] = true
		}
	case !c.dead(p):
		c.problem("step %s goes on from attempt %d, whose pod may live: %+v", o.Name, o.Attempt, *p)
	case p.starts == 0, p.asksAgain(): // it never ran, or says itself that nothing happened
	case step != nil && step.Policy() == v1alpha1.UnknownRetry:
		c.atRisk[o.IdempotencyKey] = true
	case c.checkedUndone(o, p):
	default:
		c.problem("step %s goes on from attempt %d, which may have taken effect: %+v", o.Name, o.Attempt, *p)
	}
}

// checkedUndone says whether a check has looked after an attempt's end and found nothing.
func (c *cluster) checkedUndone(o *v1alpha1.StepStatus, main *process) bool {
	for _, p := range c.processes {
		if p.step == o.Name && p.role == v1alpha1.RoleCheck && p.looked > main.ended && main.ended > 0 && !p.sawEffect {
			return true
		}
	}
	return false
}

// done holds the end of a step with effect Once against what has really happened.
func (c *cluster) done(n *v1alpha1.StepStatus) {
	starts := 0
	for _, p := range c.processes {
		if p.step == n.Name && p.role == v1alpha1.RoleMain {
			starts += min(p.starts, 1)
		}
	}
	switch n.Reason {
	case "":
		if p := c.processes[n.PodUID]; p == nil || p.result == nil || p.result.Outcome != stepexec.OutcomeSucceeded {
			c.problem("step %s is done, and its program has not said so", n.Name)
		}
		if c.effects[n.IdempotencyKey] == 0 {
			c.problem("step %s is done, and nothing has happened", n.Name)
		}
	case v1alpha1.ReasonCheckedDone:
		if c.effects[n.IdempotencyKey] == 0 {
			c.problem("step %s is done by its check, and nothing has happened", n.Name)
		}
	case v1alpha1.ReasonReused:
		if starts != 0 {
			c.problem("step %s took another's output, and was started", n.Name)
		}
	case v1alpha1.ReasonDecided:
		c.atRisk[n.IdempotencyKey] = true // another step of that key may do it (again)
	default:
		c.problem("step %s is done with reason %s", n.Name, n.Reason)
	}
}
