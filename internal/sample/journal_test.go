// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package sample

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func open(t *testing.T, path string) *Ledger {
	t.Helper()
	l, err := OpenLedger(path, atNoon)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func TestTheFileOutlivesTheLedger(t *testing.T) {
	path := filepath.Join(t.TempDir(), "effects.jsonl")
	l := open(t, path)
	h := Handler(l)
	first := post(h, "task=a&kind=publish", "k1", `{"text": "<p>&amp;\u2028</p>"}`)
	post(h, "task=b", "k2", `2`)
	post(h, "task=b", "k3", `3`)
	post(h, "task=a&kind=publish", "k1", `{"text": "<p>&amp;\u2028</p>"}`)
	do(h, "DELETE", "/effects?task=b")
	want := l.List(Filter{})
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}

	l = open(t, path)
	if diff := cmp.Diff(want, l.List(Filter{})); diff != "" {
		t.Errorf("effects after a restart (-before +after):\n%s", diff)
	}
	again := post(Handler(l), "task=a&kind=publish", "k1", `{"text": "<p>&amp;\u2028</p>"}`)
	if again.Code != 201 || again.Body.String() != first.Body.String() {
		t.Errorf("a repeat after a restart: %d %s; want 201 %s", again.Code, again.Body, first.Body)
	}
	if got := post(Handler(l), "task=b", "k4", `4`); !strings.Contains(got.Body.String(), `"seq":4`) {
		t.Errorf("the next effect: %s; want number 4, the numbers of forgotten ones are not given again", got.Body)
	}
}

func TestATornLastLineIsCutOff(t *testing.T) {
	path := filepath.Join(t.TempDir(), "effects.jsonl")
	l := open(t, path)
	post(Handler(l), "task=t", "k1", `1`)
	before, want := read(t, path), l.List(Filter{})
	post(Handler(l), "task=t", "k2", `{"text": "€"}`)
	whole := read(t, path)

	for size := len(before); size < len(whole); size++ {
		torn := filepath.Join(t.TempDir(), "effects.jsonl")
		if err := os.WriteFile(torn, whole[:size], 0o644); err != nil {
			t.Fatal(err)
		}
		l := open(t, torn)
		if diff := cmp.Diff(want, l.List(Filter{})); diff != "" {
			t.Fatalf("torn after %d bytes (-want +got):\n%s", size, diff)
		}
		if got := post(Handler(l), "task=t", "k2", `{"text": "€"}`); got.Code != 201 || got.Header().Get(replayedHeader) != "" {
			t.Fatalf("torn after %d bytes: the effect that was not answered: %d %s", size, got.Code, got.Body)
		}
		if got := read(t, torn); !bytes.Equal(got, whole) {
			t.Fatalf("torn after %d bytes: the file is %s; want %s", size, got, whole)
		}
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	doc, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

func TestAFileThatIsNotALedgersIsRefused(t *testing.T) {
	effect := `{"effect":{"seq":1,"key":"k","body":1,"time":"2026-03-01T12:00:00Z"},` +
		`"keep":{"key":"k","fingerprint":"f","expires":"2026-03-02T12:00:00Z","answer":{"status":201}}}` + "\n"
	for name, tc := range map[string]struct{ file, want string }{
		"not JSON":                {effect + "hello\n", "line 2"},
		"nothing known":           {"{}\n", "neither effect nor keep nor replay nor clear"},
		"a key twice":             {effect + effect, "has a key that is there already"},
		"a replay out of nowhere": {`{"replay":"k"}` + "\n", "which is not there"},
		"a replay of nothing":     {`{"keep":{"key":"k"}}` + "\n" + `{"replay":"k"}` + "\n", "which is not there"},
		"an effect with no body":  {`{"effect":{"seq":1,"key":"k"}}` + "\n", "line 1"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "effects.jsonl")
			if err := os.WriteFile(path, []byte(tc.file), 0o644); err != nil {
				t.Fatal(err)
			}
			_, err := OpenLedger(path, atNoon)
			if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), "--file") {
				t.Errorf("error %v; want one with %q and the flag", err, tc.want)
			}
			if got := string(read(t, path)); got != tc.file {
				t.Errorf("the file was changed: %q", got)
			}
		})
	}
}

func TestWhatCannotBeWrittenDidNotHappen(t *testing.T) {
	l := open(t, filepath.Join(t.TempDir(), "effects.jsonl"))
	h := Handler(l)
	post(h, "task=t", "k1", `1`)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"k1", "k2", "k2"} {
		if got := post(h, "task=t", key, `1`); got.Code != 500 {
			t.Errorf("%s: %d %s; want 500", key, got.Code, got.Body)
		}
	}
	if got := do(h, "DELETE", "/effects?all=true"); got.Code != 500 {
		t.Errorf("DELETE: %d; want 500", got.Code)
	}
	if list := l.List(Filter{}); len(list) != 1 || list[0].Count != 1 {
		t.Errorf("effects: %+v; want the first alone", list)
	}
}

func TestRunLedgerServesUntilItsContextEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	path := filepath.Join(t.TempDir(), "effects.jsonl")
	log, logEnd := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		ended <- RunLedger(ctx, LedgerOptions{Addr: "127.0.0.1:0", File: path}, logEnd)
	}()
	line, err := bufio.NewReader(log).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	addr := strings.TrimSpace(line[strings.LastIndex(line, " ")+1:])
	resp, err := http.Get("http://" + addr + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 200 {
		t.Errorf("healthz: %d", resp.StatusCode)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("the end: %v", err)
	}
}

func TestRunLedgerNamesTheFlagToMend(t *testing.T) {
	for flag, o := range map[string]LedgerOptions{
		"--file":    {Addr: "127.0.0.1:0", File: filepath.Join(t.TempDir(), "missing", "effects.jsonl")},
		"--addr":    {Addr: "nowhere"},
		"--key-ttl": {Addr: "127.0.0.1:0", Policy: Policy{KeyTTL: -time.Hour}},
	} {
		if err := RunLedger(t.Context(), o, io.Discard); err == nil || !strings.Contains(err.Error(), flag) {
			t.Errorf("%+v: error %v; want one that names %s", o, err, flag)
		}
	}
}
