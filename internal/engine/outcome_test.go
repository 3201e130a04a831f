// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
)

func TestVerdictOfWhatTheProgramSaid(t *testing.T) {
	failed := stepexec.Result{Outcome: stepexec.OutcomeFailed, Reason: v1alpha1.ReasonExitCode, Message: "exit code 3", ExitCode: 3}
	interrupted := stepexec.Result{Outcome: stepexec.OutcomeInterrupted, Reason: v1alpha1.ReasonKilled, Message: "ended by SIGTERM"}
	tests := map[string]struct {
		pod  *podBuilder
		want *Verdict
	}{
		"it succeeded with an output": {MakePod().Succeeded(`{"a":1}`),
			&Verdict{Class: Success, Output: json.RawMessage(`{"a":1}`)}},
		"it succeeded and wrote no output": {MakePod().Result(0, stepexec.Result{Outcome: stepexec.OutcomeSucceeded}),
			&Verdict{Class: Success, Output: json.RawMessage("null")}},
		"it succeeded with an output that stands in the log": {
			large(),
			&Verdict{Class: Success}},
		"its output is kept in canonical form": {MakePod().Ended(0, "Completed", `{"v":1,"outcome":"Succeeded","output":{"b": "\u003c", "a": 3.0}}`),
			&Verdict{Class: Success, Output: json.RawMessage(`{"a":3,"b":"<"}`)}},
		"it asks for another attempt": {MakePod().Result(75, again),
			&Verdict{Class: Again, Reason: v1alpha1.ReasonRetryRequested, Message: "not yet"}},
		"it asks for another attempt, and when": {
			MakePod().Result(75, stepexec.Result{Outcome: stepexec.OutcomeRetry, Reason: v1alpha1.ReasonRetryRequested, RetryAfterSeconds: 30}),
			&Verdict{Class: Again, Reason: v1alpha1.ReasonRetryRequested, RetryAfter: 30 * time.Second}},
		"a negative wait is none": {MakePod().Result(75, stepexec.Result{Outcome: stepexec.OutcomeRetry, Reason: v1alpha1.ReasonRetryRequested, RetryAfterSeconds: -5}),
			&Verdict{Class: Again, Reason: v1alpha1.ReasonRetryRequested}},
		"it failed": {MakePod().Result(3, failed),
			&Verdict{Class: Final, Reason: v1alpha1.ReasonExitCode, Message: "exit code 3"}},
		"it ran into its timeout": {MakePod().Result(124, stepexec.Result{Outcome: stepexec.OutcomeTimeout, Reason: v1alpha1.ReasonTimeout, Message: "1h"}),
			&Verdict{Class: TimedOut, Reason: v1alpha1.ReasonTimeout, Message: "1h"}},
		"it was interrupted, nobody says by whom": {MakePod().Result(143, interrupted),
			&Verdict{Class: Lost, Reason: v1alpha1.ReasonKilled, Message: "ended by SIGTERM"}},
		"it was interrupted since its pod was deleted": {MakePod().Result(143, interrupted).Deleting(),
			&Verdict{Class: Lost, Reason: v1alpha1.ReasonPodLost, Message: "its pod was deleted while it ran"}},
		"it was interrupted by an eviction": {MakePod().Result(143, interrupted).Disrupted("EvictionByEvictionAPI").Deleting(),
			&Verdict{Class: Lost, Reason: v1alpha1.ReasonEvicted, Message: "its pod was evicted (EvictionByEvictionAPI)"}},
		"it succeeded though its pod was being deleted": {MakePod().Succeeded(`1`).Deleting().Disrupted("PreemptionByScheduler"),
			&Verdict{Class: Success, Output: json.RawMessage("1")}},
		"an outcome that this version does not know is not known": {MakePod().Result(0, stepexec.Result{Outcome: "Odd", Message: "?"}),
			&Verdict{Class: Lost, Reason: v1alpha1.ReasonKilled, Message: "?"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, VerdictOf(tt.pod.Obj())); diff != "" {
				t.Errorf("verdict (-want +got):\n%s", diff)
			}
		})
	}
}

func TestVerdictOfPodsWithoutAWord(t *testing.T) {
	oom := stepexec.Result{Outcome: stepexec.OutcomeFailed, Reason: v1alpha1.ReasonExitCode, Message: "killed", ExitCode: 137}
	tests := map[string]struct {
		pod         *podBuilder
		wantClass   Class
		wantReason  string
		wantMessage string
	}{
		"killed for its memory, the runner with it":         {MakePod().Ended(137, "OOMKilled", ""), Lost, v1alpha1.ReasonOutOfMemory, "limits.memory"},
		"killed for its memory, the runner saw it":          {MakePod().Result(137, oom).OOM(), Lost, v1alpha1.ReasonOutOfMemory, "limits.memory"},
		"killed for its memory, and the runner says so":     {MakePod().Result(137, stepexec.Result{Outcome: stepexec.OutcomeInterrupted, Reason: v1alpha1.ReasonOutOfMemory}), Lost, v1alpha1.ReasonOutOfMemory, "limits.memory"},
		"killed from outside":                               {MakePod().Ended(137, "Error", ""), Lost, v1alpha1.ReasonKilled, "137"},
		"ended from outside":                                {MakePod().Ended(143, "Error", ""), Lost, v1alpha1.ReasonKilled, "143"},
		"deleted while it ran":                              {MakePod().Ended(137, "Error", "").Deleting(), Lost, v1alpha1.ReasonPodLost, "deleted"},
		"evicted by kubelet while it ran":                   {MakePod().Ended(137, "Error", "").Phase(corev1.PodFailed, "Evicted", "The node was low on resource: memory.").Disrupted("TerminationByKubelet"), Lost, v1alpha1.ReasonEvicted, "TerminationByKubelet"},
		"evicted by kubelet of old":                         {MakePod().Ended(137, "Error", "").Phase(corev1.PodFailed, "Evicted", "The node was low on resource: memory."), Lost, v1alpha1.ReasonEvicted, "low on resource"},
		"evicted by kubelet before it ran":                  {MakePod().Phase(corev1.PodFailed, "Evicted", "The node had condition: [DiskPressure]."), NotStarted, v1alpha1.ReasonEvicted, "DiskPressure"},
		"evicted through the API":                           {MakePod().Ended(137, "Error", "").Disrupted("EvictionByEvictionAPI").Deleting(), Lost, v1alpha1.ReasonEvicted, "EvictionByEvictionAPI"},
		"preempted":                                         {MakePod().Ended(137, "Error", "").Disrupted("PreemptionByScheduler").Deleting(), Lost, v1alpha1.ReasonEvicted, "PreemptionByScheduler"},
		"its node was tainted":                              {MakePod().Ended(137, "Error", "").Disrupted("DeletionByTaintManager").Deleting(), Lost, v1alpha1.ReasonNodeLost, "DeletionByTaintManager"},
		"its node went away and kubelet answered after all": {MakePod().Ended(137, "Error", "").Disrupted("DeletionByPodGC").Deleting(), Lost, v1alpha1.ReasonNodeLost, "DeletionByPodGC"},
		"its node shut down":                                {MakePod().Ended(137, "Error", "").Phase(corev1.PodFailed, "Terminated", "Pod was terminated in response to imminent node shutdown."), Lost, v1alpha1.ReasonNodeLost, "shutdown"},
		"its node refused it":                               {MakePod().Phase(corev1.PodFailed, "OutOfcpu", "Node didn't have enough resource: cpu"), NotStarted, v1alpha1.ReasonPodRejected, "OutOfcpu Node didn't"},
		"its init container failed":                         {MakePod().Waiting("PodInitializing", "").Init("prepare", 2, "Error", "no space left").Phase(corev1.PodFailed, "", ""), NotStarted, v1alpha1.ReasonInitFailed, "prepare ended with exit code 2: no space left"},
		"evicted while it was prepared":                     {MakePod().Waiting("PodInitializing", "").Init("prepare", 137, "Error", "").Phase(corev1.PodFailed, "Evicted", "low on memory"), NotStarted, v1alpha1.ReasonEvicted, "low on memory"},
		"its node was tainted while it was prepared":        {MakePod().Waiting("PodInitializing", "").Init("prepare", 143, "Error", "").Phase(corev1.PodFailed, "", "").Disrupted("DeletionByTaintManager").Deleting(), NotStarted, v1alpha1.ReasonNodeLost, "TaintManager"},
		"its deadline came before it ran":                   {MakePod().Waiting("PodInitializing", "").Init("prepare", 137, "Error", "").Phase(corev1.PodFailed, "DeadlineExceeded", "Pod was active on the node longer"), NotStarted, v1alpha1.ReasonStartTimeout, "in time"},
		"its deadline came before its node took it":         {MakePod().Phase(corev1.PodFailed, "DeadlineExceeded", ""), NotStarted, v1alpha1.ReasonStartTimeout, "in time"},
		"its deadline came while it ran":                    {MakePod().Ended(137, "Error", "").Phase(corev1.PodFailed, "DeadlineExceeded", ""), TimedOut, v1alpha1.ReasonTimeout, "activeDeadlineSeconds"},
		"it could not be started":                           {MakePod().Ended(128, "StartError", "exec: no such file"), Lost, v1alpha1.ReasonContainerConfig, "no such file"},
		"it could not be run":                               {MakePod().Ended(127, "ContainerCannotRun", "oci error"), Lost, v1alpha1.ReasonContainerConfig, "oci error"},
		"it ended well and says nothing":                    {MakePod().Ended(0, "Completed", ""), Lost, v1alpha1.ReasonResultInvalid, "exit code 0"},
		"it says what is not a result":                      {MakePod().Ended(1, "Error", "panic: oh no"), Lost, v1alpha1.ReasonResultInvalid, "exit code 1"},
		"its result is cut off":                             {MakePod().Ended(0, "Completed", `{"v":1,"outcome":"Succeeded","output":"aaa`), Lost, v1alpha1.ReasonResultInvalid, "exit code 0"},
		"its result is of another version":                  {MakePod().Ended(0, "Completed", `{"v":2,"outcome":"Succeeded"}`), Lost, v1alpha1.ReasonResultInvalid, "no result the operator can read"},
		"its result has no version":                         {MakePod().Ended(0, "Completed", `{"outcome":"Succeeded"}`), Lost, v1alpha1.ReasonResultInvalid, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := VerdictOf(tt.pod.Obj())
			if got == nil {
				t.Fatal("no verdict")
			}
			if got.Class != tt.wantClass || got.Reason != tt.wantReason || !strings.Contains(got.Message, tt.wantMessage) {
				t.Errorf("class %d, %s: %q; want class %d, %s: %q", got.Class, got.Reason, got.Message, tt.wantClass, tt.wantReason, tt.wantMessage)
			}
		})
	}
}

func TestNoVerdictWhileTheProgramMayRun(t *testing.T) {
	tests := map[string]*podBuilder{
		"just made":                             MakePod(),
		"running":                               MakePod().Running(),
		"running and being deleted":             MakePod().Running().Deleting(),
		"its image is pulled":                   MakePod().Waiting("ImagePullBackOff", ""),
		"podGC wrote Failed, kubelet did not":   MakePod().Running().Phase(corev1.PodFailed, "", "").Disrupted("DeletionByPodGC"),
		"podGC wrote Failed before it ran":      MakePod().Waiting("ContainerCreating", "").Phase(corev1.PodFailed, "", "").Disrupted("DeletionByPodGC"),
		"somebody wrote Failed, it runs":        MakePod().Running().Phase(corev1.PodFailed, "", ""),
		"somebody wrote Succeeded, it runs":     MakePod().Running().Phase(corev1.PodSucceeded, "", ""),
		"its init container failed, not yet it": MakePod().Waiting("PodInitializing", "").Init("prepare", 2, "Error", ""),
		"its node does not answer":              MakePod().Running().Phase(corev1.PodUnknown, "NodeLost", ""),
	}
	for name, pod := range tests {
		t.Run(name, func(t *testing.T) {
			if got := VerdictOf(pod.Obj()); got != nil {
				t.Errorf("verdict %+v, want none", got)
			}
		})
	}
}

func TestHoldupSaysWhyAPodDoesNotStart(t *testing.T) {
	tests := map[string]struct {
		pod  *podBuilder
		want *Problem
	}{
		"it merely takes its time": {MakePod().Waiting("ContainerCreating", ""), nil},
		"it runs":                  {MakePod().Running(), nil},
		"its image cannot be pulled": {MakePod().Waiting("ImagePullBackOff", "not found"),
			&Problem{v1alpha1.ReasonImageUnavailable, "image tools:1.4 cannot be pulled: not found"}},
		"its image's name is wrong": {MakePod().Waiting("InvalidImageName", "bad"),
			&Problem{v1alpha1.ReasonImageUnavailable, "image tools:1.4 cannot be pulled: bad"}},
		"the runner's image cannot be pulled": {MakePod().Waiting("PodInitializing", "").InitWaiting("agenttask-install", "ErrImagePull", "denied"),
			&Problem{v1alpha1.ReasonImageUnavailable, "image runner:1 cannot be pulled: denied"}},
		"a Secret is missing": {MakePod().Waiting("CreateContainerConfigError", `secret "s" not found`),
			&Problem{v1alpha1.ReasonContainerConfig, `container step cannot be made: secret "s" not found`}},
		"no node takes it": {MakePod().Condition(corev1.PodScheduled, corev1.ConditionFalse, "Unschedulable", "0/3 nodes are available"),
			&Problem{v1alpha1.ReasonUnschedulable, "no node takes its pod: 0/3 nodes are available"}},
		"a gate held it, and the scheduler has not looked since": {MakePod().Condition(corev1.PodScheduled, corev1.ConditionFalse, "SchedulingGated", ""), nil},
		"somebody's gate holds it": {MakePod().Gates("queue.example.com/wait").Condition(corev1.PodScheduled, corev1.ConditionFalse, "SchedulingGated", ""),
			&Problem{v1alpha1.ReasonUnschedulable, "no node takes its pod: SchedulingGated"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, holdup(tt.pod.Obj())); diff != "" {
				t.Errorf("holdup (-want +got):\n%s", diff)
			}
		})
	}
}

// What stands in a termination message is the program's own word and may be anything.
func TestResultsOfNoRunner(t *testing.T) {
	tests := map[string]string{
		"a reason and a message that no record can hold": `{"v":1,"outcome":"Failed","reason":"` + strings.Repeat("r", 900) + `","message":"` + strings.Repeat("ä", 1100) + `"}`,
		"a wait of 300 years and more":                   `{"v":1,"outcome":"Retry","reason":"x","retryAfterSeconds":9300000000}`,
		"the longest wait that can be written":           `{"v":1,"outcome":"Retry","reason":"x","retryAfterSeconds":9223372036854775807}`,
	}
	for name, message := range tests {
		t.Run(name, func(t *testing.T) {
			task := MakeTask().Step(MakeStep("plan").MaxElapsed(8760*time.Hour).Obj()).Running(t, "plan")
			d := decide(t, Input{Task: task, World: World{Job: jobOf(task), Pod: MakePod().Ended(1, "Error", message).Obj()}})
			if d.Status.Steps[0].Phase == v1alpha1.StepRetrying && d.RequeueAfter < 365*24*time.Hour {
				t.Errorf("tried again after %s", d.RequeueAfter)
			}
		})
	}
}

// A success is believed only where the runner can have said so: the rest of the plan
// would go on with what stands there.
func TestSuccessesOfNoRunner(t *testing.T) {
	const said, sum = `{"v":1,"outcome":"Succeeded",`, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	tests := map[string]struct {
		pod                     *podBuilder
		wantReason, wantMessage string
	}{
		"its number no JSON reader keeps":       {MakePod().Ended(0, "Completed", said+`"output":1e400}`), v1alpha1.ReasonResultInvalid, "1e400"},
		"its number loses digits":               {MakePod().Ended(0, "Completed", said+`"output":{"n":1e16}}`), v1alpha1.ReasonResultInvalid, "1e16 at /n"},
		"it has a name twice":                   {MakePod().Ended(0, "Completed", said+`"output":{"a":1,"a":2}}`), v1alpha1.ReasonResultInvalid, "not valid"},
		"it is too large":                       {MakePod().Ended(0, "Completed", said+`"output":"`+strings.Repeat("x", 2047)+`"}`), v1alpha1.ReasonResultInvalid, "2049 bytes"},
		"its program was killed":                {MakePod().Ended(137, "Error", said+`"output":1}`), v1alpha1.ReasonResultInvalid, "exit code 137"},
		"its program failed":                    {MakePod().Ended(1, "Error", said+`"output":1}`), v1alpha1.ReasonResultInvalid, "exit code 1"},
		"its program was killed for its memory": {MakePod().Ended(137, "OOMKilled", said+`"output":1}`), v1alpha1.ReasonOutOfMemory, "limits.memory"},
		"its process was killed for its memory": {MakePod().Ended(0, "OOMKilled", said+`"output":1}`), v1alpha1.ReasonOutOfMemory, "limits.memory"},
		"its pod was evicted":                   {MakePod().Ended(137, "Error", said+`"output":1}`).Disrupted("EvictionByEvictionAPI"), v1alpha1.ReasonEvicted, "Eviction"},
		"its log has less than no lines":        {MakePod().Ended(0, "Completed", said+`"logOutput":{"sha256":"`+sum+`","bytes":1,"lines":-5000}}`), v1alpha1.ReasonResultInvalid, "announces"},
		"its log has no bytes":                  {MakePod().Ended(0, "Completed", said+`"logOutput":{"sha256":"`+sum+`","bytes":0,"lines":3}}`), v1alpha1.ReasonResultInvalid, "announces"},
		"its log has less than no bytes":        {MakePod().Ended(0, "Completed", said+`"logOutput":{"sha256":"`+sum+`","bytes":-1,"lines":3}}`), v1alpha1.ReasonResultInvalid, "announces"},
		"its sum is none":                       {MakePod().Ended(0, "Completed", said+`"logOutput":{"sha256":"x","bytes":1,"lines":3}}`), v1alpha1.ReasonResultInvalid, "announces"},
		"its sum is longer than one":            {MakePod().Ended(0, "Completed", said+`"logOutput":{"sha256":"`+sum+`\n","bytes":1,"lines":3}}`), v1alpha1.ReasonResultInvalid, "announces"},
		"it has two outputs":                    {MakePod().Ended(0, "Completed", said+`"output":1,"logOutput":{"sha256":"`+sum+`","bytes":1,"lines":3}}`), v1alpha1.ReasonResultInvalid, "two outputs"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := VerdictOf(tt.pod.Obj())
			if got == nil || got.Class != Lost || got.Reason != tt.wantReason || !strings.Contains(got.Message, tt.wantMessage) {
				t.Errorf("verdict %+v, want Lost, %s: %q", got, tt.wantReason, tt.wantMessage)
			}
			if result := ResultOf(tt.pod.Obj()); result != nil {
				t.Errorf("result %+v, want none", result)
			}
		})
	}
}

func TestShorten(t *testing.T) {
	for _, message := range []string{"", "short", strings.Repeat("ä", 1024), strings.Repeat("ä", 1025), "bad \xff byte", strings.Repeat("\xff", 5000)} {
		got := shorten(message)
		if n := len([]rune(got)); n > v1alpha1.MaxMessage || strings.ContainsRune(got, 0xFFFD) != strings.Contains(message, "\xff") {
			t.Errorf("%.20q became %d characters: %.20q", message, n, got)
		}
	}
}
