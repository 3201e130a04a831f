// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// server stands for the API server: it takes requests down and answers with 200.
type server struct {
	mu   sync.Mutex
	done []string
}

func (s *server) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done = append(s.done, r.Method+" "+r.URL.Path)
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader("fine")), Request: r}, nil
}

func (s *server) seen() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string{}, s.done...)
}

const (
	podsPath = "/api/v1/namespaces/ns/pods"
	podPath  = podsPath + "/x"
)

func request(ctx context.Context, t *testing.T, method, url, body string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, method, "https://server.invalid"+url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// send does a request, and says how it went: its status and text, or the error.
func send(t *testing.T, line http.RoundTripper, r *http.Request) (string, error) {
	t.Helper()
	response, err := line.RoundTrip(r)
	if err != nil {
		return "", err
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if response.StatusCode != http.StatusOK {
		return http.StatusText(response.StatusCode), err
	}
	return string(text), err
}

func TestFaultsStrikeOneWrite(t *testing.T) {
	for kind, want := range map[FaultKind]struct {
		applied, dead bool
		answer        string
		err           error
	}{
		DieBefore:    {dead: true, err: ErrCut},
		DieAfter:     {dead: true, err: ErrCut, applied: true},
		Conflict:     {answer: "Conflict"},
		TooMany:      {answer: "Too Many Requests"},
		ErrorBefore:  {answer: "Internal Server Error"},
		ErrorAfter:   {answer: "Internal Server Error", applied: true},
		TimeoutAfter: {answer: "Gateway Timeout", applied: true},
		ResetBefore:  {err: syscall.ECONNRESET},
		ResetAfter:   {err: syscall.ECONNRESET, applied: true},
	} {
		t.Run(string(kind), func(t *testing.T) {
			server, faults := &server{}, NewFaults(Fault{At: 2, Kind: kind})
			line := faults.Wrap(server)
			if _, err := send(t, line, request(t.Context(), t, http.MethodPost, podsPath, `{"metadata":{"name":"one"}}`)); err != nil {
				t.Fatal(err)
			}
			got, err := send(t, line, request(t.Context(), t, http.MethodPut, podPath+"/status", `{}`))
			if got != want.answer || !errors.Is(err, want.err) {
				t.Errorf("got %q and error %v, want %q and %v", got, err, want.answer, want.err)
			}
			select {
			case <-faults.Hit():
			default:
				t.Error("Hit is not closed")
			}
			done, code := []string{"POST " + podsPath}, 0
			if want.applied {
				done, code = append(done, "PUT "+podPath+"/status"), http.StatusOK
			}
			if diff := cmp.Diff(done, server.seen()); diff != "" {
				t.Error("applied (-want +got):\n" + diff)
			}
			list := faults.Writes()
			if got := list[1].String(); got != "write 2: update pods/status x" || list[1].Code != code || !cmp.Equal(list[1].Struck, []FaultKind{kind}) {
				t.Errorf("write: %q, struck by %v, code %d", got, list[1].Struck, list[1].Code)
			}
			_, err = send(t, line, request(t.Context(), t, http.MethodGet, podPath, ""))
			if faults.Dead() != want.dead || (err != nil) != want.dead {
				t.Errorf("dead %t, and a read afterwards: %v", faults.Dead(), err)
			}
		})
	}
}

func TestFaultsAsksToWait(t *testing.T) {
	line := NewFaults(Fault{At: 1, Kind: TooMany, RetryAfter: 3 * time.Second}).Wrap(&server{})
	response, err := line.RoundTrip(request(t.Context(), t, http.MethodDelete, podPath, ""))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	if got := response.Header.Get("Retry-After"); got != "3" {
		t.Errorf("Retry-After: %q", got)
	}
}

func TestFaultsLetsSomebodyAct(t *testing.T) {
	server := &server{}
	var acts []string
	act := func(what string) func(Write) {
		return func(w Write) { acts = append(acts, what+" "+w.String()+" "+strings.Join(server.seen(), ",")) }
	}
	line := NewFaults(
		Fault{At: 1, Kind: ActBefore, Act: act("before")},
		Fault{At: 1, Kind: ActAfter, Act: act("after")},
		Fault{At: 1, Kind: DieAfter},
	)
	_, err := send(t, line.Wrap(server), request(t.Context(), t, http.MethodDelete, podPath, ""))
	if !errors.Is(err, ErrCut) {
		t.Errorf("error %v", err)
	}
	want := []string{"before write 1: delete pods x ", "after write 1: delete pods x DELETE " + podPath}
	if diff := cmp.Diff(want, acts); diff != "" {
		t.Error("acts (-want +got):\n" + diff)
	}
	<-line.Hit()
}

// TestFaultsFreezes: nothing moves until Thaw, whatever the deadlines say, and then the
// write that was struck goes first.
func TestFaultsFreezes(t *testing.T) {
	for kind, frozen := range map[FaultKind][]string{FreezeBefore: {}, FreezeAfter: {"DELETE " + podPath}} {
		t.Run(string(kind), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server, faults := &server{}, NewFaults(Fault{At: 1, Kind: kind})
				line := faults.Wrap(server)
				ctx, cancel := context.WithCancel(t.Context())
				var over []string
				var mu sync.Mutex
				start := func(ctx context.Context, method, url string) {
					r := request(ctx, t, method, url, "")
					go func() {
						answer, err := send(t, line, r)
						mu.Lock()
						defer mu.Unlock()
						if err != nil {
							answer = err.Error()
						}
						over = append(over, method+" "+answer)
					}()
				}
				start(ctx, http.MethodDelete, podPath)
				<-faults.Hit()
				start(t.Context(), http.MethodGet, podPath)
				start(t.Context(), http.MethodPost, podsPath)
				cancel()
				synctest.Wait()
				if diff := cmp.Diff(frozen, server.seen()); diff != "" || len(over) > 0 {
					t.Fatalf("frozen, it did %v and answered %v", server.seen(), over)
				}
				faults.Thaw()
				synctest.Wait()
				if got := server.seen(); len(got) != 3 || got[0] != "DELETE "+podPath {
					t.Errorf("thawed, it did %v", got)
				}
				if len(over) != 3 {
					t.Errorf("thawed, it answered %v", over)
				}
			})
		})
	}
}

func TestFaultsKilledWhileFrozen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, faults := &server{}, NewFaults(Fault{At: 1, Kind: FreezeBefore})
		line := faults.Wrap(server)
		ended := make(chan error)
		go func() {
			_, err := send(t, line, request(t.Context(), t, http.MethodDelete, podPath, ""))
			ended <- err
		}()
		<-faults.Hit()
		faults.Die()
		if err := <-ended; !errors.Is(err, ErrCut) || len(server.seen()) > 0 {
			t.Errorf("error %v, done %v", err, server.seen())
		}
		faults.Thaw()
		if !faults.Dead() {
			t.Error("it lives again")
		}
	})
}

// TestFaultsCut: who waits may give up, and what waits until the network is there again
// gets through.
func TestFaultsCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, faults := &server{}, NewFaults()
		line := faults.Wrap(server)
		faults.Cut()
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := send(t, line, request(short, t, http.MethodGet, podPath, "")); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v", err)
		}
		ended := make(chan error)
		go func() {
			_, err := send(t, line, request(t.Context(), t, http.MethodDelete, podPath, ""))
			ended <- err
		}()
		synctest.Wait()
		if got := server.seen(); len(got) > 0 {
			t.Errorf("cut, it did %v", got)
		}
		faults.Heal()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff([]string{"DELETE " + podPath}, server.seen()); diff != "" {
			t.Error("healed (-want +got):\n" + diff)
		}
	})
}

// TestFaultsEndsWatches: what is open ends when the manager dies.
func TestFaultsEndsWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		faults := NewFaults()
		line := faults.Wrap(RoundTrip(func(r *http.Request) (*http.Response, error) {
			in, out := io.Pipe()
			context.AfterFunc(r.Context(), func() { _ = out.CloseWithError(r.Context().Err()) })
			go func() { _, _ = out.Write([]byte("event")) }()
			return &http.Response{StatusCode: http.StatusOK, Body: in, Request: r}, nil
		}))
		response, err := line.RoundTrip(request(t.Context(), t, http.MethodGet, podsPath+"?watch=true", ""))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = response.Body.Close() }()
		buffer := make([]byte, 16)
		if n, err := response.Body.Read(buffer); string(buffer[:n]) != "event" || err != nil {
			t.Fatalf("read %q, %v", buffer[:n], err)
		}
		faults.Die()
		if _, err := response.Body.Read(buffer); !errors.Is(err, ErrCut) {
			t.Errorf("error %v", err)
		}
	})
}
