// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package expr

import (
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
)

// pricer says what a call costs. CEL's own prices hang on the overload, which it does
// not know where an argument's type is known only at evaluation, as that of params is;
// such calls would cost 1, however large their arguments.
type pricer struct{}

// perUnit is how many elements or characters cost 1.
const perUnit = 10

// CallCost prices a call by its name and the size of what it reads and gives.
func (pricer) CallCost(function, _ string, args []ref.Val, result ref.Val) *uint64 {
	price := uint64(1)
	switch function {
	case operators.LogicalAnd, operators.LogicalOr, operators.Conditional,
		operators.NotStrictlyFalse:
		price = 0
	case operators.Index, operators.OptIndex, operators.OptSelect,
		"optional.of", "optional.none", "orValue", "or", "hasValue", "value":
	case operators.Add:
		// Lists are put together without a copy.
		if _, isList := result.(traits.Lister); !isList {
			price += weights(result) / perUnit
		}
	case operators.Equals, operators.NotEquals, operators.Less, operators.LessEquals,
		operators.Greater, operators.GreaterEquals:
		price += min(weights(args[0]), weights(args[1])) / perUnit
	case "distinct":
		price += uint64(length(args[0])) * weights(args[0]) / perUnit
	case "sets.contains", "sets.equivalent", "sets.intersects":
		price += max(uint64(length(args[0]))*weights(args[1]), uint64(length(args[1]))*weights(args[0])) / perUnit
	case "matches", "regex.extract", "regex.extractAll", "regex.replace":
		price += weights(args[0])*weights(args[1])/(4*perUnit) + weights(result)/perUnit
	case "indexOf", "lastIndexOf":
		price += weights(args[0]) * weights(args[1]) / (perUnit * perUnit)
	case "json", "parseJSON":
		price += weights(args...) + weights(result)
	default:
		price += (weights(args...) + weights(result)) / perUnit
	}
	return &price
}

var calculator = types.NewSizeCalculator(sizer...)

// weight is a value's size with all that it holds: elements plus characters.
func weight(v ref.Val) int { return int(calculator.ApproximateAggregateSize(v).Size) }

func weights(vals ...ref.Val) (sum uint64) {
	for _, v := range vals {
		sum += uint64(weight(v))
	}
	return sum
}

// length is a string's bytes or a list's elements.
func length(v ref.Val) int {
	switch v := v.(type) {
	case types.String:
		return len(v)
	case traits.Sizer:
		if n, ok := v.Size().(types.Int); ok {
			return int(n)
		}
	}
	return 1
}
