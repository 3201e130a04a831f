// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package runner

import (
	"crypto/tls"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
)

// hangUp breaks the connection off after some bytes of an answer, by a reset where it is
// asked for.
func hangUp(answer string, reset bool) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		must(err)
		if c, ok := conn.(*net.TCPConn); ok && reset {
			must(c.SetLinger(0))
		}
		_, err = io.WriteString(conn, answer)
		must(err)
		must(conn.Close())
	}
}

func TestHTTPSendsOneRequestWhateverBecomesOfIt(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		answer  string
		reset   bool
		message string // %[1]s is the method, %[2]s the server
	}{
		"no answer":               {"", false, "%[2]s closed the connection"},
		"no answer, and a reset":  {"", true, "the connection to %[2]s broke (connection reset by peer)"},
		"half an answer's header": {"HTTP/1.1 200 OK\r\nX-A: hunter2\r\n", false, "%[2]s closed the connection"},
		"an answer that is no HTTP": {"hunter2 hunter2\r\n\r\n", false,
			"the connection to %[2]s broke, or what came is no HTTP"},
		"an answer with too much of a header": {"HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 2<<20), false,
			"the connection to %[2]s broke, or what came is no HTTP"},
		"half a body": {"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhunter2", false,
			"%[2]s answered %[1]s with 200 OK, but its answer did not arrive whole: %[2]s closed the connection"},
		"half a body in chunks": {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nhunter2", false,
			"%[2]s answered %[1]s with 200 OK, but its answer did not arrive whole: %[2]s closed the connection"},
		"chunks that are none": {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nhunter2\r\n", false,
			"%[2]s answered %[1]s with 200 OK, but its answer did not arrive whole: the connection to %[2]s broke, or what came is no HTTP"},
	} {
		for _, method := range []string{"GET", "HEAD", "POST", "PUT", "DELETE"} {
			if method == "HEAD" && strings.Contains(tc.message, "whole") {
				continue // it has no body
			}
			t.Run(name+" to "+method, func(t *testing.T) {
				t.Parallel()
				for _, once := range []bool{false, true} {
					server := record(t, hangUp(tc.answer, tc.reset))
					s := aSending(server.URL).method(method)
					s.opts.Once = once
					if method == "DELETE" {
						s.spec.Body = nil // what the standard library finds safe to send again
					}
					message := fmt.Sprintf(tc.message+"%.[1]s%.[2]s", method, server.host())
					want := result(stepexec.OutcomeRetry, v1alpha1.ReasonConnection, message, 0)
					if once {
						want.Outcome = stepexec.OutcomeInterrupted
						want.Message += "; it may have taken effect"
					}
					if diff := cmp.Diff(want, s.run(t)); diff != "" {
						t.Errorf("result (-want +got):\n%s", diff)
					}
					if got := server.got(); len(got) != 1 {
						t.Errorf("the server got %q, want one request", got)
					}
				}
			})
		}
	}
}

func TestHTTPRequestCannotBeSentAgain(t *testing.T) {
	t.Parallel()
	x := &exchange{spec: &aSending("").spec, url: mustParse(t, "http://a"), header: http.Header{}}
	req, err := x.first(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if req.Body == nil || req.GetBody != nil {
		t.Errorf("the request has a body: %t, and another one after that: %t", req.Body != nil, req.GetBody != nil)
	}
}

// A second request to a server is where a client would use the first one's connection,
// and repeat what fails on it.
func TestHTTPSendsTheRequestOfARedirectOnce(t *testing.T) {
	t.Parallel()
	var n atomic.Int32
	server := record(t, func(w http.ResponseWriter, r *http.Request) {
		if n.Add(1) == 1 {
			http.Redirect(w, r, "/there", http.StatusFound)
			return
		}
		hangUp("", false)(w, r)
	})
	got := aSending(server.URL + "/here").method("GET").run(t)
	if got.Outcome != stepexec.OutcomeRetry || got.Reason != v1alpha1.ReasonConnection || got.NotStarted {
		t.Errorf("result %+v, want it to ask for another attempt", got)
	}
	if diff := cmp.Diff([]string{"GET /here", "GET /there"}, server.got()); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
}

func TestHTTPSpeaksHTTP1ToAServerOfBoth(t *testing.T) {
	t.Parallel()
	server := recording(nil)
	server.answer = func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Proto) }
	server.EnableHTTP2 = true
	s := trusting(t, server)
	if diff := cmp.Diff(withOutput(`"HTTP/1.1"`), s.run(t)); diff != "" {
		t.Errorf("result (-want +got):\n%s", diff)
	}
}

// trusting starts the server with TLS and gives a sending that trusts it.
func trusting(t *testing.T, server *recorder) *sending {
	t.Helper()
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	t.Cleanup(server.Close)
	s := aSending(server.URL)
	s.spec.CAEnv = stepexec.EnvHTTPCA
	s.env[stepexec.EnvHTTPCA] = "the test's own authority\n" +
		string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	return s
}

// unused gives an address that nobody listens at, and nobody else can take.
func unused(t *testing.T) string {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Close(fd) })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	addr, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", addr.(*syscall.SockaddrInet4).Port)
}

// accept starts a server that hands each connection to handle.
func accept(t *testing.T, handle func(net.Conn)) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go handle(conn)
		}
	}()
	return listener.Addr().String()
}

func TestHTTPThatIsNotSentIsTriedAgain(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		prepare func(t *testing.T) *sending
		message string // after "no connection to HOST: "
	}{
		"nobody listens": {func(t *testing.T) *sending { return aSending("http://" + unused(t)) }, "connect: connection refused"},
		"the name is none": {func(*testing.T) *sending { return aSending("http://a..b:80") },
			"its name cannot be resolved: "},
		"an authority that is not trusted": {func(t *testing.T) *sending {
			s := trusting(t, recording(status(200)))
			s.spec.CAEnv = ""
			return s
		}, "tls: failed to verify certificate: x509: certificate signed by unknown authority; give the authority that signed it in http.tls.ca"},
		"a certificate for another host": {func(t *testing.T) *sending {
			s := trusting(t, recording(status(200)))
			s.spec.URL = strings.Replace(s.spec.URL, "127.0.0.1", "localhost", 1)
			return s
		}, ", not localhost"},
		"TLS 1.1": {func(t *testing.T) *sending {
			server := recording(status(200))
			server.TLS = &tls.Config{MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}
			return trusting(t, server)
		}, "tls: protocol version not supported"},
		"no TLS at all": {func(t *testing.T) *sending {
			return aSending(strings.Replace(record(t, status(200)).URL, "http:", "https:", 1))
		}, "tls: first record does not look like a TLS handshake"},
		"a connection that is closed at once": {func(t *testing.T) *sending {
			return aSending("https://" + accept(t, func(c net.Conn) { c.Close() }))
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, once := range []bool{false, true} {
				s := tc.prepare(t)
				s.opts.Once = once
				got := s.run(t)
				host := strings.SplitN(s.spec.URL, "/", 3)[2]
				if !strings.HasPrefix(got.Message, "no connection to "+host+": ") || !strings.Contains(got.Message, tc.message) {
					t.Errorf("message %q, want it about %s and %q", got.Message, host, tc.message)
				}
				got.Message = ""
				want := stepexec.Result{Version: 1, Outcome: stepexec.OutcomeRetry, Reason: v1alpha1.ReasonConnection, NotStarted: true}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("result (-want +got):\n%s", diff)
				}
			}
		})
	}
}
