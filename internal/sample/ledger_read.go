// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package sample

import (
	"net/http"
)

func (h ledgerHandler) list(w http.ResponseWriter, r *http.Request) {
	respond(w, http.StatusOK, h.ledger.List(filterOf(r.URL.Query())))
}

// refunds lists the refunds alone, as such a resource does.
func (h ledgerHandler) refunds(w http.ResponseWriter, r *http.Request) {
	f := filterOf(r.URL.Query())
	f.Path = pathRefunds
	respond(w, http.StatusOK, map[string]any{"items": h.ledger.List(f)})
}

// lookupAnswer is what a step's check answers.
type lookupAnswer struct {
	// Done says whether an effect was performed under the key.
	Done bool `json:"done"`
	// Output is its record.
	Output *Record `json:"output,omitempty"`
}

func (h ledgerHandler) lookup(w http.ResponseWriter, r *http.Request) {
	key := r.URL.Query().Get("key")
	if key == "" {
		refuse(w, refusal(http.StatusBadRequest, "The key is missing", "give it as key=KEY"))
		return
	}
	record, err := h.ledger.Lookup(key)
	if err != nil {
		refuse(w, problemOf(err))
		return
	}
	respond(w, http.StatusOK, lookupAnswer{Done: record != nil, Output: record})
}

func (h ledgerHandler) clear(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	task := q.Get("task")
	if (task == "") == (q.Get("all") != "true") {
		refuse(w, refusal(http.StatusBadRequest, "What to forget is not clear", "give either task=NAME or all=true"))
		return
	}
	if err := h.ledger.Clear(task); err != nil {
		refuse(w, refusal(http.StatusInternalServerError, "Nothing was forgotten", "%v", err))
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// keyDocs is the published handling of keys.
type keyDocs struct {
	Header        string            `json:"header"`
	Specification string            `json:"specification"`
	RequiredBy    []string          `json:"requiredBy"`
	Syntax        string            `json:"syntax"`
	BareAccepted  bool              `json:"bareAccepted"`
	MaxLength     int               `json:"maxLength"`
	TTL           string            `json:"ttl"`
	TTLSeconds    int64             `json:"ttlSeconds"`
	Expiry        string            `json:"expiry"`
	Fingerprint   string            `json:"fingerprint"`
	Replay        string            `json:"replay"`
	Problems      map[string]string `json:"problems"`
}

func (h ledgerHandler) docs(w http.ResponseWriter, _ *http.Request) {
	policy := h.ledger.Policy
	respond(w, http.StatusOK, keyDocs{
		Header:        KeyHeader,
		Specification: draftURL,
		RequiredBy:    []string{"POST " + pathEffects, "POST " + pathRefunds, "POST " + pathRaw + " (as a name: it performs the effect each time)"},
		Syntax:        "a String of structured fields (RFC 9651): printable ASCII in quotation marks",
		BareAccepted:  !policy.StrictKeys,
		MaxLength:     maxKey,
		TTL:           policy.keyTTL().String(),
		TTLSeconds:    int64(policy.keyTTL().Seconds()),
		Expiry:        "counted from when the request was performed; an expired key is a new one",
		Fingerprint:   "sha256 over method, path, kind and body as canonical JSON (RFC 8785)",
		Replay:        "a repeat gets the first answer again, a success or an error, with " + replayedHeader + ": true",
		Problems: map[string]string{
			"missing":   "400: the request has no key",
			"malformed": "400: the key does not have the syntax above",
			"in-flight": "409: the first request with the key has no answer yet; send the same again later",
			"reused":    "422: the key was sent with another fingerprint before; use a new key for a new effect",
		},
	})
}
