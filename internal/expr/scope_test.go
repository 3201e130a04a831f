// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package expr

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestScopeRender(t *testing.T) {
	both := Scope{Key: true, Result: true}
	tests := map[string]struct {
		doc   string
		scope Scope
		want  string
	}{
		"the key alone":                        {`"${key}"`, Scope{Key: true}, `"at-1&2"`},
		"the key in text":                      {`"https://x/refunds?key=${key}"`, Scope{Key: true}, `"https://x/refunds?key=at-1&2"`},
		"the key in a query":                   {`"https://x/refunds?key=${urlEncode(key)}"`, Scope{Key: true}, `"https://x/refunds?key=at-1%262"`},
		"the key in functions":                 {`["${key.size()}","${key == 'at-1&2'}","${ {'k': key} }"]`, Scope{Key: true}, `[6,true,{"k":"at-1&2"}]`},
		"the key beside the other variables":   {`"${key} ${params.order} ${task.name} ${steps['find-order'].phase}"`, both, `"at-1&2 123 refund Succeeded"`},
		"the result":                           {`["${result}","${result.status == 200}","${result.body.ids[0] + 1}"]`, Scope{Result: true}, `[{"body":{"ids":[7]},"status":200},true,8]`},
		"what the result does not have":        {`["${has(result.none)}","${result.?none.orValue('x')}"]`, both, `[false,"x"]`},
		"the result is walked in order":        {`"${result.map(k, k)}"`, both, `["body","status"]`},
		"key and result beside each other":     {`"${key} ${result.status}"`, both, `"at-1&2 200"`},
		"fields called key and result":         {`"${ {'key': 1, 'result': 2}.key }"`, Scope{}, `1`},
		"free names for a comprehension":       {`"${['a'].map(key, [1].map(result, key + string(result)))}"`, Scope{}, `[["a1"]]`},
		"a free name beside one that is known": {`"${[1].map(result, key)}"`, Scope{Key: true}, `["at-1&2"]`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			tmpl, err := CompileIn("input", []byte(tc.doc), tc.scope)
			if err != nil {
				t.Fatal(err)
			}
			vars := someVars()
			vars.Key, vars.Result = "at-1&2", []byte(`{"status":200,"body":{"ids":[7]}}`)
			got, err := tmpl.Render(vars)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, string(got)); diff != "" {
				t.Errorf("Render (-want +got):\n%s", diff)
			}
		})
	}
}

func TestScopeCompileErrors(t *testing.T) {
	both := Scope{Key: true, Result: true}
	tests := map[string]struct {
		root, doc string
		scope     Scope
		want      string
	}{
		"no key in the plain scope": {
			"http.url", `"https://x/?key=${key}"`, Scope{},
			"http.url: ${key}: column 1: undeclared reference to 'key': key can be used in http.headers, check.http, check.input and verify.observe, not here",
		},
		"no key where only the result is known": {
			"check.output", `{"a":["${1 + size(key)}"]}`, Scope{Result: true},
			"check.output.a[0]: ${1 + size(key)}: column 10: undeclared reference to 'key': key can be used in http.headers, check.http, check.input and verify.observe, not here",
		},
		"no result in the plain scope": {
			"http.body", `{"a":"${result.status == 200}"}`, Scope{},
			"http.body.a: ${result.status == 200}: column 1: undeclared reference to 'result': result can be used in check.done and check.output, not here",
		},
		"no result where only the key is known": {
			"check.http.url", `"${result}"`, Scope{Key: true},
			"check.http.url: ${result}: column 1: undeclared reference to 'result': result can be used in check.done and check.output, not here",
		},
		"no other variable":                 {"input", `"${keys}"`, both, "input: ${keys}: column 1: undeclared reference to 'keys'"},
		"the key has no fields":             {"input", `"${key.id}"`, both, "input: ${key.id}: column 4: type 'string' does not support field selection"},
		"the name of a comprehension":       {"input", `"${[1].map(key, key)}"`, both, "input: ${[1].map(key, key)}: column 8: key is a variable already: give the comprehension's variable another name"},
		"the other name of a comprehension": {"input", `"${[1].map(result, 1)}"`, both, "input: ${[1].map(result, 1)}: column 8: result is a variable already: give the comprehension's variable another name"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := CompileIn(tc.root, []byte(tc.doc), tc.scope)
			if err == nil {
				t.Fatal("no error")
			}
			if diff := cmp.Diff(tc.want, err.Error()); diff != "" {
				t.Errorf("error (-want +got):\n%s", diff)
			}
		})
	}
}

func TestScopeRenderErrors(t *testing.T) {
	tests := map[string]struct {
		doc  string
		vars Vars
		want string
	}{
		"a key that is empty":           {`"?key=${key}"`, Vars{Result: []byte("1")}, "check.output: the idempotency key is not known yet"},
		"a result that was not given":   {`{"a":"${result.x}"}`, Vars{Key: "k"}, "check.output.a: ${result.x}: there is no result: the check gave no output"},
		"a result whole, not given":     {`"${result}"`, Vars{Key: "k"}, "check.output: ${result}: there is no result: the check gave no output"},
		"a result of null":              {`"${result.x}"`, Vars{Result: []byte("null")}, "check.output: ${result.x}: no such key: x"},
		"a result that is not JSON":     {`"${result}"`, Vars{Result: []byte("{")}, "result: unexpected EOF after offset 1"},
		"a result that is empty":        {`"${result}"`, Vars{Result: []byte{}}, "check.output: ${result}: there is no result: the check gave no output"},
		"a field that is not there":     {`"${result.x}"`, Vars{Result: []byte("{}")}, "check.output: ${result.x}: no such key: x"},
		"a number that would be spoilt": {`"${result}"`, Vars{Result: []byte("9007199254740993")}, "check.output: ${result}: integer 9007199254740993 is beyond ±9007199254740991 and would lose digits in canonical JSON: write it as a string"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			tmpl, err := CompileIn("check.output", []byte(tc.doc), Scope{Key: true, Result: true})
			if err != nil {
				t.Fatal(err)
			}
			got, err := tmpl.Render(tc.vars)
			if err == nil {
				t.Fatalf("Render gave %s, want an error", got)
			}
			if diff := cmp.Diff(tc.want, err.Error()); diff != "" {
				t.Errorf("error (-want +got):\n%s", diff)
			}
		})
	}
}

func TestUnreadVariablesNeedNoValue(t *testing.T) {
	tmpl, err := CompileIn("check.done", []byte(`"${params.a}"`), Scope{Key: true, Result: true})
	if err != nil {
		t.Fatal(err)
	}
	if tmpl.UsesKey() {
		t.Error("UsesKey is true of a document that does not read it")
	}
	got, err := tmpl.Render(Vars{Params: []byte(`{"a":1}`), Result: []byte("not JSON")})
	if err != nil || string(got) != "1" {
		t.Errorf("Render gave %s (%v), want 1", got, err)
	}
}

func TestUsesKey(t *testing.T) {
	for doc, want := range map[string]bool{
		`"${key}"`: true, `{"a":["x","${[1].map(x, key)}"]}`: true, `"${params.key} ${'key'}"`: false, `"key"`: false,
	} {
		tmpl, err := CompileIn("input", []byte(doc), Scope{Key: true})
		if err != nil {
			t.Fatal(err)
		}
		if tmpl.UsesKey() != want {
			t.Errorf("%s: UsesKey = %v, want %v", doc, tmpl.UsesKey(), want)
		}
	}
	tmpl, err := Compile("input", []byte(`"${['a'].map(key, key)}"`))
	if err != nil {
		t.Fatal(err)
	}
	if tmpl.UsesKey() {
		t.Error("a comprehension's own variable was taken for the key")
	}
}

func TestTemplatesOfTwoScopesAreTwo(t *testing.T) {
	scopes := []Scope{{}, {Key: true}, {Result: true}, {Key: true, Result: true}}
	seen := map[*Template]Scope{}
	for _, s := range scopes {
		tmpl, err := CompileIn("input", []byte(`"${params.scoped}"`), s)
		if err != nil {
			t.Fatal(err)
		}
		if other, ok := seen[tmpl]; ok {
			t.Errorf("scopes %+v and %+v share a template", other, s)
		}
		seen[tmpl] = s
		if again, _ := CompileIn("input", []byte(`"${params.scoped}"`), s); again != tmpl {
			t.Errorf("scope %+v: the same document was compiled twice", s)
		}
	}
	if _, err := CompileIn("input", []byte(`"${key} scoped"`), Scope{Key: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := Compile("input", []byte(`"${key} scoped"`)); err == nil {
		t.Error("the plain scope took a template that reads the key from the cache")
	}
}
