// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package runner

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
)

func TestParseSaysWhereAndWhyButNotWhat(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ raw, want string }{
		"a word":                    {`hunter2`, "line 1, column 1 (byte 0): invalid character at start of value"},
		"half a document":           {`{"hunter2":`, "line 1, column 12 (byte 11): it ends too early"},
		"a name twice":              {`{"hunter2":1,"hunter2":2}`, "line 1, column 14 (byte 13): an object has the same name twice"},
		"no colon":                  {"{\n\"é\" 1}", "line 2, column 5 (byte 7): invalid character after object name (expecting ':')"},
		"a quotation mark too many": {`["a""]`, "line 1, column 5 (byte 4): invalid character after array value (expecting ',' or ']')"},
		"a comma too many":          {"[1,\n\n]", "line 3, column 1 (byte 5): invalid character at start of value"},
		"half a literal":            {`[trux]`, "line 1, column 5 (byte 4): invalid character in literal true (expecting 'e')"},
		"a control character":       {"\"\x01hunter2\"", "line 1, column 2 (byte 1): invalid character in string (expecting non-control character)"},
		"an unknown escape":         {`"\hunter2"`, "line 1, column 2 (byte 1): invalid escape sequence in string"},
		"half a surrogate pair":     {`"\ud800\u0041"`, "line 1, column 2 (byte 1): invalid surrogate pair in string"},
		"a backtick":                {"\"\\`\"", "line 1, column 2 (byte 1): invalid escape sequence in string"},
		"bytes that are not UTF-8":  {"\"\xff\"", "line 1, column 2 (byte 1): invalid UTF-8"},
		"a byte order mark":         {"\ufeff{}", "line 1, column 1 (byte 0): invalid character at start of value"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := parse("it", []byte(tc.raw), int64(len(tc.raw)))
			want := "it is not one JSON document: " + tc.want
			if diff := cmp.Diff(want, got.problem); diff != "" {
				t.Errorf("problem (-want +got):\n%s", diff)
			}
			if got.reason != v1alpha1.ReasonOutputInvalid {
				t.Errorf("reason %q, want %q", got.reason, v1alpha1.ReasonOutputInvalid)
			}
		})
	}
}

func TestParseNamesTheNumberThatCannotBeKept(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ raw, want string }{
		"an identifier": {`{"hunter2":"x","ids":[1,1234567890123456789]}`, "it: integer 1234567890123456789 at /ids/1 is beyond 2^53-1 and would lose digits; write it as a string"},
		"a double":      {`["hunter2",1e16]`, "it: number 1e16 at /1 is an integer beyond 2^53-1 and would lose digits; write it as a string"},
		"out of range":  {`1e400`, "it: number 1e400 is out of range; write it as a string"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := parse("it", []byte(tc.raw), int64(len(tc.raw)))
			if got.problem != tc.want || got.reason != v1alpha1.ReasonOutputInvalid || !got.given {
				t.Errorf("%s: %q, want %q", got.reason, got.problem, tc.want)
			}
		})
	}
}

func TestParseLimitsTheCanonicalForm(t *testing.T) {
	t.Parallel()
	spaced := bigString(stepexec.MaxOutput) + strings.Repeat(" ", 100_000)
	if got := parse("it", []byte(spaced), int64(len(spaced))); got.problem != "" || len(got.json) != stepexec.MaxOutput {
		t.Errorf("an output of %d bytes in %d is refused: %s", len(got.json), len(spaced), got.problem)
	}
	grown := "[" + strings.Repeat("1e15,", stepexec.MaxOutput/10) + "1]" // each is written in 16 digits
	if got := parse("it", []byte(grown), int64(len(grown))); got.reason != v1alpha1.ReasonOutputTooLarge {
		t.Errorf("an output that grows past the limit in canonical form is not refused: %q", got.reason)
	}
}
