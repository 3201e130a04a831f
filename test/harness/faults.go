// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"
)

// FaultKind is what becomes of a write. Before: the API server does not get it. After:
// it has done it.
type FaultKind string

// The faults.
const (
	// DieBefore, DieAfter: the manager never gets another byte, nor sends one.
	DieBefore FaultKind = "DieBefore"
	DieAfter  FaultKind = "DieAfter"
	// Conflict is answered with 409, TooMany with 429 and Retry-After, ErrorBefore with
	// 500. None of them is done.
	Conflict    FaultKind = "Conflict"
	TooMany     FaultKind = "TooMany"
	ErrorBefore FaultKind = "ErrorBefore"
	// ErrorAfter is done and answered with 500, TimeoutAfter with 504.
	ErrorAfter   FaultKind = "ErrorAfter"
	TimeoutAfter FaultKind = "TimeoutAfter"
	// ResetBefore, ResetAfter: the connection is reset.
	ResetBefore FaultKind = "ResetBefore"
	ResetAfter  FaultKind = "ResetAfter"
	// FreezeBefore, FreezeAfter: the manager stands still, as Freeze does it.
	FreezeBefore FaultKind = "FreezeBefore"
	FreezeAfter  FaultKind = "FreezeAfter"
	// ActBefore, ActAfter: somebody else acts while the manager waits.
	ActBefore FaultKind = "ActBefore"
	ActAfter  FaultKind = "ActAfter"
)

// Fault strikes one write of a manager.
type Fault struct {
	// At is the write's number, from 1.
	At   int64
	Kind FaultKind
	// RetryAfter is how long TooMany asks to wait, in whole seconds. Default: 1 s.
	RetryAfter time.Duration
	// Act is what ActBefore and ActAfter call. The write waits for it.
	Act func(Write)
}

// Faults is a manager's line to the API server: it numbers the manager's writes, and lets
// faults strike them. Events, Leases, reviews and dry runs count for no write.
type Faults struct {
	faults []Fault
	gate   *gate
	hit    chan struct{}

	mu     sync.Mutex
	left   int
	writes []Write
	frozen []frozenWrite
}

// frozenWrite is a write that stands still.
type frozenWrite struct{ thawed, done chan struct{} }

// NewFaults makes a line on which faults strike. Several may strike one write; of those
// that answer it, the first does.
func NewFaults(list ...Fault) *Faults {
	return &Faults{faults: list, left: len(list), gate: newGate(), hit: make(chan struct{})}
}

// Hit is closed when each of the faults has struck: without any, never.
func (f *Faults) Hit() <-chan struct{} { return f.hit }

// Writes are the writes that were tried so far, by number.
func (f *Faults) Writes() []Write {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.writes)
}

// Die ends the line: no byte gets through any more, in neither direction.
func (f *Faults) Die() { f.gate.set(gateDead) }

// Dead says whether the line has ended.
func (f *Faults) Dead() bool { return f.gate.life.Err() != nil }

// Freeze stops the manager as a process is stopped that gets no processor: what it sends
// and what is sent to it waits for Thaw, however long, and no deadline is noticed.
func (f *Faults) Freeze() { f.gate.set(gateFrozen) }

// Thaw lets a frozen manager go on. A write that was struck goes first, to its end, though
// the manager would have given it up by now; all else follows.
func (f *Faults) Thaw() {
	f.mu.Lock()
	frozen := f.frozen
	f.frozen = nil
	f.mu.Unlock()
	for _, w := range frozen {
		close(w.thawed)
		select {
		case <-w.done:
		case <-f.gate.life.Done():
		}
	}
	f.gate.set(gateOpen)
}

// Cut cuts the network: what is sent waits until the network is healed or the sender's
// deadline has passed.
func (f *Faults) Cut() { f.gate.set(gateCut) }

// Heal ends a Cut.
func (f *Faults) Heal() { f.gate.set(gateOpen) }

// Wrap puts the line between a manager and the API server: see ManagerOptions.Faults.
func (f *Faults) Wrap(next http.RoundTripper) http.RoundTripper {
	return RoundTrip(func(r *http.Request) (*http.Response, error) {
		if err := f.gate.pass(r.Context()); err != nil {
			return nil, err
		}
		if !IsWriteRequest(r) {
			response, err := f.gate.send(r.Context(), r, next)
			return f.receive(r.Context(), response, err)
		}
		body, err := bodyOf(r)
		if err != nil {
			return nil, err
		}
		s := &strike{line: f, next: next, request: r.Clone(r.Context()), body: body}
		s.write, s.faults = f.number(newWrite(r, body))
		return s.do()
	})
}

// receive hands an answer over, as soon as the line lets it through.
func (f *Faults) receive(ctx context.Context, response *http.Response, err error) (*http.Response, error) {
	if closed := f.gate.pass(ctx); closed != nil {
		if err == nil {
			_ = response.Body.Close()
		}
		return nil, closed
	}
	return response, err
}

// number gives a write its number, and finds the faults that strike it.
func (f *Faults) number(w Write) (Write, []Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	w.N = int64(len(f.writes)) + 1
	f.writes = append(f.writes, w)
	var list []Fault
	for _, fault := range f.faults {
		if fault.At == w.N {
			list = append(list, fault)
		}
	}
	return w, list
}

// struck notes that a fault has struck.
func (f *Faults) struck(n int64, kind FaultKind) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.writes[n-1].Struck = append(f.writes[n-1].Struck, kind)
	if f.left--; f.left == 0 {
		close(f.hit)
	}
}

// answered notes what the API server answered.
func (f *Faults) answered(n int64, code int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.writes[n-1].Code = code
}

// freeze stops the manager, and returns when it goes on: with what must be called when
// the write that was struck is over, or nil where the manager has died.
func (f *Faults) freeze(n int64, kind FaultKind) func() {
	w := frozenWrite{thawed: make(chan struct{}), done: make(chan struct{})}
	f.mu.Lock()
	f.frozen = append(f.frozen, w)
	f.Freeze()
	f.mu.Unlock()
	f.struck(n, kind)
	select {
	case <-w.thawed:
		return sync.OnceFunc(func() { close(w.done) })
	case <-f.gate.life.Done():
		return nil
	}
}

// strike is one write on its way.
type strike struct {
	line    *Faults
	next    http.RoundTripper
	request *http.Request
	body    []byte
	write   Write
	faults  []Fault
	over    []func()
}

func (s *strike) has(kind FaultKind) bool {
	return slices.ContainsFunc(s.faults, func(f Fault) bool { return f.Kind == kind })
}

// do takes the write to the API server and its answer back, through all that strikes it.
func (s *strike) do() (*http.Response, error) {
	defer func() {
		for _, over := range s.over {
			over()
		}
	}()
	late, alive := s.pause(ActBefore, FreezeBefore)
	if !alive {
		return nil, ErrCut
	}
	if kind, response, err := s.refuse(); kind != "" {
		s.line.struck(s.write.N, kind)
		return response, err
	}
	ctx := s.request.Context()
	if late {
		ctx = context.WithoutCancel(ctx)
	}
	s.request.Body = http.NoBody
	if len(s.body) > 0 {
		s.request.Body = io.NopCloser(bytes.NewReader(s.body))
	}
	response, err := s.line.gate.send(ctx, s.request, s.next)
	if err != nil {
		return s.line.receive(ctx, nil, err)
	}
	s.write.Code = response.StatusCode
	s.line.answered(s.write.N, response.StatusCode)
	again, alive := s.pause(ActAfter, FreezeAfter)
	if !alive {
		_ = response.Body.Close()
		return nil, ErrCut
	}
	if kind, other, err := s.lose(); kind != "" {
		_ = response.Body.Close()
		s.line.struck(s.write.N, kind)
		return other, err
	}
	if late || again {
		return response, nil
	}
	return s.line.receive(ctx, response, nil)
}

// pause lets somebody act, and freezes the manager.
func (s *strike) pause(act, freeze FaultKind) (frozen, alive bool) {
	for _, f := range s.faults {
		if f.Kind == act {
			f.Act(s.write)
			s.line.struck(s.write.N, act)
		}
	}
	if !s.has(freeze) {
		return false, true
	}
	over := s.line.freeze(s.write.N, freeze)
	if over == nil {
		return true, false
	}
	s.over = append(s.over, over)
	return true, true
}

// refuse is the first fault that keeps the write from the API server, and its answer.
func (s *strike) refuse() (FaultKind, *http.Response, error) {
	for _, f := range s.faults {
		switch f.Kind {
		case DieBefore:
			s.line.Die()
			return f.Kind, nil, ErrCut
		case ResetBefore:
			return f.Kind, nil, errReset()
		case Conflict:
			return f.Kind, answerConflict(s.request), nil
		case TooMany:
			return f.Kind, answerTooMany(s.request, f.RetryAfter), nil
		case ErrorBefore:
			return f.Kind, answerError(s.request), nil
		}
	}
	return "", nil, nil
}

// lose is the first fault that takes the place of the API server's answer.
func (s *strike) lose() (FaultKind, *http.Response, error) {
	for _, f := range s.faults {
		switch f.Kind {
		case DieAfter:
			s.line.Die()
			return f.Kind, nil, ErrCut
		case ResetAfter:
			return f.Kind, nil, errReset()
		case ErrorAfter:
			return f.Kind, answerError(s.request), nil
		case TimeoutAfter:
			return f.Kind, answerTimeout(s.request), nil
		}
	}
	return "", nil, nil
}

// errReset is what a client gets whose connection was reset.
func errReset() error {
	return &net.OpError{Op: "read", Net: "tcp", Err: os.NewSyscallError("read", syscall.ECONNRESET)}
}

// bodyOf reads a request's body, and closes it.
func bodyOf(r *http.Request) ([]byte, error) {
	if r.Body == nil {
		return nil, nil
	}
	defer func() { _ = r.Body.Close() }()
	return io.ReadAll(r.Body)
}
