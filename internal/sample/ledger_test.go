// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package sample

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func atNoon() time.Time { return noon }

// post sends an effect to a handler.
func post(h http.Handler, query, key, body string) *httptest.ResponseRecorder {
	return postTo(h, "/effects?"+query, key, body)
}

func postTo(h http.Handler, target, key, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, target, strings.NewReader(body))
	if key != "" {
		r.Header.Set(KeyHeader, key)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func do(h http.Handler, method, target string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(method, target, nil))
	return w
}

func TestLedgerAnswers(t *testing.T) {
	for name, tc := range map[string]struct {
		query, key, body string
		wantStatus       int
		wantReplayed     string
		wantDetail       string
		wantCount        int64
	}{
		"another key is another effect":          {"task=t&kind=pay", "k2", `{"eur": 5}`, 201, "", "", 1},
		"the same effect again":                  {"task=t&kind=pay", "k1", `{"eur": 5, "to": "a"}`, 201, "true", "", 2},
		"the same key, quoted":                   {"task=t&kind=pay", `"k1"`, `{"eur": 5, "to": "a"}`, 201, "true", "", 2},
		"the same value, spelt otherwise":        {"task=t&kind=pay", "k1", `{ "to":"\u0061","eur":5.0 }`, 201, "true", "", 2},
		"from a task of another name":            {"task=u&step=s&kind=pay", "k1", `{"eur": 5, "to": "a"}`, 201, "true", "", 2},
		"the same key and another body":          {"task=t&kind=pay", "k1", `{"eur": 6}`, 422, "", "belongs to another effect", 1},
		"the same key and another kind":          {"task=t&kind=refund", "k1", `{"eur": 5, "to": "a"}`, 422, "", "belongs to another effect", 1},
		"no key":                                 {"task=t", "", `{}`, 400, "", "no Idempotency-Key header", 1},
		"an unreadable key":                      {"task=t", `"k`, `{}`, 400, "", "closing quotation mark", 1},
		"no body":                                {"task=t", "k3", ``, 400, "", "must be one JSON value", 1},
		"a body that is not JSON":                {"task=t", "k3", `eur=5`, 400, "", "must be one JSON value", 1},
		"two values":                             {"task=t", "k3", `{} {}`, 400, "", "must be one JSON value", 1},
		"a body that is too large":               {"task=t", "k3", `"` + strings.Repeat("x", maxBody) + `"`, 413, "", "at most 262144 bytes", 1},
		"a name that is too long":                {"task=" + strings.Repeat("x", maxName+1), "k3", `{}`, 400, "", "task may have at most", 1},
		"a name given twice in the body's place": {"task=t", "k3", `{"a":1,"a":2}`, 400, "", "must be one JSON value", 1},
	} {
		t.Run(name, func(t *testing.T) {
			l := NewLedger(atNoon)
			h := Handler(l)
			first := post(h, "task=t&kind=pay", "k1", `{"to": "a", "eur": 5}`)
			if first.Code != http.StatusCreated {
				t.Fatalf("the first request: %d %s", first.Code, first.Body)
			}
			got := post(h, tc.query, tc.key, tc.body)
			if got.Code != tc.wantStatus || got.Header().Get(replayedHeader) != tc.wantReplayed {
				t.Errorf("%d, replayed %q; want %d, %q", got.Code, got.Header().Get(replayedHeader), tc.wantStatus, tc.wantReplayed)
			}
			if tc.wantReplayed != "" && got.Body.String() != first.Body.String() {
				t.Errorf("the repeat's answer differs: %s", cmp.Diff(first.Body.String(), got.Body.String()))
			}
			if got.Code >= 400 {
				checkProblem(t, got, tc.wantDetail)
			}
			if n := l.List(Filter{})[0].Count; n != tc.wantCount {
				t.Errorf("the first effect's count is %d, want %d", n, tc.wantCount)
			}
		})
	}
}

func checkProblem(t *testing.T, w *httptest.ResponseRecorder, detail string) {
	t.Helper()
	var p problem
	if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil {
		t.Fatalf("%v in %s", err, w.Body)
	}
	if w.Header().Get("Content-Type") != "application/problem+json" || p.Status != w.Code || !strings.Contains(p.Detail, detail) {
		t.Errorf("problem %+v, want the status %d and %q", p, w.Code, detail)
	}
}

func TestLedgerListsInOrder(t *testing.T) {
	h := Handler(NewLedger(atNoon))
	post(h, "task=a&step=pay&kind=pay", "k1", `1`)
	post(h, "run=r&task=b&step=tell", "k2", `"<b>"`)
	post(h, "task=a&step=pay&kind=pay", "k1", `1`)
	want := `[{"seq":1,"key":"k1","task":"a","step":"pay","kind":"pay","path":"/effects","body":1,"time":"2026-03-01T12:00:00Z","count":2,"performed":1},` +
		`{"seq":2,"key":"k2","run":"r","task":"b","step":"tell","path":"/effects","body":"<b>","time":"2026-03-01T12:00:00Z","count":1,"performed":1}]`
	if diff := cmp.Diff(want, strings.TrimSpace(do(h, "GET", "/effects").Body.String())); diff != "" {
		t.Errorf("all effects (-want +got):\n%s", diff)
	}
	for _, filter := range []string{"task=b", "run=r", "step=tell", "key=k2", "path=/effects&key=k2"} {
		if got := do(h, "GET", "/effects?"+filter).Body.String(); strings.Contains(got, "k1") || !strings.Contains(got, "k2") {
			t.Errorf("the effects of %s: %s", filter, got)
		}
	}
	if got := strings.TrimSpace(do(h, "GET", "/effects?task=c").Body.String()); got != "[]" {
		t.Errorf("the effects of a task that has none: %s", got)
	}
	if got := do(h, "GET", "/healthz"); got.Code != 200 {
		t.Errorf("healthz: %d", got.Code)
	}
}

func TestLedgerForgets(t *testing.T) {
	h := Handler(NewLedger(atNoon))
	post(h, "task=a", "k1", `1`)
	post(h, "task=b", "k2", `1`)
	if got := do(h, "DELETE", "/effects"); got.Code != 400 {
		t.Errorf("DELETE without saying what: %d", got.Code)
	}
	if got := do(h, "DELETE", "/effects?task=a&all=true"); got.Code != 400 {
		t.Errorf("DELETE of a task and of all: %d", got.Code)
	}
	if got := do(h, "DELETE", "/effects?task=a"); got.Code != 204 {
		t.Errorf("DELETE of a task: %d", got.Code)
	}
	if got := do(h, "GET", "/effects").Body.String(); strings.Contains(got, "k1") || !strings.Contains(got, "k2") {
		t.Errorf("after DELETE of task a: %s", got)
	}
	if got := post(h, "task=a", "k1", `2`); got.Code != 201 || !strings.Contains(got.Body.String(), `"seq":3`) {
		t.Errorf("a forgotten key is new again, under the next number: %d %s", got.Code, got.Body)
	}
	do(h, "DELETE", "/effects?all=true")
	if got := strings.TrimSpace(do(h, "GET", "/effects").Body.String()); got != "[]" {
		t.Errorf("after DELETE of all: %s", got)
	}
}

// together runs f n times at once and counts what it gives.
func together(n int, f func(i int) int) map[int]int {
	var mu sync.Mutex
	var wg sync.WaitGroup
	counts := map[int]int{}
	begin := make(chan struct{})
	for i := range n {
		wg.Go(func() {
			<-begin
			code := f(i)
			mu.Lock()
			defer mu.Unlock()
			counts[code]++
		})
	}
	close(begin)
	wg.Wait()
	return counts
}

func TestManyRequestsWithOneKeyAreOneEffect(t *testing.T) {
	l, err := OpenLedger(t.TempDir()+"/effects.jsonl", atNoon)
	if err != nil {
		t.Fatal(err)
	}
	url := serveLedger(t, l)
	const first, replayed, other = 1, 2, 3
	counts := together(100, func(int) int {
		switch got := ask(t, "POST", url+"/effects?task=t", `"k"`, `{"eur": 5}`); {
		case got.status == 201 && got.header.Get(replayedHeader) == "":
			return first
		case got.status == 201 || got.status == 409:
			return replayed
		}
		return other
	})
	if diff := cmp.Diff(map[int]int{first: 1, replayed: 99}, counts); diff != "" {
		t.Errorf("answers: the first, replayed or in flight, others (-want +got):\n%s", diff)
	}
	if list := l.List(Filter{}); len(list) != 1 || list[0].Count != 100 || list[0].Performed != 1 {
		t.Errorf("effects: %+v; want one, performed once and asked for 100 times", list)
	}
}

func TestOfManyEffectsWithOneKeyOneWins(t *testing.T) {
	l := NewLedger(atNoon)
	h := Handler(l)
	counts := together(50, func(i int) int { return post(h, "task=t", "k", strconv.Itoa(i)).Code })
	if diff := cmp.Diff(map[int]int{201: 1, 422: 49}, counts); diff != "" {
		t.Errorf("answers by status (-want +got):\n%s", diff)
	}
	if list := l.List(Filter{}); len(list) != 1 || list[0].Count != 1 {
		t.Errorf("effects: %+v; want one with a count of 1", list)
	}
}
