// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package expr

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/agenttask-dev/agenttask/internal/stepexec"
)

// FuzzCompile: compiling never panics; a document without expressions renders to its
// canonical form; rendering twice gives the same bytes, which are canonical; every error
// is one line.
func FuzzCompile(f *testing.F) {
	for _, seed := range []string{
		`{"a":"${params.x + 1}","b":["$${","${steps['a'].output}",1.5e3,null]}`, `"${'}'}"`, `"${ {'a': 1}['a'] }"`,
		`"a ${r'\\'} b ${'''x'''}"`, `"${\"\"\"}\"\"\""`, `"${params.x // }\n}"`, `12345678901234567890`, `"$"`, `{"a":{"b":[]}}`,
		`"${[1,2].map(x, x * 2)}"`, `"${'a'.replace('', 'b')}"`, `"${b'\\x00'}"`, `"${urlEncode(key)}${result.a}"`, `1e400`, `-0`, `"\ud800"`,
	} {
		f.Add(seed)
	}
	vars := Vars{Params: []byte(`{"x":1}`), Steps: map[string]StepVars{"a": {Output: []byte(`{"b":[1,"c"]}`)}}, Key: "k-1", Result: []byte(`{"a":1}`)}
	oneLineError := func(t *testing.T, err error) {
		if err != nil && strings.ContainsAny(err.Error(), "\n\r") {
			t.Errorf("the error has more than one line: %q", err)
		}
	}
	f.Fuzz(func(t *testing.T, doc string) {
		tmpl, err := compile("input", []byte(doc), Scope{Key: true, Result: true})
		oneLineError(t, err)
		if err != nil {
			return
		}
		oneLineError(t, tmpl.Check([]string{"a"}))
		got, err := tmpl.Render(vars)
		oneLineError(t, err)
		if err != nil {
			return
		}
		canonical, err := stepexec.Canonical(got)
		if err != nil || !bytes.Equal(canonical, got) {
			t.Errorf("the render %q is not canonical, that is %q (%v)", got, canonical, err)
		}
		if again, err := tmpl.Render(vars); err != nil || !bytes.Equal(again, got) {
			t.Errorf("a second render gave %q (%v), the first %q", again, err, got)
		}
		if !strings.ContainsAny(doc, "$\\") {
			if want, err := stepexec.Canonical([]byte(doc)); err != nil || !bytes.Equal(want, got) {
				t.Errorf("Render gave %q, the canonical form is %q (%v)", got, want, err)
			}
		}
	})
}

// FuzzEscape: any text comes back through Escape, Compile and Render.
func FuzzEscape(f *testing.F) {
	for _, seed := range []string{"", "${", "$${", "$$${a}", "a ${b} $c $${d} }", "$", "${${", "é\x00\n"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		s = strings.ToValidUTF8(s, "?")
		tmpl, err := compile("input", []byte(quote(Escape(s))), Scope{})
		if err != nil {
			t.Fatal(err)
		}
		doc, err := tmpl.Render(Vars{})
		if err != nil {
			t.Fatal(err)
		}
		var got string
		if err := json.Unmarshal(doc, &got); err != nil {
			t.Fatal(err)
		}
		if got != s || len(tmpl.Steps()) != 0 {
			t.Errorf("%q came back as %q", s, got)
		}
	})
}

func TestErrorHasItsParts(t *testing.T) {
	_, err := Compile("input", []byte(`{"to":["${1 +\n parms}"]}`))
	want := &Error{Path: "input.to[0]", Expr: "1 +\n parms", Line: 2, Column: 2, Cause: "undeclared reference to 'parms'"}
	if diff := cmp.Diff(error(want), err); diff != "" {
		t.Errorf("error (-want +got):\n%s", diff)
	}
}

func TestRenderIsDeterministic(t *testing.T) {
	doc := []byte(`["${params.map(k, k)}","${{'c':1,'a':2,'b':3,'e':4,'d':5}.map(k, k)}","${json(params)}","${steps.map(n, n)}","${'%s'.format([params])}"]`)
	vars := Vars{
		Params: []byte(`{"z":1,"y":2,"x":3,"w":4,"v":5,"u":6}`),
		Steps:  map[string]StepVars{"a": {}, "b": {}, "c": {}, "d": {}},
	}
	first := ""
	for range 50 {
		tmpl, err := compile("input", doc, Scope{})
		if err != nil {
			t.Fatal(err)
		}
		got, err := tmpl.Render(vars)
		if err != nil {
			t.Fatal(err)
		}
		if first == "" {
			first = string(got)
		}
		if diff := cmp.Diff(first, string(got)); diff != "" {
			t.Fatalf("two renders differ:\n%s", diff)
		}
	}
}

func TestTemplatesAreShared(t *testing.T) {
	a, err := Compile("input", []byte(`"${params.shared}"`))
	if err != nil {
		t.Fatal(err)
	}
	if b, _ := Compile("input", []byte(`"${params.shared}"`)); a != b {
		t.Error("the same document was compiled twice")
	}
	if b, _ := Compile("message", []byte(`"${params.shared}"`)); a == b {
		t.Error("a document of another root has the errors of the first")
	}
}

func TestRenderedBytesAreTheCallers(t *testing.T) {
	for _, doc := range []string{`{"a":1}`, `{"a":"${1}"}`} {
		tmpl, err := Compile("input", []byte(doc))
		if err != nil {
			t.Fatal(err)
		}
		first, _ := tmpl.Render(Vars{})
		first[0] = 'x'
		if second, _ := tmpl.Render(Vars{}); string(second) != `{"a":1}` {
			t.Errorf("a change of the first render reached the second: %s", second)
		}
	}
}

func TestCacheForgetsWhatWasUsedLongestAgo(t *testing.T) {
	key := func(i int) cacheKey { return keyOf("k", []byte{byte(i)}, Scope{}) }
	kept := func(c *cache) (out []int) {
		for i := range 10 {
			if _, ok := c.entries[key(i)]; ok {
				out = append(out, i)
			}
		}
		return out
	}
	c := newCache(3, 100)
	for i := range 3 {
		c.add(key(i), &Template{weight: 10})
	}
	c.get(key(0))
	c.add(key(3), &Template{weight: 10})
	if diff := cmp.Diff([]int{0, 2, 3}, kept(c)); diff != "" {
		t.Errorf("bounded by number (-want +got):\n%s", diff)
	}
	c.add(key(4), &Template{weight: 85})
	if diff := cmp.Diff([]int{3, 4}, kept(c)); diff != "" {
		t.Errorf("bounded by weight (-want +got):\n%s", diff)
	}
	c.add(key(5), &Template{weight: 101})
	if diff := cmp.Diff([]int{3, 4}, kept(c)); diff != "" {
		t.Errorf("a template larger than the cache (-want +got):\n%s", diff)
	}
}

func TestConcurrentUse(t *testing.T) {
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 50 {
				doc := fmt.Sprintf(`{"a":"${params.who.map(k, k)} ","b":"${params.n + %d}"}`, i%10)
				doc = strings.Replace(doc, "} \"", "}\"", 1)
				tmpl, err := Compile("input", []byte(doc))
				if err != nil {
					t.Error(err)
					return
				}
				got, err := tmpl.Render(someVars())
				if want := fmt.Sprintf(`{"a":["a","name"],"b":%d}`, 41+i%10); err != nil || string(got) != want {
					t.Errorf("goroutine %d: %s (%v), want %s", g, got, err, want)
				}
			}
		})
	}
	wg.Wait()
}

var benchDoc = []byte(`{"charge":"${steps['find-order'].output.charge}","to":"${steps['find-order'].output.email}","text":"Refund of ${params.order} for ${task.name}","amount":"${steps['find-order'].output.amount}","note":"literal"}`)

func BenchmarkRender(b *testing.B) {
	vars := someVars()
	for name, doc := range map[string][]byte{"literal": []byte(`{"a":1,"b":"text"}`), "expressions": benchDoc} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				tmpl, err := Compile("input", doc)
				if err != nil {
					b.Fatal(err)
				}
				if _, err := tmpl.Render(vars); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkCompile(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := compile("input", benchDoc, Scope{}); err != nil {
			b.Fatal(err)
		}
	}
}
