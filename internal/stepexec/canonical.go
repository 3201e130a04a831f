// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package stepexec

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"

	"github.com/go-json-experiment/json/jsontext"
)

// Canonical gives the RFC 8785 canonical form of a JSON document: one spelling for
// each value, whatever the order of its members and the spelling of its numbers.
// Duplicate names, invalid UTF-8 and text after the document are errors.
func Canonical(doc []byte) ([]byte, error) {
	v := jsontext.Value(bytes.Clone(doc))
	if err := v.Canonicalize(); err != nil {
		return nil, err
	}
	return v, nil
}

// SHA256Hex is the sha256 of b in hex.
func SHA256Hex(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
