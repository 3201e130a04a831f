// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package runner

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
)

// sending is one run of the runner's http, in this process.
type sending struct {
	spec stepexec.HTTPRequest
	opts HTTPOptions
	// env is the container's environment.
	env map[string]string
	// input stands in for spec where it is not empty.
	input string
	// after, where given, is the clock.
	after   func(time.Duration) <-chan time.Time
	signals chan os.Signal
	dir     string
}

// aSending is a POST of a small body under a key.
func aSending(url string) *sending {
	return &sending{
		spec: stepexec.HTTPRequest{
			Method:    http.MethodPost,
			URL:       url,
			Body:      json.RawMessage(`{"charge":"ch_1"}`),
			Timeout:   metav1.Duration{Duration: 2 * time.Minute},
			KeyHeader: &stepexec.HTTPKeyHeader{},
		},
		env: map[string]string{stepexec.EnvKey: "run.refund.0123"},
	}
}

func (s *sending) method(m string) *sending {
	s.spec.Method = m
	return s
}

// run gives the result. It fails where that, or the runner's log, holds "hunter2", which
// the tests put wherever a secret may be.
func (s *sending) run(t *testing.T) stepexec.Result {
	t.Helper()
	if s.dir == "" {
		s.dir = t.TempDir()
	}
	doc := []byte(s.input)
	if s.input == "" {
		var err error
		if doc, err = s.spec.Encode(); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(s.dir, "input.json"), doc, 0o600); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(s.dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	r := &Runner{Dir: s.dir, TerminationPath: filepath.Join(s.dir, "termination-log"), Stdout: log, Stderr: log, after: s.after,
		lookupEnv: func(name string) (string, bool) {
			value, ok := s.env[name]
			return value, ok
		}}
	r.report(r.request(s.opts, s.signals))
	res := readResult(t, r.TerminationPath)
	text, err := os.ReadFile(log.Name())
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(res.Message+string(text), "hunter2") {
		t.Errorf("a secret is shown: %q, in the log %q", res.Message, text)
	}
	return res
}

// recorder is a server that remembers what it got.
type recorder struct {
	*httptest.Server
	answer http.HandlerFunc

	mu   sync.Mutex
	seen []string
}

// record starts a server that answers by answer; tests may set its fields before.
func record(t *testing.T, answer http.HandlerFunc) *recorder {
	t.Helper()
	r := recording(answer)
	r.Start()
	t.Cleanup(r.Close)
	return r
}

func recording(answer http.HandlerFunc) *recorder {
	r := &recorder{answer: answer}
	r.Server = httptest.NewUnstartedServer(http.HandlerFunc(r.serve))
	r.Config.ErrorLog = nil
	return r
}

func (r *recorder) serve(w http.ResponseWriter, req *http.Request) {
	body, _ := io.ReadAll(req.Body)
	line := req.Method + " " + req.RequestURI
	if len(body) > 0 {
		line += " " + string(body)
	}
	r.mu.Lock()
	r.seen = append(r.seen, line)
	r.mu.Unlock()
	r.answer(w, req)
}

func (r *recorder) got() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.seen
}

func (r *recorder) host() string { return r.Listener.Addr().String() }

func status(code int, header ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		for i := 0; i < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(code)
	}
}

func body(kind, text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header()["Content-Type"] = []string{kind}
		_, _ = io.WriteString(w, text)
	}
}

func TestHTTPSendsWhatTheInputSays(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change func(s *sending)
		want   string // the request's line and body
		header http.Header
		host   string
	}{
		"a POST with its key in quotes": {
			want: `POST /refunds?a=1&b=%2F {"charge":"ch_1"}`,
			header: http.Header{
				"Connection":      {"close"},
				"Content-Length":  {"17"},
				"Content-Type":    {"application/json"},
				"Idempotency-Key": {`"run.refund.0123"`},
				"User-Agent":      {"agenttask-runner/dev"},
			},
		},
		"a bare key in a header of another name, over one that is given": {
			change: func(s *sending) {
				s.spec.KeyHeader = &stepexec.HTTPKeyHeader{Name: "x-request-key", Bare: true}
				s.spec.Headers = []stepexec.HTTPHeader{{Name: "X-Request-Key", Value: "another"}}
			},
			want:   `POST /refunds?a=1&b=%2F {"charge":"ch_1"}`,
			header: http.Header{"X-Request-Key": {"run.refund.0123"}, "Idempotency-Key": nil},
		},
		"a key with what must be escaped": {
			change: func(s *sending) { s.env[stepexec.EnvKey] = `a"b\c` },
			want:   `POST /refunds?a=1&b=%2F {"charge":"ch_1"}`,
			header: http.Header{"Idempotency-Key": {`"a\"b\\c"`}},
		},
		"no key": {
			change: func(s *sending) { s.spec.KeyHeader = nil },
			want:   `POST /refunds?a=1&b=%2F {"charge":"ch_1"}`,
			header: http.Header{"Idempotency-Key": nil},
		},
		"headers in place of the runner's own, one of them twice": {
			change: func(s *sending) {
				s.spec.Headers = []stepexec.HTTPHeader{{Name: "user-agent", Value: "refunds/1"}, {Name: "CONTENT-TYPE", Value: "application/merge-patch+json"},
					{Name: "X-Tag", Value: "a"}, {Name: "x-tag", Value: "b"}, {Name: "Host", Value: "payments.internal"}}
			},
			want: `POST /refunds?a=1&b=%2F {"charge":"ch_1"}`,
			header: http.Header{"User-Agent": {"refunds/1"}, "Content-Type": {"application/merge-patch+json"}, "X-Tag": {"a", "b"},
				"Host": nil},
			host: "payments.internal",
		},
		"a header from a Secret that ends with a newline": {
			change: func(s *sending) {
				s.spec.Headers = []stepexec.HTTPHeader{{Name: "Authorization", FromEnv: "AGENTTASK_HTTP_HEADER_0"}}
				s.env["AGENTTASK_HTTP_HEADER_0"] = "Bearer hunter2\n"
			},
			want:   `POST /refunds?a=1&b=%2F {"charge":"ch_1"}`,
			header: http.Header{"Authorization": {"Bearer hunter2"}},
		},
		"a user and password in the URL": {
			change: func(s *sending) { s.spec.URL = strings.Replace(s.spec.URL, "http://", "http://me:hunter2@", 1) },
			want:   `POST /refunds?a=1&b=%2F {"charge":"ch_1"}`,
			header: http.Header{"Authorization": {"Basic bWU6aHVudGVyMg=="}},
		},
		"a body of null": {
			change: func(s *sending) { s.method("PATCH").spec.Body = json.RawMessage("null") },
			want:   `PATCH /refunds?a=1&b=%2F null`,
			header: http.Header{"Content-Type": {"application/json"}},
		},
		"a POST without a body": {
			change: func(s *sending) { s.spec.Body = nil },
			want:   `POST /refunds?a=1&b=%2F`,
			header: http.Header{"Content-Type": nil, "Content-Length": {"0"}},
		},
		"a GET, which has no body": {
			change: func(s *sending) { s.method("GET").spec.KeyHeader = nil },
			want:   `GET /refunds?a=1&b=%2F`,
			header: http.Header{"Connection": {"close"}, "User-Agent": {"agenttask-runner/dev"}, "Content-Type": nil, "Content-Length": nil},
		},
		"a DELETE": {
			change: func(s *sending) { s.method("DELETE").spec.Body = nil },
			want:   `DELETE /refunds?a=1&b=%2F`,
			header: http.Header{"Idempotency-Key": {`"run.refund.0123"`}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var header http.Header
			var host string
			server := record(t, func(w http.ResponseWriter, r *http.Request) {
				header, host = r.Header.Clone(), r.Host
				w.WriteHeader(http.StatusCreated)
			})
			s := aSending(server.URL + "/refunds?a=1&b=%2F#part")
			if tc.change != nil {
				tc.change(s)
			}
			if diff := cmp.Diff(withOutput("null"), s.run(t)); diff != "" {
				t.Errorf("result (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff([]string{tc.want}, server.got()); diff != "" {
				t.Errorf("requests (-want +got):\n%s", diff)
			}
			for key, want := range tc.header {
				if diff := cmp.Diff(want, header[key]); diff != "" {
					t.Errorf("header %s (-want +got):\n%s", key, diff)
				}
			}
			if tc.host != "" && host != tc.host {
				t.Errorf("the host is %s, want %s", host, tc.host)
			}
		})
	}
}

// statusCase is a row of the table at Runner.HTTP.
type statusCase struct {
	code        int
	header      []string
	noKey       bool
	outcome     stepexec.Outcome
	outcomeOnce stepexec.Outcome // of Once
	reason      string
	wait        int64
	message     string // after "answered POST with "
}

func statusCases() map[string]statusCase {
	const succeeded, retry, failed, unknown = stepexec.OutcomeSucceeded, stepexec.OutcomeRetry, stepexec.OutcomeFailed, stepexec.OutcomeInterrupted
	row := func(code int, outcome, once stepexec.Outcome, reason, message string) statusCase {
		return statusCase{code: code, outcome: outcome, outcomeOnce: once, reason: reason, message: message}
	}
	cases := map[string]statusCase{
		"200":                          row(200, succeeded, succeeded, "", ""),
		"204":                          row(204, succeeded, succeeded, "", ""),
		"299":                          row(299, succeeded, succeeded, "", ""),
		"300 without a location":       row(300, failed, failed, "HTTPStatus", "300 Multiple Choices"),
		"304":                          row(304, failed, failed, "HTTPStatus", "304 Not Modified"),
		"400":                          row(400, failed, failed, "HTTPStatus", "400 Bad Request"),
		"401":                          row(401, failed, failed, "HTTPStatus", "401 Unauthorized"),
		"404":                          row(404, failed, failed, "HTTPStatus", "404 Not Found"),
		"a code that nobody knows":     row(499, failed, failed, "HTTPStatus", "499"),
		"408":                          row(408, retry, unknown, "HTTPStatus", "408 Request Timeout"),
		"409":                          row(409, retry, retry, "HTTPStatus", "409 Conflict; a request with the same key is still in flight"),
		"422":                          row(422, failed, failed, "KeyReused", "422 Unprocessable Entity; it has seen the idempotency key with another payload, or it takes this payload for invalid"),
		"425":                          row(425, retry, retry, "HTTPStatus", "425 Too Early"),
		"429":                          row(429, retry, retry, "HTTPStatus", "429 Too Many Requests"),
		"500":                          row(500, retry, unknown, "HTTPStatus", "500 Internal Server Error"),
		"501":                          row(501, retry, unknown, "HTTPStatus", "501 Not Implemented"),
		"502":                          row(502, retry, unknown, "HTTPStatus", "502 Bad Gateway"),
		"503":                          row(503, retry, unknown, "HTTPStatus", "503 Service Unavailable"),
		"504":                          row(504, retry, unknown, "HTTPStatus", "504 Gateway Timeout"),
		"599":                          row(599, retry, unknown, "HTTPStatus", "599"),
		"409 where no key was sent":    {code: 409, noKey: true, outcome: retry, outcomeOnce: retry, reason: "HTTPStatus", message: "409 Conflict"},
		"422 where no key was sent":    {code: 422, noKey: true, outcome: failed, outcomeOnce: failed, reason: "HTTPStatus", message: "422 Unprocessable Entity"},
		"503 with a wait of nothing":   {code: 503, header: []string{"Retry-After", "0"}, outcome: retry, outcomeOnce: retry, reason: "HTTPStatus", message: "503 Service Unavailable"},
		"503 with a date that is past": {code: 503, header: []string{"Retry-After", "Fri, 01 Jan 2021 00:00:00 GMT"}, outcome: retry, outcomeOnce: retry, reason: "HTTPStatus", message: "503 Service Unavailable"},
		"503 with a wait that is none": {code: 503, header: []string{"Retry-After", "soon"}, outcome: retry, outcomeOnce: unknown, reason: "HTTPStatus", message: "503 Service Unavailable"},
	}
	for _, code := range []int{408, 409, 425, 429, 503} {
		c := cases[fmt.Sprint(code)]
		c.header, c.wait, c.outcomeOnce = []string{"Retry-After", "120"}, 120, retry
		cases[fmt.Sprintf("%d with a wait", code)] = c
		c.header, c.wait = []string{"Retry-After", "Fri, 01 Jan 2200 00:00:00 GMT"}, 365*24*3600
		cases[fmt.Sprintf("%d with a date", code)] = c
	}
	return cases
}

func TestHTTPByStatus(t *testing.T) {
	t.Parallel()
	for name, tc := range statusCases() {
		for _, once := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, once %t", name, once), func(t *testing.T) {
				t.Parallel()
				server := record(t, status(tc.code, tc.header...))
				s := aSending(server.URL)
				s.opts.Once = once
				if tc.noKey {
					s.spec.KeyHeader = nil
				}
				want := stepexec.Result{Version: 1, Outcome: tc.outcome, Reason: tc.reason, RetryAfterSeconds: tc.wait}
				if once {
					want.Outcome = tc.outcomeOnce
				}
				if tc.message != "" {
					want.Message = server.host() + " answered POST with " + tc.message
				}
				switch want.Outcome {
				case stepexec.OutcomeSucceeded:
					want.Output = []byte("null")
				case stepexec.OutcomeInterrupted:
					want.Message += ", which does not tell whether the request took effect"
				}
				if diff := cmp.Diff(want, s.run(t)); diff != "" {
					t.Errorf("result (-want +got):\n%s", diff)
				}
				if n := len(server.got()); n != 1 {
					t.Errorf("the server got %d requests, want 1", n)
				}
			})
		}
	}
}

func TestHTTPTakesTheGivenCodesForSuccessAndNoOthers(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		code   int
		header []string
		want   stepexec.Outcome
	}{
		"one of them":                {code: 409, want: stepexec.OutcomeSucceeded},
		"another":                    {code: 422, want: stepexec.OutcomeSucceeded},
		"a redirect among them":      {code: 303, header: []string{"Location", "/elsewhere"}, want: stepexec.OutcomeSucceeded},
		"a server's error":           {code: 500, want: stepexec.OutcomeSucceeded},
		"200, which is not of them":  {code: 200, want: stepexec.OutcomeFailed},
		"503, which is not of them,": {code: 503, want: stepexec.OutcomeRetry},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, method := range []string{"GET", "POST"} {
				server := record(t, status(tc.code, tc.header...))
				s := aSending(server.URL).method(method)
				s.spec.SuccessCodes = []int32{303, 409, 422, 500}
				if got := s.run(t); got.Outcome != tc.want {
					t.Errorf("%s: outcome %s, want %s", method, got.Outcome, tc.want)
				}
				if n := len(server.got()); n != 1 {
					t.Errorf("%s: the server got %d requests, want 1", method, n)
				}
			}
		})
	}
}

func TestHTTPTellsTheTextsOfAProblemAndNothingElseOfABody(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("0123456789", 30)
	for name, tc := range map[string]struct{ kind, body, want string }{
		"a problem": {
			"application/problem+json; charset=utf-8", `{"title":"No such charge","detail":"ch_1 is\n\u001b[31mnot known","instance":"hunter2"}`,
			" (No such charge: ch_1 is [31mnot known)"},
		"a title alone": {"application/problem+json", `{"title":"No such charge"}`, " (No such charge)"},
		"texts that are too long": {"application/problem+json", `{"title":"` + long + `","detail":"` + long + `"}`,
			" (" + long[:197] + "…: " + long[:197] + "…)"},
		"texts that are none":       {"application/problem+json", `{"title":7,"detail":["hunter2"]}`, ""},
		"a problem that is no JSON": {"application/problem+json", `hunter2`, ""},
		"a problem that is an array": {
			"application/problem+json", `["hunter2"]`, ""},
		"a problem of a megabyte":      {"application/problem+json", `{"title":"x","hunter2":"` + strings.Repeat("x", 1<<20) + `"}`, ""},
		"JSON of another kind":         {"application/json", `{"title":"hunter2"}`, ""},
		"text":                         {"text/plain", "hunter2", ""},
		"a content type that is wrong": {"problem;;", "hunter2", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := record(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", tc.kind)
				w.Header().Set("Www-Authenticate", "hunter2")
				w.WriteHeader(http.StatusNotFound)
				_, _ = io.WriteString(w, tc.body)
			})
			want := result(stepexec.OutcomeFailed, v1alpha1.ReasonHTTPStatus, server.host()+" answered POST with 404 Not Found"+tc.want, 0)
			if diff := cmp.Diff(want, aSending(server.URL+"/hunter2?hunter2").run(t)); diff != "" {
				t.Errorf("result (-want +got):\n%s", diff)
			}
		})
	}
}

func TestHTTPRefusesARequestThatCannotBeMade(t *testing.T) {
	t.Parallel()
	server := record(t, status(200))
	for name, tc := range map[string]struct {
		change         func(s *sending)
		reason, detail string
	}{
		"an input that is no request": {func(s *sending) { s.input = `"hunter2"` }, v1alpha1.ReasonInputInvalid, "json: cannot unmarshal string"},
		"an input of a newer version": {func(s *sending) { s.input = `{"retries":3}` }, v1alpha1.ReasonInputInvalid, `json: unknown field "retries"`},
		"a url that is none":          {func(s *sending) { s.spec.URL = "/hunter2" }, v1alpha1.ReasonInputInvalid, "url must begin with http:// or https://"},
		"a header without its Secret": {func(s *sending) {
			s.spec.Headers = []stepexec.HTTPHeader{{Name: "Authorization", FromEnv: "AGENTTASK_HTTP_HEADER_0"}}
		}, v1alpha1.ReasonContainerConfig, "there is no value for the header Authorization"},
		"a Secret of two lines": {func(s *sending) {
			s.spec.Headers = []stepexec.HTTPHeader{{Name: "Authorization", FromEnv: "AGENTTASK_HTTP_HEADER_0"}}
			s.env["AGENTTASK_HTTP_HEADER_0"] = "hunter2\nhunter2"
		}, v1alpha1.ReasonContainerConfig, "the value for the header Authorization holds a newline or another control character"},
		"no key": {func(s *sending) { delete(s.env, stepexec.EnvKey) }, v1alpha1.ReasonKeyInvalid,
			"its idempotency key must be visible ASCII, and not empty"},
		"a key that no header takes": {func(s *sending) { s.env[stepexec.EnvKey] = "hunter2\r\nX: y" }, v1alpha1.ReasonKeyInvalid,
			"its idempotency key must be visible ASCII, and not empty"},
		"authorities that are none": {func(s *sending) {
			s.spec.CAEnv = stepexec.EnvHTTPCA
			s.env[stepexec.EnvHTTPCA] = "-----BEGIN RSA PRIVATE KEY-----\nhunter2\n-----END RSA PRIVATE KEY-----\n"
		}, v1alpha1.ReasonContainerConfig, "tls.ca holds no certificate in PEM"},
		"authorities that are missing": {func(s *sending) { s.spec.CAEnv = stepexec.EnvHTTPCA }, v1alpha1.ReasonContainerConfig,
			"tls.ca holds no certificate in PEM"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := aSending(server.URL)
			tc.change(s)
			got := s.run(t)
			if got.Outcome != stepexec.OutcomeFailed || got.Reason != tc.reason || !got.NotStarted ||
				!strings.HasPrefix(got.Message, "the request cannot be made: "+tc.detail) {
				t.Errorf("%+v, want it Failed, %s, not started, with %q", got, tc.reason, tc.detail)
			}
		})
	}
	t.Cleanup(func() {
		if got := server.got(); len(got) > 0 {
			t.Errorf("the server got %q", got)
		}
	})
}

func TestHTTPWithoutAnInput(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := &Runner{Dir: dir, TerminationPath: filepath.Join(dir, "termination-log"), Stdout: os.Stdout, Stderr: os.Stderr}
	got := r.request(HTTPOptions{}, nil)
	want := stepexec.Result{Outcome: stepexec.OutcomeFailed, Reason: v1alpha1.ReasonInputInvalid, NotStarted: true,
		Message: "the request cannot be made: /agenttask/input.json cannot be read: no such file or directory"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("result (-want +got):\n%s", diff)
	}
}
