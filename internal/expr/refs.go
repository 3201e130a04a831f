// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package expr

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/types"
)

// maxListed is how many names an error lists.
const maxListed = 20

var (
	taskFields = []string{"name", "namespace", "uid", "runID"}
	stepFields = []string{"output", "phase", "attempt"}

	// dashedStep finds steps.find-order, which is a subtraction.
	dashedStep = regexp.MustCompile(`\bsteps\.([a-z0-9]+(?:-[a-z0-9]+)+)`)
)

// reference is one place that names a step.
type reference struct{ path, src, step string }

// references are what the expressions of a document refer to.
type references struct {
	scope Scope
	steps []reference
	// dynamic: some step is chosen at evaluation. params, key and result: these are read.
	dynamic, params, key, result bool
}

// names are the steps referred to, sorted, each once.
func (r *references) names() []string {
	out := make([]string, 0, len(r.steps))
	for _, s := range r.steps {
		out = append(out, s.step)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// collect adds what one expression refers to, and refuses fields that cannot exist.
func (r *references) collect(path, src string, a *ast.AST) error {
	w := walker{refs: r, path: path, src: src, ast: a}
	w.walk(a.Expr())
	if w.err != nil {
		return w.err
	}
	return nil
}

type walker struct {
	refs      *references
	path, src string
	ast       *ast.AST
	err       *Error
}

// fail keeps the first error, with the place of the expression's part.
func (w *walker) fail(e ast.Expr, format string, args ...any) {
	if w.err != nil {
		return
	}
	w.err = &Error{Path: w.path, Expr: w.src, Cause: fmt.Sprintf(format, args...)}
	if at := w.ast.SourceInfo().GetStartLocation(e.ID()); at != nil && at.Line() > 0 {
		w.err.Line, w.err.Column = at.Line(), at.Column()+1
	}
}

func (w *walker) walk(e ast.Expr) {
	if operand, field, ok := access(e); ok {
		switch {
		case isVariable(operand, "steps"):
			w.refs.steps = append(w.refs.steps, reference{w.path, w.src, field})
			return
		case isVariable(operand, "task"):
			w.field(e, "task", field, taskFields)
			return
		}
		if parent, _, ok := access(operand); ok && isVariable(parent, "steps") {
			w.field(e, "a step", field, stepFields)
		}
	}
	switch e.Kind() {
	case ast.IdentKind:
		switch e.AsIdent() {
		case "steps":
			w.refs.dynamic = true
		case "params":
			w.refs.params = true
		case "key":
			w.refs.key = w.refs.scope.Key
		case "result":
			w.refs.result = w.refs.scope.Result
		}
	case ast.SelectKind:
		w.walk(e.AsSelect().Operand())
	case ast.CallKind:
		if e.AsCall().IsMemberFunction() {
			w.walk(e.AsCall().Target())
		}
		w.walkAll(e.AsCall().Args())
	case ast.ListKind:
		w.walkAll(e.AsList().Elements())
	case ast.MapKind:
		for _, entry := range e.AsMap().Entries() {
			w.walk(entry.AsMapEntry().Key())
			w.walk(entry.AsMapEntry().Value())
		}
	case ast.StructKind:
		for _, field := range e.AsStruct().Fields() {
			w.walk(field.AsStructField().Value())
		}
	case ast.ComprehensionKind:
		w.comprehension(e)
	}
}

func (w *walker) walkAll(exprs []ast.Expr) {
	for _, e := range exprs {
		w.walk(e)
	}
}

func (w *walker) comprehension(e ast.Expr) {
	c := e.AsComprehension()
	for _, name := range []string{c.IterVar(), c.IterVar2(), c.AccuVar()} {
		if w.refs.scope.has(name) {
			w.fail(e, "%s is a variable already: give the comprehension's variable another name", name)
		}
	}
	w.walkAll([]ast.Expr{c.IterRange(), c.AccuInit(), c.LoopCondition(), c.LoopStep(), c.Result()})
}

// field refuses a field that is not among those that exist.
func (w *walker) field(e ast.Expr, what, field string, known []string) {
	if slices.Contains(known, field) {
		return
	}
	w.fail(e, "%s has no field %s%s; fields: %s", what, field, didYouMean(field, known), strings.Join(known, ", "))
}

func didYouMean(name string, candidates []string) string {
	if best, ok := nearest(name, candidates); ok {
		return fmt.Sprintf(" (did you mean '%s'?)", best)
	}
	return ""
}

// access takes x.f, x['f'], x.?f and x[?'f'] apart.
func access(e ast.Expr) (operand ast.Expr, field string, ok bool) {
	switch e.Kind() {
	case ast.SelectKind:
		return e.AsSelect().Operand(), e.AsSelect().FieldName(), true
	case ast.CallKind:
		c := e.AsCall()
		switch c.FunctionName() {
		case operators.Index, operators.OptIndex, operators.OptSelect:
			if len(c.Args()) == 2 && c.Args()[1].Kind() == ast.LiteralKind {
				name, isString := c.Args()[1].AsLiteral().(types.String)
				return c.Args()[0], string(name), isString
			}
		}
	}
	return nil, "", false
}

func isVariable(e ast.Expr, name string) bool {
	return e.Kind() == ast.IdentKind && e.AsIdent() == name
}

// check gives an error for the first reference to a step that is not among earlier.
func (r *references) check(earlier []string) error {
	for _, ref := range r.steps {
		if slices.Contains(earlier, ref.step) {
			continue
		}
		cause := fmt.Sprintf("step '%s' is not a step before this one%s; ", ref.step, didYouMean(ref.step, earlier))
		if len(earlier) == 0 {
			return &Error{Path: ref.path, Cause: cause + "there is none"}
		}
		cause += "earlier steps: " + strings.Join(earlier[:min(len(earlier), maxListed)], ", ")
		if more := len(earlier) - maxListed; more > 0 {
			cause += fmt.Sprintf(" and %d more", more)
		}
		return &Error{Path: ref.path, Cause: cause}
	}
	return nil
}
