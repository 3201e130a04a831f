// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package sample

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestHoldsByHeader(t *testing.T) {
	for _, fault := range []string{FaultHoldBefore, FaultHoldAfter} {
		l := NewLedger(atNoon)
		url := serveLedger(t, l)
		first := later(t, "POST", url+"/refunds", `"k"`, `{"charge":"c","amount":1}`, FaultHeader, fault)
		awaitHeld(t, url, "k")
		want := []Hold{{Key: "k", Waiting: 1}}
		if diff := cmp.Diff(want, l.gates.list()); diff != "" {
			t.Errorf("%s: holds (-want +got):\n%s", fault, diff)
		}
		performed := map[string]int{FaultHoldAfter: 1}[fault]
		if n := len(l.List(Filter{})); n != performed {
			t.Errorf("%s: %d effects while it is held, want %d", fault, n, performed)
		}
		must(t, "POST", url+"/admin/release?key=k")
		if answer := <-first; answer.status != 201 {
			t.Errorf("%s: %d %s", fault, answer.status, answer.body)
		}
		checkCounts(t, l, 1, 1)
	}
}

func TestAReleaseMayComeFirst(t *testing.T) {
	l := NewLedger(atNoon)
	url := serveLedger(t, l)
	must(t, "POST", url+"/admin/hold?key=k")
	must(t, "POST", url+"/admin/release?key=k")
	if answer := ask(t, "POST", url+"/effects", `"k"`, `1`); answer.status != 201 {
		t.Errorf("%d %s", answer.status, answer.body)
	}
}

func TestReleaseOfAll(t *testing.T) {
	l := NewLedger(atNoon)
	url := serveLedger(t, l)
	must(t, "POST", url+"/admin/faults?fault=hold-before&times=2")
	var answers []<-chan got
	for _, key := range []string{"a", "b"} {
		answers = append(answers, later(t, "POST", url+"/effects", key, `1`))
		awaitHeld(t, url, key)
	}
	must(t, "POST", url+"/admin/release?all=true")
	for _, answer := range answers {
		if got := <-answer; got.status != 201 {
			t.Errorf("%d %s", got.status, got.body)
		}
	}
	want := `[{"key":"a","waiting":0,"released":true},{"key":"b","waiting":0,"released":true}]`
	for _, h := range l.gates.list() {
		if h.Waiting == 0 && h.Released {
			continue
		}
		t.Errorf("hold %+v; want %s", h, want)
	}
	if diff := cmp.Diff(want, strings.TrimSpace(must(t, "GET", url+"/admin/holds"))); diff != "" {
		t.Errorf("holds (-want +got):\n%s", diff)
	}
}

func TestForgettingFaultsLetsGo(t *testing.T) {
	l := NewLedger(atNoon)
	url := serveLedger(t, l)
	first := later(t, "POST", url+"/effects", `"k"`, `1`, FaultHeader, FaultHoldAfter)
	awaitHeld(t, url, "k")
	must(t, "DELETE", url+"/admin/faults")
	if answer := <-first; answer.status != 201 || len(l.gates.list()) != 0 {
		t.Errorf("%d %s, holds %v", answer.status, answer.body, l.gates.list())
	}
}

func TestAHoldCanBeSetAgain(t *testing.T) {
	g := newGates()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, step := range []struct {
		name string
		do   func(string) error
		want error
	}{
		{"at first it is closed", func(string) error { return nil }, context.Canceled},
		{"opened", g.release, nil},
		{"opened again", g.release, nil},
		{"closed", g.close, context.Canceled},
		{"closed again", g.close, context.Canceled},
		{"opened at last", g.release, nil},
	} {
		if err := step.do("k"); err != nil {
			t.Fatal(err)
		}
		ctx := ended
		if step.want == nil {
			ctx = t.Context()
		}
		if err := g.wait(ctx, "k"); !errors.Is(err, step.want) {
			t.Errorf("%s: %v, want %v", step.name, err, step.want)
		}
	}
}

func TestGatesAreBounded(t *testing.T) {
	l := NewLedger(atNoon)
	h := Handler(l)
	for i := range maxGates {
		do(h, "POST", "/admin/release?key="+strconv.Itoa(i))
	}
	for _, target := range []string{"POST /admin/hold?key=more", "POST /admin/release?key=more", "GET /admin/wait?key=more", "GET /admin/wait?for=held&key=more"} {
		method, path, _ := strings.Cut(target, " ")
		if answer := do(h, method, path); answer.Code != 400 || !strings.Contains(answer.Body.String(), "DELETE /admin/faults") {
			t.Errorf("%s: %d %s", target, answer.Code, answer.Body)
		}
	}
}

func TestAdminNamesWhatIsMissing(t *testing.T) {
	h := Handler(NewLedger(atNoon))
	long := strings.Repeat("k", maxKey+1)
	for _, target := range []string{
		"POST /admin/hold", "POST /admin/hold?key=k&when=never", "POST /admin/hold?key=" + long,
		"POST /admin/release", "POST /admin/release?key=k&all=true", "POST /admin/release?key=" + long,
		"GET /admin/wait", "GET /admin/wait?key=k&for=ever", "GET /admin/wait?key=" + long,
	} {
		method, path, _ := strings.Cut(target, " ")
		if answer := do(h, method, path); answer.Code != 400 || !strings.Contains(answer.Body.String(), "key=KEY") {
			t.Errorf("%s: %d %s; want 400 and what to give", target, answer.Code, answer.Body)
		}
	}
}

func TestWaitingIsAnsweredInTime(t *testing.T) {
	h := ledgerHandler{ledger: NewLedger(atNoon), poll: 1}
	for _, wait := range []string{"release", "held"} {
		w := httptest.NewRecorder()
		h.wait(w, httptest.NewRequest("GET", "/admin/wait?key=k&for="+wait, nil))
		if w.Code != 204 {
			t.Errorf("for %s: %d %s; want 204", wait, w.Code, w.Body)
		}
	}
	if err := h.ledger.Close(); err != nil {
		t.Fatal(err)
	}
	h.poll = pollTime
	for _, wait := range []string{"release", "held"} {
		w := httptest.NewRecorder()
		h.wait(w, httptest.NewRequest("GET", "/admin/wait?key=k&for="+wait, nil))
		if w.Code != 503 {
			t.Errorf("for %s, of a ledger that stops: %d %s; want 503", wait, w.Code, w.Body)
		}
	}
}

// TestWhatIsHeldDoesNotHoldTheLedger: the ledger stops, and what it held has no answer.
func TestWhatIsHeldDoesNotHoldTheLedger(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	log, logEnd := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- RunLedger(ctx, LedgerOptions{Addr: "127.0.0.1:0"}, logEnd) }()
	line, err := bufio.NewReader(log).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	url := "http://" + strings.TrimSpace(line[strings.LastIndex(line, " ")+1:])
	held := later(t, "POST", url+"/effects", `"k"`, `1`, FaultHeader, FaultHoldBefore)
	awaitHeld(t, url, "k")
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("the end: %v", err)
	}
	if answer := <-held; answer.status != 0 {
		t.Errorf("what was held: %d %s; want no answer", answer.status, answer.body)
	}
}
