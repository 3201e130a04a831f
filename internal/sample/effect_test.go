// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package sample

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestEffectJudgesTheAnswer(t *testing.T) {
	const date = "Sun, 01 Mar 2026 12:00:00 GMT"
	for name, tc := range map[string]struct {
		status         int
		retryAfter     string
		body           string
		wantCode       int
		wantMessage    string
		wantRetryAfter string
		wantOutput     string
	}{
		"recorded":                  {status: 201, body: `{"seq":1}`, wantOutput: `{"seq":1}`},
		"recorded before":           {status: 200, body: `{"seq":1}` + "\n", wantOutput: `{"seq":1}`},
		"a page instead of record":  {status: 200, body: `<html>`, wantCode: 1, wantMessage: "is --url a ledger's?"},
		"nothing to show":           {status: 204, wantCode: 1, wantMessage: "204"},
		"moved":                     {status: 307, wantCode: 1, wantMessage: "http://elsewhere"},
		"a bad request":             {status: 400, body: `{"detail":"no key"}`, wantCode: 1, wantMessage: "400 Bad Request (no key)"},
		"the key of another effect": {status: 422, retryAfter: "5", body: `{"detail":"used"}`, wantCode: 1, wantMessage: "(used)"},
		"timed out":                 {status: 408, wantCode: 75, wantMessage: "408"},
		"in flight":                 {status: 409, wantCode: 75, wantMessage: "409"},
		"too early":                 {status: 425, wantCode: 75, wantMessage: "425"},
		"too many":                  {status: 429, retryAfter: "7", wantCode: 75, wantMessage: "429", wantRetryAfter: "7"},
		"too many, until a date":    {status: 429, retryAfter: date, wantCode: 75, wantMessage: "429", wantRetryAfter: date},
		"too many, until soon":      {status: 429, retryAfter: "soon", wantCode: 75, wantMessage: "429"},
		"too many, until before":    {status: 429, retryAfter: "-1", wantCode: 75, wantMessage: "429"},
		"broken":                    {status: 500, wantCode: 75, wantMessage: "500"},
		"down for a while":          {status: 503, retryAfter: "1", wantCode: 75, wantMessage: "503", wantRetryAfter: "1"},
	} {
		t.Run(name, func(t *testing.T) {
			requests := 0
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				requests++
				w.Header().Set("Location", "http://elsewhere")
				if tc.retryAfter != "" {
					w.Header().Set("Retry-After", tc.retryAfter)
				}
				w.WriteHeader(tc.status)
				_, _ = io.WriteString(w, tc.body)
			}))
			defer server.Close()
			p := step(t, `{"a":1}`)
			code := p.Finish(Effect(t.Context(), p, EffectOptions{URL: server.URL, Kind: "publish"}))
			if got := left(t, p, messageFile); code != tc.wantCode || !strings.Contains(got, tc.wantMessage) || (code == 0) != (got == "") {
				t.Errorf("exit code %d, message %q; want %d, %q", code, got, tc.wantCode, tc.wantMessage)
			}
			if got := left(t, p, retryAfterFile); got != tc.wantRetryAfter {
				t.Errorf("retry-after %q, want %q", got, tc.wantRetryAfter)
			}
			if got := left(t, p, outputFile); got != tc.wantOutput {
				t.Errorf("output %q, want %q", got, tc.wantOutput)
			}
			if requests != 1 {
				t.Errorf("%d requests; the client sends one", requests)
			}
		})
	}
}

func TestEffectSendsTheInputUnderTheKey(t *testing.T) {
	var got string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got = fmt.Sprintf("%s %s %s %s %s", r.Method, r.URL, r.Header.Get("Content-Type"), r.Header.Get(KeyHeader), body)
		_, _ = io.WriteString(w, `{}`)
	}))
	defer server.Close()
	p := step(t, `{"a":1}`)
	if err := Effect(t.Context(), p, EffectOptions{URL: server.URL + "/at/", Kind: "publish"}); err != nil {
		t.Fatal(err)
	}
	want := `POST /at/effects?kind=publish&run=run-1&step=publish&task=research application/json "research-publish-1" {"a":1}`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the request (-want +got):\n%s", diff)
	}
}

func TestEffectTriesAgainWhereNoAnswerCame(t *testing.T) {
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	torn := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		_, _ = io.WriteString(w, `{"seq":`)
	}))
	defer torn.Close()
	slow := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // so that the server sees the client go
		<-r.Context().Done()
	}))
	defer slow.Close()
	for name, url := range map[string]string{"nobody listens": gone.URL, "the answer is torn": torn.URL, "no answer in time": slow.URL} {
		t.Run(name, func(t *testing.T) {
			p := step(t, `1`)
			p.Client.Timeout = 100 * time.Millisecond
			code := p.Finish(Effect(t.Context(), p, EffectOptions{URL: url, Kind: "publish"}))
			if got := left(t, p, messageFile); code != 75 || !strings.HasPrefix(got, "no answer from 127.0.0.1:") {
				t.Errorf("exit code %d, message %q; want 75 and whose answer did not come", code, got)
			}
			if got := left(t, p, outputFile); got != "" {
				t.Errorf("output %q, want none", got)
			}
		})
	}
}

func TestEffectNamesWhatIsMissing(t *testing.T) {
	ok := EffectOptions{URL: "http://ledger", Kind: "publish"}
	for name, tc := range map[string]struct {
		options EffectOptions
		noKey   bool
		want    string
	}{
		"no kind":      {EffectOptions{URL: ok.URL}, false, "--kind"},
		"no URL":       {EffectOptions{Kind: ok.Kind}, false, "--url"},
		"no scheme":    {EffectOptions{URL: "ledger:80", Kind: ok.Kind}, false, "--url"},
		"other scheme": {EffectOptions{URL: "ftp://ledger", Kind: ok.Kind}, false, "--url"},
		"no key":       {ok, true, envKey},
	} {
		for verb, effect := range effectVerbs {
			t.Run(verb+", "+name, func(t *testing.T) {
				p := step(t, `1`)
				if tc.noKey {
					p.Getenv = environment(nil)
				}
				code := p.Finish(effect(t.Context(), p, tc.options))
				if got := left(t, p, messageFile); code != 1 || !strings.Contains(got, tc.want) {
					t.Errorf("exit code %d, message %q; want 1 and %q", code, got, tc.want)
				}
			})
		}
	}
}

// TestStoppedBetweenEffectAndOutput is the gap that only the key can close: the
// effect is there, and nobody knows of it.
func TestStoppedBetweenEffectAndOutput(t *testing.T) {
	ledger := NewLedger(atNoon)
	server := httptest.NewServer(Handler(ledger))
	defer server.Close()
	o := EffectOptions{URL: server.URL, Kind: "publish", Work: time.Hour}

	first := step(t, `{"a":1}`)
	ctx, cancel := context.WithCancel(t.Context())
	first.Pause = func(ctx context.Context, _ time.Duration) error {
		cancel()
		return pause(ctx, time.Hour)
	}
	if code := first.Finish(Effect(ctx, first, o)); code != 143 || left(t, first, outputFile) != "" {
		t.Fatalf("the first attempt: exit code %d, output %q; want 143 and none", code, left(t, first, outputFile))
	}
	made := ledger.List(Filter{})

	second := step(t, `{"a":1}`)
	second.Pause = func(context.Context, time.Duration) error { return nil }
	if err := Effect(t.Context(), second, o); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(made, ledger.List(Filter{}), cmpopts.IgnoreFields(Entry{}, "Count")); diff != "" || len(made) != 1 {
		t.Errorf("the world after the second attempt (-first +second):\n%s", diff)
	}
	if diff := cmp.Diff(made[0].Record, leftJSON[Record](t, second)); diff != "" {
		t.Errorf("the output is not the record (-record +output):\n%s", diff)
	}
}

func TestStoppedWhileWaitingForTheLedger(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		cancel()
		<-r.Context().Done()
	}))
	defer server.Close()
	p := step(t, `1`)
	if code := p.Finish(Effect(ctx, p, EffectOptions{URL: server.URL, Kind: "publish"})); code != 143 {
		t.Errorf("exit code %d, want 143", code)
	}
}
