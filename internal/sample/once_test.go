// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package sample

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// effectVerbs are the programs that send their input.
var effectVerbs = map[string]func(context.Context, Program, EffectOptions) error{"effect": Effect, "once-effect": OnceEffect}

// killable counts the SIGKILLs that a program asks for.
func killable(p Program) (Program, *int) {
	kills := new(int)
	p.Kill = func() { *kills++ }
	return p, kills
}

func TestOnceEffectHappensEachTime(t *testing.T) {
	for verb, want := range map[string]int64{"effect": 1, "once-effect": 2} {
		l := NewLedger(atNoon)
		o := EffectOptions{URL: serveLedger(t, l), Kind: "pay"}
		var p Program
		for range 2 {
			p = step(t, `{"eur":5}`)
			if err := effectVerbs[verb](t.Context(), p, o); err != nil {
				t.Fatalf("%s: %v", verb, err)
			}
		}
		checkCounts(t, l, want, 2)
		list := l.List(Filter{})
		if diff := cmp.Diff(list[len(list)-1].Record, leftJSON[Record](t, p)); diff != "" {
			t.Errorf("%s: the output is not the record (-record +output):\n%s", verb, diff)
		}
	}
}

// TestOnceEffectSaysWhatIsNotKnown: it asks for another attempt only where nothing was
// performed, and kills itself where nobody can know.
func TestOnceEffectSaysWhatIsNotKnown(t *testing.T) {
	for name, tc := range map[string]struct {
		status     int
		retryAfter string
		wantCode   int
		wantKills  int
	}{
		"performed":           {status: 201},
		"a bad request":       {status: 400, wantCode: 1},
		"moved":               {status: 307, wantCode: 1},
		"timed out":           {status: 408, wantCode: 137, wantKills: 1},
		"too early":           {status: 425, wantCode: 75},
		"too many":            {status: 429, wantCode: 75},
		"broken":              {status: 500, wantCode: 137, wantKills: 1},
		"broken on the way":   {status: 502, wantCode: 137, wantKills: 1},
		"perhaps taken up":    {status: 503, wantCode: 137, wantKills: 1},
		"turned away":         {status: 503, retryAfter: "3", wantCode: 75},
		"too late on the way": {status: 504, retryAfter: "3", wantCode: 137, wantKills: 1},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if tc.retryAfter != "" {
					w.Header().Set("Retry-After", tc.retryAfter)
				}
				w.WriteHeader(tc.status)
				_, _ = io.WriteString(w, `{"detail":"said so"}`)
			}))
			defer server.Close()
			p, kills := killable(step(t, `1`))
			code := p.Finish(OnceEffect(t.Context(), p, EffectOptions{URL: server.URL, Kind: "pay"}))
			if message := left(t, p, messageFile); code != tc.wantCode || *kills != tc.wantKills || (code != 0) != strings.Contains(message, "(said so)") {
				t.Errorf("exit code %d, killed %d times, message %q; want %d, %d", code, *kills, message, tc.wantCode, tc.wantKills)
			}
			wantRetryAfter := map[int]string{75: tc.retryAfter}[tc.wantCode]
			if got := left(t, p, retryAfterFile); got != wantRetryAfter {
				t.Errorf("retry-after %q, want %q", got, wantRetryAfter)
			}
		})
	}
}

func TestALostAnswerOfOnceEffectIsNotKnown(t *testing.T) {
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	p, kills := killable(step(t, `1`))
	if code := p.Finish(OnceEffect(t.Context(), p, EffectOptions{URL: gone.URL, Kind: "pay"})); code != 75 || *kills != 0 {
		t.Errorf("no connection: exit code %d, killed %d times; want 75 and none: nothing was sent", code, *kills)
	}
	l := NewLedger(atNoon)
	url := serveLedger(t, l)
	for i, fault := range []string{FaultCutBefore, FaultCutAfter} {
		must(t, "POST", url+"/admin/faults?fault="+fault)
		p, kills := killable(step(t, `1`))
		code := p.Finish(OnceEffect(t.Context(), p, EffectOptions{URL: url, Kind: "pay"}))
		if message := left(t, p, messageFile); code != 137 || *kills != 1 || !strings.Contains(message, "is not known") {
			t.Errorf("%s: exit code %d, killed %d times, message %q", fault, code, *kills, message)
		}
		if n := len(l.List(Filter{})); n != i {
			t.Errorf("%s: %d effects, want %d", fault, n, i)
		}
	}
}

func TestTrouble(t *testing.T) {
	for name, tc := range map[string]struct {
		trouble       string
		attempt       string
		wantCode      int
		wantKills     int
		wantMessage   string
		wantPerformed int64
	}{
		"none":                      {`{}`, "1", 0, 0, "", 1},
		"again before":              {`{"before":{"exit":75}}`, "1", 75, 0, "exit code 75 before the effect", 0},
		"again after":               {`{"after":{"exit":75}}`, "1", 75, 0, "exit code 75 after the effect", 1},
		"failed before":             {`{"before":{"exit":1}}`, "1", 1, 0, "exit code 1 before the effect", 0},
		"failed after":              {`{"after":{"exit":1}}`, "1", 1, 0, "trouble.after.exit", 1},
		"killed before":             {`{"before":{"kill":true}}`, "1", 137, 1, "", 0},
		"killed after":              {`{"after":{"kill":true}}`, "1", 137, 1, "", 1},
		"over in the second":        {`{"before":{"exit":1},"after":{"kill":true}}`, "2", 0, 0, "", 1},
		"still in the second":       {`{"after":{"exit":75},"attempts":2}`, "2", 75, 0, "exit code 75", 1},
		"over in the third":         {`{"after":{"exit":75},"attempts":2}`, "3", 0, 0, "", 1},
		"two ends":                  {`{"after":{"exit":75,"kill":true}}`, "1", 1, 0, "not both", 0},
		"no exit code":              {`{"after":{"exit":256}}`, "1", 1, 0, "1 to 255", 0},
		"a misspelt one":            {`{"aftr":{"exit":1}}`, "1", 1, 0, `unknown field "aftr"`, 0},
		"an attempt without number": {`{"after":{"exit":1}}`, "one", 1, 0, "AGENTTASK_ATTEMPT", 0},
	} {
		for verb, effect := range effectVerbs {
			t.Run(verb+", "+name, func(t *testing.T) {
				l := NewLedger(atNoon)
				p, kills := killable(step(t, `{"eur":5,"trouble":`+tc.trouble+`}`))
				getenv := p.Getenv
				p.Getenv = func(name string) string {
					if name == envAttempt {
						return tc.attempt
					}
					return getenv(name)
				}
				code := p.Finish(effect(t.Context(), p, EffectOptions{URL: serveLedger(t, l), Kind: "pay"}))
				message := left(t, p, messageFile)
				if code != tc.wantCode || *kills != tc.wantKills || !strings.Contains(message, tc.wantMessage) || (tc.wantMessage == "") != (message == "") {
					t.Errorf("exit code %d, killed %d times, message %q; want %d, %d, %q", code, *kills, message, tc.wantCode, tc.wantKills, tc.wantMessage)
				}
				if (left(t, p, outputFile) != "") != (code == 0) {
					t.Errorf("output %q", left(t, p, outputFile))
				}
				checkCounts(t, l, tc.wantPerformed, tc.wantPerformed)
				for _, e := range l.List(Filter{}) {
					if string(e.Body) != `{"eur":5}` {
						t.Errorf("the effect is %s; the trouble is no part of it", e.Body)
					}
				}
			})
		}
	}
}

func TestAProgramIsHeld(t *testing.T) {
	for when, performed := range map[string]int64{"before": 0, "after": 1} {
		for verb, effect := range effectVerbs {
			t.Run(verb+" "+when, func(t *testing.T) {
				l := NewLedger(atNoon)
				url := serveLedger(t, l)
				must(t, "POST", url+"/admin/hold?key=gate&when=program")
				p := step(t, `{"eur":5,"trouble":{"`+when+`":{"hold":"gate"}}}`)
				ended := make(chan error, 1)
				go func() { ended <- effect(t.Context(), p, EffectOptions{URL: url, Kind: "pay"}) }()
				awaitHeld(t, url, "gate")
				checkCounts(t, l, performed, performed)
				if left(t, p, outputFile) != "" {
					t.Error("there is an output while it is held")
				}
				must(t, "POST", url+"/admin/release?key=gate")
				if err := <-ended; err != nil {
					t.Error(err)
				}
				checkCounts(t, l, 1, 1)
			})
		}
	}
}

func TestAProgramAsksAgainUntilItIsReleased(t *testing.T) {
	answers := []int{204, 503, 0, 204, 200}
	asked, paused := 0, 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.String() != "/admin/wait?key=gate" {
			t.Errorf("asked for %s", r.URL)
		}
		status := answers[asked]
		asked++
		if status == 0 {
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(status)
	}))
	defer server.Close()
	p := step(t, "")
	p.Client.Transport = &http.Transport{DisableKeepAlives: true}
	p.Pause = func(context.Context, time.Duration) error { paused++; return nil }
	if err := p.awaitRelease(t.Context(), server.URL, "gate"); err != nil || asked != len(answers) || paused != 2 {
		t.Errorf("%v, asked %d times, paused %d times; want %d and 2", err, asked, paused, len(answers))
	}
}

func TestAHeldProgramEnds(t *testing.T) {
	url := serveLedger(t, NewLedger(atNoon))
	ctx, cancel := context.WithCancel(t.Context())
	p := step(t, `{"trouble":{"before":{"hold":"gate"}}}`)
	ended := make(chan error, 1)
	go func() { ended <- Effect(ctx, p, EffectOptions{URL: url, Kind: "pay"}) }()
	awaitHeld(t, url, "gate")
	cancel()
	if code := p.Finish(<-ended); code != 143 {
		t.Errorf("stopped while it is held: exit code %d, want 143", code)
	}

	p = step(t, `{"trouble":{"before":{"hold":"gate"}}}`)
	p.Pause = func(context.Context, time.Duration) error { return errors.New("stopped") }
	gone := httptest.NewServer(http.NotFoundHandler())
	url = gone.URL
	if code := p.Finish(Effect(t.Context(), p, EffectOptions{URL: url, Kind: "pay"})); code != 1 || !strings.Contains(left(t, p, messageFile), "404") {
		t.Errorf("a server without holds: exit code %d, message %q", code, left(t, p, messageFile))
	}
	gone.Close()
	if code := p.Finish(Effect(t.Context(), p, EffectOptions{URL: url, Kind: "pay"})); code != 143 {
		t.Errorf("stopped while the ledger is away: exit code %d, want 143", code)
	}
	if code := p.Finish(Effect(t.Context(), p, EffectOptions{URL: "ledger", Kind: "pay"})); code != 1 {
		t.Errorf("a URL that is none: exit code %d, want 1", code)
	}
}

func TestCheckEffect(t *testing.T) {
	l := NewLedger(atNoon)
	url := serveLedger(t, l)
	check := func() (int, Program) {
		p := step(t, `{"whatever":"the step had"}`)
		return p.Finish(CheckEffect(t.Context(), p, url)), p
	}
	if code, p := check(); code != 0 || left(t, p, outputFile) != `{"done":false}` {
		t.Errorf("before: exit code %d, output %s", code, left(t, p, outputFile))
	}
	effect := step(t, `{"eur":5}`)
	if err := OnceEffect(t.Context(), effect, EffectOptions{URL: url, Kind: "pay"}); err != nil {
		t.Fatal(err)
	}
	if code, p := check(); code != 0 || left(t, p, outputFile) != `{"done":true,"output":`+left(t, effect, outputFile)+`}` {
		t.Errorf("after: exit code %d, output %s; want the step's own", code, left(t, p, outputFile))
	}
	do(Handler(l), "DELETE", "/effects?all=true")
	first := later(t, "POST", url+"/effects", `"research-publish-1"`, `1`, FaultHeader, FaultHoldBefore)
	awaitHeld(t, url, "research-publish-1")
	if code, p := check(); code != 75 || left(t, p, outputFile) != "" {
		t.Errorf("in flight: exit code %d, output %s; want 75: nobody can know yet", code, left(t, p, outputFile))
	}
	must(t, "POST", url+"/admin/release?all=true")
	<-first
}

func TestObserveEffects(t *testing.T) {
	now := noon
	l := NewLedger(func() time.Time { now = now.Add(time.Second); return now })
	url := serveLedger(t, l)
	h := Handler(l)
	observe := func(input string) string {
		p := step(t, input)
		if code := p.Finish(ObserveEffects(t.Context(), p, url)); code != 0 {
			t.Fatalf("%s: exit code %d, message %q", input, code, left(t, p, messageFile))
		}
		return left(t, p, outputFile)
	}
	if diff := cmp.Diff(`{"performed":0,"effects":[]}`, observe(`null`)); diff != "" {
		t.Errorf("nothing (-want +got):\n%s", diff)
	}
	post(h, "run=r&task=t&step=b&kind=pay", "k2", `{"eur":5}`)
	postTo(h, "/effects/raw?run=r&task=t&step=a", "k1", `1`)
	post(h, "run=other", "k3", `1`)
	want := `{"performed":2,"effects":[` +
		`{"key":"k1","path":"/effects/raw","task":"t","step":"a","performed":1,"digest":"6b86b273ff34"},` +
		`{"key":"k2","path":"/effects","task":"t","step":"b","kind":"pay","performed":1,"digest":"4ddb9514fe3e"}]}`
	first := observe(`{"run":"r"}`)
	if diff := cmp.Diff(want, first); diff != "" {
		t.Errorf("two effects (-want +got):\n%s", diff)
	}
	post(h, "run=r&task=t&step=b&kind=pay", "k2", `{"eur":5}`)
	if diff := cmp.Diff(first, observe(`{"run":"r"}`)); diff != "" {
		t.Errorf("asked for again (-before +after):\n%s", diff)
	}
	postTo(h, "/effects/raw?run=r&task=t&step=a", "k1", `1`)
	var v View
	if err := json.Unmarshal([]byte(observe(`{"task":"t","step":"a"}`)), &v); err != nil {
		t.Fatal(err)
	}
	if v.Performed != 2 || len(v.Effects) != 1 || v.Effects[0].Performed != 2 {
		t.Errorf("performed again: %+v", v)
	}
}

func TestObserveEffectsNamesWhatIsWrong(t *testing.T) {
	l := NewLedger(atNoon)
	url := serveLedger(t, l)
	for i := range maxObserved + 1 {
		post(Handler(l), "task=t", string(rune('a'+i%26))+strings.Repeat("x", i), `1`)
	}
	for input, want := range map[string]string{
		`{"task":"t"}`:  "effects of 201 keys",
		`{"tasc":"t"}`:  `unknown field "tasc"`,
		`{"task":"t2"}`: "",
	} {
		p := step(t, input)
		code := p.Finish(ObserveEffects(t.Context(), p, url))
		if message := left(t, p, messageFile); (code == 0) != (want == "") || !strings.Contains(message, want) {
			t.Errorf("%s: exit code %d, message %q; want %q", input, code, message, want)
		}
	}
}

func TestReadersTellAnotherServerApart(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `"hello"`) }))
	defer server.Close()
	for verb, read := range map[string]func(context.Context, Program, string) error{"check": CheckEffect, "observe": ObserveEffects} {
		p := step(t, `{}`)
		if code := p.Finish(read(t.Context(), p, server.URL)); code != 1 || !strings.Contains(left(t, p, messageFile), "--url") {
			t.Errorf("%s: exit code %d, message %q", verb, code, left(t, p, messageFile))
		}
	}
	server.Close()
	for verb, read := range map[string]func(context.Context, Program, string) error{"check": CheckEffect, "observe": ObserveEffects} {
		p := step(t, `{}`)
		if code := p.Finish(read(t.Context(), p, server.URL)); code != 75 {
			t.Errorf("%s: exit code %d, want 75: it may be asked again", verb, code)
		}
	}
}
