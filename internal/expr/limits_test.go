// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package expr

import (
	"encoding/json"
	"strings"
	"testing"
)

// bigParams has values near the size that a task can hold.
func bigParams(t testing.TB) []byte {
	numbers := make([]int, 60_000)
	for i := range numbers {
		numbers[i] = i
	}
	lists := make([][]int, 300)
	for i := range lists {
		lists[i] = numbers[:150]
	}
	deep := strings.Repeat("[", 1000) + strings.Repeat("]", 1000)
	b, err := json.Marshal(map[string]any{
		"text": strings.Repeat("a", 500_000), "numbers": numbers, "lists": lists, "deep": json.RawMessage(deep),
		"regex": strings.Repeat("(a|b)*", 150), "long": strings.Repeat("a?", 1000),
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// attack is an expression that would take too long or too much, and what stops it.
type attack struct{ src, want string }

// anything: the expression may end well or badly, but soon.
const anything = ""

// attacks are the expressions of the test below.
func attacks() map[string]attack {
	doubling := func(start string, times int) string {
		return strings.Repeat("[", times) + start + strings.Repeat("].map(x, x + x)[0]", times)
	}
	nested := func(n int) string {
		return strings.Repeat("lists.range(1000).map(x, ", n) + "1" + strings.Repeat(")", n)
	}
	const (
		costs   = "cost more than"
		large   = "a value gets larger"
		result  = "the result would be larger"
		product = "too large to compare"
	)
	return map[string]attack{
		"nested comprehensions":                       {nested(4), costs},
		"a long range":                                {"lists.range(1000000000)", "exceeds maximum allowed"},
		"a string doubled and doubled":                {doubling("'0123456789'", 30), large},
		"a list doubled and doubled":                  {doubling("[1]", 40), large},
		"a list doubled and sorted":                   {doubling("[1]", 30) + ".sort()", large},
		"a list doubled and joined":                   {doubling("['a']", 30) + ".join('x')", large},
		"a list doubled and made text":                {"json(" + doubling("[1]", 30) + ")", large},
		"a list of itself, again and again":           {strings.Repeat("[", 30) + "[1]" + strings.Repeat("].map(x, [x, x])[0]", 30), large},
		"every character replaced by a text":          {"params.text.replace('a', params.text)", result},
		"a text put between all characters":           {"params.text.replace('', params.text)", result},
		"a text put between all elements":             {"params.text.split('').join(params.text)", anything},
		"a text put between numbers":                  {"params.numbers.map(n, string(n)).join(params.text)", anything},
		"all pairs of elements":                       {"params.numbers.distinct()", costs},
		"all pairs of lists":                          {"sets.equivalent(params.numbers, params.numbers)", costs},
		"deep pairs":                                  {"params.lists.distinct()", anything},
		"a text searched for a text":                  {"(params.text + 'b').indexOf(params.text.substring(0, 250000) + 'b')", costs},
		"a text searched for a text again and again":  {"lists.range(10000).map(i, params.text.contains('b' + params.text))", costs},
		"a long regular expression":                   {"params.text.matches(params.long)", "program size"},
		"a regular expression with many states":       {"params.text.matches(params.regex)", costs},
		"a literal regular expression of many states": {"params.text.matches('((a|b|ab){100}){9}c')", "program size"},
		"a regular expression given to the function":  {"matches(params.text, params.regex)", costs},
		"regex.extractAll":                            {"regex.extractAll(params.text, params.regex)", costs},
		"regex.replace":                               {"regex.replace(params.text, 'a', params.text)", product},
		"the length of a long text again and again":   {"lists.range(10000).map(i, size(params.text))", costs},
		"a comparison of large values, repeated":      {"lists.range(10000).map(i, params.lists == params.lists)", costs},
		"a search in a large list, repeated":          {"lists.range(10000).map(i, -1 in params.numbers)", costs},
		"a large value touched again and again":       {"lists.range(10000).all(i, params.lists != null)", anything},
		"all params touched again and again":          {"lists.range(10000).all(i, params != null)", anything},
		"parseJSON again and again":                   {"lists.range(10000).map(i, parseJSON('\"' + params.text + '\"'))", costs},
		"json again and again":                        {"lists.range(10000).map(i, size(json(params.lists)))", costs},
		"base64 again and again":                      {"lists.range(10000).map(i, size(base64.encode(bytes(params.text))))", costs},
		"a deep value":                                {"params.deep", anything},
		"a format of many parts":                      {"params.lists.map(x, '%s%s%s%s'.format([params.text, params.text, params.text, params.text]))", anything},
		"a high precision":                            {"'%.999999999f'.format([1.0])", "precision"},
		"upper case again and again":                  {"lists.range(10000).map(i, params.text.upperAscii())", costs},
		"reverse again and again":                     {"lists.range(10000).map(i, params.text.reverse() == 'a')", costs},
		"sort again and again":                        {"lists.range(10000).map(i, params.numbers.sort()[0])", costs},
		"trim again and again":                        {"lists.range(10000).map(i, size(params.text.trim()))", costs},
		"quote again and again":                       {"lists.range(10000).map(i, strings.quote(params.text) == 'a')", costs},
		"urlEncode again and again":                   {"lists.range(10000).map(i, size(urlEncode(params.text)))", costs},
		"urlEncode of what urlEncode made":            {"[[[params.text].map(x, urlEncode(x + '%'))[0]].map(x, urlEncode(x + x))[0]].map(x, urlEncode(x + x))[0]", large},
		"conversions again and again":                 {"lists.range(10000).map(i, string(bytes(params.text)) == 'a')", costs},
		"split again and again":                       {"lists.range(10000).map(i, params.text.split('b')[0] == 'a')", costs},
		"character by character":                      {"lists.range(10000).map(i, params.text.charAt(499999))", costs},
		"substrings again and again":                  {"lists.range(10000).map(i, params.text.substring(499990))", costs},
		"flatten again and again":                     {"lists.range(10000).map(i, params.lists.flatten()[0])", costs},
		"starts with again and again":                 {"lists.range(10000).map(i, params.text.startsWith(params.text))", costs},
		"a failed conversion again and again":         {"lists.range(10000).exists(i, int(params.text) == 1)", anything},
		"a map with a long key":                       {"lists.range(10000).exists(i, params[params.text] == 1)", anything},
	}
}

// check compiles and renders the expression, and wants what stops it.
func (a attack) check(t *testing.T, scope Scope, vars Vars) {
	t.Helper()
	tmpl, err := CompileIn("input", []byte(quote("${"+a.src+"}")), scope)
	if err == nil {
		_, err = tmpl.Render(vars)
	}
	if a.want != anything && (err == nil || !strings.Contains(err.Error(), a.want)) {
		t.Errorf("error %v, want one with %q", err, a.want)
	}
	t.Log(err)
}

func TestNoExpressionEatsTheOperator(t *testing.T) {
	params := bigParams(t)
	for name, a := range attacks() {
		t.Run(name, func(t *testing.T) { a.check(t, Scope{}, Vars{Params: params}) })
	}
}

func TestEveryScopeHasTheLimits(t *testing.T) {
	result := bigParams(t)
	all := attacks()
	for _, name := range []string{
		"nested comprehensions", "a long range", "a string doubled and doubled", "a text put between all characters",
		"regex.replace", "a long regular expression", "a high precision", "urlEncode again and again",
	} {
		a, ok := all[name]
		if !ok {
			t.Fatalf("no attack is called %q", name)
		}
		a.src = strings.ReplaceAll(a.src, "params", "result")
		t.Run(name, func(t *testing.T) { a.check(t, Scope{Key: true, Result: true}, Vars{Key: "k", Result: result}) })
	}
}

func TestRenderCostIsOfTheWholeDocument(t *testing.T) {
	one := "${lists.range(3000).map(x, lists.range(10).map(y, y)).size()}"
	for n, wantErr := range map[int]bool{1: false, 200: true} {
		tmpl, err := Compile("input", []byte(quote(strings.Repeat(one, n))))
		if err != nil {
			t.Fatal(err)
		}
		if _, err = tmpl.Render(Vars{}); (err != nil) != wantErr {
			t.Errorf("%d expressions: %v", n, err)
		}
	}
}

func TestRenderOutputIsBounded(t *testing.T) {
	params := []byte(`{"text":` + quote(strings.Repeat("a", 400_000)) + `}`)
	for name, doc := range map[string]string{
		"in one text":     `"${params.text} ${params.text} ${params.text}"`,
		"in many members": `["${params.text}","${params.text}","${params.text}"]`,
		"in one value":    `"${[params.text, params.text, params.text]}"`,
	} {
		t.Run(name, func(t *testing.T) {
			tmpl, err := Compile("input", []byte(doc))
			if err != nil {
				t.Fatal(err)
			}
			if got, err := tmpl.Render(Vars{Params: params}); err == nil {
				t.Errorf("Render gave %d bytes, want an error", len(got))
			} else if !strings.Contains(err.Error(), "larger than") {
				t.Error(err)
			}
		})
	}
}
