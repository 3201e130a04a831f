// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package sample

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// serveLedger serves a ledger and gives its URL.
func serveLedger(t *testing.T, l *Ledger) string {
	t.Helper()
	server := httptest.NewServer(Handler(l))
	t.Cleanup(server.Close)
	t.Cleanup(func() { _ = l.Close() }) // first, so that nothing is held any more
	return server.URL
}

// got is an answer as it came over a connection; status 0: none came.
type got struct {
	status int
	header http.Header
	body   string
}

// ask sends one request over a connection of its own, so that nothing is sent again by
// the client. header holds names and values in turn.
func ask(t *testing.T, method, target, key, body string, header ...string) got {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, target, strings.NewReader(body))
	if err != nil {
		t.Error(err)
		return got{}
	}
	req.Close = true
	if key != "" {
		req.Header.Set(KeyHeader, key)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return got{}
	}
	defer resp.Body.Close()
	doc, err := io.ReadAll(resp.Body)
	if err != nil {
		return got{}
	}
	return got{resp.StatusCode, resp.Header, string(doc)}
}

// later is ask in the background.
func later(t *testing.T, method, target, key, body string, header ...string) <-chan got {
	t.Helper()
	answer := make(chan got, 1)
	go func() { answer <- ask(t, method, target, key, body, header...) }()
	return answer
}

// must sends a request that has to succeed, and gives the body.
func must(t *testing.T, method, target string) string {
	t.Helper()
	answer := ask(t, method, target, "", "")
	if answer.status/100 != 2 {
		t.Fatalf("%s %s: %d %s", method, target, answer.status, answer.body)
	}
	return answer.body
}

// awaitHeld returns when something waits for the hold on a key.
func awaitHeld(t *testing.T, url, key string) {
	t.Helper()
	answer := ask(t, "GET", url+"/admin/wait?for=held&key="+key, "", "")
	for answer.status == 204 {
		answer = ask(t, "GET", url+"/admin/wait?for=held&key="+key, "", "")
	}
	if answer.status != 200 {
		t.Fatalf("nothing is held at %s: %d %s", key, answer.status, answer.body)
	}
}

// counts are how often the only key of a ledger was performed and asked for.
func counts(l *Ledger) (performed, asked int64) {
	for _, e := range l.List(Filter{}) {
		performed = e.Performed
		asked += e.Count
	}
	return performed, asked
}

func checkCounts(t *testing.T, l *Ledger, wantPerformed, wantAsked int64) {
	t.Helper()
	if performed, asked := counts(l); performed != wantPerformed || asked != wantAsked {
		t.Errorf("performed %d times and asked for %d times; want %d and %d", performed, asked, wantPerformed, wantAsked)
	}
}

func problemIn(t *testing.T, body string) problem {
	t.Helper()
	var p problem
	if err := json.Unmarshal([]byte(body), &p); err != nil {
		t.Fatalf("%v in %s", err, body)
	}
	return p
}

func TestAKeyInFlightIsAConflict(t *testing.T) {
	for _, when := range []string{"before", "after"} {
		t.Run("held "+when+" the effect", func(t *testing.T) {
			l := NewLedger(atNoon)
			url := serveLedger(t, l)
			must(t, "POST", url+"/admin/hold?key=k&when="+when)
			first := later(t, "POST", url+"/effects", `"k"`, `{"eur":5}`)
			awaitHeld(t, url, "k")

			conflict := ask(t, "POST", url+"/effects", `"k"`, `{"eur":5}`)
			p := problemIn(t, conflict.body)
			if conflict.status != 409 || p.Type != typeInFlight || p.Status != 409 || conflict.header.Get("Retry-After") != "1" ||
				conflict.header.Get("Content-Type") != "application/problem+json" || conflict.header.Get("Link") == "" {
				t.Errorf("the same request: %d %v %s", conflict.status, conflict.header, conflict.body)
			}
			if other := ask(t, "POST", url+"/effects", `"k"`, `{"eur":6}`); other.status != 422 {
				t.Errorf("another payload under a key in flight: %d %s; want 422", other.status, other.body)
			}
			wantLookup := map[string]int{"before": 409, "after": 200}[when]
			if look := ask(t, "GET", url+"/effects/lookup?key=k", "", ""); look.status != wantLookup {
				t.Errorf("lookup: %d %s; want %d: an effect that may come is not one that did not", look.status, look.body, wantLookup)
			}

			must(t, "POST", url+"/admin/release?key=k")
			if answer := <-first; answer.status != 201 || answer.header.Get(replayedHeader) != "" {
				t.Errorf("the first request: %d %v %s", answer.status, answer.header, answer.body)
			}
			checkCounts(t, l, 1, 2)
			if again := ask(t, "POST", url+"/effects", `"k"`, `{"eur":5}`); again.status != 201 || again.header.Get(replayedHeader) != "true" {
				t.Errorf("a repeat: %d %v", again.status, again.header)
			}
			checkCounts(t, l, 1, 3)
		})
	}
}

func TestAKeyIsOneKeyOnAllResources(t *testing.T) {
	h := Handler(NewLedger(atNoon))
	body := `{"charge":"c1","amount":5}`
	if first := postTo(h, "/effects", "k", body); first.Code != 201 {
		t.Fatalf("%d %s", first.Code, first.Body)
	}
	if other := postTo(h, "/refunds", "k", body); other.Code != 422 {
		t.Errorf("the same key and body to another resource: %d %s; want 422", other.Code, other.Body)
	}
}

func TestAnErrorIsRepeatedToo(t *testing.T) {
	path := filepath.Join(t.TempDir(), "effects.jsonl")
	l := open(t, path)
	body := `{"charge":"c-declined","amount":5}`
	first := postTo(Handler(l), "/refunds?task=t", `"k"`, body)
	if first.Code != 402 || first.Header().Get(replayedHeader) != "" {
		t.Fatalf("a refund that is declined: %d %s", first.Code, first.Body)
	}
	again := postTo(Handler(l), "/refunds?task=t", `"k"`, body)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	l = open(t, path)
	restarted := postTo(Handler(l), "/refunds?task=t", `"k"`, body)
	for when, repeat := range map[string]*httptest.ResponseRecorder{"at once": again, "after a restart": restarted} {
		if repeat.Code != 402 || repeat.Body.String() != first.Body.String() || repeat.Header().Get(replayedHeader) != "true" ||
			repeat.Header().Get("Content-Type") != "application/problem+json" {
			t.Errorf("a repeat %s: %d %v %s; want what came first: %s", when, repeat.Code, repeat.Header(), repeat.Body, first.Body)
		}
	}
	if list := l.List(Filter{}); len(list) != 0 {
		t.Errorf("effects: %+v; want none", list)
	}
	if look := do(Handler(l), "GET", "/effects/lookup?key=k"); strings.TrimSpace(look.Body.String()) != `{"done":false}` {
		t.Errorf("lookup: %d %s", look.Code, look.Body)
	}
	do(Handler(l), "DELETE", "/effects?task=t")
	if forgotten := postTo(Handler(l), "/refunds?task=t", `"k"`, body); forgotten.Header().Get(replayedHeader) != "" {
		t.Error("the key is still there after DELETE of its task")
	}
}

func TestRefunds(t *testing.T) {
	l := NewLedger(atNoon)
	h := Handler(l)
	for body, want := range map[string]int{
		`{"charge":"c1","amount":5}`:                     201,
		`{"charge":"c1","amount":5.5,"reason":"broken"}`: 201,
		`{"charge":"","amount":5}`:                       400,
		`{"charge":"c1","amount":0}`:                     400,
		`{"charge":"c1"}`:                                400,
		`["c1", 5]`:                                      400,
	} {
		if answer := postTo(h, "/refunds", "key of "+strings.ReplaceAll(body, `"`, "'"), body); answer.Code != want {
			t.Errorf("%s: %d %s; want %d", body, answer.Code, answer.Body, want)
		}
	}
	postTo(h, "/refunds?run=r", "k", `{"charge":"c2","amount":7}`)
	post(h, "run=r", "k2", `{"charge":"c2","amount":7}`)
	want := `{"items":[{"seq":3,"key":"k","run":"r","kind":"refund","path":"/refunds","body":{"amount":7,"charge":"c2"},` +
		`"time":"2026-03-01T12:00:00Z","count":1,"performed":1}]}`
	for _, query := range []string{"key=k", "run=r"} {
		if diff := cmp.Diff(want, strings.TrimSpace(do(h, "GET", "/refunds?"+query).Body.String())); diff != "" {
			t.Errorf("refunds of %s (-want +got):\n%s", query, diff)
		}
	}
	if answer := do(h, "GET", "/refunds?key=k2"); strings.TrimSpace(answer.Body.String()) != `{"items":[]}` {
		t.Errorf("refunds of a key that has none: %s", answer.Body)
	}
}

func TestLookup(t *testing.T) {
	l := NewLedger(atNoon)
	h := Handler(l)
	first := post(h, "", "k", `1`)
	want := `{"done":true,"output":` + strings.TrimSpace(first.Body.String()) + `}`
	if diff := cmp.Diff(want, strings.TrimSpace(do(h, "GET", "/effects/lookup?key=k").Body.String())); diff != "" {
		t.Errorf("a key that is there (-want +got):\n%s", diff)
	}
	if answer := do(h, "GET", "/effects/lookup?key=k2"); answer.Code != 200 || strings.TrimSpace(answer.Body.String()) != `{"done":false}` {
		t.Errorf("a key that is not there: %d %s", answer.Code, answer.Body)
	}
	if answer := do(h, "GET", "/effects/lookup"); answer.Code != 400 {
		t.Errorf("no key: %d", answer.Code)
	}
}

func TestAnExpiredKeyIsNew(t *testing.T) {
	for name, tc := range map[string]struct {
		policy        Policy
		passed        time.Duration
		body          string
		wantReplayed  string
		wantPerformed int64
		wantStatus    int
	}{
		"at once":                  {Policy{}, 0, `1`, "true", 1, 201},
		"just before its end":      {Policy{}, 24*time.Hour - time.Millisecond, `1`, "true", 1, 201},
		"another effect before":    {Policy{}, 24*time.Hour - time.Millisecond, `2`, "", 1, 422},
		"at its end":               {Policy{}, 24 * time.Hour, `1`, "", 2, 201},
		"another effect afterward": {Policy{}, 24 * time.Hour, `2`, "", 2, 201},
		"by its own time":          {Policy{KeyTTL: time.Minute}, time.Minute, `1`, "", 2, 201},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "effects.jsonl")
			now := noon
			l := open(t, path)
			l.now, l.Policy = func() time.Time { return now }, tc.policy
			post(Handler(l), "", "k", `1`)
			now = now.Add(tc.passed)
			again := post(Handler(l), "", "k", tc.body)
			if again.Code != tc.wantStatus || again.Header().Get(replayedHeader) != tc.wantReplayed {
				t.Errorf("%d, replayed %q: %s", again.Code, again.Header().Get(replayedHeader), again.Body)
			}
			list := l.List(Filter{})
			if int64(len(list)) != tc.wantPerformed || list[0].Performed != tc.wantPerformed {
				t.Errorf("effects: %+v; want %d", list, tc.wantPerformed)
			}
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(list, open(t, path).List(Filter{})); diff != "" {
				t.Errorf("after a restart (-before +after):\n%s", diff)
			}
		})
	}
}

func TestAnExpiredKeysEffectIsStillFound(t *testing.T) {
	now := noon
	l := NewLedger(func() time.Time { return now })
	post(Handler(l), "", "k", `1`)
	now = now.Add(48 * time.Hour)
	if found, err := l.Lookup("k"); err != nil || found == nil {
		t.Errorf("%v, %v; an effect does not cease to have happened with its key", found, err)
	}
}

func TestStrictLedgerRefusesBareKeys(t *testing.T) {
	l := NewLedger(atNoon)
	l.Policy.StrictKeys = true
	h := Handler(l)
	if bare := post(h, "", "k", `1`); bare.Code != 400 || problemIn(t, bare.Body.String()).Type != typeMalformed || bare.Header().Get("Link") == "" {
		t.Errorf("bare: %d %s", bare.Code, bare.Body)
	}
	if missing := post(h, "", "", `1`); missing.Code != 400 || problemIn(t, missing.Body.String()).Type != typeMissing {
		t.Errorf("missing: %d %s", missing.Code, missing.Body)
	}
	if quoted := post(h, "", `"k"`, `1`); quoted.Code != 201 {
		t.Errorf("quoted: %d %s", quoted.Code, quoted.Body)
	}
}

func TestTheHandlingOfKeysIsPublished(t *testing.T) {
	l := NewLedger(atNoon)
	for policy, want := range map[Policy]keyDocs{
		{}:                                    {TTL: "24h0m0s", TTLSeconds: 86400, BareAccepted: true},
		{KeyTTL: time.Hour, StrictKeys: true}: {TTL: "1h0m0s", TTLSeconds: 3600},
	} {
		l.Policy = policy
		var docs keyDocs
		if err := json.Unmarshal(do(Handler(l), "GET", "/idempotency").Body.Bytes(), &docs); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, keyDocs{TTL: docs.TTL, TTLSeconds: docs.TTLSeconds, BareAccepted: docs.BareAccepted}); diff != "" {
			t.Errorf("%+v (-want +got):\n%s", policy, diff)
		}
		for _, kind := range []string{typeMissing, typeMalformed, typeInFlight, typeReused} {
			if name := strings.TrimPrefix(kind, docsPath+"#"); docs.Problems[name] == "" {
				t.Errorf("the problem %s is not explained", name)
			}
		}
	}
}

func TestRawEffectsHappenEachTime(t *testing.T) {
	path := filepath.Join(t.TempDir(), "effects.jsonl")
	l := open(t, path)
	h := Handler(l)
	for range 2 {
		if answer := postTo(h, "/effects/raw?task=t", "k", `1`); answer.Code != 201 || answer.Header().Get(replayedHeader) != "" {
			t.Errorf("%d %v", answer.Code, answer.Header())
		}
	}
	if answer := postTo(h, "/effects/raw?task=t", "", `1`); answer.Code != 400 {
		t.Errorf("without a name: %d", answer.Code)
	}
	checkCounts(t, l, 2, 2)
	if found, err := l.Lookup("k"); err != nil || found == nil || found.Seq != 2 {
		t.Errorf("lookup: %+v, %v; want the last one", found, err)
	}
	// A raw name is no key: the same one is free on the other resources.
	if keyed := post(h, "task=t", "k", `2`); keyed.Code != 201 {
		t.Errorf("an effect with a key: %d %s", keyed.Code, keyed.Body)
	}
	want := l.List(Filter{})
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, open(t, path).List(Filter{})); diff != "" {
		t.Errorf("after a restart (-before +after):\n%s", diff)
	}
}

func TestARawEffectThatMayComeIsNotOneThatDidNot(t *testing.T) {
	l := NewLedger(atNoon)
	url := serveLedger(t, l)
	must(t, "POST", url+"/admin/hold?key=k")
	first := later(t, "POST", url+"/effects/raw", `"k"`, `1`)
	awaitHeld(t, url, "k")
	if look := ask(t, "GET", url+"/effects/lookup?key=k", "", ""); look.status != 409 {
		t.Errorf("lookup: %d %s; want 409", look.status, look.body)
	}
	must(t, "POST", url+"/admin/release?key=k")
	if answer := <-first; answer.status != 201 {
		t.Errorf("%d %s", answer.status, answer.body)
	}
}
