// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package sample

import (
	"strings"
	"testing"
)

func TestParseKey(t *testing.T) {
	for name, tc := range map[string]struct {
		values  []string
		want    string
		wantErr string
	}{
		"bare":                         {values: []string{"abc-1.2"}, want: "abc-1.2"},
		"quoted":                       {values: []string{`"abc-1.2"`}, want: "abc-1.2"},
		"quoted with space around":     {values: []string{"  \"a\"\t"}, want: "a"},
		"quoted with escapes":          {values: []string{`"a\"b\\c"`}, want: `a"b\c`},
		"parameters say nothing":       {values: []string{`"abc"; v=1`}, want: "abc"},
		"longest":                      {values: []string{strings.Repeat("k", 255)}, want: strings.Repeat("k", 255)},
		"none":                         {wantErr: "no Idempotency-Key header"},
		"two":                          {values: []string{"a", "b"}, wantErr: "2 Idempotency-Key headers"},
		"empty":                        {values: []string{""}, wantErr: "it is empty"},
		"empty, quoted":                {values: []string{`""`}, wantErr: "it is empty"},
		"too long":                     {values: []string{strings.Repeat("k", 256)}, wantErr: "it has 256 characters"},
		"not closed":                   {values: []string{`"abc`}, wantErr: "closing quotation mark is missing"},
		"not opened":                   {values: []string{`abc"`}, wantErr: "quotation mark inside"},
		"a list":                       {values: []string{`"a", "b"`}, wantErr: "something follows"},
		"a bad escape":                 {values: []string{`"a\n"`}, wantErr: "backslash"},
		"a backslash at the end":       {values: []string{`"a\`}, wantErr: "backslash"},
		"not ASCII":                    {values: []string{"clé"}, wantErr: "byte 0xc3"},
		"a control character, escaped": {values: []string{"\"a\x01\""}, wantErr: "byte 0x01"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parseKey(tc.values, false)
			if tc.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wantErr) {
					t.Fatalf("error %v, want one with %q", err, tc.wantErr)
				}
				return
			}
			if err != nil || got != tc.want {
				t.Errorf("got %q, %v; want %q", got, err, tc.want)
			}
		})
	}
}

func TestStrictKeysStandInQuotationMarks(t *testing.T) {
	if got, err := parseKey([]string{`"abc"`}, true); err != nil || got != "abc" {
		t.Errorf("quoted: %q, %v", got, err)
	}
	for value, want := range map[string]string{"abc": "quotation marks", "": "it is empty", `abc"`: "quotation marks"} {
		if _, err := parseKey([]string{value}, true); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v; want %q", value, err, want)
		}
	}
}

func FuzzKeysComeBack(f *testing.F) {
	f.Add(`a"b\c`)
	f.Add("plain")
	f.Fuzz(func(t *testing.T, key string) {
		if checkKey(key) != nil {
			t.Skip()
		}
		if got, err := parseKey([]string{quoteKey(key)}, true); err != nil || got != key {
			t.Errorf("got %q, %v; want %q", got, err, key)
		}
	})
}
