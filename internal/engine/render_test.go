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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
)

// refund is a step with every field of a request.
func refund() v1alpha1.Step {
	step := pay().HTTP("POST", "https://api.test/refunds/${params.order}", `{"amount":"${params.amount}","note":"of ${task.runID}"}`).Obj()
	step.HTTP.Headers = []v1alpha1.HTTPHeader{
		{Name: "Authorization", SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "api"}, Key: "token"}},
		{Name: "X-Trace", Value: "run ${task.runID}, key ${key}"},
	}
	step.HTTP.SuccessCodes = []int32{200, 409}
	step.HTTP.TLS = &v1alpha1.HTTPTLS{CA: &v1alpha1.CASource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{Key: "ca.pem"}}}
	step.HTTP.Timeout = &metav1.Duration{Duration: 5 * time.Second}
	step.HTTP.KeyHeader = &v1alpha1.KeyHeader{Name: "X-Key", Format: v1alpha1.KeyBare}
	step.HTTP.Output, step.HTTP.OutputHeaders = v1alpha1.HTTPOutputResponse, []string{"ETag"}
	return step
}

// rendering renders a task's first step.
func rendering(step v1alpha1.Step) (rendered, *Problem) {
	d := &decider{Input: Input{Task: MakeTask().Params(`{"order":"1/2","amount":12.50,"key":"k 1","empty":""}`).Step(step).RunID("run-7").Obj(), Now: epoch}}
	d.Status.RunID = "run-7"
	return d.renderMain(&d.Task.Spec.Steps[0])
}

// These values must never change, as those of programs: a key that changes makes the world
// do again what it has done. If this test fails, mend the code, not the values.
func TestKeysOfRequestsAreWhatTheyAlwaysWere(t *testing.T) {
	get := MakeStep("look").HTTP("GET", "https://api.test/orders?id=${params.order}", "").Obj()
	empty := MakeStep("look").HTTP("DELETE", "https://api.test/orders", `null`).Obj()
	for name, tt := range map[string]struct {
		step          v1alpha1.Step
		key, wantHash string
	}{
		"a request with a body": {refund(), "run-7.pay.9ba8f2b3a574755a7f4737e3218a37058385c4674666409732d7878c6878b7c6", "sha256:255607280b6bef672b2b0d9e6957c95e53f740df0ed1f59fae8b0e7320e729d2"},
		"a request without one": {get, "run-7.look.fbe32e7975bd7469ad2abdfdb6868d72867269175604e13d8796b9351a87f6f4", "sha256:a3625195d6dc1acdc7c843413ba09a198af31e5894ed52b67106d96eaa212b8c"},
		"a body of null":        {empty, "run-7.look.6fe7b30ac95587835f0652a5074b0d876d6f9d14d3706bbb31b57a2bb65dfc4a", "sha256:851e07295458a825ebabd708e0e662f363c180bf3eaab179a322976db6132281"},
	} {
		r, problem := rendering(tt.step)
		if problem != nil || r.key != tt.key || r.identity.Hash() != tt.wantHash {
			t.Errorf("%s:\n%s\n%s\nproblem %v", name, r.key, r.identity.Hash(), problem)
		}
	}
}

func TestRequestOfAnAttempt(t *testing.T) {
	r, problem := rendering(refund())
	if problem != nil {
		t.Fatal(problem)
	}
	want := `{"body":{"amount":12.5,"note":"of run-7"},"caEnv":"AGENTTASK_HTTP_CA","headers":[{"fromEnv":"AGENTTASK_HTTP_HEADER_0","name":"Authorization"},` +
		`{"name":"X-Trace","value":"run run-7, key ` + r.key + `"}],"keyHeader":{"bare":true,"name":"X-Key"},"method":"POST","output":"Response","outputHeaders":["ETag"],` +
		`"successCodes":[200,409],"timeout":"5s","url":"https://api.test/refunds/1/2"}`
	if diff := cmp.Diff(want, string(r.input)); diff != "" {
		t.Errorf("request (-want +got):\n%s", diff)
	}
	if _, err := stepexec.DecodeHTTPRequest(r.input); err != nil {
		t.Errorf("the runner does not take it: %v", err)
	}
	if r.timeout != 5*time.Second || r.http == nil || r.run != nil {
		t.Errorf("timeout %s, http %v, run %v", r.timeout, r.http, r.run)
	}

	r, problem = rendering(MakeStep("look").HTTP("GET", "https://api.test/", "").Obj())
	want = `{"method":"GET","timeout":"30s","url":"https://api.test/"}`
	if problem != nil || string(r.input) != want {
		t.Errorf("a plain GET: %s, problem %v; want no key and no body", r.input, problem)
	}
	short := MakeStep("look").HTTP("POST", "https://api.test/", "").Obj()
	short.Timeout = &metav1.Duration{Duration: time.Second}
	if r, _ = rendering(short); r.timeout != time.Second || !strings.Contains(string(r.input), `"keyHeader":{}`) || strings.Contains(string(r.input), "body") {
		t.Errorf("a POST without a body: %s", r.input)
	}
}

// What may be mended without changing the effect is not part of the key.
func TestKeyOfARequestIsUnaffectedByWhatMayBeMended(t *testing.T) {
	want, _ := rendering(refund())
	mended := refund()
	mended.HTTP.Headers, mended.HTTP.SuccessCodes, mended.HTTP.TLS, mended.HTTP.KeyHeader, mended.HTTP.Timeout = nil, nil, nil, nil, nil
	mended.HTTP.Output, mended.HTTP.OutputHeaders, mended.Effect = "", nil, v1alpha1.EffectNone
	if got, problem := rendering(mended); problem != nil || got.key != want.key || got.identity.Hash() != want.identity.Hash() {
		t.Errorf("mended it has the key %s, want %s", got.key, want.key)
	}
	for name, change := range map[string]func(*v1alpha1.HTTPAction){
		"method": func(h *v1alpha1.HTTPAction) { h.Method = "PUT" },
		"url":    func(h *v1alpha1.HTTPAction) { h.URL += "?" },
		"body":   func(h *v1alpha1.HTTPAction) { h.Body = doc1(`{"amount":12,"note":"of run-7"}`) },
	} {
		other := refund()
		change(other.HTTP)
		if got, _ := rendering(other); got.key == want.key || got.identity.Hash() == want.identity.Hash() {
			t.Errorf("another %s has the same key", name)
		}
	}
}

func TestRequestThatCannotBeMade(t *testing.T) {
	tests := map[string]struct {
		change                  func(*v1alpha1.Step)
		wantReason, wantMessage string
	}{
		"a url with a space in it": {func(s *v1alpha1.Step) { s.HTTP.URL = "https://api.test/${params.key}" }, v1alpha1.ReasonInputInvalid, "http: url holds a space"},
		"a url of another kind":    {func(s *v1alpha1.Step) { s.HTTP.URL = "file:///etc" }, v1alpha1.ReasonInputInvalid, "http: url must begin with"},
		"an expression that fails": {func(s *v1alpha1.Step) { s.HTTP.URL = "https://api.test/${params.nope}" }, v1alpha1.ReasonInputInvalid, "nope"},
		"a body that fails":        {func(s *v1alpha1.Step) { s.HTTP.Body = doc1(`"${params.nope}"`) }, v1alpha1.ReasonInputInvalid, "http.body"},
		"a header that fails":      {func(s *v1alpha1.Step) { s.HTTP.Headers[1].Value = "${params.nope}" }, v1alpha1.ReasonInputInvalid, "http.headers[1].value"},
		"a header with a newline":  {func(s *v1alpha1.Step) { s.HTTP.Headers[1].Value = "a\nb" }, v1alpha1.ReasonInputInvalid, "control character"},
		"a body that is too large": {func(s *v1alpha1.Step) { s.HTTP.Body = doc1(`"` + strings.Repeat("x", 128<<10) + `"`) }, v1alpha1.ReasonInputTooLarge, "at most 131072"},

		"a key with a space":             {func(s *v1alpha1.Step) { s.IdempotencyKey = "${params.key}" }, v1alpha1.ReasonKeyInvalid, `idempotencyKey is "k 1", and must be 1 to 255 printable ASCII characters without spaces`},
		"an empty key":                   {func(s *v1alpha1.Step) { s.IdempotencyKey = "${params.empty}" }, v1alpha1.ReasonKeyInvalid, `idempotencyKey is ""`},
		"a key beyond ASCII":             {func(s *v1alpha1.Step) { s.IdempotencyKey = "ä" }, v1alpha1.ReasonKeyInvalid, "printable ASCII"},
		"a key that is too long":         {func(s *v1alpha1.Step) { s.IdempotencyKey = strings.Repeat("k", 256) }, v1alpha1.ReasonKeyInvalid, "1 to 255"},
		"a key that cannot be evaluated": {func(s *v1alpha1.Step) { s.IdempotencyKey = "${params.nope}" }, v1alpha1.ReasonKeyInvalid, "nope"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			step := refund()
			tt.change(&step)
			task := MakeTask().Params(`{"order":"1","amount":1,"key":"k 1","empty":""}`).Step(step).Obj()
			d := decide(t, Input{Task: task})
			r := d.Status.Steps[0]
			if r.Phase != v1alpha1.StepFailed || r.Attempt != 0 || r.Reason != tt.wantReason || !strings.Contains(r.Message, tt.wantMessage) {
				t.Errorf("%s in attempt %d, %s: %q; want %s: %q", r.Phase, r.Attempt, r.Reason, r.Message, tt.wantReason, tt.wantMessage)
			}
		})
	}
}

func TestOwnKey(t *testing.T) {
	step := pay().Input(`{"to":"${params.to}"}`).Key("refund-${params.order}").Obj()
	task := MakeTask().Params(`{"order":"123","to":"ann"}`).Step(step).Obj()
	first := decide(t, Input{Task: task}).Status.Steps[0]
	if first.IdempotencyKey != "refund-123" {
		t.Errorf("key %q", first.IdempotencyKey)
	}
	step.IdempotencyKey = ""
	task = MakeTask().Params(`{"order":"123","to":"ann"}`).Step(step).Obj()
	if derived := decide(t, Input{Task: task}).Status.Steps[0]; derived.ActionHash != first.ActionHash {
		t.Error("a key of its own makes it another action, so that a decision on one would not be on the other")
	}
}

func TestOwnKeyOfAnOutputThatIsKeptElsewhere(t *testing.T) {
	task := MakeTask("find", "pay").Running(t, "pay")
	task.Spec.Steps[1] = pay().Key("refund-${steps.find.output.id}").Obj()
	task.Status.Steps = task.Status.Steps[:1]
	task.Status.Steps[0].Output, task.Status.Steps[0].OutputRef = nil, &v1alpha1.OutputRef{URI: "configmap:x", SHA256: "ab", Bytes: 5000}
	if d := decide(t, Input{Task: task}); len(d.Load) != 1 || d.Load[0] != "find" {
		t.Fatalf("Load is %v", d.Load)
	}
	d := decide(t, Input{Task: task, Outputs: map[string]Loaded{"find": {Unavailable: "timeout"}}})
	if got := records(&d.Status); got != "find:Succeeded/1" || d.Status.Phase != v1alpha1.TaskWaiting || d.RequeueAfter != unavailableRecheck {
		t.Errorf("it cannot be read just now: %s, %s, again after %s", got, d.Status.Phase, d.RequeueAfter)
	}
	d = decide(t, Input{Task: task, Outputs: map[string]Loaded{"find": {Output: json.RawMessage(`{"id":7}`)}}})
	if got := d.Status.Steps[1].IdempotencyKey; got != "refund-7" || kinds(d) != "MakeJob" {
		t.Errorf("read at last: key %q, %q", got, kinds(d))
	}
}

// A key means an effect: two steps of one key mean the same.
func TestStepOfAKeyThatWasUsed(t *testing.T) {
	run := func(t *testing.T, first, second *stepBuilder, output string) (*story, *v1alpha1.StepStatus) {
		t.Helper()
		task := MakeTask().Step(first.Obj()).Step(second.Obj()).Obj()
		s := tell(t, task, func(a Attempt) stepexec.Result {
			return stepexec.Result{Outcome: stepexec.OutcomeSucceeded, Output: json.RawMessage(output)}
		}, nil)
		return s, &task.Status.Steps[len(task.Status.Steps)-1]
	}
	t.Run("takes the first one's output and runs nothing", func(t *testing.T) {
		s, r := run(t, pay().Key("order-1"), MakeStep("pay-again").Once().Key("order-1"), `{"id":7}`)
		if len(s.ran) != 1 || r.Phase != v1alpha1.StepSucceeded || r.Reason != v1alpha1.ReasonReused || r.Attempt != 0 || r.JobName != "" || string(r.Output.Raw) != `{"id":7}` {
			t.Errorf("ran %v, record %+v", s.ran, r)
		}
		if want := "step pay has succeeded under the same idempotencyKey; its output was taken and nothing was run"; r.Message != want || s.task.Status.Usage.Attempts != 1 {
			t.Errorf("message %q, %d attempts", r.Message, s.task.Status.Usage.Attempts)
		}
		if diff := cmp.Diff([]string{"StepStarted", "StepSucceeded", "StepReused", "TaskSucceeded"}, s.events); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
	})
	t.Run("even before it would be checked", func(t *testing.T) {
		s, r := run(t, pay().Key("order-1"), MakeStep("pay-again").Key("order-1").Check(v1alpha1.CheckBefore), `1`)
		if len(s.ran) != 1 || r.Reason != v1alpha1.ReasonReused {
			t.Errorf("ran %v, record %+v", s.ran, r)
		}
	})
	t.Run("of a null output", func(t *testing.T) {
		if _, r := run(t, pay().Key("order-1"), MakeStep("pay-again").Key("order-1"), `null`); r.Reason != v1alpha1.ReasonReused || r.Output != nil {
			t.Errorf("record %+v", r)
		}
	})
	t.Run("of another key runs", func(t *testing.T) {
		if s, r := run(t, pay().Key("order-1"), MakeStep("pay-again").Key("order-2"), `1`); len(s.ran) != 2 || r.Reason != "" {
			t.Errorf("ran %v, record %+v", s.ran, r)
		}
	})
	t.Run("takes what is kept elsewhere", func(t *testing.T) {
		task := MakeTask().Step(pay().Key("order-1").Obj()).Step(MakeStep("pay-again").Key("order-1").Obj()).Running(t, "pay")
		ref := &v1alpha1.OutputRef{URI: "configmap:x", SHA256: "ab", Bytes: 5000}
		task.Status.Steps[0].PodUID = "pod-1"
		d := decide(t, Input{Task: task, World: World{Job: jobOf(task), Pod: named(bound(), task.Status.Steps[0].JobName).Result(0, announced()).Obj(), Output: ref}})
		if got := records(&d.Status); got != "pay:Succeeded/1 pay-again:Succeeded/0" || !cmp.Equal(d.Status.Steps[1].OutputRef, ref) || d.Status.Phase != v1alpha1.TaskSucceeded {
			t.Errorf("%s, %s, %+v", got, d.Status.Phase, d.Status.Steps[1])
		}
	})
	t.Run("of a step that did not succeed runs", func(t *testing.T) {
		s := play(t, pay().Key("order-1"))
		s.task.Spec.Steps = append(s.task.Spec.Steps, MakeStep("pay-again").Key("order-1").Obj())
		s.through().pod(killed()).decide(v1alpha1.DecisionSkip).see(World{})
		if got := records(&s.task.Status); got != "pay:Skipped/1 pay-again:Running/1" || s.record().IdempotencyKey != "order-1" {
			t.Errorf("%s with key %s", got, s.record().IdempotencyKey)
		}
	})
}

func TestPlansThatTheAPIServerCannotJudge(t *testing.T) {
	with := func(change func(*v1alpha1.Step)) []v1alpha1.Step {
		step := refund()
		change(&step)
		return []v1alpha1.Step{MakeStep("find").Obj(), step, MakeStep("tell").Obj()}
	}
	checks := func(change func(*v1alpha1.Check)) []v1alpha1.Step {
		step := pay().Check("").Obj()
		change(step.Check)
		return []v1alpha1.Step{MakeStep("find").Obj(), step, MakeStep("tell").Obj()}
	}
	tests := map[string]struct {
		steps []v1alpha1.Step
		want  string
	}{
		"a request as it should be":                {with(func(*v1alpha1.Step) {}), ""},
		"a url that refers to a later step":        {with(func(s *v1alpha1.Step) { s.HTTP.URL = "https://${steps.tell.output}/" }), "spec.steps[1] (pay): http.url"},
		"a url that uses the key, which it makes":  {with(func(s *v1alpha1.Step) { s.HTTP.URL = "https://api.test/${key}" }), "http.url"},
		"a body that uses the key, which it makes": {with(func(s *v1alpha1.Step) { s.HTTP.Body = doc1(`"${key}"`) }), "http.body"},
		"a header that uses the key":               {with(func(s *v1alpha1.Step) { s.HTTP.Headers[1].Value = "${key}" }), ""},
		"a header that refers to a later step":     {with(func(s *v1alpha1.Step) { s.HTTP.Headers[1].Value = "${steps.tell.output}" }), "http.headers[1].value"},
		"a GET with a body":                        {with(func(s *v1alpha1.Step) { s.HTTP.Method = "GET" }), "http.body: a GET request has none; put it into the url"},
		"a HEAD with a body":                       {with(func(s *v1alpha1.Step) { s.HTTP.Method = "HEAD" }), "a HEAD request has none"},
		"a request with an input":                  {with(func(s *v1alpha1.Step) { s.Input = doc1(`1`) }), "input is for run; what an http action sends stands in http.body"},
		"a key that uses the key":                  {with(func(s *v1alpha1.Step) { s.IdempotencyKey = "${key}" }), "idempotencyKey"},
		"a key of an earlier step's output":        {with(func(s *v1alpha1.Step) { s.IdempotencyKey = "r-${steps.find.output.id}" }), ""},
		"a key of a later step's output":           {with(func(s *v1alpha1.Step) { s.IdempotencyKey = "r-${steps.tell.output.id}" }), "idempotencyKey"},
		"a check as it should be":                  {checks(func(c *v1alpha1.Check) { c.Input, c.Done = doc1(`"${key}"`), "${result.status == 200}" }), ""},
		"a check of nothing":                       {checks(func(c *v1alpha1.Check) { c.Run = nil }), "give run or http"},
		"a check of a later step":                  {checks(func(c *v1alpha1.Check) { c.Input = doc1(`"${steps.tell.output}"`) }), "check.input"},
		"a check by request, of a later step": {checks(func(c *v1alpha1.Check) {
			c.Run, c.HTTP = nil, &v1alpha1.HTTPAction{Method: "GET", URL: "https://api.test/${steps.tell.output}"}
		}), "check.http.url"},
		"a check by request, of the key": {checks(func(c *v1alpha1.Check) {
			c.Run, c.HTTP = nil, &v1alpha1.HTTPAction{Method: "GET", URL: "https://api.test/?key=${key}"}
		}), ""},
		"a check's done that is no expression":     {checks(func(c *v1alpha1.Check) { c.Done = "yes" }), "check.done"},
		"a check's done that is two":               {checks(func(c *v1alpha1.Check) { c.Done = "${true}${false}" }), "check.done"},
		"a check's done that cannot be compiled":   {checks(func(c *v1alpha1.Check) { c.Done = "${result.}" }), "check.done"},
		"a check's done that reads a step":         {checks(func(c *v1alpha1.Check) { c.Done = "${steps.find.output.done}" }), "check.done"},
		"a check's output that reads a step":       {checks(func(c *v1alpha1.Check) { c.Done, c.Output = "${true}", doc1(`"${steps.find.output}"`) }), "check.output"},
		"a check's output without done":            {checks(func(c *v1alpha1.Check) { c.Output = doc1(`1`) }), "check.output needs check.done; leave it out, or say by check.done when the effect has happened"},
		"an expression in a program's environment": {checks(func(c *v1alpha1.Check) { c.Run.Env = []corev1.EnvVar{{Name: "A", Value: "x${key}"}} }), "check.run.env A: values must not hold expressions"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			task := MakeTask().Params(`{"order":"1","amount":1}`).Obj()
			task.Spec.Steps = tt.steps
			checkProblem(t, ValidatePlan(task), "spec.steps[1] (pay): ", tt.want)
		})
	}
}

func checkProblem(t *testing.T, problem *Problem, wantPrefix, want string) {
	t.Helper()
	switch {
	case want == "" && problem != nil:
		t.Errorf("refused: %s", problem.Message)
	case want != "" && (problem == nil || problem.Reason != v1alpha1.ReasonInvalidPlan || !strings.HasPrefix(problem.Message, wantPrefix) || !strings.Contains(problem.Message, want)):
		t.Errorf("problem %+v, want %q", problem, want)
	}
}

func TestOnceCannotPassByTheScheduler(t *testing.T) {
	task := MakeTask("read").Step(pay().Obj()).Obj()
	task.Spec.PodTemplate = &corev1.PodTemplateSpec{Spec: corev1.PodSpec{NodeName: "n1"}}
	checkProblem(t, ValidatePlan(task), "spec.steps[1] (pay): ", "passes by the scheduler and its gates; use nodeSelector")
	task.Spec.Steps = task.Spec.Steps[:1]
	checkProblem(t, ValidatePlan(task), "", "")
}

func TestObserverOfVerifyIsValidated(t *testing.T) {
	tests := map[string]struct{ input, want string }{
		"the key and the params":   {`{"key":"${key}","order":"${params.order}"}`, ""},
		"a step, which may not be": {`"${steps.read.output}"`, "spec.verify.observe.input"},
	}
	for name, tt := range tests {
		task := MakeTask("read").Params(`{"order":"1"}`).Obj()
		task.Spec.Verify = observer()
		task.Spec.Verify.Observe.Input = doc1(tt.input)
		t.Run(name, func(t *testing.T) { checkProblem(t, ValidatePlan(task), "spec.verify.observe.", tt.want) })
	}
}
