// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package expr

import (
	"slices"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
	"cel.dev/cel-go/interpreter"
)

// sortedMap is a map that is walked in the order of its keys. CEL's own maps are walked
// in Go's random order, which would give one input two idempotency keys.
type sortedMap struct {
	traits.Mapper
	keys []ref.Val
}

// sorted makes a map's order that of its keys.
func sorted(m traits.Mapper) *sortedMap {
	if s, ok := m.(*sortedMap); ok {
		return s
	}
	return &sortedMap{Mapper: m}
}

// Iterator walks the keys in order.
func (m *sortedMap) Iterator() traits.Iterator {
	return types.NewRefValList(types.DefaultTypeAdapter, m.sortedKeys()).Iterator()
}

// AggregateSize is the wrapped map's, which remembers it.
func (m *sortedMap) AggregateSize(s types.AggregateSizer) uint32 {
	if v, ok := m.Mapper.(types.AggregateSizeVisitor); ok {
		return v.AggregateSize(s)
	}
	return s.AggregateSize(m.Mapper)
}

func (m *sortedMap) sortedKeys() []ref.Val {
	if m.keys == nil {
		keys := make([]ref.Val, 0, 8)
		for it := m.Mapper.Iterator(); it.HasNext() == types.True; {
			keys = append(keys, it.Next())
		}
		slices.SortFunc(keys, compareKeys)
		m.keys = keys
	}
	return m.keys
}

// compareKeys orders keys by their type and then by their value.
func compareKeys(a, b ref.Val) int {
	if a.Type() == b.Type() {
		if c, ok := a.(traits.Comparer); ok {
			if n, ok := c.Compare(b).(types.Int); ok {
				return int(n)
			}
		}
	}
	if a.Type().TypeName() < b.Type().TypeName() {
		return -1
	}
	return 1
}

// adapter is CEL's own, except that every map it makes is sorted.
type adapter struct{ types.Adapter }

// NativeToValue makes a Go value a CEL value.
func (a adapter) NativeToValue(v any) ref.Val {
	val := a.Adapter.NativeToValue(v)
	if m, ok := val.(traits.Mapper); ok {
		return sorted(m)
	}
	return val
}

// sortMapLiterals is a decorator of programs: the value of {...} in an expression is a
// sorted map.
func sortMapLiterals(i interpreter.InterpretableV2) (interpreter.InterpretableV2, error) {
	if c, ok := i.(interpreter.InterpretableConstructor); ok && c.Type() == types.MapType {
		return &sortedLiteral{c}, nil
	}
	return i, nil
}

type sortedLiteral struct {
	interpreter.InterpretableConstructor
}

// Exec evaluates the literal.
func (l *sortedLiteral) Exec(frame *interpreter.ExecutionFrame) ref.Val {
	val := l.InterpretableConstructor.Exec(frame)
	if m, ok := val.(traits.Mapper); ok {
		return sorted(m)
	}
	return val
}

// Eval evaluates the literal.
func (l *sortedLiteral) Eval(vars interpreter.Activation) ref.Val {
	return interpreter.EvalActivation(vars, l.Exec)
}
