// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package expr

import (
	"fmt"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
)

// Scope says which variables the expressions of a document may read beside params, task
// and steps. Elsewhere a comprehension may use these names for its own variable.
type Scope struct {
	// Key allows key, a string: the step's idempotency key.
	Key bool
	// Result allows result, of any type: the output of a check.
	Result bool
}

const (
	keyBit = 1 << iota
	resultBit
)

// keyPlaces and resultPlaces are where in a plan the variables are known.
const (
	keyPlaces    = "http.headers, check.http, check.input and verify.observe"
	resultPlaces = "check.done and check.output"
)

// bits number the scopes from 0, the plain one.
func (s Scope) bits() (b byte) {
	if s.Key {
		b |= keyBit
	}
	if s.Result {
		b |= resultBit
	}
	return b
}

func scopeOf(bits byte) Scope {
	return Scope{Key: bits&keyBit != 0, Result: bits&resultBit != 0}
}

// variables declare what the scope adds to the plain one.
func (s Scope) variables() (out []cel.EnvOption) {
	if s.Key {
		out = append(out, cel.Variable("key", cel.StringType))
	}
	if s.Result {
		out = append(out, cel.Variable("result", cel.DynType))
	}
	return out
}

// has reports whether name is a variable.
func (s Scope) has(name string) bool {
	switch name {
	case "params", "task", "steps":
		return true
	case "key":
		return s.Key
	case "result":
		return s.Result
	}
	return false
}

// hint says where a variable that is not known here can be used.
func (s Scope) hint(name string) string {
	places := map[string]string{"key": keyPlaces, "result": resultPlaces}[name]
	if places == "" || s.has(name) {
		return ""
	}
	return fmt.Sprintf(": %s can be used in %s, not here", name, places)
}

// scoped adds to the variables those of the scope that are read.
func (t *Template) scoped(out map[string]any, vars Vars) error {
	if t.refs.key {
		if vars.Key == "" {
			return &Error{Path: t.root, Cause: "the idempotency key is not known yet"}
		}
		out["key"] = types.String(vars.Key)
	}
	if t.refs.result && len(vars.Result) > 0 {
		result, err := decode(vars.Result)
		if err != nil {
			return &Error{Path: "result", Cause: err.Error()}
		}
		out["result"] = result
	}
	return nil
}
