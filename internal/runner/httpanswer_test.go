// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package runner

import (
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
)

func TestHTTPMakesAnOutputOfTheBody(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ kind, body, want string }{
		"JSON, which is made canonical":      {"application/json", ` { "b" : 1.0, "a" : "<&>" } `, `{"a":"<&>","b":1}`},
		"JSON with a charset":                {"application/json; charset=utf-8", `[1, 2]`, `[1,2]`},
		"JSON of a kind":                     {"application/hal+json", `{"a":null}`, `{"a":null}`},
		"JSON in capitals":                   {"Application/JSON", `true`, `true`},
		"JSON that says it is text":          {"text/plain", `{"a":1}`, `"{\"a\":1}"`},
		"JSON that says nothing":             {"", `{"a":1}`, `"{\"a\":1}"`},
		"nothing":                            {"application/json", ``, `null`},
		"no JSON, though it says so":         {"application/json", `<html>é`, `"<html>é"`},
		"white space, though it says so":     {"application/json", " \n", `" \n"`},
		"an integer that would lose digits":  {"application/json", `{"id":1234567890123456789}`, `"{\"id\":1234567890123456789}"`},
		"a name twice":                       {"application/json", `{"a":1,"a":2}`, `"{\"a\":1,\"a\":2}"`},
		"two documents":                      {"application/json", `{} {}`, `"{} {}"`},
		"text with what must be escaped":     {"text/plain", "a\"b\\\u0001\u2028\n", `"a\"b\\\u0001` + "\u2028" + `\n"`},
		"what is not UTF-8":                  {"application/octet-stream", "\xff\x00\xfe", `"/wD+"`},
		"what is not UTF-8 and says JSON":    {"application/json", "\"\xff\"", `"Iv8i"`},
		"what goes on beyond one document":   {"application/json", `1,"status":7`, `"1,\"status\":7"`},
		"JSON nested as deep as it may be":   {"application/json", nested(10000), nested(10000)},
		"JSON nested deeper, taken for text": {"application/json", nested(10001), `"` + nested(10001) + `"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := record(t, body(tc.kind, tc.body))
			got := aSending(server.URL)
			if len(tc.want) > stepexec.MaxInlineOutput {
				if res := got.run(t); res.LogOutput == nil || res.LogOutput.SHA256 != stepexec.SHA256Hex([]byte(tc.want)) {
					t.Errorf("result %.200v, want an output of %d bytes", res, len(tc.want))
				}
				return
			}
			if diff := cmp.Diff(withOutput(tc.want), got.run(t)); diff != "" {
				t.Errorf("result (-want +got):\n%s", diff)
			}
		})
	}
}

func nested(depth int) string { return strings.Repeat("[", depth) + strings.Repeat("]", depth) }

func TestHTTPMakesAnOutputOfTheResponse(t *testing.T) {
	t.Parallel()
	header := func(w http.ResponseWriter) {
		w.Header()["Etag"] = []string{`"7"`}
		w.Header()["X-Tag"] = []string{"a", "b\xff"}
		w.Header().Set("X-Secret", "hunter2")
	}
	for name, tc := range map[string]struct {
		answer  http.HandlerFunc
		headers []string
		want    string
	}{
		"JSON": {body("application/json", `{"b":1.0}`), []string{"ETag", "x-tag", "X-TAG", "X-None"},
			`{"body":{"b":1},"headers":{"etag":"\"7\"","x-tag":"a, b` + "\uFFFD" + `"},"status":200}`},
		"no headers":       {body("text/plain", `x`), nil, `{"body":"x","headers":{},"status":200}`},
		"no body":          {status(404), []string{"etag"}, `{"body":null,"headers":{"etag":"\"7\""},"status":404}`},
		"more than a body": {body("application/json", `1,"status":7`), nil, `{"body":"1,\"status\":7","headers":{},"status":200}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := record(t, func(w http.ResponseWriter, r *http.Request) {
				header(w)
				tc.answer(w, r)
			})
			s := aSending(server.URL)
			s.spec.Output, s.spec.OutputHeaders, s.spec.SuccessCodes = v1alpha1.HTTPOutputResponse, tc.headers, []int32{200, 404}
			if diff := cmp.Diff(withOutput(tc.want), s.run(t)); diff != "" {
				t.Errorf("result (-want +got):\n%s", diff)
			}
		})
	}
}

func TestHTTPTakesJSONForTextWhereTheResponseAroundItWouldBeTooDeep(t *testing.T) {
	t.Parallel()
	server := record(t, body("application/json", nested(10000)))
	s := aSending(server.URL)
	s.spec.Output = v1alpha1.HTTPOutputResponse
	want := `{"body":"` + nested(10000) + `","headers":{},"status":200}`
	if got := s.run(t); got.LogOutput == nil || got.LogOutput.SHA256 != stepexec.SHA256Hex([]byte(want)) {
		t.Errorf("result %.200v, want an output of %d bytes", got, len(want))
	}
}

func TestHTTPOfAHEAD(t *testing.T) {
	t.Parallel()
	server := record(t, status(200, "Content-Type", "application/json", "Content-Length", "7", "Etag", "v1"))
	s := aSending(server.URL).method("HEAD")
	s.spec.Output, s.spec.OutputHeaders = v1alpha1.HTTPOutputResponse, []string{"etag"}
	want := withOutput(`{"body":null,"headers":{"etag":"v1"},"status":200}`)
	if diff := cmp.Diff(want, s.run(t)); diff != "" {
		t.Errorf("result (-want +got):\n%s", diff)
	}
}

func TestHTTPOfLargeAnswers(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		answer   http.HandlerFunc
		response bool
		inline   string // the output in the result
		logged   string // or in the log
	}{
		"of the inline limit":         {answer: body("application/json", bigString(2048)), inline: bigString(2048)},
		"a byte above it":             {answer: body("application/json", bigString(2049)), logged: bigString(2049)},
		"of the limit":                {answer: body("application/json", bigString(921600)), logged: bigString(921600)},
		"of the limit in white space": {answer: body("application/json", bigString(921600)+strings.Repeat(" ", 900000)), logged: bigString(921600)},
		"a byte too large":            {answer: body("application/json", bigString(921601))},
		"text that its quotes make too large": {
			answer: body("text/plain", strings.Repeat("0", 921599))},
		"text of the limit":                         {answer: body("text/plain", strings.Trim(bigString(921600), `"`)), logged: bigString(921600)},
		"of the limit, with the response around it": {answer: body("application/json", bigString(921600)), response: true},
		"more than is read":                         {answer: body("application/json", "1"+strings.Repeat(" ", maxRaw-1)+"2")},
		"bytes that base64 makes too large":         {answer: body("image/png", strings.Repeat("\xff", 700000))},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := record(t, tc.answer)
			want := stepexec.Result{Version: 1, Outcome: stepexec.OutcomeSucceeded}
			switch {
			case tc.inline != "":
				want.Output = []byte(tc.inline)
			case tc.logged != "":
				_, want.LogOutput = frame([]byte(tc.logged))
			default:
				want.Outcome, want.Reason = stepexec.OutcomeFailed, v1alpha1.ReasonOutputTooLarge
				want.Message = server.host() + " answered POST with 200 OK, but the output that its answer makes is over the " +
					"limit of 921600 bytes and was not kept; ask the server for less"
			}
			for _, once := range []bool{false, true} {
				s := aSending(server.URL)
				s.opts.Once = once
				if tc.response {
					s.spec.Output = v1alpha1.HTTPOutputResponse
				}
				if diff := cmp.Diff(want, s.run(t)); diff != "" {
					t.Errorf("result (-want +got):\n%.2000s", diff)
				}
			}
		})
	}
}
