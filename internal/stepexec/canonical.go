// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package stepexec

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// Canonical gives the RFC 8785 canonical form of a JSON document: one spelling for
// each value, whatever the order of its members and the spelling of its numbers.
// Duplicate names, invalid UTF-8 and text after the document are errors. So is a number
// that the canonical form cannot keep, which RFC 8785 would silently change: an integer
// beyond 2^53-1 (an identifier, most likely), or one beyond the range of a double.
func Canonical(doc []byte) ([]byte, error) {
	v := jsontext.Value(bytes.Clone(doc))
	if err := v.Canonicalize(); err != nil {
		return nil, err
	}
	return v, checkNumbers(doc)
}

// maxExact is up to where every integer is a double: 2^53, which itself is refused
// since 2^53+1 reads as it.
const maxExact = 1 << 53

func checkNumbers(doc []byte) error {
	decoder := jsontext.NewDecoder(bytes.NewReader(doc))
	for {
		token, err := decoder.ReadToken()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case token.Kind() != '0':
			continue
		}
		text := token.String()
		value, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return fmt.Errorf("number %s at %s is out of range; write it as a string", text, decoder.StackPointer())
		}
		if !strings.ContainsAny(text, ".eE") && math.Abs(value) >= maxExact {
			return fmt.Errorf("integer %s at %s is beyond 2^53-1 and would lose digits; write it as a string", text, decoder.StackPointer())
		}
	}
}

// SHA256Hex is the sha256 of b in hex.
func SHA256Hex(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
