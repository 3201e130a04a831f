// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package expr

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// segment is a piece of a string: literal text, or an expression's source.
type segment struct {
	text   string
	isExpr bool
}

// Escape gives the text that stands for s in a document: no part of it is read as an
// expression.
func Escape(s string) string { return strings.ReplaceAll(s, "${", "$${") }

// scan splits a string into literal text and expressions. Sources are trimmed.
func scan(s string) ([]segment, *Error) {
	var out []segment
	var lit strings.Builder
	for i := 0; i < len(s); {
		switch {
		case strings.HasPrefix(s[i:], "$${"):
			lit.WriteString("${")
			i += 3
		case strings.HasPrefix(s[i:], "${"):
			end, err := exprEnd(s, i+2)
			if err != nil {
				return nil, err
			}
			src := strings.TrimSpace(s[i+2 : end])
			if src == "" {
				return nil, &Error{Column: column(s, i), Cause: "empty expression ${}; write $${ for a literal ${"}
			}
			if lit.Len() > 0 {
				out = append(out, segment{text: lit.String()})
				lit.Reset()
			}
			out = append(out, segment{text: src, isExpr: true})
			i = end + 1
		default:
			lit.WriteByte(s[i])
			i++
		}
	}
	if lit.Len() > 0 {
		out = append(out, segment{text: lit.String()})
	}
	return out, nil
}

// exprEnd is the index of the brace that closes the expression whose source begins at
// start. It reads CEL's string literals, comments and braces, and nothing else.
func exprEnd(s string, start int) (int, *Error) {
	depth := 0
	for i := start; i < len(s); {
		switch c := s[i]; {
		case c == '\'' || c == '"':
			end, ok := literalEnd(s, i, isRaw(s, start, i))
			if !ok {
				return 0, &Error{Column: column(s, i), Cause: fmt.Sprintf("the string literal that begins with %c is not closed", c)}
			}
			i = end
		case strings.HasPrefix(s[i:], "//"):
			n := strings.IndexByte(s[i:], '\n')
			if n < 0 {
				return 0, unclosed(s, start)
			}
			i += n + 1
		case c == '}' && depth == 0:
			return i, nil
		default:
			switch c {
			case '{':
				depth++
			case '}':
				depth--
			}
			i++
		}
	}
	return 0, unclosed(s, start)
}

func unclosed(s string, start int) *Error {
	return &Error{Column: column(s, start-2), Cause: "${ without its closing }; write $${ for a literal ${"}
}

// literalEnd is the index after the string literal whose first quote is at i.
func literalEnd(s string, i int, raw bool) (int, bool) {
	quote := s[i : i+1]
	if triple := strings.Repeat(quote, 3); strings.HasPrefix(s[i:], triple) {
		quote = triple
	}
	for i += len(quote); i < len(s); {
		switch {
		case strings.HasPrefix(s[i:], quote):
			return i + len(quote), true
		case s[i] == '\\' && !raw:
			i += 2
		case (s[i] == '\n' || s[i] == '\r') && len(quote) == 1:
			return 0, false
		default:
			i++
		}
	}
	return 0, false
}

// isRaw reports whether the quote at i has the prefix r, possibly after b, and that
// prefix is not the end of a longer name.
func isRaw(s string, start, i int) bool {
	if i == start || s[i-1]|0x20 != 'r' {
		return false
	}
	i--
	if i > start && s[i-1]|0x20 == 'b' {
		i--
	}
	return i == start || !isNameByte(s[i-1])
}

func isNameByte(c byte) bool {
	return c == '_' || '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'z'
}

// column is the position of byte i in s, from 1, in characters.
func column(s string, i int) int { return utf8.RuneCountInString(s[:i]) + 1 }
