// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package expr

import (
	"bytes"
	"fmt"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"

	"github.com/agenttask-dev/agenttask/internal/stepexec"
)

// Vars are the values that expressions read.
type Vars struct {
	// Params is the task's params, JSON. Empty is the empty object.
	Params []byte
	// Task is the task itself.
	Task Task
	// Steps are the steps that have begun, by name. Only those that a template names
	// need to be given; all of them if it is Dynamic.
	Steps map[string]StepVars
	// Key is the step's idempotency key. A template that reads it refuses an empty one.
	Key string
	// Result is the output of a check, JSON. Empty: there is none, and reading it fails.
	Result []byte
}

// Task is what expressions read of the task itself.
type Task struct{ Name, Namespace, UID, RunID string }

// StepVars is what expressions read of a step.
type StepVars struct {
	// Output is the step's output, JSON. Empty: it has none, and the key output is absent.
	Output  []byte
	Phase   string
	Attempt int64
}

// Template is a compiled document. It is immutable and safe for concurrent use.
type Template struct {
	root   string
	parts  []part
	refs   references
	steps  []string
	weight int // about its size in bytes
}

// part is literal JSON followed by a string with expressions; only the last part may
// have none.
type part struct {
	lit  []byte
	text *text
}

// text is a string with expressions.
type text struct {
	path  string
	items []item
}

// item is a piece of a text: literal, or an expression.
type item struct {
	lit     string
	src     string
	program cel.Program
	kind    types.Kind // of the program's value, as far as known
}

// whole reports whether the string is one expression and nothing else.
func (t *text) whole() bool { return len(t.items) == 1 && t.items[0].program != nil }

var compiled = newCache(cacheEntries, cacheWeight)

// Compile reads a JSON document and compiles the expressions in its strings. root is
// what errors call the document: with the root input they read input.body.to. Compiling
// the same document again costs one hash of it. The expressions may read params, task and
// steps.
func Compile(root string, doc []byte) (*Template, error) { return CompileIn(root, doc, Scope{}) }

// CompileIn is Compile with the variables of scope beside params, task and steps.
func CompileIn(root string, doc []byte, scope Scope) (*Template, error) {
	key := keyOf(root, doc, scope)
	if t, ok := compiled.get(key); ok {
		return t, nil
	}
	t, err := compile(root, doc, scope)
	if err != nil {
		return nil, err
	}
	compiled.add(key, t)
	return t, nil
}

// Steps are the names of the steps that the expressions refer to, sorted.
func (t *Template) Steps() []string { return append([]string(nil), t.steps...) }

// Dynamic reports whether an expression chooses a step while it is evaluated, as
// steps[params.which] does, so that Steps may not be all.
func (t *Template) Dynamic() bool { return t.refs.dynamic }

// UsesKey reports whether an expression reads the idempotency key.
func (t *Template) UsesKey() bool { return t.refs.key }

// Literal reports whether the document holds no expression: every render is the same.
func (t *Template) Literal() bool { return len(t.parts) == 1 && t.parts[0].text == nil }

// Check gives an error if an expression refers to a step that is not among earlier, the
// names of the steps before this one. References that Dynamic speaks of are not seen.
func (t *Template) Check(earlier []string) error { return t.refs.check(earlier) }

// Render evaluates the expressions and gives the document's canonical JSON (RFC 8785).
func (t *Template) Render(vars Vars) ([]byte, error) {
	if t.Literal() {
		return bytes.Clone(t.parts[0].lit), nil
	}
	r := renderer{}
	var err error
	if r.vars, err = t.activation(vars); err != nil {
		return nil, err
	}
	for _, p := range t.parts {
		r.out = append(r.out, p.lit...)
		if p.text != nil {
			if err := r.text(p.text); err != nil {
				return nil, err
			}
		}
	}
	if len(r.out) > maxOutput {
		return nil, &Error{Path: t.root, Cause: errTooLarge.Error()}
	}
	doc, err := stepexec.Canonical(r.out)
	if err != nil {
		return nil, &Error{Path: t.root, Cause: jsonError(err).Error()}
	}
	return doc, nil
}

// activation decodes the variables, of the steps only those that can be read.
func (t *Template) activation(vars Vars) (map[string]any, error) {
	steps := map[string]any{}
	add := func(name string) error {
		v, ok := vars.Steps[name]
		if !ok {
			return nil
		}
		step := map[string]any{"phase": types.String(v.Phase), "attempt": types.Int(v.Attempt)}
		if len(v.Output) > 0 {
			output, err := decode(v.Output)
			if err != nil {
				return &Error{Path: fmt.Sprintf("steps['%s'].output", name), Cause: err.Error()}
			}
			step["output"] = output
		}
		steps[name] = newMap(step)
		return nil
	}
	names := t.steps
	if t.refs.dynamic {
		names = keys(vars.Steps)
	}
	for _, name := range names {
		if err := add(name); err != nil {
			return nil, err
		}
	}
	params := newMap(map[string]any{})
	if t.refs.params && len(vars.Params) > 0 {
		var err error
		if params, err = decode(vars.Params); err != nil {
			return nil, &Error{Path: "params", Cause: err.Error()}
		}
	}
	out := map[string]any{
		"params": params,
		"steps":  newMap(steps),
		"task": newMap(map[string]any{
			"name": types.String(vars.Task.Name), "namespace": types.String(vars.Task.Namespace),
			"uid": types.String(vars.Task.UID), "runID": types.String(vars.Task.RunID),
		}),
	}
	return out, t.scoped(out, vars)
}

// renderer is the state of one render.
type renderer struct {
	vars map[string]any
	out  []byte
	cost uint64
}

// text appends the JSON of a string with expressions.
func (r *renderer) text(t *text) error {
	if t.whole() {
		it := t.items[0]
		val, err := r.eval(t.path, it)
		if err != nil {
			return err
		}
		if r.out, err = appendJSON(r.out, val, 0); err != nil {
			return &Error{Path: t.path, Expr: it.src, Cause: err.Error()}
		}
		return nil
	}
	var s []byte
	for _, it := range t.items {
		if it.program == nil {
			s = append(s, it.lit...)
			continue
		}
		val, err := r.eval(t.path, it)
		if err != nil {
			return err
		}
		if s, err = appendText(s, val); err == nil && len(r.out)+len(s) > maxOutput {
			err = errTooLarge
		}
		if err != nil {
			return &Error{Path: t.path, Expr: it.src, Cause: err.Error()}
		}
	}
	var err error
	if r.out, err = appendString(r.out, string(s)); err != nil {
		return &Error{Path: t.path, Cause: err.Error()}
	}
	return nil
}

// eval evaluates one expression within what the render may still cost.
func (r *renderer) eval(path string, it item) (ref.Val, error) {
	val, details, err := it.program.Eval(r.vars)
	if err != nil {
		return nil, &Error{Path: path, Expr: it.src, Cause: evalCause(err)}
	}
	if details != nil && details.ActualCost() != nil {
		r.cost += *details.ActualCost()
	}
	if r.cost > maxCost {
		return nil, &Error{Path: path, Expr: it.src, Cause: costExceeded}
	}
	return val, nil
}
