// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package runner

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
)

// hand is a clock that the test moves by hand.
type hand struct {
	// asked gets each wait that is asked for, where it is not nil.
	asked chan time.Duration
	// passed lets a wait end.
	passed map[time.Duration]chan time.Time
}

func (h *hand) after(d time.Duration) <-chan time.Time {
	if h.asked != nil {
		h.asked <- d
	}
	return h.passed[d]
}

// stage is how far a request has come when the test acts, at a server of its own.
type stage struct {
	// listen starts a server that calls act, and answers when that returns.
	listen func(t *testing.T, act func()) (url string)
	// sent says that the request may be at the server by then.
	sent bool
	// soFar is the message's beginning; %s is the server.
	soFar string
}

func stages() map[string]stage {
	return map[string]stage{
		"before there is a connection": {
			listen: func(t *testing.T, act func()) string {
				return "https://" + accept(t, func(c net.Conn) {
					act() // and says no word of TLS
					_, _ = io.Copy(io.Discard, c)
				})
			},
		},
		"before there is an answer": {
			listen: func(t *testing.T, act func()) string {
				return record(t, func(_ http.ResponseWriter, r *http.Request) {
					act()
					<-r.Context().Done()
				}).URL
			},
			sent: true,
		},
		"in the middle of the answer": {
			listen: func(t *testing.T, act func()) string {
				server := recording(func(w http.ResponseWriter, r *http.Request) {
					// More than the kernel holds for one who does not read.
					_, _ = io.WriteString(w, strings.Repeat(" ", 1<<20))
					_ = http.NewResponseController(w).Flush()
					act()
					<-r.Context().Done()
				})
				server.Config.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
					must(c.(*net.TCPConn).SetWriteBuffer(4 << 10))
					return ctx
				}
				server.Start()
				t.Cleanup(server.Close)
				return server.URL
			},
			sent: true, soFar: "%s answered POST with 200 OK, but its answer did not arrive whole: ",
		},
	}
}

func TestHTTPAtItsTimeout(t *testing.T) {
	t.Parallel()
	for name, tc := range stages() {
		for _, once := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, once %t", name, once), func(t *testing.T) {
				t.Parallel()
				passed := make(chan time.Time)
				s := aSending(tc.listen(t, func() { close(passed) }))
				s.opts.Once = once
				s.after = (&hand{passed: map[time.Duration]chan time.Time{2 * time.Minute: passed}}).after
				host := strings.SplitN(s.spec.URL, "/", 3)[2]
				want := stepexec.Result{Version: 1, Outcome: stepexec.OutcomeRetry, Reason: v1alpha1.ReasonConnection,
					NotStarted: true, Message: "no connection to " + host + " within the timeout of 2m0s"}
				if tc.sent {
					want.Reason, want.NotStarted = v1alpha1.ReasonTimeout, false
					want.Message = strings.ReplaceAll(tc.soFar, "%s", host) + "the timeout of 2m0s passed while it waited for the answer of " +
						host + "; set http.timeout to allow more"
				}
				if tc.sent && once {
					want.Outcome = stepexec.OutcomeInterrupted
					want.Message += "; it may have taken effect"
				}
				if diff := cmp.Diff(want, s.run(t)); diff != "" {
					t.Errorf("result (-want +got):\n%s", diff)
				}
			})
		}
	}
}

func TestHTTPStoppedFromOutside(t *testing.T) {
	t.Parallel()
	const grace = 20 * time.Second
	for name, tc := range stages() {
		for _, opts := range []HTTPOptions{{}, {Grace: grace}, {Once: true}, {Once: true, Grace: grace}} {
			t.Run(fmt.Sprintf("%s, once %t, grace %v", name, opts.Once, opts.Grace), func(t *testing.T) {
				t.Parallel()
				signals, over := make(chan os.Signal), make(chan time.Time)
				waits := tc.sent && opts.Once && opts.Grace > 0
				s := aSending(tc.listen(t, func() {
					signals <- syscall.SIGTERM
					if waits { // else the grace never passes
						close(over)
					}
				}))
				s.opts, s.signals = opts, signals
				s.after = (&hand{passed: map[time.Duration]chan time.Time{grace: over}}).after
				host := strings.SplitN(s.spec.URL, "/", 3)[2]
				want := result(stepexec.OutcomeInterrupted, v1alpha1.ReasonKilled, "stopped from outside before the request was sent", 0)
				want.NotStarted = !tc.sent
				if tc.sent {
					want.Message = strings.ReplaceAll(tc.soFar, "%s", host) + "stopped from outside while it waited for the answer of " + host
				}
				if tc.sent && opts.Once {
					want.Message += "; it may have taken effect"
				}
				if diff := cmp.Diff(want, s.run(t)); diff != "" {
					t.Errorf("result (-want +got):\n%s", diff)
				}
			})
		}
	}
}

func TestHTTPWaitsForTheAnswerOfARequestThatMustNotBeSentTwice(t *testing.T) {
	t.Parallel()
	const grace = 20 * time.Second
	clock := &hand{asked: make(chan time.Duration), passed: map[time.Duration]chan time.Time{grace: make(chan time.Time)}}
	signals := make(chan os.Signal)
	server := record(t, func(w http.ResponseWriter, r *http.Request) {
		signals <- syscall.SIGTERM
		if d := <-clock.asked; d != grace {
			t.Errorf("it waits for %v, want %v", d, grace)
		}
		for range 2 { // which changes nothing
			select {
			case signals <- syscall.SIGTERM:
			case d := <-clock.asked:
				t.Errorf("it waits for another %v", d)
			}
		}
		body("application/json", `[1]`)(w, r)
	})
	s := aSending(server.URL)
	s.opts, s.after, s.signals = HTTPOptions{Once: true, Grace: grace}, clock.after, signals
	go func() { <-clock.asked }() // its timeout
	if diff := cmp.Diff(withOutput("[1]"), s.run(t)); diff != "" {
		t.Errorf("result (-want +got):\n%s", diff)
	}
}

func TestHTTPTakesNoNoticeOfOtherSignals(t *testing.T) {
	t.Parallel()
	for _, once := range []bool{false, true} {
		signals := make(chan os.Signal)
		server := record(t, func(w http.ResponseWriter, r *http.Request) {
			for _, sig := range []os.Signal{syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGHUP} {
				signals <- sig // the next is taken when this one was acted upon
			}
			body("application/json", `[1]`)(w, r)
		})
		s := aSending(server.URL)
		s.opts, s.signals = HTTPOptions{Once: once, Grace: time.Second}, signals
		if diff := cmp.Diff(withOutput("[1]"), s.run(t)); diff != "" {
			t.Errorf("once %t: result (-want +got):\n%s", once, diff)
		}
	}
}
