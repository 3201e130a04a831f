// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package expr

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"cel.dev/cel-go/cel"
)

const (
	// maxShown is how much of an expression an error repeats, in bytes.
	maxShown = 160
	// maxCause is how long the cause of an error may be, in bytes.
	maxCause = 500
)

// Error says what is wrong with a document or one of its expressions.
type Error struct {
	// Path is where in the document: input.items[2].
	Path string
	// Expr is the expression between the braces, without space around it; empty when the
	// error is not about one.
	Expr string
	// Line and Column are where in Expr, or in the whole string if Expr is empty, from 1,
	// in characters; 0 when not known.
	Line, Column int
	// Cause is what is wrong, in one line.
	Cause string
}

// Error is the path, the expression, the column and the cause in one line.
func (e *Error) Error() string {
	var b strings.Builder
	if e.Path != "" {
		b.WriteString(e.Path + ": ")
	}
	if e.Expr != "" {
		b.WriteString("${" + shorten(oneLine(e.Expr), maxShown) + "}: ")
	}
	switch {
	case e.Line > 1:
		fmt.Fprintf(&b, "line %d, column %d: ", e.Line, e.Column)
	case e.Column > 0:
		fmt.Fprintf(&b, "column %d: ", e.Column)
	}
	b.WriteString(shorten(oneLine(e.Cause), maxCause))
	return b.String()
}

// oneLine replaces each run of white space by one space.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// shorten cuts s to at most n bytes and an ellipsis, between characters.
func shorten(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "..."
}

// compileError turns the first of CEL's issues into an Error.
func compileError(path, src string, issues *cel.Issues, scope Scope) *Error {
	e := &Error{Path: path, Expr: src, Cause: issues.Err().Error()}
	all := issues.Errors()
	if len(all) == 0 {
		return e
	}
	first := all[0]
	e.Cause = first.Message
	if first.Location != nil && first.Location.Line() > 0 {
		e.Line, e.Column = first.Location.Line(), first.Location.Column()+1
	}
	// The parser lists every token that could follow; none of them helps.
	if i := strings.Index(e.Cause, " expecting {"); i > 0 {
		e.Cause = e.Cause[:i]
	}
	e.Cause = strings.ReplaceAll(e.Cause, " (in container '')", "")
	if name, ok := strings.CutPrefix(e.Cause, "undeclared reference to "); ok {
		e.Cause += scope.hint(strings.Trim(name, "'"))
	}
	if m := dashedStep.FindStringSubmatch(src); m != nil && (strings.Contains(e.Cause, "undeclared reference") || strings.Contains(e.Cause, "'_-_'")) {
		e.Cause += fmt.Sprintf("; a step's name with '-' is written steps['%s']", m[1])
	}
	return e
}

// nearest is the candidate with the smallest edit distance to name, if that is at most
// a third of its length.
func nearest(name string, candidates []string) (string, bool) {
	best, bestDistance := "", max(1, len(name)/3)+1
	for _, c := range candidates {
		if d := len(c) - len(name); d >= bestDistance || -d >= bestDistance {
			continue
		}
		if d := distance(name, c); d < bestDistance {
			best, bestDistance = c, d
		}
	}
	return best, best != ""
}

// distance is the Levenshtein distance between a and b, in bytes.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
