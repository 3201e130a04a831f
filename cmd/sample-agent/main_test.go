// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"sigs.k8s.io/yaml"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/sample"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
)

// The test binary plays the program too, in a step's directory, where it is to end by
// its own hand.
const dirEnv = "SAMPLE_AGENT_TEST_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(dirEnv); dir != "" {
		p := sample.NewProgram()
		p.Dir = dir
		os.Exit(run(context.Background(), p, os.Args[1:]))
	}
	os.Exit(m.Run())
}

// world runs the commands of a task's steps one after the other, as the operator
// would, with a ledger under the name that the samples give it.
type world struct {
	t      *testing.T
	task   v1alpha1.AgentTask
	ledger *sample.Ledger
	client *http.Client
	params any
	steps  map[string]any // each step's record, with its output
	log    strings.Builder
}

func newWorld(t *testing.T, name string) *world {
	t.Helper()
	w := &world{t: t, ledger: sample.NewLedger(time.Now), client: sample.NewClient(), steps: map[string]any{}}
	doc, err := os.ReadFile("../../config/samples/agenttask_" + name + ".yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict(doc, &w.task); err != nil {
		t.Fatal(err)
	}
	if w.task.Spec.Params != nil {
		w.params = decode(t, w.task.Spec.Params.Raw)
	}
	server := httptest.NewServer(sample.Handler(w.ledger))
	t.Cleanup(server.Close)
	w.client.Transport = &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		if addr == "ledger:80" {
			addr = server.Listener.Addr().String()
		}
		return new(net.Dialer).DialContext(ctx, network, addr)
	}}
	t.Cleanup(w.client.CloseIdleConnections)
	return w
}

func decode(t *testing.T, doc []byte) any {
	t.Helper()
	var v any
	if err := json.Unmarshal(doc, &v); err != nil {
		t.Fatalf("%v in %s", err, doc)
	}
	return v
}

// attempt runs an attempt of a step in a directory of its own, as each pod has one.
func (w *world) attempt(s v1alpha1.Step, attempt string) (dir string, code int) {
	w.t.Helper()
	dir = w.t.TempDir()
	input := []byte("{}")
	if s.Input != nil {
		input = w.render(s.Input.Raw)
	}
	if err := os.WriteFile(filepath.Join(dir, "input.json"), input, 0o644); err != nil {
		w.t.Fatal(err)
	}
	env := map[string]string{
		stepexec.EnvKey: w.task.Name + "-" + s.Name, stepexec.EnvTask: w.task.Name, stepexec.EnvStep: s.Name,
		stepexec.EnvAttempt: attempt, stepexec.EnvSeed: "7",
	}
	p := sample.Program{
		Dir: dir, Client: w.client, Stderr: &w.log,
		Getenv: func(name string) string { return env[name] },
		Pause:  func(context.Context, time.Duration) error { return nil },
	}
	if s.Run.Command[0] != "/sample-agent" {
		w.t.Fatalf("step %s runs %s", s.Name, s.Run.Command[0])
	}
	return dir, run(w.t.Context(), p, append(s.Run.Command[1:], s.Run.Args...))
}

// record keeps a step's output for the inputs of later steps.
func (w *world) record(step, output string) {
	w.steps[step] = map[string]any{"output": decode(w.t, []byte(output))}
}

var wholeExpression = regexp.MustCompile(`"\$\{([^}]*)\}"`)

// render puts values in the place of strings that are one expression: a path of
// names, which is all that the samples use.
func (w *world) render(input []byte) []byte {
	return wholeExpression.ReplaceAllFunc(input, func(m []byte) []byte {
		path := string(wholeExpression.FindSubmatch(m)[1])
		names := strings.FieldsFunc(path, func(r rune) bool { return strings.ContainsRune(".[]'", r) })
		var v any = map[string]any{"params": w.params, "steps": w.steps}
		for _, name := range names {
			object, _ := v.(map[string]any)
			if v = object[name]; v == nil {
				w.t.Fatalf("${%s}: there is no %s", path, name)
			}
		}
		doc, err := json.Marshal(v)
		if err != nil {
			w.t.Fatal(err)
		}
		return doc
	})
}

func readFile(t *testing.T, dir, name string) string {
	t.Helper()
	doc, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return string(doc)
}

// TestResearchTwice runs every step of the agent twice under its key, and compares
// the world: what is in the ledger and what the step hands on.
func TestResearchTwice(t *testing.T) {
	w := newWorld(t, "research")
	for _, s := range w.task.Spec.Steps {
		first, code := w.attempt(s, "1")
		if code != 0 {
			t.Fatalf("%s: exit code %d\n%s", s.Name, code, w.log.String())
		}
		output, effects := readFile(t, first, "output.json"), w.ledger.List(sample.Filter{})
		second, code := w.attempt(s, "2")
		if code != 0 {
			t.Fatalf("%s, again: exit code %d\n%s", s.Name, code, w.log.String())
		}
		if diff := cmp.Diff(output, readFile(t, second, "output.json")); diff != "" {
			t.Errorf("%s: output (-first +second):\n%s", s.Name, diff)
		}
		if diff := cmp.Diff(effects, w.ledger.List(sample.Filter{}), cmpopts.IgnoreFields(sample.Entry{}, "Count")); diff != "" {
			t.Errorf("%s: ledger (-first +second):\n%s", s.Name, diff)
		}
		if len(output) > stepexec.MaxInlineOutput {
			t.Errorf("%s: an output of %d bytes does not stand in the record itself", s.Name, len(output))
		}
		w.record(s.Name, output)
	}
	checkEffects(t, w.ledger.List(sample.Filter{Task: "research"}))
}

func checkEffects(t *testing.T, list []sample.Entry) {
	t.Helper()
	type effect struct {
		Step, Kind string
		Count      int64
	}
	var got []effect
	for _, e := range list {
		got = append(got, effect{e.Step, e.Kind, e.Count})
	}
	want := []effect{{"publish", "publish", 2}, {"notify", "notify", 2}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("effects (-want +got):\n%s", diff)
	}
	if body := string(list[0].Body); !strings.Contains(body, "We recommend offer B.") {
		t.Errorf("the report: %s", body)
	}
	wantNote := `{"subject":"Recommendation: solar panels for a school roof","text":"The report is published as number 1.","to":"facilities@example.com"}`
	if diff := cmp.Diff(wantNote, string(list[1].Body)); diff != "" {
		t.Errorf("the notification (-want +got):\n%s", diff)
	}
}

func TestRetrySucceedsOnItsThirdAttempt(t *testing.T) {
	w := newWorld(t, "retry")
	s := w.task.Spec.Steps[0]
	for attempt, want := range map[string]int{"1": 75, "2": 75, "3": 0} {
		dir, code := w.attempt(s, attempt)
		if code != want || (code == 0) != (readFile(t, dir, "output.json") == `{"attempts":3}`) {
			t.Errorf("attempt %s: exit code %d, output %q", attempt, code, readFile(t, dir, "output.json"))
		}
	}
}

func TestFailingFailsAtItsSecondStep(t *testing.T) {
	w := newWorld(t, "failing")
	steps := w.task.Spec.Steps
	dir, code := w.attempt(steps[0], "1")
	if code != 0 {
		t.Fatalf("the first step: exit code %d\n%s", code, w.log.String())
	}
	w.record(steps[0].Name, readFile(t, dir, "output.json"))
	dir, code = w.attempt(steps[1], "1")
	if code != 3 || !strings.Contains(readFile(t, dir, "message"), "no such panel") {
		t.Errorf("the second step: exit code %d, message %q", code, readFile(t, dir, "message"))
	}
	// The third never runs, but would: a plan that is mended goes on.
	if _, code = w.attempt(steps[2], "1"); code != 0 {
		t.Errorf("the third step: exit code %d\n%s", code, w.log.String())
	}
}

func TestSmallestCountsWords(t *testing.T) {
	if _, err := exec.LookPath("/bin/sh"); err != nil {
		t.Skip("there is no shell here")
	}
	w := newWorld(t, "smallest")
	s := w.task.Spec.Steps[0]
	path := filepath.Join(t.TempDir(), "input.json")
	if err := os.WriteFile(path, w.render(s.Input.Raw), 0o644); err != nil {
		t.Fatal(err)
	}
	if s.Run.Command[0] != "/bin/sh" || s.Run.Output != v1alpha1.OutputStdout {
		t.Fatalf("command %q, output %s", s.Run.Command, s.Run.Output)
	}
	script := strings.ReplaceAll(s.Run.Command[2], stepexec.InputPath, path)
	out, err := exec.CommandContext(t.Context(), "/bin/sh", "-c", script).Output()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]any{"words": 8.0}, decode(t, out)); diff != "" {
		t.Errorf("output (-want +got):\n%s", diff)
	}
}

// TestKilledByItsOwnHand runs a program that dies without a word before or after its
// effect, and then asks the ledger what a step's check would ask.
func TestKilledByItsOwnHand(t *testing.T) {
	for _, verb := range []string{"effect", "once-effect"} {
		for when, want := range map[string]string{"before": `{"done":false}`, "after": `{"done":true,"output":{"seq":1,`} {
			t.Run(verb+" "+when, func(t *testing.T) {
				ledger := sample.NewLedger(time.Now)
				server := httptest.NewServer(sample.Handler(ledger))
				defer server.Close()
				dir := t.TempDir()
				input := `{"eur":5,"trouble":{"` + when + `":{"kill":true}}}`
				if err := os.WriteFile(filepath.Join(dir, "input.json"), []byte(input), 0o644); err != nil {
					t.Fatal(err)
				}
				play := func(args ...string) *os.ProcessState {
					cmd := exec.CommandContext(t.Context(), os.Args[0], append(args, "--url", server.URL)...)
					cmd.Env = append(os.Environ(), dirEnv+"="+dir, stepexec.EnvKey+"=k", stepexec.EnvAttempt+"=1")
					_ = cmd.Run() // how it ended is what is looked at
					return cmd.ProcessState
				}
				status, _ := play(verb, "--kind", "pay").Sys().(syscall.WaitStatus)
				if !status.Signaled() || status.Signal() != syscall.SIGKILL {
					t.Errorf("it ended with %v, want SIGKILL", status)
				}
				if message, output := readFile(t, dir, "message"), readFile(t, dir, "output.json"); message != "" || output != "" {
					t.Errorf("it left the message %q and the output %q", message, output)
				}
				if state := play("check"); !state.Success() || !strings.HasPrefix(readFile(t, dir, "output.json"), want) {
					t.Errorf("check: %v, output %s; want %s", state, readFile(t, dir, "output.json"), want)
				}
			})
		}
	}
}

// TestObserveTellsOnceFromTwice is what a verification does: look, run again, look again.
func TestObserveTellsOnceFromTwice(t *testing.T) {
	for verb, same := range map[string]bool{"effect": true, "once-effect": false} {
		server := httptest.NewServer(sample.Handler(sample.NewLedger(time.Now)))
		defer server.Close()
		env := map[string]string{stepexec.EnvKey: "k", stepexec.EnvTask: "t", stepexec.EnvAttempt: "1"}
		play := func(input string, args ...string) string {
			p := sample.NewProgram()
			p.Dir, p.Stderr, p.Getenv = t.TempDir(), io.Discard, func(name string) string { return env[name] }
			if err := os.WriteFile(filepath.Join(p.Dir, "input.json"), []byte(input), 0o644); err != nil {
				t.Fatal(err)
			}
			if code := run(t.Context(), p, append(args, "--url", server.URL)); code != 0 {
				t.Fatalf("%v: exit code %d", args, code)
			}
			return readFile(t, p.Dir, "output.json")
		}
		var seen []string
		for range 2 {
			play(`{"eur":5}`, verb, "--kind", "pay")
			seen = append(seen, play(`{"task":"t"}`, "observe"))
		}
		if (seen[0] == seen[1]) != same {
			t.Errorf("%s: seen %s and %s; want the same: %t", verb, seen[0], seen[1], same)
		}
	}
}

func TestUsage(t *testing.T) {
	for name, tc := range map[string]struct {
		args     []string
		wantCode int
		want     string
	}{
		"help lists the commands":      {[]string{"help"}, 0, "ledger"},
		"a command's help":             {[]string{"gather", "-h"}, 0, "-source"},
		"the ledger's help":            {[]string{"ledger", "-h"}, 0, "-key-ttl"},
		"no command":                   {nil, 2, "a command is missing"},
		"an unknown command":           {[]string{"gahter"}, 2, `there is no command "gahter"`},
		"an unknown flag":              {[]string{"plan", "--speed", "9"}, 2, "speed"},
		"a bad duration":               {[]string{"plan", "--work", "soon"}, 2, "work"},
		"an argument":                  {[]string{"gather", "A"}, 2, `gather takes flags only, not "A"`},
		"a step outside of a task":     {[]string{"plan"}, 1, "run this program as a step"},
		"a failure with its exit code": {[]string{"fail", "--exit", "4", "--message", "no"}, 4, "no"},
	} {
		t.Run(name, func(t *testing.T) {
			var log strings.Builder
			p := sample.NewProgram()
			p.Dir, p.Stderr = t.TempDir(), &log
			if code := run(t.Context(), p, tc.args); code != tc.wantCode || !strings.Contains(log.String(), tc.want) {
				t.Errorf("exit code %d, log %q; want %d, %q", code, log.String(), tc.wantCode, tc.want)
			}
		})
	}
}

func TestStoppedCommandsExitWith143(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, args := range [][]string{{"block"}, {"memhog", "--mib", "1"}, {"plan", "--work", "1h"}} {
		p := sample.NewProgram()
		p.Dir, p.Stderr = t.TempDir(), io.Discard
		if err := os.WriteFile(filepath.Join(p.Dir, "input.json"), []byte(`{"topic":"solar panels"}`), 0o644); err != nil {
			t.Fatal(err)
		}
		if code := run(ctx, p, args); code != 143 {
			t.Errorf("%v: exit code %d, want 143", args, code)
		}
	}
}
