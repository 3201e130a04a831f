// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package expr

import (
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRenderString(t *testing.T) {
	tests := map[string]struct{ text, want string }{
		"literal text":                {"https://x/\"a\"\n", "https://x/\"a\"\n"},
		"no text":                     {"", ""},
		"a literal ${":                {"$${key}", "${key}"},
		"one expression":              {"${params.order}", "123"},
		"a string from a number":      {"${string(params.n)}", "41"},
		"a large id":                  {"${string(params.id)}", "9007199254740993"},
		"a number in text":            {"refund-${params.n}", "refund-41"},
		"the key":                     {"https://x/refunds?key=${key}", "https://x/refunds?key=k-1"},
		"characters JSON escapes":     {"${'\\u00e9\\n\\\"<\\\\'}", "é\n\"<\\"},
		"an optional that is set":     {"${params.?order}", "123"},
		"bytes":                       {"${b'hello'}", "aGVsbG8="},
		"a time":                      {"${timestamp('2026-01-02T03:04:05Z')}", "2026-01-02T03:04:05Z"},
		"a string that spells a bool": {"${'true'}", "true"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			tmpl, err := CompileString("http.url", tc.text, Scope{Key: true})
			if err != nil {
				t.Fatal(err)
			}
			vars := someVars()
			vars.Key = "k-1"
			got, err := tmpl.RenderString(vars)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("RenderString (-want +got):\n%s", diff)
			}
		})
	}
}

// fieldError is a field that is no use, and whether its compilation says so already.
type fieldError struct {
	text     string
	compiles bool
	want     string
}

// check compiles and renders the field, and wants the error from the right one.
func (tc fieldError) check(t *testing.T, compile func(root, text string, scope Scope) (*Template, error), render func(*Template) (any, error)) {
	tmpl, err := compile("field", tc.text, Scope{Result: true})
	if (err == nil) != tc.compiles {
		t.Errorf("compiling gave the error %v, want one: %v", err, !tc.compiles)
	}
	if err == nil {
		_, err = render(tmpl)
	}
	if err == nil {
		t.Fatal("no error")
	}
	if diff := cmp.Diff(tc.want, err.Error()); diff != "" {
		t.Errorf("error (-want +got):\n%s", diff)
	}
}

func TestRenderStringErrors(t *testing.T) {
	tests := map[string]fieldError{
		"a number for sure":       {"${1 + 1}", false, "field: ${1 + 1}: must give a string, not a number: write string(...)"},
		"a double for sure":       {"${1.5}", false, "field: ${1.5}: must give a string, not a number: write string(...)"},
		"a bool for sure":         {"${params.n > 1}", false, "field: ${params.n > 1}: must give a string, not a bool: write string(...)"},
		"a list for sure":         {"${[1]}", false, "field: ${[1]}: must give a string, not a list: write json(...)"},
		"a map for sure":          {"${task}", false, "field: ${task}: must give a string, not a map: write json(...)"},
		"null for sure":           {"${null}", false, "field: ${null}: must give a string, not null"},
		"a number":                {"${params.n}", true, "field: ${params.n}: must give a string, not a number: write string(...)"},
		"a negative number":       {"${parseJSON('-1')}", true, "field: ${parseJSON('-1')}: must give a string, not a number: write string(...)"},
		"a bool":                  {"${params.yes}", true, "field: ${params.yes}: must give a string, not a bool: write string(...)"},
		"a list":                  {"${params.items}", true, "field: ${params.items}: must give a string, not a list: write json(...)"},
		"a map":                   {"${params.who}", true, "field: ${params.who}: must give a string, not a map: write json(...)"},
		"null":                    {"${params.nothing}", true, "field: ${params.nothing}: must give a string, not null"},
		"null in text":            {"a ${params.nothing}", true, "field: ${params.nothing}: null cannot be put into text: let the string be this one ${...} alone, or write ${json(...)}"},
		"a variable not in scope": {"${key}", false, "field: ${key}: column 1: undeclared reference to 'key': key can be used in http.headers, check.http, check.input and verify.observe, not here"},
		"text that is not UTF-8":  {"a\xff", false, "field: the text is not valid UTF-8"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			tc.check(t, CompileString, func(tmpl *Template) (any, error) { return tmpl.RenderString(someVars()) })
		})
	}
}

func TestRenderBool(t *testing.T) {
	tests := map[string]struct {
		text string
		want bool
	}{
		"a comparison that holds":      {"${result.status == 200}", true},
		"a comparison that does not":   {"${result.status in [404, 410]}", false},
		"a bool of the result":         {"${result.found}", true},
		"white space in the braces":    {"${ !result.found }", false},
		"a default for what may be no": {"${result.?none.orValue(false)}", false},
		"an optional that is set":      {"${result.?found}", true},
		"a constant":                   {"${true}", true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			tmpl, err := CompileBool("check.done", tc.text, Scope{Result: true})
			if err != nil {
				t.Fatal(err)
			}
			got, err := tmpl.RenderBool(Vars{Result: []byte(`{"status":200,"found":true}`)})
			if err != nil {
				t.Fatal(err)
			}
			if got != tc.want {
				t.Errorf("RenderBool = %v, want %v", got, tc.want)
			}
		})
	}
}

func TestRenderBoolErrors(t *testing.T) {
	const (
		alone   = "field: must be one expression ${...} that gives true or false, with no text around it"
		compare = ": write a comparison, such as ${result.status == 200}"
	)
	tests := map[string]fieldError{
		"no text":           {"", false, alone},
		"a literal":         {"true", false, alone},
		"text around":       {"${true} ", false, alone},
		"two expressions":   {"${true}${true}", false, alone},
		"a number for sure": {"${1}", false, "field: ${1}: must give true or false, not a number" + compare},
		"a text for sure":   {"${'true'}", false, "field: ${'true'}: must give true or false, not a string" + compare},
		"a number":          {"${params.n}", true, "field: ${params.n}: must give true or false, not a number" + compare},
		"a text":            {"${params.order}", true, "field: ${params.order}: must give true or false, not a string" + compare},
		"null":              {"${params.nothing}", true, "field: ${params.nothing}: must give true or false, not null" + compare},
		"no result":         {"${result.ok}", true, "field: ${result.ok}: there is no result: the check gave no output"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			tc.check(t, CompileBool, func(tmpl *Template) (any, error) { return tmpl.RenderBool(someVars()) })
		})
	}
}

func TestRenderStringOfADocument(t *testing.T) {
	for doc, want := range map[string]string{
		`{"a":"${params.n}"}`: "input: must give a string, not a map: write json(...)",
		`["${params.n}"]`:     "input: must give a string, not a list: write json(...)",
		`-1`:                  "input: must give a string, not a number: write string(...)",
	} {
		tmpl, err := Compile("input", []byte(doc))
		if err != nil {
			t.Fatal(err)
		}
		got, err := tmpl.RenderString(someVars())
		if err == nil {
			t.Errorf("%s: RenderString gave %q, want an error", doc, got)
			continue
		}
		if diff := cmp.Diff(want, err.Error()); diff != "" {
			t.Errorf("%s: error (-want +got):\n%s", doc, diff)
		}
	}
}

func TestURLEncodeComesBackFromAURL(t *testing.T) {
	var all strings.Builder
	for c := range 256 {
		all.WriteByte(byte(c))
	}
	got := urlEncode(all.String())
	if !regexp.MustCompile(`^([A-Za-z0-9._~-]|%[0-9A-F]{2})*$`).MatchString(got) {
		t.Errorf("%s holds more than unreserved characters and %%XX", got)
	}
	for name, decode := range map[string]func(string) (string, error){"query": url.QueryUnescape, "path": url.PathUnescape} {
		if back, err := decode(got); err != nil || back != all.String() {
			t.Errorf("%s: %q came back (%v)", name, back, err)
		}
	}
}
