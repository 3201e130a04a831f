// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package runner

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
)

var redirects = []int{301, 302, 303, 307, 308}

func TestHTTPNeverSendsAnEffectWhereARedirectLeads(t *testing.T) {
	t.Parallel()
	for _, method := range []string{"POST", "PUT", "PATCH", "DELETE"} {
		for _, code := range redirects {
			t.Run(fmt.Sprintf("%d to a %s", code, method), func(t *testing.T) {
				t.Parallel()
				for place, location := range map[string]string{
					"another path of the same server": "/hunter2?hunter2",
					"https://payments.internal:8443":  "https://me:hunter2@payments.internal:8443/hunter2?hunter2",
				} {
					for _, once := range []bool{false, true} {
						server := record(t, status(code, "Location", location))
						s := aSending(server.URL).method(method)
						s.opts.Once = once
						want := result(stepexec.OutcomeFailed, v1alpha1.ReasonHTTPStatus, fmt.Sprintf(
							"%s answered %s with %d %s; it redirects to %s, which is not followed with %s; set url to where it leads",
							server.host(), method, code, http.StatusText(code), place, method), 0)
						if diff := cmp.Diff(want, s.run(t)); diff != "" {
							t.Errorf("result (-want +got):\n%s", diff)
						}
						if got := server.got(); len(got) != 1 {
							t.Errorf("the server got %q, want one request", got)
						}
					}
				}
			})
		}
	}
}

func TestHTTPFollowsRedirectsOfReads(t *testing.T) {
	t.Parallel()
	for _, method := range []string{"GET", "HEAD"} {
		for _, code := range redirects {
			t.Run(fmt.Sprintf("%d to a %s", code, method), func(t *testing.T) {
				t.Parallel()
				server := record(t, func(w http.ResponseWriter, r *http.Request) {
					if r.URL.Path == "/a/there" {
						w.Header().Set("X-Authorization", r.Header.Get("Authorization"))
						w.Header().Set("X-Host", r.Host)
						w.Header().Set("X-Referer", r.Header.Get("Referer"))
						return
					}
					status(code, "Location", "there?x=1#part")(w, r)
				})
				s := aSending(server.URL + "/a/here").method(method)
				s.spec.Headers = []stepexec.HTTPHeader{{Name: "Authorization", Value: "Bearer hunter2"}, {Name: "Host", Value: "a.internal"}}
				s.spec.Output, s.spec.OutputHeaders = v1alpha1.HTTPOutputResponse, []string{"x-authorization", "x-host", "x-referer"}
				want := withOutput(`{"body":null,"headers":{"x-authorization":"Bearer hunter2","x-host":"a.internal","x-referer":""},"status":200}`)
				if diff := cmp.Diff(want, s.run(t)); diff != "" {
					t.Errorf("result (-want +got):\n%s", diff)
				}
				if diff := cmp.Diff([]string{method + " /a/here", method + " /a/there?x=1"}, server.got()); diff != "" {
					t.Errorf("requests (-want +got):\n%s", diff)
				}
			})
		}
	}
}

// countdown redirects from /n to /n-1 until /0.
func countdown(w http.ResponseWriter, r *http.Request) {
	n, err := strconv.Atoi(strings.TrimPrefix(r.URL.Path, "/"))
	must(err)
	if n > 0 {
		http.Redirect(w, r, "/"+strconv.Itoa(n-1), http.StatusFound)
	}
}

func TestHTTPFollowsTenRedirects(t *testing.T) {
	t.Parallel()
	server := record(t, countdown)
	if diff := cmp.Diff(withOutput("null"), aSending(server.URL+"/10").method("GET").run(t)); diff != "" {
		t.Errorf("result of ten (-want +got):\n%s", diff)
	}
	want := result(stepexec.OutcomeFailed, v1alpha1.ReasonHTTPStatus, server.host()+" answered GET with 302 Found; it is the end of "+
		"10 redirects, and the next leads to another path of the same server", 0)
	if diff := cmp.Diff(want, aSending(server.URL+"/11").method("GET").run(t)); diff != "" {
		t.Errorf("result of eleven (-want +got):\n%s", diff)
	}
	if n := len(server.got()); n != 22 {
		t.Errorf("the server got %d requests, want 11 of each", n)
	}
}

func TestHTTPTellsWhyItDoesNotFollowARedirect(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ location, want string }{
		"to another scheme": {"ftp://hunter2.internal/", "; it redirects to what is no http or https URL"},
		"to nowhere":        {"http:///hunter2", "; it redirects to what is no http or https URL"},
		"to no URL":         {"http://a/%hunter2", "; it redirects to what is no http or https URL"},
		"without location":  {"", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := record(t, status(302, "Location", tc.location))
			want := result(stepexec.OutcomeFailed, v1alpha1.ReasonHTTPStatus, server.host()+" answered GET with 302 Found"+tc.want, 0)
			if diff := cmp.Diff(want, aSending(server.URL).method("GET").run(t)); diff != "" {
				t.Errorf("result (-want +got):\n%s", diff)
			}
		})
	}
}

func TestHTTPDoesNotFollowARedirectOutOfTLS(t *testing.T) {
	t.Parallel()
	plain := record(t, status(200))
	server := recording(status(302, "Location", plain.URL+"/hunter2"))
	s := trusting(t, server).method("GET")
	want := result(stepexec.OutcomeFailed, v1alpha1.ReasonHTTPStatus, server.host()+" answered GET with 302 Found; it redirects to "+
		plain.URL+", which is not followed from https; set url to where it leads", 0)
	if diff := cmp.Diff(want, s.run(t)); diff != "" {
		t.Errorf("result (-want +got):\n%s", diff)
	}
	if got := plain.got(); len(got) > 0 {
		t.Errorf("the plain server got %q", got)
	}
}

// A redirect may lead away and back again: what comes back was chosen by the stranger.
func TestHTTPGivesItsHeadersToTheStepsOwnServerAlone(t *testing.T) {
	t.Parallel()
	for name, away := range map[string]func(host string) string{
		"at another port":                     func(string) string { return "" },
		"under another name of the same host": func(host string) string { return strings.Replace(host, "127.0.0.1", "localhost", 1) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var home, other *recorder
			var mu sync.Mutex
			var seen []http.Header
			serve := func(next func() string) http.HandlerFunc {
				return func(w http.ResponseWriter, r *http.Request) {
					mu.Lock()
					defer mu.Unlock()
					header := r.Header.Clone()
					header.Set("Host", r.Host)
					seen = append(seen, header)
					if to := next(); to != "" && len(seen) < 3 {
						http.Redirect(w, r, to, http.StatusTemporaryRedirect)
					}
				}
			}
			home = record(t, serve(func() string {
				if to := away(home.host()); to != "" {
					return "http://" + to + "/away"
				}
				return strings.Replace(other.URL, "http://", "http://me:hunter2@", 1) + "/away"
			}))
			other = record(t, serve(func() string { return home.URL + "/back" }))
			s := aSending(strings.Replace(home.URL, "http://", "http://me:hunter2@", 1)).method("GET")
			s.spec.Headers = []stepexec.HTTPHeader{{Name: "X-Api-Key", FromEnv: "SECRET"}, {Name: "Cookie", Value: "hunter2"},
				{Name: "Accept", Value: "text/plain"}, {Name: "Host", Value: "hunter2"}}
			s.env["SECRET"] = "hunter2"
			if diff := cmp.Diff(withOutput("null"), s.run(t)); diff != "" {
				t.Fatalf("result (-want +got):\n%s", diff)
			}
			plain := func(host string) http.Header {
				return http.Header{"Connection": {"close"}, "User-Agent": {"agenttask-runner/dev"}, "Accept": {"text/plain"}, "Host": {host}}
			}
			second, third := other.host(), home.host()
			if to := away(home.host()); to != "" {
				second, third = to, to
			}
			first := plain("hunter2")
			first["X-Api-Key"], first["Cookie"], first["Idempotency-Key"] = []string{"hunter2"}, []string{"hunter2"}, []string{`"run.refund.0123"`}
			first["Authorization"] = []string{"Basic bWU6aHVudGVyMg=="}
			if diff := cmp.Diff([]http.Header{first, plain(second), plain(third)}, seen); diff != "" {
				t.Errorf("headers of the three requests (-want +got):\n%s", diff)
			}
		})
	}
}

func TestOrigin(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		a, b string
		same bool
	}{
		"another path and query":     {"https://a/x?y", "https://a/z", true},
		"capitals":                   {"https://A.internal", "HTTPS://a.Internal", true},
		"the usual port of https":    {"https://a", "https://a:443", true},
		"the usual port of http":     {"http://a", "http://a:80", true},
		"a user":                     {"http://me@a", "http://a", true},
		"another scheme":             {"http://a", "https://a", false},
		"another scheme, same port":  {"http://a:443", "https://a", false},
		"another port":               {"http://a:8080", "http://a", false},
		"a host below it":            {"http://a", "http://b.a", false},
		"an address of its own kind": {"http://[::1]", "http://[::1]:80", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if same := origin(mustParse(t, tc.a)) == origin(mustParse(t, tc.b)); same != tc.same {
				t.Errorf("%s and %s: same %t, want %t", tc.a, tc.b, same, tc.same)
			}
		})
	}
}

func mustParse(t *testing.T, text string) *url.URL {
	t.Helper()
	u, err := url.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return u
}
