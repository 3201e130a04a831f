// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package sample

import (
	"context"
	"errors"
	"net/http"
	"time"
)

// pollTime is how long a request waits for a hold before it is answered: less than what
// client and server allow for a request.
const pollTime = 8 * time.Second

// waitPath is where a program waits for the release of a hold.
const waitPath = "/admin/wait"

// adminRoutes are the resources by which a test has the ledger fail on purpose:
//
//	POST   /admin/hold?key=KEY&when=before   hold the next request with a key before its effect
//	       (the default), or after it; when=program holds only programs that wait for it
//	POST   /admin/release?key=KEY            let go what is held, and who comes later; or ?all=true
//	GET    /admin/holds                      [{key, waiting, released}]
//	GET    /admin/wait?key=KEY               wait for the release: 200, or 204 when it is time to
//	       ask again; &for=held waits until somebody is held
//	POST   /admin/faults?fault=NAME          set a fault; &key=, &task=, &step= say for which
//	       requests, &times= for how many; &retry-after= or &retry-date=, in seconds
//	GET    /admin/faults                     the faults and how often they struck
//	DELETE /admin/faults                     forget all faults and holds, and let go what is held
func (h ledgerHandler) adminRoutes(mux *http.ServeMux) {
	mux.HandleFunc("POST /admin/hold", h.setHold)
	mux.HandleFunc("POST /admin/release", h.release)
	mux.HandleFunc("GET /admin/holds", func(w http.ResponseWriter, _ *http.Request) {
		respond(w, http.StatusOK, h.ledger.gates.list())
	})
	mux.HandleFunc("GET "+waitPath, h.wait)
	mux.HandleFunc("POST /admin/faults", h.setFault)
	mux.HandleFunc("GET /admin/faults", func(w http.ResponseWriter, _ *http.Request) {
		respond(w, http.StatusOK, h.ledger.faults.list())
	})
	mux.HandleFunc("DELETE /admin/faults", func(w http.ResponseWriter, _ *http.Request) {
		h.ledger.faults.forget()
		h.ledger.gates.releaseAll(true)
		w.WriteHeader(http.StatusNoContent)
	})
}

// refuseAdmin answers a request that makes no sense.
func refuseAdmin(w http.ResponseWriter, err error) {
	refuse(w, refusal(http.StatusBadRequest, "This cannot be set", "%v", err))
}

func (h ledgerHandler) setHold(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	key := q.Get("key")
	fault, known := map[string]string{
		"": FaultHoldBefore, "before": FaultHoldBefore, "after": FaultHoldAfter, "program": "",
	}[q.Get("when")]
	if key == "" || !known || len(key) > maxKey {
		refuseAdmin(w, errors.New("give key=KEY, and when=before, after or program"))
		return
	}
	err := h.ledger.gates.close(key)
	if err == nil && fault != "" {
		err = h.ledger.faults.add(&Fault{Name: fault, Key: key, Times: 1})
	}
	if err != nil {
		refuseAdmin(w, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func (h ledgerHandler) release(w http.ResponseWriter, r *http.Request) {
	key, all := r.URL.Query().Get("key"), r.URL.Query().Get("all") == "true"
	if (key == "") != all || len(key) > maxKey {
		refuseAdmin(w, errors.New("give either key=KEY or all=true"))
		return
	}
	if all {
		h.ledger.gates.releaseAll(false)
	} else if err := h.ledger.gates.release(key); err != nil {
		refuseAdmin(w, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func (h ledgerHandler) wait(w http.ResponseWriter, r *http.Request) {
	key := r.URL.Query().Get("key")
	wait, known := map[string]func(context.Context, string) error{
		"": h.ledger.gates.wait, "release": h.ledger.gates.wait, "held": h.ledger.gates.waitHeld,
	}[r.URL.Query().Get("for")]
	if key == "" || !known || len(key) > maxKey {
		refuseAdmin(w, errors.New("give key=KEY, and for=release or held"))
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), h.poll)
	defer cancel()
	switch err := wait(ctx, key); {
	case err == nil:
		respond(w, http.StatusOK, map[string]string{"key": key})
	case errors.Is(err, errStopping):
		refuse(w, problemOf(err))
	case ctx.Err() != nil:
		w.WriteHeader(http.StatusNoContent)
	default:
		refuseAdmin(w, err)
	}
}

func (h ledgerHandler) setFault(w http.ResponseWriter, r *http.Request) {
	fault, err := queryFault(r.URL.Query())
	if err == nil {
		err = h.ledger.faults.add(fault)
	}
	if err != nil {
		refuseAdmin(w, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}
