// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package sample

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
)

// docsPath is the resource that tells how the ledger handles keys.
const docsPath = "/idempotency"

// Types of the problems with a key: each is explained in the resource it names.
const (
	typeMissing   = docsPath + "#missing"
	typeMalformed = docsPath + "#malformed"
	typeInFlight  = docsPath + "#in-flight"
	typeReused    = docsPath + "#reused"
)

// problem is the body of an answer that refuses (RFC 9457).
type problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
}

// refusal is a problem that has nothing to do with the key.
func refusal(status int, title, format string, args ...any) *problem {
	return &problem{Type: "about:blank", Title: title, Status: status, Detail: fmt.Sprintf(format, args...)}
}

// keyProblem is what is wrong with a request's key.
func keyProblem(err error) *problem {
	if errors.Is(err, errNoKey) {
		return &problem{Type: typeMissing, Title: "Idempotency-Key is missing", Status: http.StatusBadRequest, Detail: err.Error()}
	}
	return &problem{Type: typeMalformed, Title: "Idempotency-Key cannot be read", Status: http.StatusBadRequest, Detail: err.Error()}
}

// problemOf is why the ledger did not do what it was asked for.
func problemOf(err error) *problem {
	switch {
	case errors.Is(err, ErrInFlight):
		return &problem{
			Type: typeInFlight, Title: "Idempotency-Key is in flight", Status: http.StatusConflict,
			Detail: err.Error() + ": send this one again when it has been answered",
		}
	case errors.Is(err, ErrKeyReused):
		return &problem{
			Type: typeReused, Title: "Idempotency-Key is already used", Status: http.StatusUnprocessableEntity,
			Detail: err.Error() + ": send the effect it was first sent with, or another key",
		}
	case errors.Is(err, errStopping):
		return refusal(http.StatusServiceUnavailable, "The ledger is stopping", "%v", err)
	}
	return refusal(http.StatusInternalServerError, "The effect was not recorded", "%v", err)
}

// bodyProblem is why a request's body could not be read.
func bodyProblem(err error) *problem {
	var large *http.MaxBytesError
	if errors.As(err, &large) {
		return refusal(http.StatusRequestEntityTooLarge, "The body is too large", "an effect may have at most %d bytes", large.Limit)
	}
	return refusal(http.StatusBadRequest, "The body could not be read", "%v", err)
}

func refuse(w http.ResponseWriter, p *problem) {
	w.Header().Set("Content-Type", "application/problem+json")
	switch p.Type {
	case typeInFlight:
		w.Header().Set("Retry-After", "1")
		fallthrough
	case typeMissing, typeMalformed, typeReused:
		w.Header().Set("Link", "<"+docsPath+`>; rel="describedby"`)
	}
	write(w, p.Status, p)
}

func respond(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	write(w, status, v)
}

func write(w http.ResponseWriter, status int, v any) {
	w.WriteHeader(status)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	// An error here is a client that has gone; it will ask again with its key.
	_ = enc.Encode(v)
}
