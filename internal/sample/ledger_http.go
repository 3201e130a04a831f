// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package sample

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
)

// maxBody is the largest effect, in bytes, that the ledger takes: twice the largest
// input of a step.
const maxBody = 256 << 10

// maxName is the longest task, step or kind, in bytes.
const maxName = 253

// draftURL names what the key's semantics come from.
const draftURL = "https://datatracker.ietf.org/doc/draft-ietf-httpapi-idempotency-key-header/"

// Handler serves the ledger:
//
//	POST   /effects?task=NAME&step=NAME&kind=NAME   record an effect: the body, any JSON
//	GET    /effects?task=NAME                       list them, all or a task's
//	DELETE /effects?task=NAME or ?all=true          forget them, for another demo
//	GET    /healthz                                 ok
func Handler(l *Ledger) http.Handler {
	h := ledgerHandler{l}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /effects", h.add)
	mux.HandleFunc("GET /effects", h.list)
	mux.HandleFunc("DELETE /effects", h.clear)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "ok\n")
	})
	return mux
}

type ledgerHandler struct{ ledger *Ledger }

func (h ledgerHandler) add(w http.ResponseWriter, r *http.Request) {
	key, err := parseKey(r.Header.Values(KeyHeader))
	if err != nil {
		refuseKey(w, http.StatusBadRequest, "Idempotency-Key is missing or cannot be read", err.Error())
		return
	}
	q := r.URL.Query()
	for _, name := range []string{"task", "step", "kind"} {
		if len(q.Get(name)) > maxName {
			refuse(w, http.StatusBadRequest, "A name is too long", fmt.Sprintf("%s may have at most %d bytes", name, maxName))
			return
		}
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		refuseBody(w, err)
		return
	}
	record, fresh, err := h.ledger.Add(Record{Key: key, Task: q.Get("task"), Step: q.Get("step"), Kind: q.Get("kind"), Body: body})
	switch {
	case errors.Is(err, ErrKeyReused):
		refuseKey(w, http.StatusUnprocessableEntity, "Idempotency-Key is already used",
			err.Error()+": send the effect it was first sent with, or another key")
	case errors.Is(err, ErrBody):
		refuse(w, http.StatusBadRequest, "The body is not JSON", err.Error())
	case err != nil:
		refuse(w, http.StatusInternalServerError, "The effect was not recorded", err.Error())
	case fresh:
		answer(w, http.StatusCreated, record)
	default:
		w.Header().Set(replayedHeader, "true")
		answer(w, http.StatusOK, record)
	}
}

func (h ledgerHandler) list(w http.ResponseWriter, r *http.Request) {
	answer(w, http.StatusOK, h.ledger.List(r.URL.Query().Get("task")))
}

func (h ledgerHandler) clear(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	task := q.Get("task")
	if (task == "") == (q.Get("all") != "true") {
		refuse(w, http.StatusBadRequest, "What to forget is not clear", "give either task=NAME or all=true")
		return
	}
	if err := h.ledger.Clear(task); err != nil {
		refuse(w, http.StatusInternalServerError, "Nothing was forgotten", err.Error())
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// problem is the body of an answer that refuses (RFC 9457).
type problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
}

func refuse(w http.ResponseWriter, status int, title, detail string) {
	refuseAs(w, problem{Type: "about:blank", Title: title, Status: status, Detail: detail})
}

// refuseKey refuses because of the key, and names the document that says why.
func refuseKey(w http.ResponseWriter, status int, title, detail string) {
	refuseAs(w, problem{Type: draftURL, Title: title, Status: status, Detail: detail})
}

func refuseAs(w http.ResponseWriter, p problem) {
	w.Header().Set("Content-Type", "application/problem+json")
	write(w, p.Status, p)
}

func refuseBody(w http.ResponseWriter, err error) {
	var large *http.MaxBytesError
	if errors.As(err, &large) {
		refuse(w, http.StatusRequestEntityTooLarge, "The body is too large", fmt.Sprintf("an effect may have at most %d bytes", large.Limit))
		return
	}
	refuse(w, http.StatusBadRequest, "The body could not be read", err.Error())
}

func answer(w http.ResponseWriter, status int, v any) {
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
