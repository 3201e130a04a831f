// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package expr

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"strings"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"github.com/go-json-experiment/json/jsontext"
)

// maxSafeInteger is the largest integer that every double-based JSON reader keeps, and
// that RFC 8785 spells digit for digit.
const maxSafeInteger = 1<<53 - 1

// decode reads a JSON document into CEL values.
func decode(doc []byte) (ref.Val, error) {
	dec := jsontext.NewDecoder(bytes.NewReader(doc))
	v, err := decodeValue(dec)
	if err != nil {
		return nil, jsonError(err)
	}
	if _, err := dec.ReadToken(); !errors.Is(err, io.EOF) {
		return nil, errors.New("text after the JSON document")
	}
	return v, nil
}

func decodeValue(dec *jsontext.Decoder) (ref.Val, error) {
	tok, err := dec.ReadToken()
	if err != nil {
		return nil, err
	}
	switch tok.Kind() {
	case jsontext.KindNull:
		return types.NullValue, nil
	case jsontext.KindTrue, jsontext.KindFalse:
		return types.Bool(tok.Bool()), nil
	case jsontext.KindString:
		return types.String(tok.String()), nil
	case jsontext.KindNumber:
		return decodeNumber(tok.String())
	case jsontext.KindBeginArray:
		elems := []ref.Val{}
		for dec.PeekKind() != jsontext.KindEndArray {
			v, err := decodeValue(dec)
			if err != nil {
				return nil, err
			}
			elems = append(elems, v)
		}
		_, err := dec.ReadToken()
		return types.NewRefValList(adapter{types.DefaultTypeAdapter}, elems), err
	}
	members := map[string]any{}
	for dec.PeekKind() != jsontext.KindEndObject {
		name, err := dec.ReadToken()
		if err != nil {
			return nil, err
		}
		key := name.String()
		if members[key], err = decodeValue(dec); err != nil {
			return nil, err
		}
	}
	_, err = dec.ReadToken()
	return newMap(members), err
}

// newMap makes a sorted CEL map of CEL values.
func newMap(members map[string]any) ref.Val {
	return sorted(types.NewStringInterfaceMap(adapter{types.DefaultTypeAdapter}, members))
}

// isInteger reports whether a JSON number is spelled without fraction and exponent.
func isInteger(number string) bool { return !strings.ContainsAny(number, ".eE") }

func decodeNumber(s string) (ref.Val, error) {
	if !isInteger(s) {
		f, err := strconv.ParseFloat(s, 64)
		if err != nil {
			return nil, fmt.Errorf("number %s is beyond a double's range: write it as a string", shorten(s, 40))
		}
		return types.Double(f), nil
	}
	if n, err := strconv.ParseInt(s, 10, 64); err == nil {
		return types.Int(n), nil
	}
	if n, err := strconv.ParseUint(s, 10, 64); err == nil {
		return types.Uint(n), nil
	}
	return bigInteger(s), nil
}

// jsonError drops the package prefix of a JSON reader's error.
func jsonError(err error) error {
	return errors.New(strings.TrimPrefix(err.Error(), "jsontext: "))
}

// bigIntegerType is the CEL type of integers beyond 64 bits.
var bigIntegerType = types.NewOpaqueType("integer beyond 64 bits")

// bigInteger is an integer beyond 64 bits, as it was spelled. It can be compared for
// equality and made a string.
type bigInteger string

// ConvertToNative is not possible.
func (b bigInteger) ConvertToNative(t reflect.Type) (any, error) {
	return nil, fmt.Errorf("integer %s does not fit %v", string(b), t)
}

// ConvertToType makes it a string, and nothing else.
func (b bigInteger) ConvertToType(t ref.Type) ref.Val {
	switch t {
	case types.StringType:
		return types.String(b)
	case types.TypeType:
		return bigIntegerType
	}
	return types.NewErr("integer %s is beyond 64 bits", shorten(string(b), 40))
}

// Equal compares digit by digit.
func (b bigInteger) Equal(other ref.Val) ref.Val {
	o, ok := other.(bigInteger)
	return types.Bool(ok && o == b)
}

// Type is the CEL type.
func (b bigInteger) Type() ref.Type { return bigIntegerType }

// Value is the spelling.
func (b bigInteger) Value() any { return string(b) }
