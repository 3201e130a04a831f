// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package runner

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/agenttask-dev/agenttask/internal/stepexec"
)

func TestWriteResultShortensTheMessageUntilItFits(t *testing.T) {
	t.Parallel()
	output := bigString(stepexec.MaxInlineOutput)
	encoded := func(message string) int {
		return len(mustEncode(t, stepexec.Result{Outcome: stepexec.OutcomeSucceeded, Message: message, Output: []byte(output)}))
	}
	// A quotation mark takes two bytes in JSON, so that a message within its own limit
	// fills the result.
	const quotes = 985
	room := stepexec.MaxResult - encoded(strings.Repeat(`"`, quotes))
	if room < 20 || room > 30 {
		t.Fatalf("the message leaves room for %d bytes; choose another length", room)
	}
	for name, tc := range map[string]struct {
		tail string // after the quotation marks
		want string
	}{
		"one byte to spare":                {strings.Repeat("a", room-1), strings.Repeat("a", room-1)},
		"full to the last byte":            {strings.Repeat("a", room), strings.Repeat("a", room)},
		"a byte too many":                  {strings.Repeat("a", room+1), strings.Repeat("a", room-3) + "…"},
		"a rune of two bytes over the end": {strings.Repeat("a", room-1) + "é", strings.Repeat("a", room-3) + "…"},
		"a rune of four bytes at the cut":  {strings.Repeat("a", room-4) + "🙂🙂", strings.Repeat("a", room-4) + "…"},
		"runes of three bytes":             {strings.Repeat("é", room/2-3) + "世界世界", strings.Repeat("é", room/2-3) + "世…"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "termination-log")
			err := writeResult(path, stepexec.Result{Outcome: stepexec.OutcomeSucceeded,
				Message: strings.Repeat(`"`, quotes) + tc.tail, Output: []byte(output)})
			if err != nil {
				t.Fatal(err)
			}
			got := readResult(t, path)
			if diff := cmp.Diff(tc.want, strings.TrimLeft(got.Message, `"`)); diff != "" {
				t.Errorf("message after the quotation marks (-want +got):\n%s", diff)
			}
			if string(got.Output) != output {
				t.Errorf("the output was changed")
			}
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if len(text) > stepexec.MaxResult || len(text) < stepexec.MaxResult-4 || !utf8.Valid(text) {
				t.Errorf("the result is %d bytes (valid UTF-8: %t), want it to use the %d it may",
					len(text), utf8.Valid(text), stepexec.MaxResult)
			}
		})
	}
}

func mustEncode(t *testing.T, res stepexec.Result) []byte {
	t.Helper()
	text, err := encode(res)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestEncodeKeepsAMessageOf1024BytesAndNoMore(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ message, want string }{
		"as long as may be": {strings.Repeat("a", 1024), strings.Repeat("a", 1024)},
		"longer":            {strings.Repeat("a", 1025), strings.Repeat("a", 1021) + "…"},
		"longer, in runes":  {strings.Repeat("é", 600), strings.Repeat("é", 510) + "…"},
		"not UTF-8":         {"a\xffb", "a\uFFFDb"},
		"HTML":              {"<b>&", "<b>&"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "termination-log")
			if err := writeResult(path, stepexec.Result{Outcome: stepexec.OutcomeFailed, Message: tc.message}); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, readResult(t, path).Message); diff != "" {
				t.Errorf("message (-want +got):\n%s", diff)
			}
		})
	}
}

func TestEncodeSpellsOutputsAsTheyAre(t *testing.T) {
	t.Parallel()
	const doc = "{\"a\":\"<&>\u2028é\"}"
	text := string(mustEncode(t, stepexec.Result{Outcome: stepexec.OutcomeSucceeded, Output: []byte(doc)}))
	if want := `{"v":1,"outcome":"Succeeded","output":` + doc + `}`; text != want {
		t.Errorf("the result is %s, want %s", text, want)
	}
}

func TestReadMessage(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ content, want string }{
		"a sentence":                      {"no such order\n", "no such order"},
		"lines":                           {"one\r\ntwo\tcolumns\n", "one\ntwo columns"},
		"colours of a terminal":           {"\x1b[31mred\x1b[0m\x00", "[31mred[0m"},
		"bytes that are not UTF-8":        {"a\xffb", "ab"},
		"white space only":                {" \n", ""},
		"more than 1024 bytes":            {strings.Repeat("a", 2000), strings.Repeat("a", 1024)},
		"a rune across the end, left out": {"a" + strings.Repeat("é", 600), "a" + strings.Repeat("é", 511)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "message")
			if err := os.WriteFile(path, []byte(tc.content), 0o600); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, readMessage(path)); diff != "" {
				t.Errorf("message (-want +got):\n%s", diff)
			}
		})
	}
	if got := readMessage(filepath.Join(t.TempDir(), "none")); got != "" {
		t.Errorf("without a file the message is %q, want none", got)
	}
}

func TestBadUsage(t *testing.T) {
	t.Parallel()
	r := &Runner{TerminationPath: filepath.Join(t.TempDir(), "termination-log"), Stderr: os.Stderr}
	if code := r.BadUsage(os.ErrInvalid); code != 2 {
		t.Errorf("exit code %d, want 2", code)
	}
	want := neverRan(result(stepexec.OutcomeFailed, "ResultInvalid", "the runner was called wrongly: invalid argument", 0))
	if diff := cmp.Diff(want, readResult(t, r.TerminationPath)); diff != "" {
		t.Errorf("result (-want +got):\n%s", diff)
	}
}
