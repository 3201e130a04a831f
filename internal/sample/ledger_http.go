// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package sample

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// maxBody is the largest effect, in bytes, that the ledger takes: twice the largest
// input of a step.
const maxBody = 256 << 10

// maxName is the longest run, task, step or kind, in bytes.
const maxName = 253

// Handler serves the ledger. Package sample tells what it answers.
//
//	POST   /effects                 perform an effect: the body, any JSON
//	POST   /refunds                 perform a refund: {charge, amount}
//	POST   /effects/raw             perform an effect whatever its key
//	GET    /effects                 list the effects
//	GET    /effects/lookup?key=KEY  {done, output} of a key
//	GET    /refunds?key=KEY         {items} of a key, or all
//	DELETE /effects?task=NAME       forget a task's, or ?all=true
//	GET    /idempotency             how keys are handled
//	GET    /healthz                 ok
//
// Effects carry run, task, step and kind in their query, lists are filtered by the same
// names and key. What is under /admin is for tests; see adminRoutes.
func Handler(l *Ledger) http.Handler {
	h := ledgerHandler{ledger: l, poll: pollTime}
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+pathEffects, h.effect(nil))
	mux.HandleFunc("POST "+pathRaw, h.effect(nil))
	mux.HandleFunc("POST "+pathRefunds, h.effect(checkRefund))
	mux.HandleFunc("GET "+pathEffects, h.list)
	mux.HandleFunc("GET "+pathEffects+"/lookup", h.lookup)
	mux.HandleFunc("GET "+pathRefunds, h.refunds)
	mux.HandleFunc("DELETE "+pathEffects, h.clear)
	mux.HandleFunc("GET "+docsPath, h.docs)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "ok\n")
	})
	h.adminRoutes(mux)
	return mux
}

type ledgerHandler struct {
	ledger *Ledger
	// poll is how long a request may wait for a hold before it is answered.
	poll time.Duration
}

// bodyCheck looks at a resource's body: it gives the answer of a request that is
// processed and has no effect, and why a request is not processed at all.
type bodyCheck func(body []byte) (declined, refused *problem)

// effect performs an effect.
func (h ledgerHandler) effect(check bodyCheck) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		record, p := h.read(w, r)
		if p != nil {
			refuse(w, p)
			return
		}
		asked, err := headerFault(r.Header)
		if err != nil {
			refuse(w, refusal(http.StatusBadRequest, "The fault cannot be read", "%v", err))
			return
		}
		var declined *problem
		if check != nil {
			if declined, p = check(record.Body); p != nil {
				refuse(w, p)
				return
			}
		}
		flight, kept, err := h.ledger.begin(record, declined)
		if err != nil {
			refuse(w, problemOf(err))
			return
		}
		h.process(w, r, passage{record, asked, flight, kept})
	}
}

// read reads the record that a request asks for.
func (h ledgerHandler) read(w http.ResponseWriter, r *http.Request) (Record, *problem) {
	q := r.URL.Query()
	record := Record{Run: q.Get("run"), Task: q.Get("task"), Step: q.Get("step"), Kind: q.Get("kind"), Path: r.URL.Path}
	for _, name := range []string{"run", "task", "step", "kind"} {
		if len(q.Get(name)) > maxName {
			return record, refusal(http.StatusBadRequest, "A name is too long", "%s may have at most %d bytes", name, maxName)
		}
	}
	if record.Path == pathRefunds {
		record.Kind = cmp.Or(record.Kind, "refund")
	}
	var err error
	if record.Key, err = parseKey(r.Header.Values(KeyHeader), h.ledger.Policy.StrictKeys); err != nil {
		return record, keyProblem(err)
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		return record, bodyProblem(err)
	}
	if record.Body, err = canonical(body); err != nil {
		return record, refusal(http.StatusBadRequest, "The body is not JSON", "the body must be one JSON value: %v", err)
	}
	return record, nil
}

// passage is a request on its way: either it has a flight to perform, or the answer that
// is kept of an earlier one.
type passage struct {
	record Record
	asked  *Fault
	flight *flight
	kept   *answer
}

// process answers a request, once its key is free again: who has the answer may ask
// anew.
func (h ledgerHandler) process(w http.ResponseWriter, r *http.Request, p passage) {
	fault, err := h.ledger.faults.strike(p.record, p.asked, p.kept != nil)
	a, refused := p.kept, (*problem)(nil)
	switch {
	case err != nil:
		refused = refusal(http.StatusBadRequest, "There are too many faults", "%v", err)
		h.ledger.end(p.flight)
	case p.flight != nil:
		a, refused = h.carryOut(w, r, p.flight, fault)
	case fault.is(FaultHoldAfter):
		h.hold(w, r, p.record.Key)
	}
	switch {
	case refused != nil:
		refuse(w, refused)
	case fault.is(FaultCutAfter):
		panic(http.ErrAbortHandler)
	case fault.is(FaultGatewayAfter):
		refuse(w, refusal(http.StatusBadGateway, "The answer was lost", "as the fault %s asks", fault.Name))
	default:
		send(w, a, p.kept != nil)
	}
}

// carryOut performs a flight and ends it.
func (h ledgerHandler) carryOut(w http.ResponseWriter, r *http.Request, f *flight, fault *Fault) (*answer, *problem) {
	defer h.ledger.end(f)
	if refused := h.before(w, r, fault, f.record.Key); refused != nil {
		return nil, refused
	}
	a, err := h.ledger.perform(f, faultAnswer(fault))
	if err != nil {
		return nil, problemOf(err)
	}
	if fault.is(FaultHoldAfter) {
		h.hold(w, r, f.record.Key)
	}
	return a, nil
}

// before is what a fault does before the effect; it gives the answer of a request that is
// not performed.
func (h ledgerHandler) before(w http.ResponseWriter, r *http.Request, fault *Fault, key string) *problem {
	switch {
	case fault.is(FaultHoldBefore):
		h.hold(w, r, key)
	case fault.is(FaultCutBefore):
		panic(http.ErrAbortHandler)
	case fault.is(FaultUnavailable):
		w.Header().Set("Retry-After", fault.retryAfter(h.ledger.now()))
		return refusal(http.StatusServiceUnavailable, "The ledger is not available", "nothing was performed, as the fault %s asks", fault.Name)
	case fault.is(FaultErrorBefore):
		return refusal(http.StatusInternalServerError, "The ledger failed", "nothing was performed, as the fault %s asks", fault.Name)
	}
	return nil
}

// faultAnswer is what a fault answers, for good, in place of the record.
func faultAnswer(fault *Fault) *problem {
	if !fault.is(FaultErrorAfter) {
		return nil
	}
	return refusal(http.StatusInternalServerError, "The ledger failed", "this came after the effect, as the fault %s asks", fault.Name)
}

// hold waits until the hold on a key is released. A client that goes does not end it; the
// ledger's own end does, and then there is no answer.
func (h ledgerHandler) hold(w http.ResponseWriter, r *http.Request, key string) {
	// The server's own limits on a request do not count while it is held; whether they
	// can be lifted is the server's to say.
	c := http.NewResponseController(w)
	_ = c.SetReadDeadline(time.Time{})
	_ = c.SetWriteDeadline(time.Time{})
	if err := h.ledger.gates.wait(context.WithoutCancel(r.Context()), key); err != nil {
		panic(http.ErrAbortHandler)
	}
}

// send writes an answer, a new one or one that was given before.
func send(w http.ResponseWriter, a *answer, replayed bool) {
	if replayed {
		w.Header().Set(replayedHeader, "true")
	}
	if a.Problem != nil {
		refuse(w, a.Problem)
		return
	}
	respond(w, a.Status, a.record)
}

// refund is the body of a request to pathRefunds; it may have other fields too.
type refund struct {
	Charge string  `json:"charge"`
	Amount float64 `json:"amount"`
}

// checkRefund declines the refunds of charges whose name ends in declined, so that there
// is an error to be kept.
func checkRefund(body []byte) (declined, refused *problem) {
	var it refund
	err := json.Unmarshal(body, &it)
	if err == nil && (it.Charge == "" || it.Amount <= 0) {
		err = errors.New("charge must be a name, and amount more than 0")
	}
	if err != nil {
		return nil, refusal(http.StatusBadRequest, "The refund cannot be read", "%v", err)
	}
	if strings.HasSuffix(it.Charge, "declined") {
		return refusal(http.StatusPaymentRequired, "The refund is declined", "the charge %q cannot be refunded", it.Charge), nil
	}
	return nil, nil
}

func filterOf(q url.Values) Filter {
	return Filter{Run: q.Get("run"), Task: q.Get("task"), Step: q.Get("step"), Kind: q.Get("kind"), Key: q.Get("key"), Path: q.Get("path")}
}
