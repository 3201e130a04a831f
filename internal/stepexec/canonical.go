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
// beyond 2^53-1 (an identifier, most likely), one that the canonical form would spell as
// such an integer (1e16), or one beyond the range of a double. What Canonical gives, it
// takes.
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

// spelledWhole is up to where the canonical form spells a double without an exponent.
const spelledWhole = 1e21

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
		if err := checkNumber(token.String(), decoder.StackPointer()); err != nil {
			return err
		}
	}
}

func checkNumber(text string, pointer jsontext.Pointer) error {
	where := ""
	if pointer != "" {
		where = " at " + string(pointer)
	}
	value, err := strconv.ParseFloat(text, 64)
	size := math.Abs(value)
	switch {
	case err != nil:
		return fmt.Errorf("number %s%s is out of range; write it as a string", brief(text), where)
	case size < maxExact:
	case !strings.ContainsAny(text, ".eE"):
		return fmt.Errorf("integer %s%s is beyond 2^53-1 and would lose digits; write it as a string", brief(text), where)
	case size < spelledWhole:
		return fmt.Errorf("number %s%s is an integer beyond 2^53-1 and would lose digits; write it as a string", brief(text), where)
	}
	return nil
}

// brief cuts the digits of a number in a message.
func brief(number string) string {
	const most = 40
	if len(number) <= most {
		return number
	}
	return number[:most] + "…"
}

// SHA256Hex is the sha256 of b in hex.
func SHA256Hex(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
