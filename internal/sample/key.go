// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package sample

import (
	"errors"
	"fmt"
	"strings"
)

// maxKey is the longest idempotency key, in bytes, that the ledger takes.
const maxKey = 255

// KeyHeader is the request header that carries the idempotency key.
const KeyHeader = "Idempotency-Key"

// draftURL is the specification of the header.
const draftURL = "https://datatracker.ietf.org/doc/draft-ietf-httpapi-idempotency-key-header/"

// replayedHeader marks an answer that repeats an earlier one.
const replayedHeader = "Idempotent-Replayed"

// quoteKey writes a key as the draft asks: a String of structured fields (RFC 9651,
// section 3.3.3).
func quoteKey(key string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(key) + `"`
}

// errNoKey: there is no key to be read.
var errNoKey = fmt.Errorf("the request has no %s header: send one that is the same for every repeat of this effect", KeyHeader)

// parseKey reads a key from the header's values, as a String of structured fields or,
// unless strict, bare, as many clients send it: "abc" and abc are the same key.
func parseKey(values []string, strict bool) (string, error) {
	switch len(values) {
	case 0:
		return "", errNoKey
	case 1:
	default:
		return "", fmt.Errorf("the request has %d %s headers: send one", len(values), KeyHeader)
	}
	key, err := strings.Trim(values[0], " \t"), error(nil)
	switch {
	case strings.HasPrefix(key, `"`):
		key, err = unquoteKey(key)
	case strict && key != "":
		err = errors.New("it does not stand in quotation marks, which this ledger insists on")
	case strings.Contains(key, `"`):
		err = errors.New("there is a quotation mark inside")
	}
	if err == nil {
		err = checkKey(key)
	}
	if err != nil {
		return "", fmt.Errorf("%s cannot be read: %w; send up to %d printable ASCII characters, in quotation marks", KeyHeader, err, maxKey)
	}
	return key, nil
}

func checkKey(key string) error {
	if key == "" {
		return errors.New("it is empty")
	}
	if len(key) > maxKey {
		return fmt.Errorf("it has %d characters", len(key))
	}
	for _, c := range []byte(key) {
		if c < ' ' || c > '~' {
			return fmt.Errorf("it holds the byte 0x%02x", c)
		}
	}
	return nil
}

// unquoteKey reads a String. What may follow it, parameters, says nothing about the
// key and is ignored.
func unquoteKey(s string) (string, error) {
	var key strings.Builder
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '"':
			if rest := strings.TrimLeft(s[i+1:], " "); rest != "" && rest[0] != ';' {
				return "", errors.New("something follows the closing quotation mark")
			}
			return key.String(), nil
		case '\\':
			i++
			if i == len(s) || (s[i] != '"' && s[i] != '\\') {
				return "", errors.New(`a backslash may stand only before " and \`)
			}
		}
		key.WriteByte(s[i])
	}
	return "", errors.New("the closing quotation mark is missing")
}
