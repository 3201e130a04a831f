// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package expr

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// someVars are the variables of most tests.
func someVars() Vars {
	return Vars{
		Params: []byte(`{
			"order": "123", "n": 41, "price": 1.5, "million": 1000000, "yes": true, "nothing": null,
			"items": [1, "b", null], "who": {"name": "Ann", "a": 1}, "which": "find-order",
			"id": 9007199254740993, "id64": 18446744073709551615, "huge": 123456789012345678901234567890,
			"inf": 1.7e308, "doc": "{\"z\":1, \"a\":[2]}"}`),
		Task: Task{Name: "refund", Namespace: "shop", UID: "u-1", RunID: "run-1"},
		Steps: map[string]StepVars{
			"find-order": {Output: []byte(`{"charge":"ch_1","amount":12.50,"email":"a@b.c"}`), Phase: "Succeeded", Attempt: 2},
			"empty":      {Phase: "Running", Attempt: 1},
			"null":       {Output: []byte("null"), Phase: "Succeeded", Attempt: 1},
		},
	}
}

func TestRender(t *testing.T) {
	tests := map[string]struct{ doc, want string }{
		"a document without expressions is made canonical": {`{"b": 1.0, "a": [true, null, "x"]}`, `{"a":[true,null,"x"],"b":1}`},
		"a scalar document": {` "${params.order}" `, `"123"`},
		"one expression alone keeps the type of its value":     {`["${params.n}","${params.price}","${params.yes}","${params.nothing}","${params.items}","${params.who}"]`, `[41,1.5,true,null,[1,"b",null],{"a":1,"name":"Ann"}]`},
		"white space inside the braces does not matter":        {`"${  params.n  }"`, `41`},
		"white space outside them makes it text":               {`" ${params.n}"`, `" 41"`},
		"two expressions are text":                             {`"${params.n}${params.order}"`, `"41123"`},
		"text takes strings, numbers and bools":                {`"a ${params.order} b ${params.n} c ${params.price} d ${params.yes}"`, `"a 123 b 41 c 1.5 d true"`},
		"integers add up":                                      {`"${params.n + 1}"`, `42`},
		"an int is never written with an exponent":             {`["${params.million}", "x${params.million * 1000}"]`, `[1000000,"x1000000000"]`},
		"a whole double is written without a fraction":         {`["${double(params.million)}", "x${double(params.million)}"]`, `[1000000,"x1000000"]`},
		"a large id keeps its digits in text":                  {`["id-${params.id}","${string(params.id)}","${string(params.id64)}","n${params.huge}","${string(params.huge)}"]`, `["id-9007199254740993","9007199254740993","18446744073709551615","n123456789012345678901234567890","123456789012345678901234567890"]`},
		"names of members are literal":                         {`{"${params.n}": 1}`, `{"${params.n}":1}`},
		"$${ is a literal ${":                                  {`["$${params.n}", "a $${ b } ${params.n}", "$$${"]`, `["${params.n}","a ${ b } 41","$${"]`},
		"a dollar alone is a dollar":                           {`"$ $$ {} $x } ${params.n}$"`, `"$ $$ {} $x } 41$"`},
		"a dollar before an expression":                        {`"${'$'}${params.n}"`, `"$41"`},
		"a map literal is inside the braces":                   {`"${ {'a': 1}['a'] }"`, `1`},
		"nested map literals":                                  {`"${{'a':{'b':{'c':[1]}}}}"`, `{"a":{"b":{"c":[1]}}}`},
		"a brace in a string does not close":                   {`"${'}'}"`, `"}"`},
		"a brace in a double-quoted string does not close":     {`"${\"}\" + '{'}"`, `"}{"`},
		"an escaped quote does not end a string":               {`"${'it\\'s }'}"`, `"it's }"`},
		"a raw string has no escapes":                          {`"${r'\\' + R\"}\\\"}"`, `"\\}\\"`},
		"a triple-quoted string may hold quotes and new lines": {`"${'''it's\n}'''}"`, `"it's\n}"`},
		"a triple-quoted string of double quotes":              {`"${\"\"\"a\"}\"\"\"}"`, `"a\"}"`},
		"raw bytes":                                   {`"${br'\\}'}"`, `"XH0="`},
		"a comment may hold braces and quotes":        {`"${params.n // it's }\n + 1}"`, `42`},
		"bytes are base64":                            {`["${b'hello'}", "x ${b'hello'}"]`, `["aGVsbG8=","x aGVsbG8="]`},
		"times are RFC 3339 and durations as in Go":   {`["${timestamp('2026-01-02T03:04:05+01:00')}","${duration('90m')}","in ${duration('1500ms')}"]`, `["2026-01-02T02:04:05Z","1h30m0s","in 1.5s"]`},
		"the task":                                    {`"${task.namespace}/${task.name} ${task.uid} ${task.runID}"`, `"shop/refund u-1 run-1"`},
		"a step's output, phase and attempt":          {`["${steps['find-order'].output.charge}","${steps[\"find-order\"].phase}","${steps['find-order'].attempt}","${steps.empty.phase}"]`, `["ch_1","Succeeded",2,"Running"]`},
		"a step without output has no key output":     {`["${has(steps.empty.output)}","${steps.empty.?output.orValue('none')}","${steps['null'].output}"]`, `[false,"none",null]`},
		"a step chosen by a parameter":                {`"${steps[params.which].output.email}"`, `"a@b.c"`},
		"optional syntax":                             {`["${steps['find-order'].output.?none.orValue('x')}","${params.?who.?name.orValue('x')}","${params.?who}"]`, `["x","Ann",{"a":1,"name":"Ann"}]`},
		"maps are walked in the order of their keys":  {`["${params.who.map(k, k)}","${{'d':1,'b':2,'a':3,'c':4}.map(k, k)}","${parseJSON(params.doc).map(k, k)}"]`, `[["a","name"],["a","b","c","d"],["a","z"]]`},
		"keys that are not strings are spelled":       {`"${{1: 'a', true: 'b', 2u: 'c'}}"`, `{"1":"a","2":"c","true":"b"}`},
		"strings, math, lists, sets, encoders, regex": {`["${'a,b'.split(',').join('-')}","${math.greatest(1, 3)}","${[3,1].sort()}","${sets.contains([1,2],[1])}","${base64.encode(b'a')}","${regex.replace('a1','[0-9]','x')}","${'%s-%d'.format(['a', 3])}","${'aa'.replace('a','b')}","${'abc'.matches('^a')}"]`, `["a-b",3,[1,3],true,"YQ==","ax","a-3","bb",true]`},
		"json and parseJSON":                          {`["${json(params.who)}","${parseJSON(params.doc).a[0] + 1}","items: ${json(params.items)}"]`, `["{\"a\":1,\"name\":\"Ann\"}",3,"items: [1,\"b\",null]"]`},
		"urlEncode":                                   {`["${urlEncode('aZ09-._~')}","${urlEncode('a b&c=d/?#%+:@é,;')}","?q=${urlEncode(params.order)}&n=${urlEncode(string(params.n))}","${urlEncode('')}"]`, `["aZ09-._~","a%20b%26c%3Dd%2F%3F%23%25%2B%3A%40%C3%A9%2C%3B","?q=123&n=41",""]`},
		"types compare across int and double":         {`["${params.n > 1.5}","${params.huge == params.huge}","${params.huge == 1}"]`, `[true,true,false]`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			tmpl, err := Compile("input", []byte(tc.doc))
			if err != nil {
				t.Fatal(err)
			}
			got, err := tmpl.Render(someVars())
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, string(got)); diff != "" {
				t.Errorf("Render (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRenderErrors(t *testing.T) {
	tests := map[string]struct{ doc, want string }{
		"a key that is not there":                {`{"to":"${steps['find-order'].output.mail}"}`, `input.to: ${steps['find-order'].output.mail}: no such key: mail`},
		"a step that has not begun":              {`{"to":["${steps.later.output}"]}`, `input.to[0]: ${steps.later.output}: no such key: later`},
		"an output that is null":                 {`"${steps['null'].output.x}"`, `input: ${steps['null'].output.x}: no such key: x`},
		"null in text":                           {`"a ${params.nothing}"`, `input: ${params.nothing}: null cannot be put into text: let the string be this one ${...} alone, or write ${json(...)}`},
		"a list in text":                         {`"a ${params.items}"`, `input: ${params.items}: a list cannot be put into text: let the string be this one ${...} alone, or write ${json(...)}`},
		"a map in text":                          {`"a ${params.who}"`, `input: ${params.who}: a map cannot be put into text: let the string be this one ${...} alone, or write ${json(...)}`},
		"an integer that would lose digits":      {`{"id":"${params.id}"}`, `input.id: ${params.id}: integer 9007199254740993 is beyond ±9007199254740991 and would lose digits in canonical JSON: write it as a string`},
		"an integer beyond 64 bits":              {`{"a":{"b c":"${params.huge}"}}`, `input.a['b c']: ${params.huge}: integer 123456789012345678901234567890 is beyond ±9007199254740991 and would lose digits in canonical JSON: write it as a string`},
		"infinity":                               {`"${params.inf * 10.0}"`, `input: ${params.inf * 10.0}: +Inf is not a JSON number`},
		"not a number":                           {`"${0.0 / 0.0}"`, `input: ${0.0 / 0.0}: NaN is not a JSON number`},
		"an optional that is not set":            {`"${params.?none}"`, `input: ${params.?none}: an optional value that is not set: give a default with .orValue(...)`},
		"an optional that is not set in text":    {`"a ${params.?none}"`, `input: ${params.?none}: an optional value that is not set cannot be put into text: give a default with .orValue(...)`},
		"a type":                                 {`"${type(1)}"`, `input: ${type(1)}: a value of type type has no JSON form`},
		"two keys of one spelling":               {`"${{1: 'a', '1': 'b'}}"`, `input: ${{1: 'a', '1': 'b'}}: two keys of a map are both spelled "1" in JSON`},
		"division by zero":                       {`"${1 / (params.n - 41)}"`, `input: ${1 / (params.n - 41)}: division by zero`},
		"int overflow":                           {`"${params.id * params.id}"`, `input: ${params.id * params.id}: integer overflow`},
		"urlEncode of a number":                  {`"?n=${urlEncode(params.n)}"`, `input: ${urlEncode(params.n)}: no such overload: urlEncode(int)`},
		"text that is not JSON":                  {`"${parseJSON(params.order + ',')}"`, `input: ${parseJSON(params.order + ',')}: parseJSON: text after the JSON document`},
		"a long expression is shortened":         {`"${params.x + '` + strings.Repeat("é", 200) + `'}"`, `input: ${params.x + '` + strings.Repeat("é", 74) + `...}: no such key: x`},
		"an expression of several lines reads 1": {`"${params\n  .x}"`, `input: ${params .x}: no such key: x`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			tmpl, err := Compile("input", []byte(tc.doc))
			if err != nil {
				t.Fatal(err)
			}
			got, err := tmpl.Render(someVars())
			if err == nil {
				t.Fatalf("Render gave %s, want an error", got)
			}
			if diff := cmp.Diff(tc.want, err.Error()); diff != "" {
				t.Errorf("error (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRenderOfBadVariables(t *testing.T) {
	tmpl, err := Compile("input", []byte(`["${params.a}","${steps.a.output}"]`))
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		vars Vars
		want string
	}{
		"params that are not JSON": {Vars{Params: []byte(`{`)}, "params: unexpected EOF after offset 1"},
		"an output with a number beyond a double": {
			Vars{Params: []byte(`{"a":1}`), Steps: map[string]StepVars{"a": {Output: []byte("1e999")}}},
			"steps['a'].output: number 1e999 is beyond a double's range: write it as a string",
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := tmpl.Render(tc.vars)
			if err == nil {
				t.Fatal("no error")
			}
			if diff := cmp.Diff(tc.want, err.Error()); diff != "" {
				t.Errorf("error (-want +got):\n%s", diff)
			}
		})
	}
}
