// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package runner

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParseRetryAfter(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 6, 8, 49, 30, 500_000_000, time.UTC)
	const year = 365 * 24 * 60 * 60
	type wait struct {
		Seconds int64
		OK      bool
	}
	for name, tc := range map[string]struct {
		text string
		want wait
	}{
		"seconds":                         {"120", wait{120, true}},
		"seconds with white space":        {" 7\n", wait{7, true}},
		"none":                            {"0", wait{0, true}},
		"more than a year":                {"99999999999", wait{year, true}},
		"more than 64 bits":               {"99999999999999999999", wait{year, true}},
		"a date, rounded up":              {"Fri, 06 Nov 2026 08:49:37 GMT", wait{7, true}},
		"a date in the past":              {"Fri, 06 Nov 2026 08:49:30 GMT", wait{0, true}},
		"a date more than a year away":    {"Wed, 06 Nov 2999 08:49:37 GMT", wait{year, true}},
		"a date of RFC 850":               {"Friday, 06-Nov-26 08:49:37 GMT", wait{7, true}},
		"one that seems a century ahead":  {"Sunday, 06-Nov-94 08:49:37 GMT", wait{0, true}},
		"a year of the next two digits":   {"Sunday, 06-Nov-70 08:49:37 GMT", wait{year, true}},
		"a date of asctime":               {"Fri Nov  6 08:49:37 2026", wait{7, true}},
		"nothing":                         {"", wait{}},
		"a negative number":               {"-5", wait{}},
		"a number with a sign":            {"+5", wait{}},
		"a fraction":                      {"1.5", wait{}},
		"a duration":                      {"5s", wait{}},
		"a date of another zone":          {"Fri, 06 Nov 2026 08:49:37 CET", wait{}},
		"a date as other formats have it": {"2026-11-06T08:49:37Z", wait{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			seconds, ok := parseRetryAfter(tc.text, now)
			if diff := cmp.Diff(tc.want, wait{seconds, ok}); diff != "" {
				t.Errorf("parseRetryAfter(%q) (-want +got):\n%s", tc.text, diff)
			}
		})
	}
}
