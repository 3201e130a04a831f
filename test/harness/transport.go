// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"errors"
	"io"
	"net/http"
	"sync/atomic"
)

// ErrCut is what a client gets whose connection was cut.
var ErrCut = errors.New("the connection to the API server was cut")

// RoundTrip is a function that is a http.RoundTripper.
type RoundTrip func(*http.Request) (*http.Response, error)

// RoundTrip calls f.
func (f RoundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// Each makes a Wrap of a function that stands in for each request: it may answer
// itself, or call next before or after what it does.
func Each(f func(r *http.Request, next http.RoundTripper) (*http.Response, error)) func(http.RoundTripper) http.RoundTripper {
	return func(next http.RoundTripper) http.RoundTripper {
		return RoundTrip(func(r *http.Request) (*http.Response, error) { return f(r, next) })
	}
}

// Flaky loses a share of a client's writes: their request or their answer, in turn. The
// n-th write, counted over all, is lost where Lose(n) says so.
type Flaky struct {
	Lose   func(n int64) bool
	writes atomic.Int64
	lost   atomic.Int64
}

// Lost is how many writes were lost so far, one way or the other.
func (f *Flaky) Lost() int64 { return f.lost.Load() }

// Wrap is for ManagerOptions.
func (f *Flaky) Wrap(next http.RoundTripper) http.RoundTripper {
	return RoundTrip(func(r *http.Request) (*http.Response, error) {
		if !IsWriteRequest(r) || !f.Lose(f.writes.Add(1)) {
			return next.RoundTrip(r)
		}
		if f.lost.Add(1)%2 == 0 {
			discard(next.RoundTrip(r))
		}
		return nil, ErrCut
	})
}

func discard(response *http.Response, err error) {
	if err == nil {
		_, _ = io.Copy(io.Discard, response.Body)
		_ = response.Body.Close()
	}
}
