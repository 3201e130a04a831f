// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package expr

import (
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/agenttask-dev/agenttask/internal/stepexec"
)

const (
	// maxOutput is how large a rendered document may be, in bytes.
	maxOutput = 1 << 20
	// maxDepth is how deep a value may be nested.
	maxDepth = 200
)

var errTooLarge = fmt.Errorf("the result is larger than %d bytes", maxOutput)

// appendJSON appends a value's JSON. Its order of members is that of the keys, but its
// spelling is not yet canonical.
func appendJSON(b []byte, v ref.Val, depth int) ([]byte, error) {
	if len(b) > maxOutput {
		return nil, errTooLarge
	}
	if depth > maxDepth {
		return nil, fmt.Errorf("the result is nested deeper than %d levels", maxDepth)
	}
	switch v := v.(type) {
	case types.Null:
		return append(b, "null"...), nil
	case types.Bool:
		return strconv.AppendBool(b, bool(v)), nil
	case types.Int:
		if v > maxSafeInteger || v < -maxSafeInteger {
			return nil, unsafeInteger(strconv.FormatInt(int64(v), 10))
		}
		return strconv.AppendInt(b, int64(v), 10), nil
	case types.Uint:
		if v > maxSafeInteger {
			return nil, unsafeInteger(strconv.FormatUint(uint64(v), 10))
		}
		return strconv.AppendUint(b, uint64(v), 10), nil
	case bigInteger:
		return nil, unsafeInteger(string(v))
	case types.Double:
		return appendDouble(b, float64(v))
	case *types.Optional:
		if !v.HasValue() {
			return nil, errors.New("an optional value that is not set: give a default with .orValue(...)")
		}
		return appendJSON(b, v.GetValue(), depth+1)
	case traits.Mapper:
		return appendObject(b, v, depth)
	case traits.Lister:
		return appendArray(b, v, depth)
	}
	if s, ok := spelling(v); ok {
		return appendString(b, s)
	}
	return nil, fmt.Errorf("a value of type %s has no JSON form", v.Type().TypeName())
}

func appendArray(b []byte, l traits.Lister, depth int) ([]byte, error) {
	b = append(b, '[')
	var err error
	for it, first := l.Iterator(), true; it.HasNext() == types.True; first = false {
		if !first {
			b = append(b, ',')
		}
		if b, err = appendJSON(b, it.Next(), depth+1); err != nil {
			return nil, err
		}
	}
	return append(b, ']'), nil
}

func appendObject(b []byte, m traits.Mapper, depth int) ([]byte, error) {
	b = append(b, '{')
	seen := map[string]bool{}
	for i, key := range sorted(m).sortedKeys() {
		name, err := memberName(key)
		if err != nil {
			return nil, err
		}
		if seen[name] {
			return nil, fmt.Errorf("two keys of a map are both spelled %q in JSON", name)
		}
		seen[name] = true
		if i > 0 {
			b = append(b, ',')
		}
		if b, err = appendString(b, name); err != nil {
			return nil, err
		}
		val, _ := m.Find(key)
		if b, err = appendJSON(append(b, ':'), val, depth+1); err != nil {
			return nil, err
		}
	}
	return append(b, '}'), nil
}

func memberName(key ref.Val) (string, error) {
	switch k := key.(type) {
	case types.String:
		return string(k), nil
	case types.Bool, types.Int, types.Uint:
		return fmt.Sprint(k.Value()), nil
	}
	return "", fmt.Errorf("a map key of type %s has no JSON form", key.Type().TypeName())
}

// appendText appends a value to text.
func appendText(b []byte, v ref.Val) ([]byte, error) {
	switch v := v.(type) {
	case types.Bool:
		return strconv.AppendBool(b, bool(v)), nil
	case types.Int:
		return strconv.AppendInt(b, int64(v), 10), nil
	case types.Uint:
		return strconv.AppendUint(b, uint64(v), 10), nil
	case bigInteger:
		return append(b, v...), nil
	case types.Double:
		return appendDouble(b, float64(v))
	case *types.Optional:
		if v.HasValue() {
			return appendText(b, v.GetValue())
		}
		return nil, errors.New("an optional value that is not set cannot be put into text: give a default with .orValue(...)")
	}
	if s, ok := spelling(v); ok {
		return append(b, s...), nil
	}
	return nil, notText(typeWord(v))
}

// notText says what to do with a value that text cannot hold.
func notText(what string) error {
	return fmt.Errorf("%s cannot be put into text: let the string be this one ${...} alone, or write ${json(...)}", what)
}

func typeWord(v ref.Val) string {
	switch v.(type) {
	case types.Null:
		return "null"
	case traits.Mapper:
		return "a map"
	case traits.Lister:
		return "a list"
	}
	return "a value of type " + v.Type().TypeName()
}

// spelling is the text of the values that JSON holds as strings.
func spelling(v ref.Val) (string, bool) {
	switch v := v.(type) {
	case types.String:
		return string(v), true
	case types.Bytes:
		return base64.StdEncoding.EncodeToString(v), true
	case types.Timestamp:
		return v.Time.UTC().Format(time.RFC3339Nano), true
	case types.Duration:
		return v.Duration.String(), true
	}
	return "", false
}

// appendDouble spells a double as RFC 8785 does.
func appendDouble(b []byte, f float64) ([]byte, error) {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return nil, fmt.Errorf("%v is not a JSON number", f)
	}
	doc, err := stepexec.Canonical(strconv.AppendFloat(nil, f, 'g', -1, 64))
	return append(b, doc...), err
}

func appendString(b []byte, s string) ([]byte, error) {
	b, err := jsontext.AppendQuote(b, s)
	if err != nil {
		return nil, errors.New("text is not valid UTF-8: encode it with base64.encode(...)")
	}
	return b, nil
}

func unsafeInteger(s string) error {
	return fmt.Errorf("integer %s is beyond ±%d and would lose digits in canonical JSON: write it as a string", shorten(s, 40), maxSafeInteger)
}
