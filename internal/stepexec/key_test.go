// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package stepexec

import (
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
)

func action() Action {
	return Action{Step: "refund", Role: v1alpha1.RoleMain, Kind: "run", Command: []string{"refund", "--charge"}, Args: []string{"-v"}, Input: []byte(`{"amount":12.5,"order":"123"}`)}
}

// These values must never change. A key that changes makes the world do again what it
// has done: payments twice. If this test fails, mend the code, not the values.
func TestKeysAreWhatTheyAlwaysWere(t *testing.T) {
	bare := Action{Step: "a", Role: v1alpha1.RoleMain, Kind: "run", Command: []string{"a"}, Input: []byte("{}")}
	special := action()
	special.Command = []string{"sh", "-c", "a < b && \"c\" > 'd'\u2028é\n"}
	for got, want := range map[string]string{
		action().Key("refund-order-123"): "refund-order-123.refund.ce67c74bc3a2639b29ee1e9520d1b6c9879b8af196132534d610db180a8defe1",
		action().Key(string(uid)):        "5f3a2c1e-8d47-4b6a-9c0e-2b1d3f4a5c6d.refund.e7e9609c45f6481b0087571272a5e11932cda66c4a069bd7714fcd8bf9e9cd22",
		bare.Key("r"):                    "r.a.38e4da02bd651ee97748ac26cd38e4f859b56d01d76a204f2182e80124b52777",
		special.Key("r"):                 "r.refund.c7551afdc3ebd1bbc7dce3bfacc26d4fd95ce18ef5ab900404f3af462fcf58cf",
		action().Hash():                  "sha256:5269cd273d1b506fc5ee66969b55664d754c714e8fdc691df89f1b005c1ff485",
		bare.Hash():                      "sha256:7a72b54d970740e6dc86ce241e49f4f8303d29fa87782ea58138685accf9cc18",
		Seed(action().Key("r")):          "6877324797053280",
		Seed(""):                         "4303337841702688",
	} {
		if got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

func TestKeyDiffersWhereTheActionDiffers(t *testing.T) {
	seen := map[string]string{}
	add := func(name, runID string, change func(*Action)) {
		a := action()
		change(&a)
		key := a.Key(runID)
		if other, ok := seen[key]; ok {
			t.Errorf("%s and %s have one key, %s", name, other, key)
		}
		seen[key] = name
	}
	add("the action", "r", func(*Action) {})
	add("another run", "r2", func(*Action) {})
	add("another step", "r", func(a *Action) { a.Step = "refund2" })
	add("another role", "r", func(a *Action) { a.Role = "compensate" })
	add("another kind", "r", func(a *Action) { a.Kind = "http" })
	add("another command", "r", func(a *Action) { a.Command = []string{"refund"} })
	add("a command split otherwise", "r", func(a *Action) { a.Command = []string{"refund --charge"} })
	add("an argument that moved to the command", "r", func(a *Action) { a.Command, a.Args = []string{"refund", "--charge", "-v"}, nil })
	add("another argument", "r", func(a *Action) { a.Args = []string{"-q"} })
	add("an empty argument", "r", func(a *Action) { a.Args = []string{""} })
	add("another input", "r", func(a *Action) { a.Input = []byte(`{"amount":12.51,"order":"123"}`) })
	add("a number for a string", "r", func(a *Action) { a.Input = []byte(`{"amount":12.5,"order":123}`) })
	add("null", "r", func(a *Action) { a.Input = []byte(`null`) })
	add("run and step that join alike", "r.refund", func(a *Action) { a.Step = "x" })
	add("run and step that join alike, cut otherwise", "r", func(a *Action) { a.Step = "refund.x" })
}

func TestKeyIsTheSameForAnAbsentAndAnEmptyList(t *testing.T) {
	a, b := action(), action()
	a.Args, b.Args = nil, []string{}
	if a.Key("r") != b.Key("r") || a.Hash() != b.Hash() {
		t.Error("absent and empty args differ; a spec that is read back may turn one into the other")
	}
}

func TestKeyIsUnaffectedByWhatMayBeMended(t *testing.T) {
	step := v1alpha1.Step{Name: "refund", Run: &v1alpha1.RunAction{Image: "tools:1", Command: []string{"refund"}, Args: []string{"-v"}}}
	want := RunActionOf(step.Name, v1alpha1.RoleMain, step.Run, []byte("{}")).Key("r")
	mended := step.DeepCopy()
	mended.Effect = v1alpha1.EffectNone
	mended.Timeout = &metav1.Duration{Duration: time.Minute}
	mended.Retry = &v1alpha1.RetryPolicy{Limit: new(int32(9))}
	mended.Run.Image, mended.Run.WorkingDir, mended.Run.ImagePullPolicy, mended.Run.Output = "tools:2", "/tmp", corev1.PullAlways, v1alpha1.OutputStdout
	mended.Run.Env = []corev1.EnvVar{{Name: "A", Value: "b"}}
	mended.Run.Resources = &corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")}}
	mended.Run.VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
	if got := RunActionOf(mended.Name, v1alpha1.RoleMain, mended.Run, []byte("{}")).Key("r"); got != want {
		t.Errorf("a mended step has the key %s, want %s", got, want)
	}
	if SpecHash(mended) == SpecHash(&step) {
		t.Error("a mended step has the same specHash")
	}
}

func TestActionHashIsTheSameInEveryRun(t *testing.T) {
	if a := action(); a.Hash() != action().Hash() || !strings.HasPrefix(a.Hash(), "sha256:") || len(a.Hash()) != 71 {
		t.Errorf("hash %s", a.Hash())
	}
}

func TestSpecHashIgnoresHowAStepIsSpelled(t *testing.T) {
	a := v1alpha1.Step{Name: "a", Run: &v1alpha1.RunAction{Image: "i", Command: []string{"c"}}}
	b := v1alpha1.Step{Name: "a", Run: &v1alpha1.RunAction{Image: "i", Command: []string{"c"}, Args: []string{}, Env: []corev1.EnvVar{}}}
	if SpecHash(&a) != SpecHash(&b) || len(SpecHash(&a)) != 16 {
		t.Errorf("%s and %s", SpecHash(&a), SpecHash(&b))
	}
	if got := SpecHash(&a); got != "c840aadf28b065a9" {
		t.Errorf("specHash of a plain step is %s, which is new: steps that run would look changed after an upgrade", got)
	}
	if PlanHash([]v1alpha1.Step{a, b}) == PlanHash([]v1alpha1.Step{a}) {
		t.Error("two plans have one planHash")
	}
}

func TestSeedFitsEveryLanguagesNumbers(t *testing.T) {
	for i := range 2000 {
		n, err := strconv.ParseUint(Seed("key"+strconv.Itoa(i)), 10, 64)
		if err != nil || n >= 1<<53 {
			t.Fatalf("seed %d, error %v", n, err)
		}
	}
}

func FuzzKey(f *testing.F) {
	f.Add("run-7", "refund", "refund", "-v", `{"a":1}`, `{"a":1.0}`)
	f.Add("r", "a", "a", "", `{"b":[1e0,2],"a":null}`, `{ "a" : null, "b" : [ 1, 2.0 ] }`)
	f.Add("r", "a", "a", "", `"é"`, `"e\u0301"`)
	f.Fuzz(func(t *testing.T, runID, step, command, arg, input1, input2 string) {
		canonical1, err1 := Canonical([]byte(input1))
		canonical2, err2 := Canonical([]byte(input2))
		if err1 != nil || err2 != nil || !valid(runID, 63, true) || !valid(step, 40, false) {
			t.Skip()
		}
		a := Action{Step: step, Role: v1alpha1.RoleMain, Kind: "run", Command: []string{command}, Args: []string{arg}, Input: canonical1}
		b := a
		b.Input = canonical2
		key1, key2 := a.Key(runID), b.Key(runID)
		if (string(canonical1) == string(canonical2)) != (key1 == key2) {
			t.Errorf("inputs %s and %s: keys %s and %s", canonical1, canonical2, key1, key2)
		}
		if len(key1) > 255 || strings.ContainsFunc(key1, func(r rune) bool { return r <= ' ' || r > '~' || r == '"' || r == ',' }) {
			t.Errorf("key %q may not stand in a header", key1)
		}
		header := http.Header{}
		header.Set("Idempotency-Key", key1)
		if !strings.HasPrefix(header.Get("Idempotency-Key"), runID+"."+step+".") {
			t.Errorf("key %q does not say whose it is", key1)
		}
	})
}

func TestKeysOfTheRolesOfAStepDiffer(t *testing.T) {
	seen := map[string]v1alpha1.Role{}
	for _, role := range []v1alpha1.Role{v1alpha1.RoleMain, v1alpha1.RoleCheck, v1alpha1.RoleObserve, v1alpha1.RoleAgain, v1alpha1.RoleObserveAgain} {
		run := RunActionOf("refund", role, &v1alpha1.RunAction{Command: []string{"refund"}}, []byte("{}"))
		http := HTTPActionOf("refund", role, "GET", "https://api.test/", nil)
		for _, hash := range []string{run.Hash(), http.Hash(), run.Key("r"), http.Key("r")} {
			if other, ok := seen[hash]; ok {
				t.Errorf("%s is of %s and of %s", hash, role, other)
			}
			seen[hash] = role
		}
	}
}

func TestSpecHashOfAnUpgradedStep(t *testing.T) {
	plain := v1alpha1.Step{Name: "a", Run: &v1alpha1.RunAction{Image: "i", Command: []string{"c"}}}
	spelled := *plain.DeepCopy()
	spelled.Effect, spelled.OnUnknown, spelled.Run.Output = v1alpha1.EffectIdempotent, v1alpha1.UnknownPause, v1alpha1.OutputFile
	if SpecHash(&plain) != SpecHash(&spelled) {
		t.Error("a step whose defaults are spelled out looks changed")
	}
	for name, change := range map[string]func(*v1alpha1.Step){
		"effect":         func(s *v1alpha1.Step) { s.Effect = v1alpha1.EffectOnce },
		"onUnknown":      func(s *v1alpha1.Step) { s.OnUnknown = v1alpha1.UnknownRetry },
		"idempotencyKey": func(s *v1alpha1.Step) { s.IdempotencyKey = "k" },
		"check":          func(s *v1alpha1.Step) { s.Check = &v1alpha1.Check{} },
		"http":           func(s *v1alpha1.Step) { s.Run, s.HTTP = nil, &v1alpha1.HTTPAction{} },
	} {
		changed := *plain.DeepCopy()
		change(&changed)
		if SpecHash(&changed) == SpecHash(&plain) {
			t.Errorf("another %s is not noticed", name)
		}
	}
}
