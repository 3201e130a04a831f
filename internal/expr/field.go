// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package expr

import (
	"strings"

	"cel.dev/cel-go/common/types"
	"github.com/go-json-experiment/json/jsontext"
)

// A field of a plan that is a string, such as a URL, is a document of one JSON string.

// CompileString compiles a field that is a string and whose value must be one. What is
// sure to give another type is refused now, the rest by RenderString.
func CompileString(root, text string, scope Scope) (*Template, error) {
	t, err := compileField(root, text, scope)
	if err != nil {
		return nil, err
	}
	if it, ok := t.single(); ok {
		if what := kindWord(it.kind); what != "" && what != textWord {
			return nil, &Error{Path: root, Expr: it.src, Cause: notString(what)}
		}
	}
	return t, nil
}

// CompileBool compiles a field that is a string and whose value must be a bool: one
// ${...} and nothing else. What is sure to give another type is refused now, the rest by
// RenderBool.
func CompileBool(root, text string, scope Scope) (*Template, error) {
	t, err := compileField(root, text, scope)
	if err != nil {
		return nil, err
	}
	it, ok := t.single()
	if !ok {
		return nil, &Error{Path: root, Cause: "must be one expression ${...} that gives true or false, with no text around it"}
	}
	if what := kindWord(it.kind); what != "" && what != boolWord {
		return nil, &Error{Path: root, Expr: it.src, Cause: notBool(what)}
	}
	return t, nil
}

func compileField(root, text string, scope Scope) (*Template, error) {
	doc, err := appendString(nil, text)
	if err != nil {
		return nil, &Error{Path: root, Cause: "the text is not valid UTF-8"}
	}
	return CompileIn(root, doc, scope)
}

// RenderString is Render of a document whose value must be a string.
func (t *Template) RenderString(vars Vars) (string, error) {
	doc, err := t.Render(vars)
	if err != nil {
		return "", err
	}
	if what := jsonWord(doc); what != textWord {
		return "", t.wrongType(notString(what))
	}
	s, err := jsontext.AppendUnquote(nil, doc)
	if err != nil {
		return "", t.wrongType(jsonError(err).Error())
	}
	return string(s), nil
}

// RenderBool is Render of a document whose value must be true or false.
func (t *Template) RenderBool(vars Vars) (bool, error) {
	doc, err := t.Render(vars)
	if err != nil {
		return false, err
	}
	if what := jsonWord(doc); what != boolWord {
		return false, t.wrongType(notBool(what))
	}
	return string(doc) == "true", nil
}

// wrongType is an error about the value of the whole document.
func (t *Template) wrongType(cause string) error {
	e := &Error{Path: t.root, Cause: cause}
	if it, ok := t.single(); ok {
		e.Expr = it.src
	}
	return e
}

// single is the expression that is the whole document.
func (t *Template) single() (item, bool) {
	if len(t.parts) == 1 && len(t.parts[0].lit) == 0 && t.parts[0].text.whole() {
		return t.parts[0].text.items[0], true
	}
	return item{}, false
}

// The words of errors for the types of JSON.
const (
	nullWord   = "null"
	boolWord   = "a bool"
	numberWord = "a number"
	textWord   = "a string"
	listWord   = "a list"
	mapWord    = "a map"
)

// kindWord is the word for a type of CEL, empty where only evaluation tells.
func kindWord(k types.Kind) string {
	switch k {
	case types.NullTypeKind:
		return nullWord
	case types.BoolKind:
		return boolWord
	case types.IntKind, types.UintKind, types.DoubleKind:
		return numberWord
	case types.StringKind, types.BytesKind, types.TimestampKind, types.DurationKind:
		return textWord
	case types.ListKind:
		return listWord
	case types.MapKind:
		return mapWord
	}
	return ""
}

// jsonWord is the word for the type of a JSON value.
func jsonWord(doc []byte) string {
	switch jsontext.Kind(doc[0]) {
	case jsontext.KindNull:
		return nullWord
	case jsontext.KindTrue, jsontext.KindFalse:
		return boolWord
	case jsontext.KindString:
		return textWord
	case jsontext.KindBeginArray:
		return listWord
	case jsontext.KindBeginObject:
		return mapWord
	}
	return numberWord
}

// notString says what to do with a value that should be a string.
func notString(what string) string {
	cause := "must give a string, not " + what
	switch what {
	case numberWord, boolWord:
		cause += ": write string(...)"
	case listWord, mapWord:
		cause += ": write json(...)"
	}
	return cause
}

// notBool says what to do with a value that should be a bool.
func notBool(what string) string {
	return "must give true or false, not " + what + ": write a comparison, such as ${result.status == 200}"
}

// unreserved are the characters that a URL holds as they are (RFC 3986, section 2.3).
const unreserved = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~"

// urlEncode percent-encodes all but the unreserved characters, byte by byte, so that no
// part of the text is read as a delimiter of the URL it is put into.
func urlEncode(s string) string {
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(s) {
		if c := s[i]; strings.IndexByte(unreserved, c) >= 0 {
			b.WriteByte(c)
		} else {
			b.Write([]byte{'%', hex[c>>4], hex[c&15]})
		}
	}
	return b.String()
}
