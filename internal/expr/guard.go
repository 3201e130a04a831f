// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package expr

import (
	"errors"
	"fmt"
	"regexp/syntax"
	"strings"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/decls"
	"cel.dev/cel-go/common/functions"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
)

// The cost of a call is counted after it. That is too late for functions whose work or
// result grows with the product of their arguments, so these are asked first.

const (
	// maxWork is how many element comparisons or characters one call may look at.
	maxWork = 16 << 20
	// maxRegexWork is how many steps one match of a regular expression may take.
	maxRegexWork = 64 << 20
	// maxRegex is how long a regular expression may be, in bytes.
	maxRegex = 1024
	// maxRegexProgram is how many instructions a regular expression may compile to.
	maxRegexProgram = 2000
)

// guard looks at a call's arguments and says why it may not run.
type guard func(args []ref.Val) error

// guards are the functions to ask first, by name.
var guards = map[string]guard{
	"replace":          guardReplace,
	"join":             guardJoin,
	"indexOf":          guardProduct,
	"lastIndexOf":      guardProduct,
	"distinct":         func(args []ref.Val) error { return guardProduct([]ref.Val{args[0], args[0]}) },
	"sets.contains":    guardProduct,
	"sets.equivalent":  guardProduct,
	"sets.intersects":  guardProduct,
	"matches":          guardRegex,
	"regex.extract":    guardRegex,
	"regex.extractAll": guardRegex,
	"regex.replace": func(args []ref.Val) error {
		if err := guardRegex(args); err != nil {
			return err
		}
		return guardProduct([]ref.Val{args[0], args[2]})
	},
}

// guarded declares the guarded functions anew, in front of what they were.
func guarded(env *cel.Env) ([]cel.EnvOption, error) {
	var out []cel.EnvOption
	for name, g := range guards {
		fn, ok := env.Functions()[name]
		if !ok {
			return nil, fmt.Errorf("no function %s to guard", name)
		}
		bindings, err := fn.Bindings()
		if err != nil {
			return nil, err
		}
		byID := map[string]*functions.Overload{}
		for _, b := range bindings {
			byID[b.Operator] = b
		}
		for _, o := range fn.OverloadDecls() {
			b, ok := byID[o.ID()]
			if !ok {
				return nil, fmt.Errorf("function %s has no binding %s to guard", name, o.ID())
			}
			out = append(out, cel.Function(name, guardedOverload(o, b, g)))
		}
	}
	return out, nil
}

func guardedOverload(o *decls.OverloadDecl, b *functions.Overload, g guard) cel.FunctionOpt {
	declare := cel.Overload
	if o.IsMemberFunction() {
		declare = cel.MemberOverload
	}
	run := func(args ...ref.Val) ref.Val {
		if err := g(args); err != nil {
			return types.NewErr("%s", err.Error())
		}
		switch {
		case b.Unary != nil && len(args) == 1:
			return b.Unary(args[0])
		case b.Binary != nil && len(args) == 2:
			return b.Binary(args[0], args[1])
		}
		return b.Function(args...)
	}
	var binding cel.OverloadOpt
	switch len(o.ArgTypes()) {
	case 1:
		binding = cel.UnaryBinding(func(v ref.Val) ref.Val { return run(v) })
	case 2:
		binding = cel.BinaryBinding(func(a, b ref.Val) ref.Val { return run(a, b) })
	default:
		binding = cel.FunctionBinding(run)
	}
	return declare(o.ID(), o.ArgTypes(), o.ResultType(), binding)
}

// guardProduct bounds the work of comparing every part of one argument with every part
// of another.
func guardProduct(args []ref.Val) error {
	a, b := args[0], args[1]
	if length(a)*weight(b) > maxWork || length(b)*weight(a) > maxWork {
		return errors.New("the arguments are too large to compare each with each")
	}
	return nil
}

// guardReplace bounds the result of target.replace(old, new).
func guardReplace(args []ref.Val) error {
	target, ok1 := args[0].(types.String)
	old, ok2 := args[1].(types.String)
	with, ok3 := args[2].(types.String)
	if !ok1 || !ok2 || !ok3 {
		return nil
	}
	if n := strings.Count(string(target), string(old)); n*len(with) > maxValue {
		return fmt.Errorf("replace: the result would be larger than %d bytes", maxValue)
	}
	return nil
}

// guardJoin bounds the result of list.join(separator).
func guardJoin(args []ref.Val) error {
	separator := 0
	if len(args) == 2 {
		separator = length(args[1])
	}
	if length(args[0])*separator+weight(args[0]) > 2*maxValue {
		return fmt.Errorf("join: the result would be larger than %d bytes", maxValue)
	}
	return nil
}

// guardRegex bounds the work of matching a text with a regular expression.
func guardRegex(args []ref.Val) error {
	text, ok1 := args[0].(types.String)
	pattern, ok2 := args[1].(types.String)
	if !ok1 || !ok2 {
		return nil
	}
	if len(pattern) > maxRegex {
		return fmt.Errorf("the regular expression is longer than %d bytes", maxRegex)
	}
	parsed, err := syntax.Parse(string(pattern), syntax.Perl)
	if err != nil {
		return nil // the function itself says what is wrong
	}
	program, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		return nil
	}
	if n := len(program.Inst); n > maxRegexProgram || n*len(text) > maxRegexWork {
		return errors.New("the regular expression is too complex for a text of this length")
	}
	return nil
}
