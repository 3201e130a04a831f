// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package expr

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCompileErrors(t *testing.T) {
	tests := map[string]struct{ doc, want string }{
		"an unclosed expression":               {`{"to":"a ${params.x"}`, `input.to: column 3: ${ without its closing }; write $${ for a literal ${`},
		"an unclosed map":                      {`"${ {'a': 1 }"`, `input: column 1: ${ without its closing }; write $${ for a literal ${`},
		"an unclosed string":                   {`"${params.it's} and"`, `input: column 12: the string literal that begins with ' is not closed`},
		"a string literal over two lines":      {`"${'a\nb'}"`, `input: column 3: the string literal that begins with ' is not closed`},
		"an empty expression":                  {`{"items":[1,"x","a${ }"]}`, `input.items[2]: column 2: empty expression ${}; write $${ for a literal ${`},
		"a syntax error":                       {`{"body":{"to":"${params.x +}"}}`, `input.body.to: ${params.x +}: column 11: Syntax error: mismatched input '<EOF>'`},
		"a variable that does not exist":       {`"${parms.x}"`, `input: ${parms.x}: column 1: undeclared reference to 'parms'`},
		"no clock":                             {`"${now()}"`, `input: ${now()}: column 4: undeclared reference to 'now'`},
		"a step's name with a dash after dot":  {`"${steps.find-order.output}"`, `input: ${steps.find-order.output}: column 11: found no matching overload for '_-_' applied to '(map(string, dyn), dyn)'; a step's name with '-' is written steps['find-order']`},
		"a field a step does not have":         {`"${1 + steps['a'].outptu.x}"`, `input: ${1 + steps['a'].outptu.x}: column 15: a step has no field outptu (did you mean 'output'?); fields: output, phase, attempt`},
		"a field the task does not have":       {`"${task.labels}"`, `input: ${task.labels}: column 5: task has no field labels; fields: name, namespace, uid, runID`},
		"a variable of a comprehension":        {`"${[1].map(steps, steps + 1)}"`, `input: ${[1].map(steps, steps + 1)}: column 8: steps is a variable already: give the comprehension's variable another name`},
		"types that do not fit":                {`"${1 + 'a'}"`, `input: ${1 + 'a'}: column 3: found no matching overload for '_+_' applied to '(int, string)'`},
		"a list that is sure to be in text":    {`"a ${[1]}"`, `input: ${[1]}: a list cannot be put into text: let the string be this one ${...} alone, or write ${json(...)}`},
		"a literal integer that loses digits":  {`{"a":[{"id":12345678901234567890}]}`, `input.a[0].id: integer 12345678901234567890 is beyond ±9007199254740991 and would lose digits in canonical JSON: write it as a string`},
		"a literal number beyond a double":     {`[1e400]`, `input[0]: number 1e400 is beyond a double's range: write it as a string`},
		"not JSON":                             {`{"a":`, `input.a: unexpected EOF within "/a" after offset 5`},
		"two documents":                        {`1 2`, `input: text after the JSON document`},
		"a name twice":                         {`{"a":1,"a":2}`, `input: duplicate object member name "a"`},
		"a regular expression that is invalid": {`"${'a'.matches('(')}"`, "input: ${'a'.matches('(')}: column 13: invalid matches argument"},
		"a duration that is invalid":           {`"${duration('soon')}"`, `input: ${duration('soon')}: column 10: invalid duration argument`},
		"a timestamp that is invalid":          {`"${timestamp('now')}"`, `input: ${timestamp('now')}: column 11: invalid timestamp argument`},
		"a member's name that is not plain":    {`{"x-y":{"":"${"}}`, `input['x-y']['']: column 1: ${ without its closing }; write $${ for a literal ${`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			tmpl, err := Compile("input", []byte(tc.doc))
			if err == nil {
				t.Fatalf("Compile gave %v, want an error", tmpl)
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("the error has more than one line: %q", err)
			}
			if diff := cmp.Diff(tc.want, err.Error()); diff != "" {
				t.Errorf("error (-want +got):\n%s", diff)
			}
		})
	}
}

func TestReferences(t *testing.T) {
	tests := map[string]struct {
		doc         string
		wantSteps   []string
		wantDynamic bool
	}{
		"none":                               {`["${params.steps}", 1]`, nil, false},
		"dots, quotes and double quotes":     {`["${steps.a.output}", "${steps['b'].phase} ${steps[\"c\"].attempt}"]`, []string{"a", "b", "c"}, false},
		"each name once, sorted":             {`["${steps.b.phase}", "${steps.a.phase + steps.b.phase}"]`, []string{"a", "b"}, false},
		"optional access":                    {`["${steps.?a}", "${steps[?'b'].?output.?x}"]`, []string{"a", "b"}, false},
		"has":                                {`"${has(steps.a)}"`, []string{"a"}, false},
		"inside a comprehension":             {`"${steps.a.output.l.filter(x, x == steps.b.output).map(x, x + 1)}"`, []string{"a", "b"}, false},
		"a field chosen at evaluation":       {`"${steps.a[params.x]}"`, []string{"a"}, false},
		"inside literals and calls":          {`"${[{'k': steps.a.phase}, math.greatest(1, steps['b'].attempt)]}"`, []string{"a", "b"}, false},
		"a step chosen at evaluation":        {`"${steps[params.x].output}"`, nil, true},
		"all steps":                          {`"${steps.map(n, n)}"`, nil, true},
		"one known and one chosen":           {`"${steps[steps.a.output].output}"`, []string{"a"}, true},
		"the size of all steps":              {`"${size(steps)}"`, nil, true},
		"a name inside a string is no use":   {`"${'steps.a'}"`, nil, false},
		"a field called steps is no use":     {`"${params.steps.a}"`, nil, false},
		"a member called output is not read": {`"${steps.a.output.outptu}"`, []string{"a"}, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			tmpl, err := Compile("input", []byte(tc.doc))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.wantSteps, tmpl.Steps()); diff != "" {
				t.Errorf("Steps (-want +got):\n%s", diff)
			}
			if tmpl.Dynamic() != tc.wantDynamic {
				t.Errorf("Dynamic = %v, want %v", tmpl.Dynamic(), tc.wantDynamic)
			}
		})
	}
}

func TestCheck(t *testing.T) {
	many := make([]string, 25)
	for i := range many {
		many[i] = fmt.Sprintf("s%d", i)
	}
	tests := map[string]struct {
		doc     string
		earlier []string
		want    string
	}{
		"every step is an earlier one": {`"${steps.a.output}"`, []string{"a"}, ""},
		"a name mistyped": {
			`{"to":"${steps['find-ordr'].output}"}`, []string{"find-order", "refund"},
			"input.to: step 'find-ordr' is not a step before this one (did you mean 'find-order'?); earlier steps: find-order, refund",
		},
		"a later step":   {`["${steps.tell.output}"]`, []string{"find-order"}, "input[0]: step 'tell' is not a step before this one; earlier steps: find-order"},
		"the first step": {`"${steps.a.output}"`, nil, "input: step 'a' is not a step before this one; there is none"},
		"a long plan": {
			`"${steps.other.output}"`, many,
			"input: step 'other' is not a step before this one; earlier steps: " + strings.Join(many[:20], ", ") + " and 5 more",
		},
		"a step chosen at evaluation is not seen": {`"${steps[params.x].output}"`, nil, ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			tmpl, err := Compile("input", []byte(tc.doc))
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			if err := tmpl.Check(tc.earlier); err != nil {
				got = err.Error()
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("Check (-want +got):\n%s", diff)
			}
		})
	}
}

// quote gives the JSON of a string.
func quote(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	return string(b)
}

func TestDocumentLimits(t *testing.T) {
	tests := map[string]struct{ doc, want string }{
		"a document too large":    {quote(strings.Repeat("x", maxDocument)), "input: the document has 1048578 bytes, at most 1048576 may be"},
		"too many expressions":    {quote(strings.Repeat("${1}", maxExpressions+1)), "input: more than 1000 expressions"},
		"an expression too long":  {quote("${'" + strings.Repeat("x", maxExpr) + "'}"), "an expression may have at most 8192 bytes"},
		"nested too deep":         {strings.Repeat("[", 300) + strings.Repeat("]", 300), "nested deeper than 200 levels"},
		"an expression too deep":  {quote("${" + strings.Repeat("(", 500) + "1" + strings.Repeat(")", 500) + "}"), "recursion"},
		"macros nested too often": {quote("${" + strings.Repeat("[1].map(x, ", 90) + "x" + strings.Repeat(")", 90) + "}"), ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := Compile("input", []byte(tc.doc))
			if err == nil && tc.want != "" || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("Compile: %v, want %q", err, tc.want)
			}
		})
	}
}
