// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package runner

import (
	"encoding/base64"
	"net/http"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
)

// getting is an attempt at a GET, in a process of its own.
func getting(t *testing.T, url string, env ...string) *attempt {
	t.Helper()
	input, err := (&stepexec.HTTPRequest{Method: "GET", URL: url, Timeout: metav1.Duration{Duration: 2 * time.Minute}}).Encode()
	if err != nil {
		t.Fatal(err)
	}
	a := newAttempt(t)
	a.HTTP, a.env = &HTTPOptions{}, env
	a.file(t, "input.json", string(input))
	return a
}

func TestHTTPProcessByItsSignals(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		signal os.Signal
		want   func(host string) stepexec.Result
		code   int
	}{
		"stopped": {syscall.SIGTERM, func(host string) stepexec.Result {
			return result(stepexec.OutcomeInterrupted, v1alpha1.ReasonKilled, "stopped from outside while it waited for the answer of "+host, 0)
		}, 143},
		"interrupted": {syscall.SIGINT, func(host string) stepexec.Result {
			return result(stepexec.OutcomeInterrupted, v1alpha1.ReasonKilled, "stopped from outside while it waited for the answer of "+host, 0)
		}, 143},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			reached := make(chan struct{})
			server := record(t, func(_ http.ResponseWriter, r *http.Request) {
				close(reached)
				<-r.Context().Done()
			})
			got := getting(t, server.URL).run(t, func(runner *os.Process) {
				<-reached
				if err := runner.Signal(tc.signal); err != nil {
					t.Error(err)
				}
			})
			if diff := cmp.Diff(tc.want(server.host()), got.result); diff != "" {
				t.Errorf("result (-want +got):\n%s", diff)
			}
			if got.code != tc.code || got.stdout != "" || got.stderr != "" {
				t.Errorf("exit code %d, log %q and %q, want %d and nothing", got.code, got.stdout, got.stderr, tc.code)
			}
		})
	}
}

func TestHTTPProcessLivesThroughOtherSignals(t *testing.T) {
	t.Parallel()
	reached, signalled := make(chan struct{}), make(chan struct{})
	server := record(t, func(w http.ResponseWriter, r *http.Request) {
		close(reached)
		<-signalled
		body("application/json", "[1]")(w, r)
	})
	got := getting(t, server.URL).run(t, func(runner *os.Process) {
		<-reached
		for _, sig := range []os.Signal{syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGPIPE} {
			if err := runner.Signal(sig); err != nil {
				t.Error(err)
			}
		}
		close(signalled)
	})
	if diff := cmp.Diff(withOutput("[1]"), got.result); diff != "" {
		t.Errorf("result (-want +got):\n%s", diff)
	}
}

func TestHTTPProcessPutsALargeOutputIntoTheLog(t *testing.T) {
	t.Parallel()
	doc := bigString(10000)
	got := getting(t, record(t, body("application/json", doc)).URL).run(t, nil)
	_, announced := frame([]byte(doc))
	want := stepexec.Result{Version: 1, Outcome: stepexec.OutcomeSucceeded, LogOutput: announced}
	if diff := cmp.Diff(want, got.result); diff != "" {
		t.Fatalf("result (-want +got):\n%s", diff)
	}
	coded, begin, end := framed(got.stdout, announced.Lines)
	if begin != "agenttask-output-begin "+announced.SHA256 || end != "agenttask-output-end "+announced.SHA256 {
		t.Errorf("the frame is %q and %q", begin, end)
	}
	if back, err := base64.StdEncoding.DecodeString(string(coded)); err != nil || string(back) != doc {
		t.Errorf("the output does not come back from the log (error %v)", err)
	}
	if got.code != 0 || got.stderr != "" {
		t.Errorf("exit code %d, stderr %q", got.code, got.stderr)
	}
}

func TestHTTPProcessUsesTheProxyOfItsEnvironment(t *testing.T) {
	t.Parallel()
	var credentials string
	proxy := record(t, func(w http.ResponseWriter, r *http.Request) {
		credentials = r.Header.Get("Proxy-Authorization")
		if r.Method == http.MethodConnect {
			w.WriteHeader(http.StatusProxyAuthRequired)
			return
		}
		body("text/plain", "by the proxy")(w, r)
	})
	nobody := unused(t)
	address := "http://me:hunter2@" + proxy.host()
	notSent := func(message string) stepexec.Result {
		return neverRan(result(stepexec.OutcomeRetry, v1alpha1.ReasonConnection, message, 0))
	}
	for _, tc := range []struct {
		name, url, env string
		want           stepexec.Result
		code           int
	}{
		{"a plain request", "http://payments.internal/refunds?a=1", "HTTP_PROXY=" + address, withOutput(`"by the proxy"`), 0},
		{"a tunnel that is refused", "https://payments.internal/refunds", "HTTPS_PROXY=" + address,
			notSent("no connection to payments.internal: Proxy Authentication Required"), 75},
		{"a proxy that is not there", "http://payments.internal/refunds", "HTTP_PROXY=http://me:hunter2@" + nobody,
			notSent("no connection to payments.internal: proxyconnect tcp: dial tcp " + nobody + ": connect: connection refused"), 75},
	} {
		got := getting(t, tc.url, tc.env).run(t, nil)
		if diff := cmp.Diff(tc.want, got.result); diff != "" {
			t.Errorf("%s: result (-want +got):\n%s", tc.name, diff)
		}
		if got.code != tc.code {
			t.Errorf("%s: the runner exited with %d, want %d", tc.name, got.code, tc.code)
		}
	}
	want := []string{"GET http://payments.internal/refunds?a=1", "CONNECT payments.internal:443"}
	if diff := cmp.Diff(want, proxy.got()); diff != "" {
		t.Errorf("requests to the proxy (-want +got):\n%s", diff)
	}
	if credentials != "Basic bWU6aHVudGVyMg==" {
		t.Errorf("the proxy got the credentials %q", credentials)
	}
}
