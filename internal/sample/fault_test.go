// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package sample

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestFaults sends the same request three times, with each fault for the first of them.
func TestFaults(t *testing.T) {
	for fault, tc := range map[string]struct {
		want          [3]int // statuses; 0: no answer
		wantPerformed [3]int64
		wantReplayed  bool // the third
		wantRaw       int64
	}{
		"cut-before":    {[3]int{0, 201, 201}, [3]int64{0, 1, 1}, true, 2},
		"cut-after":     {[3]int{0, 201, 201}, [3]int64{1, 1, 1}, true, 3},
		"unavailable":   {[3]int{503, 201, 201}, [3]int64{0, 1, 1}, true, 2},
		"error-before":  {[3]int{500, 201, 201}, [3]int64{0, 1, 1}, true, 2},
		"error-after":   {[3]int{500, 500, 500}, [3]int64{1, 1, 1}, true, 3},
		"gateway-after": {[3]int{502, 201, 201}, [3]int64{1, 1, 1}, true, 3},
	} {
		for _, by := range []string{"header", "key", "task and step"} {
			t.Run(fault+" by "+by, func(t *testing.T) {
				l := NewLedger(atNoon)
				url := serveLedger(t, l)
				var header []string
				switch by {
				case "header":
					header = []string{FaultHeader, fault}
				case "key":
					must(t, "POST", url+"/admin/faults?key=k&fault="+fault)
				default:
					must(t, "POST", url+"/admin/faults?task=t&step=s&fault="+fault)
				}
				if other := ask(t, "POST", url+"/effects?task=u&step=s", `"other"`, `1`); other.status != 201 {
					t.Errorf("a request that the fault is not for: %d %s", other.status, other.body)
				}
				var last got
				for i, want := range tc.want {
					last = ask(t, "POST", url+"/effects?task=t&step=s", `"k"`, `1`, header...)
					if last.status != want {
						t.Errorf("request %d: %d %s; want %d", i+1, last.status, last.body, want)
					}
					if n := len(l.List(Filter{Key: "k"})); int64(n) != tc.wantPerformed[i] {
						t.Errorf("after request %d: performed %d times, want %d", i+1, n, tc.wantPerformed[i])
					}
				}
				if (last.header.Get(replayedHeader) == "true") != tc.wantReplayed {
					t.Errorf("the last answer: %v", last.header)
				}
				if list := l.List(Filter{Key: "k"}); list[0].Count != 3 {
					t.Errorf("asked for %d times, want 3", list[0].Count)
				}
			})
		}
		t.Run(fault+" of raw effects", func(t *testing.T) {
			l := NewLedger(atNoon)
			url := serveLedger(t, l)
			for i := range 3 {
				want := 201
				if i == 0 {
					want = tc.want[0]
				}
				if answer := ask(t, "POST", url+"/effects/raw", `"k"`, `1`, FaultHeader, fault); answer.status != want {
					t.Errorf("request %d: %d %s; want %d", i+1, answer.status, answer.body, want)
				}
			}
			checkCounts(t, l, tc.wantRaw, 3)
		})
	}
}

func TestUnavailableTellsWhenToComeBack(t *testing.T) {
	for params, want := range map[string]string{
		"":                            "1",
		"; retry-after=7":             "7",
		"; retry-after=0":             "0",
		"; retry-date=90":             "Sun, 01 Mar 2026 12:01:30 GMT",
		"; times=2 ; retry-after=120": "120",
	} {
		l := NewLedger(atNoon)
		url := serveLedger(t, l)
		answer := ask(t, "POST", url+"/effects", `"k"`, `1`, FaultHeader, FaultUnavailable+params)
		if answer.status != 503 || answer.header.Get("Retry-After") != want {
			t.Errorf("%q: %d, Retry-After %q; want %q", params, answer.status, answer.header.Get("Retry-After"), want)
		}
	}
}

func TestAFaultStrikesSoManyTimes(t *testing.T) {
	for fault, want := range map[string]string{
		"unavailable": "503 503 201 201",
		"cut-after":   "0 0 201 201", // the second one is a repeat
		"error-after": "500 500 500 500",
	} {
		l := NewLedger(atNoon)
		url := serveLedger(t, l)
		must(t, "POST", url+"/admin/faults?key=k&times=2&fault="+fault)
		var statuses []string
		for range 4 {
			statuses = append(statuses, fmt.Sprint(ask(t, "POST", url+"/effects", `"k"`, `1`).status))
		}
		if got := strings.Join(statuses, " "); got != want {
			t.Errorf("%s: %s, want %s", fault, got, want)
		}
		wantStruck := map[string]int{"error-after": 1}[fault]
		if wantStruck == 0 {
			wantStruck = 2
		}
		if list := l.faults.list(); len(list) != 1 || list[0].Struck != wantStruck {
			t.Errorf("%s: faults %+v; want it to have struck %d times", fault, list, wantStruck)
		}
		checkCounts(t, l, 1, 4)
	}
}

// TestALateEffect: the client has gone, and the effect happens all the same.
func TestALateEffect(t *testing.T) {
	l := NewLedger(atNoon)
	url := serveLedger(t, l)
	ctx, leave := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, "POST", url+"/effects", strings.NewReader(`1`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set(KeyHeader, `"k"`)
	req.Header.Set(FaultHeader, FaultHoldBefore)
	gone := make(chan error, 1)
	go func() {
		resp, err := http.DefaultClient.Do(req)
		if err == nil {
			resp.Body.Close()
		}
		gone <- err
	}()
	awaitHeld(t, url, "k")
	leave()
	if err := <-gone; !errors.Is(err, context.Canceled) {
		t.Fatalf("the client: %v", err)
	}
	checkCounts(t, l, 0, 0)
	must(t, "POST", url+"/admin/release?key=k")
	repeat := ask(t, "POST", url+"/effects", `"k"`, `1`)
	for repeat.status == 409 { // the first one is still on its way
		repeat = ask(t, "POST", url+"/effects", `"k"`, `1`)
	}
	if repeat.status != 201 || repeat.header.Get(replayedHeader) != "true" {
		t.Errorf("the repeat: %d %v", repeat.status, repeat.header)
	}
	if performed, _ := counts(l); performed != 1 {
		t.Errorf("performed %d times", performed)
	}
}

func TestFaultsThatCannotBe(t *testing.T) {
	h := Handler(NewLedger(atNoon))
	for query, want := range map[string]string{
		"":                                  "there is no fault",
		"fault=sleep":                       "there is no fault",
		"fault=cut-after&times=0":           "times",
		"fault=cut-after&times=1001":        "up to 1000",
		"fault=cut-after&times=many":        "times",
		"fault=cut-after&retry-after=1":     "for the fault unavailable only",
		"fault=unavailable&retry-after=-1":  "retry-after",
		"fault=unavailable&retry-date=3601": "up to 3600",
		"fault=unavailable&seconds=1":       "give times, retry-after or retry-date",
	} {
		if answer := do(h, "POST", "/admin/faults?"+query); answer.Code != 400 || !strings.Contains(answer.Body.String(), want) {
			t.Errorf("%q: %d %s; want 400 and %q", query, answer.Code, answer.Body, want)
		}
	}
	for _, header := range []string{"sleep", ";", "unavailable; times", "cut-after; retry-after=1"} {
		url := serveLedger(t, NewLedger(atNoon))
		if answer := ask(t, "POST", url+"/effects", `"k"`, `1`, FaultHeader, header); answer.status != 400 || !strings.Contains(answer.body, "fault") {
			t.Errorf("%q: %d %s; want 400", header, answer.status, answer.body)
		}
	}
}

func TestFaultsAreBounded(t *testing.T) {
	l := NewLedger(atNoon)
	h := Handler(l)
	for range maxFaults {
		do(h, "POST", "/admin/faults?fault=cut-after&key=elsewhere")
	}
	if answer := do(h, "POST", "/admin/faults?fault=cut-after"); answer.Code != 400 || !strings.Contains(answer.Body.String(), "DELETE /admin/faults") {
		t.Errorf("one more: %d %s", answer.Code, answer.Body)
	}
	url := serveLedger(t, l)
	if answer := ask(t, "POST", url+"/effects", `"k"`, `1`, FaultHeader, "cut-after"); answer.status != 400 {
		t.Errorf("one more in a header: %d %s", answer.status, answer.body)
	}
	if answer := do(h, "DELETE", "/admin/faults"); answer.Code != 204 || len(l.faults.list()) != 0 {
		t.Errorf("DELETE: %d, %d faults", answer.Code, len(l.faults.list()))
	}
	if answer := ask(t, "POST", url+"/effects", `"k"`, `1`); answer.status != 201 {
		t.Errorf("afterwards: %d %s", answer.status, answer.body)
	}
}

func TestFaultsAreListed(t *testing.T) {
	h := Handler(NewLedger(atNoon))
	do(h, "POST", "/admin/faults?fault=unavailable&task=t&step=s&times=2&retry-date=9")
	do(h, "POST", "/admin/hold?key=k&when=after")
	var list []Fault
	if err := json.Unmarshal(do(h, "GET", "/admin/faults").Body.Bytes(), &list); err != nil {
		t.Fatal(err)
	}
	want := []Fault{
		{Name: FaultUnavailable, Task: "t", Step: "s", Times: 2, RetryAfter: 9, RetryDate: true},
		{Name: FaultHoldAfter, Key: "k", Times: 1},
	}
	if diff := cmp.Diff(want, list, cmp.AllowUnexported(Fault{})); diff != "" {
		t.Errorf("faults (-want +got):\n%s", diff)
	}
}
