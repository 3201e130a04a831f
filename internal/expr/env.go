// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package expr

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/cost"
	"cel.dev/cel-go/common/env"
	"cel.dev/cel-go/common/overloads"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/ext"
	"cel.dev/cel-go/interpreter"

	"github.com/agenttask-dev/agenttask/internal/stepexec"
)

const (
	// maxCost is what one render may cost, in CEL's units.
	maxCost = 1_000_000
	// maxValue is how large a value may get while an expression is evaluated: elements
	// plus characters.
	maxValue = 1 << 20
	// maxRange is how long a list lists.range makes.
	maxRange = 10_000
)

// sizer measures values, for the cost and for the size limit alike: a value remembers
// the size it was first found to have.
var sizer = []types.SizeCalculatorOption{
	types.SizeCalculatorStringUnitLength(1),
	types.SizeCalculatorMaxDepth(2 * maxDepth),
	types.SizeCalculatorMaxTraversal(maxValue),
}

// environments are the CEL environments, one for each scope, made when first needed.
var environments = func() (out [4]func() (*cel.Env, error)) {
	for i := range out {
		out[i] = sync.OnceValues(func() (*cel.Env, error) {
			base, err := plainEnvironment()
			if err != nil {
				return nil, err
			}
			return base.Extend(scopeOf(byte(i)).variables()...)
		})
	}
	return out
}()

// plainEnvironment is the environment of the plain scope, made once. The libraries'
// versions are pinned, since what a function does must not change under a plan's keys,
// to the last without cost models of their own: pricer prices every call.
var plainEnvironment = sync.OnceValues(func() (*cel.Env, error) {
	withoutMatches := env.NewLibrarySubset().AddExcludedFunctions(env.NewFunction(overloads.Matches))
	base, err := cel.NewCustomEnv(
		cel.StdLib(cel.StdLibSubset(withoutMatches)),
		cel.CustomTypeAdapter(adapter{types.DefaultTypeAdapter}),
		cel.Variable("params", cel.DynType),
		cel.Variable("task", cel.MapType(cel.StringType, cel.DynType)),
		cel.Variable("steps", cel.MapType(cel.StringType, cel.MapType(cel.StringType, cel.DynType))),
		cel.OptionalTypes(cel.OptionalTypesVersion(2)),
		cel.CrossTypeNumericComparisons(true),
		cel.DefaultUTCTimeZone(true),
		cel.ParserExpressionSizeLimit(maxExpr),
		cel.ParserRecursionLimit(100),
		cel.ExpressionNodeLimit(20_000),
		cel.RegexProgramSizeLimit(maxRegexProgram),
		cel.ASTValidators(cel.ValidateRegexLiterals(), cel.ValidateDurationLiterals(), cel.ValidateTimestampLiterals()),
		ext.Strings(ext.StringsVersion(4), ext.StringsMaxPrecision(100)),
		ext.Math(ext.MathVersion(2)),
		ext.Lists(ext.ListsVersion(2), ext.ListsMaxRangeSize(maxRange)),
		ext.Sets(ext.SetsVersion(0)),
		ext.Regex(ext.RegexVersion(0)),
		ext.Encoders(ext.EncodersVersion(0)),
		ownFunctions(),
		cel.CostSizingStrategy(cost.AggregateSizingStrategy(sizer...)),
	)
	if err != nil {
		return nil, err
	}
	guards, err := guarded(base)
	if err != nil {
		return nil, err
	}
	return base.Extend(guards...)
})

// ownFunctions are json, parseJSON, urlEncode, string of a large integer, and matches,
// which the standard library declares so that it cannot be guarded.
func ownFunctions() cel.EnvOption {
	return cel.Lib(library{})
}

type library struct{}

// CompileOptions declares the functions.
func (library) CompileOptions() []cel.EnvOption {
	twoStrings := []*cel.Type{cel.StringType, cel.StringType}
	match := func(s, pattern ref.Val) ref.Val { return s.(types.String).Match(pattern) }
	return []cel.EnvOption{
		cel.Function("json", cel.Overload("json_dyn", []*cel.Type{cel.DynType}, cel.StringType,
			cel.UnaryBinding(func(v ref.Val) ref.Val {
				b, err := appendJSON(nil, v, 0)
				if err == nil {
					b, err = stepexec.Canonical(b)
				}
				if err != nil {
					return types.NewErr("json: %s", err.Error())
				}
				return types.String(b)
			}))),
		cel.Function("parseJSON", cel.Overload("parse_json_string", []*cel.Type{cel.StringType}, cel.DynType,
			cel.UnaryBinding(func(v ref.Val) ref.Val {
				val, err := decode([]byte(v.(types.String)))
				if err != nil {
					return types.NewErr("parseJSON: %s", err.Error())
				}
				return val
			}))),
		cel.Function("urlEncode", cel.Overload("url_encode_string", []*cel.Type{cel.StringType}, cel.StringType,
			cel.UnaryBinding(func(v ref.Val) ref.Val { return types.String(urlEncode(string(v.(types.String)))) }))),
		cel.Function("string", cel.Overload("big_integer_to_string", []*cel.Type{bigIntegerType}, cel.StringType,
			cel.UnaryBinding(func(v ref.Val) ref.Val { return v.ConvertToType(types.StringType) }))),
		cel.Function(overloads.Matches,
			cel.Overload("matches_string_string", twoStrings, cel.BoolType, cel.BinaryBinding(match)),
			cel.MemberOverload(overloads.MatchesString, twoStrings, cel.BoolType, cel.BinaryBinding(match))),
	}
}

// ProgramOptions are none.
func (library) ProgramOptions() []cel.ProgramOption { return nil }

// compileExpr makes the program of one expression, and says what kind its value will be
// as far as that is known. inText says that the value will be put into text.
func compileExpr(path, src string, inText bool, refs *references) (cel.Program, types.Kind, error) {
	if len(src) > maxExpr {
		return nil, 0, &Error{Path: path, Expr: src, Cause: fmt.Sprintf("an expression may have at most %d bytes, this one has %d", maxExpr, len(src))}
	}
	celEnv, err := environments[refs.scope.bits()]()
	if err != nil {
		return nil, 0, fmt.Errorf("expression environment: %w", err)
	}
	ast, issues := celEnv.Compile(src)
	if issues.Err() != nil {
		return nil, 0, compileError(path, src, issues, refs.scope)
	}
	if err := refs.collect(path, src, ast.NativeRep()); err != nil {
		return nil, 0, err
	}
	kind := ast.OutputType().Kind()
	if inText {
		switch kind {
		case types.NullTypeKind:
			return nil, 0, &Error{Path: path, Expr: src, Cause: notText("null").Error()}
		case types.ListKind:
			return nil, 0, &Error{Path: path, Expr: src, Cause: notText("a list").Error()}
		case types.MapKind:
			return nil, 0, &Error{Path: path, Expr: src, Cause: notText("a map").Error()}
		}
	}
	program, err := celEnv.Program(ast,
		cel.CostLimit(maxCost),
		cel.CostTracking(pricer{}),
		cel.MemoryLimit(maxValue),
		// A list that a comprehension builds is measured every so often: each time would
		// be quadratic.
		cel.MemoryTracking(types.MemoryTrackerSizeCalculator(calculator), types.MemoryTrackerSampleInterval(1000)),
		cel.CustomDecoratorV2(sortMapLiterals),
	)
	if err != nil {
		return nil, 0, &Error{Path: path, Expr: src, Cause: err.Error()}
	}
	return program, kind, nil
}

// noResult is CEL's word for a result that was not given.
const noResult = "no such attribute(s): result"

// evalCause is what a failed evaluation means, in words.
func evalCause(err error) string {
	var cancelled interpreter.EvalCancelledError
	if errors.As(err, &cancelled) {
		switch cancelled.Cause {
		case interpreter.CostLimitExceeded:
			return costExceeded
		case interpreter.MemoryLimitExceeded:
			return fmt.Sprintf("a value gets larger than %d elements and characters, or too deep", maxValue)
		}
	}
	cause := strings.TrimSuffix(err.Error(), " (in container '')")
	if cause == noResult {
		return "there is no result: the check gave no output"
	}
	return cause
}

var costExceeded = fmt.Sprintf("the expressions of this value cost more than %d to evaluate", maxCost)
