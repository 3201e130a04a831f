// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
)

// process is what really becomes of a pod's program, whatever the API server knows of it.
type process struct {
	attemptID
	pod  types.UID
	name string
	// starts is how often the container was started. With effect Once the program itself is
	// only started the first time.
	starts int
	// running and over are what it does; cut off, its node hears and says nothing.
	running, over, cutOff bool
	// acted says that it has taken effect.
	acted bool
	// ended is when it ended, and looked when a check looked at the world: versions of the
	// API server, which serve as a clock.
	ended, looked int
	sawEffect     bool
	result        *stepexec.Result
	// end and first are how the container ended, and how it ended before it was started again.
	end, first *corev1.ContainerStateTerminated
}

func (p *process) asksAgain() bool {
	return p.result != nil && p.result.Outcome == stepexec.OutcomeRetry
}

// dead says whether nothing of a pod runs, and nothing ever will.
func (c *cluster) dead(p *process) bool {
	if p.over {
		return true
	}
	if p.running {
		return false
	}
	pod := c.pods[p.name]
	if pod == nil || pod.UID != p.pod {
		last := c.gone[p.pod]
		return last == nil || last.Spec.NodeName == ""
	}
	return pod.Spec.NodeName == "" && pod.DeletionTimestamp != nil
}

// waits says whether a pod waits at the fence.
func (c *cluster) waits(p *process) bool {
	pod := c.pods[p.name]
	return pod != nil && pod.UID == p.pod && stepexec.Gated(pod)
}

// nodes lets something happen to one pod, on its node or on its way to one.
func (c *cluster) nodes() {
	uids := slices.DeleteFunc(slices.Sorted(maps.Keys(c.processes)), func(uid types.UID) bool {
		p := c.processes[uid]
		live := c.pods[p.name] != nil && c.pods[p.name].UID == uid
		return !live && (p.over || c.dead(p))
	})
	if len(uids) == 0 {
		return
	}
	p := c.processes[uids[c.IntN(len(uids))]]
	if p.cutOff { // it is not the only one that gets on
		p = c.processes[uids[c.IntN(len(uids))]]
	}
	c.node(p)
}

func (c *cluster) node(p *process) {
	pod := c.pods[p.name]
	if pod != nil && pod.UID != p.pod {
		pod = nil
	}
	switch {
	case pod != nil && pod.Spec.NodeName == "":
		if len(pod.Spec.SchedulingGates) == 0 && pod.DeletionTimestamp == nil && pod.Status.Phase == corev1.PodPending {
			pod.Spec.NodeName = "n1"
			c.stamp(pod)
		}
	case p.over:
		c.report(p, pod)
	case p.running:
		c.run(p, pod)
	case pod != nil && pod.Status.Phase == corev1.PodFailed:
		p.over = true
	default:
		c.start(p, pod)
	}
}

// start starts a pod's program, or says why it is not.
func (c *cluster) start(p *process, pod *corev1.Pod) {
	deleted := pod == nil || pod.DeletionTimestamp != nil
	switch {
	case deleted && !c.one(4): // kubelet has heard of it
		p.over = true
		c.endUnstarted(pod, "", "")
	case c.one(12) && pod != nil:
		(&podBuilder{pod}).Waiting("ImagePullBackOff", "not found")
		c.stamp(pod)
	case c.one(20):
		p.over = true
		c.endUnstarted(pod, "OutOfcpu", "Node didn't have enough resource: cpu")
	default:
		c.startNow(p)
		c.report(p, pod)
	}
}

func (c *cluster) startNow(p *process) {
	p.running = true
	p.starts++
	c.note("  %s/%d %s starts (%s)", p.step, p.number, p.role, p.pod)
	p.sawEffect, p.looked = c.effects[p.key] > 0, c.version
	if !p.once {
		return
	}
	if !c.named[p.pod] {
		c.problem("pod %s (%s) starts, and no written status has named it", p.name, p.pod)
	}
	for _, other := range c.processes {
		if other != p && other.step == p.step && other.role == p.role && other.number == p.number && other.starts > 0 {
			c.problem("attempt %d of step %s is started twice", p.number, p.step)
		}
		if other != p && other.step == p.step && other.role == p.role && other.number != p.number && !c.dead(other) && !c.waits(other) && !c.atRisk[p.key] {
			c.problem("attempt %d of step %s is started while attempt %d may live", p.number, p.step, other.number)
		}
	}
}

// endUnstarted reports that a pod will never start its program.
func (c *cluster) endUnstarted(pod *corev1.Pod, reason, message string) {
	if pod == nil {
		return
	}
	b := &podBuilder{pod}
	if c.one(2) {
		b.Waiting("PodInitializing", "").Init("agenttask-install", 137, "ContainerStatusUnknown", "")
	} else if c.one(2) {
		b.Ended(137, "ContainerStatusUnknown", "The container could not be located when the pod was terminated")
	}
	b.Phase(corev1.PodFailed, reason, message)
	c.stamp(pod)
	if pod.DeletionTimestamp != nil {
		c.deletePod(pod, true)
	}
}

// run takes a running program on.
func (c *cluster) run(p *process, pod *corev1.Pod) {
	told := (pod == nil || pod.DeletionTimestamp != nil) && !p.cutOff
	switch {
	case p.cutOff && c.stormy && c.IntN(16) > 0: // it takes its time
	case c.one(10):
		c.restartContainer(p, pod)
	case c.IntN(3) == 0 && !c.calm:
		c.act(p)
	case told:
		c.end(p, c.IntN(6))
		c.report(p, pod)
	case c.calm && !p.cutOff:
		c.end(p, 0)
		c.report(p, pod)
	default:
		c.end(p, []int{0, 1, 2, 0, 1, 2, 3, 3, 4, 5, 6, 6, 7, 9, 6, 8}[c.IntN(16)])
		c.report(p, pod)
	}
}

// act lets a program take effect.
func (c *cluster) act(p *process) {
	if p.role != v1alpha1.RoleMain && p.role != v1alpha1.RoleAgain || p.acted {
		return
	}
	p.acted = true
	if c.sloppy[p.step] {
		c.atRisk[p.key] = true
	}
	if p.once || c.sloppy[p.step] {
		c.effects[p.key]++
	} else if c.effects[p.key] == 0 { // who is called knows the key
		c.effects[p.key] = 1
	}
}

// end ends a running program.
func (c *cluster) end(p *process, how int) {
	result := &stepexec.Result{Version: stepexec.ResultVersion}
	end := &corev1.ContainerStateTerminated{Reason: "Error"}
	switch how {
	case 0, 1, 2:
		c.act(p)
		end.Reason, result.Outcome, result.Output = "Completed", stepexec.OutcomeSucceeded, c.output(p)
		if c.task.Spec.Verify == nil && c.one(8) { // it is too large for a status
			sum := stepexec.SHA256Hex(result.Output)
			c.logs[sum], result.Output, result.LogOutput = result.Output, nil, &stepexec.LogOutput{SHA256: sum, Bytes: 5000, Lines: 4}
		}
	case 3:
		end.ExitCode, result = 137, nil
	case 4:
		end.ExitCode, result.Outcome, result.Reason, result.Message = 143, stepexec.OutcomeInterrupted, v1alpha1.ReasonKilled, "ended by SIGTERM"
	case 5:
		end.ExitCode, end.Reason, result = 137, "OOMKilled", nil
	case 6:
		if p.acted {
			return
		}
		end.ExitCode, result.Outcome, result.Reason, result.Message = 75, stepexec.OutcomeRetry, v1alpha1.ReasonRetryRequested, "not yet"
	case 7:
		end.ExitCode, result.Outcome, result.Reason = 124, stepexec.OutcomeTimeout, v1alpha1.ReasonTimeout
		result.Message = "ran longer than 1h0m0s"
	case 8:
		end.ExitCode, result.Outcome, result.Reason, result.Message = 3, stepexec.OutcomeFailed, v1alpha1.ReasonExitCode, "exit code 3"
	default:
		end.Reason, end.Message, result = "Completed", "not a result", nil
	}
	if result != nil {
		doc, err := json.Marshal(result)
		if err != nil {
			panic(err)
		}
		end.Message = string(doc)
	}
	p.running, p.over, p.result, p.end, p.ended = false, true, result, end, c.version+1
	c.version++
}

// output is what a program says.
func (c *cluster) output(p *process) json.RawMessage {
	switch p.role {
	case v1alpha1.RoleCheck:
		return json.RawMessage(fmt.Sprintf(`{"done":%v,"output":{"found":true}}`, p.sawEffect))
	case v1alpha1.RoleObserve, v1alpha1.RoleObserveAgain:
		return json.RawMessage(fmt.Sprintf(`{"effects":%d}`, c.effects[p.key]))
	}
	return json.RawMessage(`{"ok":true}`)
}

// restartContainer lets kubelet start a container again whose record it lost. A program
// that must not run twice finds the runner's marker.
func (c *cluster) restartContainer(p *process, pod *corev1.Pod) {
	p.starts++
	if p.running {
		c.end(p, 3)
	}
	if !p.once { // it runs again, from the beginning
		p.running, p.over, p.end, p.result = true, false, nil, nil
		p.sawEffect, p.looked = c.effects[p.key] > 0, c.version
		return
	}
	if c.one(2) {
		p.first = p.end
	}
	p.end = &corev1.ContainerStateTerminated{ExitCode: 143, Reason: "Error", Message: `{"v":1,"outcome":"Interrupted","reason":"StartedTwice"}`}
	c.report(p, pod)
}

// report tells the API server how a program does, unless its node is cut off.
func (c *cluster) report(p *process, pod *corev1.Pod) {
	if pod == nil || p.cutOff || c.one(4) {
		return
	}
	b := &podBuilder{pod}
	switch {
	case p.running:
		b.Running()
	case p.end != nil:
		b.Ended(p.end.ExitCode, p.end.Reason, p.end.Message)
		if p.first != nil {
			pod.Status.ContainerStatuses[0].LastTerminationState.Terminated = p.first
		}
	case pod.Status.Phase == corev1.PodPending || pod.Status.Phase == corev1.PodRunning:
		b.Phase(corev1.PodFailed, "", "")
	}
	c.stamp(pod)
	if p.over && pod.DeletionTimestamp != nil {
		c.deletePod(pod, true)
	}
}

// loseNode cuts a pod's node off, or lets it come back. What runs there goes on.
func (c *cluster) loseNode() {
	for _, name := range slices.Sorted(maps.Keys(c.pods)) {
		if p := c.processes[c.pods[name].UID]; c.pods[name].Spec.NodeName != "" && c.IntN(2) == 0 {
			p.cutOff = !p.cutOff
			return
		}
	}
}

// podGC is the pod garbage collector, which finds a pod's node gone.
func (c *cluster) podGC(pod *corev1.Pod) {
	if pod.Spec.NodeName == "" {
		return
	}
	if pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed {
		pod.Status.Phase = corev1.PodFailed
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "DeletionByPodGC"})
	}
	c.processes[pod.UID].cutOff = true
	c.stamp(pod)
	c.deletePod(pod, true)
}

func (c *cluster) evict(pod *corev1.Pod) {
	pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "EvictionByEvictionAPI", LastTransitionTime: metav1.NewTime(c.now)})
	c.stamp(pod)
	c.deletePod(pod, false)
}
