// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package sample

import (
	"fmt"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// FaultHeader asks for a fault in the request itself: a name and its parameters, for
// example "unavailable; times=2; retry-after=3".
const FaultHeader = "Ledger-Fault"

// Faults that the ledger has on purpose. Those before the effect perform nothing and keep
// nothing of the request.
const (
	// FaultHoldBefore performs the effect only when the hold on its key is released.
	FaultHoldBefore = "hold-before"
	// FaultHoldAfter performs the effect and answers when the hold is released.
	FaultHoldAfter = "hold-after"
	// FaultCutBefore closes the connection, and performs nothing.
	FaultCutBefore = "cut-before"
	// FaultCutAfter performs the effect, and closes the connection without an answer.
	FaultCutAfter = "cut-after"
	// FaultUnavailable answers 503 with Retry-After, and performs nothing.
	FaultUnavailable = "unavailable"
	// FaultErrorBefore answers 500, and performs nothing.
	FaultErrorBefore = "error-before"
	// FaultErrorAfter performs the effect and answers 500: that is the answer which is
	// kept, so that every repeat gets it too.
	FaultErrorAfter = "error-after"
	// FaultGatewayAfter performs the effect and answers 502, as a proxy does that has
	// lost the answer: a repeat gets the record.
	FaultGatewayAfter = "gateway-after"
)

var faultNames = []string{
	FaultHoldBefore, FaultHoldAfter, FaultCutBefore, FaultCutAfter,
	FaultUnavailable, FaultErrorBefore, FaultErrorAfter, FaultGatewayAfter,
}

// Bounds of faults.
const (
	maxFaults     = 1000
	maxTimes      = 1000
	maxRetryAfter = 3600 // seconds
)

// Fault is a fault and the requests that it strikes.
type Fault struct {
	Name string `json:"fault"`
	// Key, Task and Step say which requests; an empty one is any.
	Key  string `json:"key,omitempty"`
	Task string `json:"task,omitempty"`
	Step string `json:"step,omitempty"`
	// Times is how many requests it strikes, 1 to 1000.
	Times int `json:"times"`
	// RetryAfter is what FaultUnavailable tells to wait, in seconds, and RetryDate
	// whether it tells it as a date.
	RetryAfter int  `json:"retryAfter,omitempty"`
	RetryDate  bool `json:"retryDate,omitempty"`
	// Struck is how many requests it has struck.
	Struck int `json:"struck"`

	// fromHeader: it came with a request, and its repeats are not further ones.
	fromHeader bool
}

// is says whether the fault, which may be nil, is one of these.
func (f *Fault) is(names ...string) bool { return f != nil && slices.Contains(names, f.Name) }

// strikesReplays: it is about the answer, whoever gets it.
func (f *Fault) strikesReplays() bool { return f.is(FaultHoldAfter, FaultCutAfter, FaultGatewayAfter) }

// retryAfter is the value of the header Retry-After.
func (f *Fault) retryAfter(now time.Time) string {
	if f.RetryDate {
		return now.Add(time.Duration(f.RetryAfter) * time.Second).UTC().Format(http.TimeFormat)
	}
	return strconv.Itoa(f.RetryAfter)
}

// newFault reads a fault's parameters: times, and retry-after or retry-date.
func newFault(name string, params map[string]string) (*Fault, error) {
	f := &Fault{Name: name, Times: 1}
	if !slices.Contains(faultNames, name) {
		return nil, fmt.Errorf("there is no fault %q: give one of %s", name, strings.Join(faultNames, ", "))
	}
	if f.is(FaultUnavailable) {
		f.RetryAfter = 1
	}
	for _, param := range slices.Sorted(maps.Keys(params)) {
		value, most := &f.Times, maxTimes
		switch param {
		case "times":
		case "retry-after", "retry-date":
			if !f.is(FaultUnavailable) {
				return nil, fmt.Errorf("%s is for the fault %s only", param, FaultUnavailable)
			}
			value, most, f.RetryDate = &f.RetryAfter, maxRetryAfter, param == "retry-date"
		default:
			return nil, fmt.Errorf("faults have no parameter %q: give times, retry-after or retry-date", param)
		}
		n, err := strconv.Atoi(params[param])
		if err != nil || n > most || n < 0 || (param == "times" && n == 0) {
			return nil, fmt.Errorf("%s is %q: give a number up to %d", param, params[param], most)
		}
		*value = n
	}
	return f, nil
}

// headerFault reads the fault that a request asks for; nil: none.
func headerFault(h http.Header) (*Fault, error) {
	text := h.Get(FaultHeader)
	if text == "" {
		return nil, nil
	}
	name, params, err := mime.ParseMediaType(text)
	if err != nil {
		return nil, fmt.Errorf("%s cannot be read: %w", FaultHeader, err)
	}
	return newFault(name, params)
}

// queryFault reads the fault that a request to the faults' own resource is about.
func queryFault(q url.Values) (*Fault, error) {
	params := map[string]string{}
	for name := range q {
		switch name {
		case "fault", "key", "task", "step":
		default:
			params[name] = q.Get(name)
		}
	}
	f, err := newFault(q.Get("fault"), params)
	if err != nil {
		return nil, err
	}
	f.Key, f.Task, f.Step = q.Get("key"), q.Get("task"), q.Get("step")
	return f, nil
}

// faults are the faults that are set, in memory only.
type faults struct {
	mu  sync.Mutex
	set []*Fault
}

// add sets a fault.
func (fs *faults) add(f *Fault) error {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return fs.addLocked(f)
}

func (fs *faults) addLocked(f *Fault) error {
	if len(fs.set) >= maxFaults {
		return fmt.Errorf("there are %d faults already: forget them with DELETE /admin/faults", maxFaults)
	}
	fs.set = append(fs.set, f)
	return nil
}

// strike gives the first fault that strikes this request; nil: none. asked is the one
// that the request itself asks for. replay: the effect was performed before.
func (fs *faults) strike(r Record, asked *Fault, replay bool) (*Fault, error) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if asked != nil && !slices.ContainsFunc(fs.set, func(f *Fault) bool {
		return f.fromHeader && f.Name == asked.Name && f.Key == r.Key
	}) {
		asked.Key, asked.fromHeader = r.Key, true
		if err := fs.addLocked(asked); err != nil {
			return nil, err
		}
	}
	for _, f := range fs.set {
		if f.Struck < f.Times && allowed(f.Key, r.Key) && allowed(f.Task, r.Task) && allowed(f.Step, r.Step) &&
			(!replay || f.strikesReplays()) && (!f.fromHeader || asked.is(f.Name)) {
			f.Struck++
			struck := *f
			return &struck, nil
		}
	}
	return nil, nil
}

// list gives the faults in the order in which they were set.
func (fs *faults) list() []Fault {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	list := []Fault{}
	for _, f := range fs.set {
		list = append(list, *f)
	}
	return list
}

// forget takes all faults away.
func (fs *faults) forget() {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	fs.set = nil
}
