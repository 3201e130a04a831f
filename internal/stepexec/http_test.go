// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package stepexec

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func refundRequest() *HTTPRequest {
	return &HTTPRequest{
		Method:        "POST",
		URL:           "https://payments.internal/refunds?order=123&full=yes",
		Headers:       []HTTPHeader{{Name: "Accept", Value: "application/json"}, {Name: "Authorization", FromEnv: EnvHTTPHeader(1)}},
		Body:          json.RawMessage(`{"charge":"ch_1","note":"<&>"}`),
		SuccessCodes:  []int32{200, 409},
		Timeout:       metav1.Duration{Duration: 90 * time.Second},
		KeyHeader:     &HTTPKeyHeader{Name: "X-Key", Bare: true},
		Output:        "Response",
		OutputHeaders: []string{"ETag"},
		CAEnv:         EnvHTTPCA,
	}
}

func TestHTTPRequestHasOneSpelling(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		request *HTTPRequest
		want    string
	}{
		"with everything": {refundRequest(), `{"body":{"charge":"ch_1","note":"<&>"},"caEnv":"AGENTTASK_HTTP_CA",` +
			`"headers":[{"name":"Accept","value":"application/json"},{"fromEnv":"AGENTTASK_HTTP_HEADER_1","name":"Authorization"}],` +
			`"keyHeader":{"bare":true,"name":"X-Key"},"method":"POST","output":"Response","outputHeaders":["ETag"],` +
			`"successCodes":[200,409],"timeout":"1m30s","url":"https://payments.internal/refunds?order=123&full=yes"}`},
		"with as little as may be": {
			&HTTPRequest{Method: "GET", URL: "http://a", Timeout: metav1.Duration{Duration: time.Second}},
			`{"method":"GET","timeout":"1s","url":"http://a"}`},
		"with a body of null and the usual key": {
			&HTTPRequest{Method: "PUT", URL: "http://a", Timeout: metav1.Duration{Duration: time.Second},
				Body: json.RawMessage("null"), KeyHeader: &HTTPKeyHeader{}},
			`{"body":null,"keyHeader":{},"method":"PUT","timeout":"1s","url":"http://a"}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			doc, err := tc.request.Encode()
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, string(doc)); diff != "" {
				t.Errorf("document (-want +got):\n%s", diff)
			}
			back, err := DecodeHTTPRequest(doc)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.request, back); diff != "" {
				t.Errorf("read back (-want +got):\n%s", diff)
			}
		})
	}
}

func TestDecodeHTTPRequestRefusesWhatCannotBeSent(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change func(*HTTPRequest)
		want   string
	}{
		"no method":                  {func(r *HTTPRequest) { r.Method = "" }, "method must be one of GET, HEAD, POST, PUT, PATCH, DELETE"},
		"a method of another kind":   {func(r *HTTPRequest) { r.Method = "CONNECT" }, "method must be one of"},
		"no timeout":                 {func(r *HTTPRequest) { r.Timeout.Duration = 0 }, "timeout must be more than 0"},
		"an unknown output":          {func(r *HTTPRequest) { r.Output = "Status" }, "output must be Body or Response"},
		"no url":                     {func(r *HTTPRequest) { r.URL = "" }, "url must begin with"},
		"a url of another scheme":    {func(r *HTTPRequest) { r.URL = "file:///etc/hunter2" }, "url must begin with"},
		"a url without a host":       {func(r *HTTPRequest) { r.URL = "https://:443/hunter2" }, "url names no host"},
		"a url with a space":         {func(r *HTTPRequest) { r.URL = "https://a/?q=hunter2 HTTP/1.1" }, "urlEncode"},
		"a url with a newline":       {func(r *HTTPRequest) { r.URL = "https://a/\nhunter2" }, "urlEncode"},
		"a url beyond ASCII":         {func(r *HTTPRequest) { r.URL = "https://a/?q=hunter2é" }, "urlEncode"},
		"a url with half an escape":  {func(r *HTTPRequest) { r.URL = "https://a/%hunter2" }, "url is not a URL"},
		"a header without a name":    {func(r *HTTPRequest) { r.Headers[1].Name = "" }, "headers[1]: name is not the name of a header"},
		"a header name of two words": {func(r *HTTPRequest) { r.Headers[0].Name = "A b" }, "headers[0]: name is not the name of a header"},
		"a header with two values":   {func(r *HTTPRequest) { r.Headers[1].Value = "hunter2" }, "headers[1]: it has a value and a fromEnv"},
		"a header of two lines":      {func(r *HTTPRequest) { r.Headers[0].Value = "a\r\nX: hunter2" }, "headers[0]: value holds a control character"},
		"a key header of two lines":  {func(r *HTTPRequest) { r.KeyHeader.Name = "A\nB" }, "keyHeader.name is not the name of a header"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := refundRequest()
			tc.change(r)
			doc, err := r.Encode()
			if err != nil {
				t.Fatal(err)
			}
			_, err = DecodeHTTPRequest(doc)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("error %v, want one with %q", err, tc.want)
			}
			if strings.Contains(err.Error(), "hunter2") {
				t.Errorf("the error %q shows a value", err)
			}
		})
	}
}

func TestDecodeHTTPRequestTakesNothingElse(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ doc, want string }{
		"a field that it does not know": {`{"method":"GET","timeout":"1s","url":"http://a","proxy":"b"}`, `unknown field "proxy"`},
		"two documents":                 {`{"method":"GET","timeout":"1s","url":"http://a"} {}`, "something follows the request"},
		"no document":                   {``, "EOF"},
		"an array":                      {`[]`, "cannot unmarshal array"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := DecodeHTTPRequest([]byte(tc.doc)); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want one with %q", err, tc.want)
			}
		})
	}
	r := refundRequest()
	r.Body = json.RawMessage("{")
	if err := r.Validate(); err == nil || err.Error() != "body is not JSON" {
		t.Errorf("a body that is no JSON: error %v", err)
	}
}

func TestKeysInHeaders(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		key, want string
		valid     bool
	}{
		"a derived key":   {"refund.pay.0123abcd", `"refund.pay.0123abcd"`, true},
		"quotes":          {`say-"hi"`, `"say-\"hi\""`, true},
		"backslashes":     {`a\b\`, `"a\\b\\"`, true},
		"both":            {`\"`, `"\\\""`, true},
		"the first":       {"!", `"!"`, true},
		"the last":        {"~", `"~"`, true},
		"nothing":         {"", `""`, false},
		"a space":         {"a b", `"a b"`, false},
		"a newline":       {"a\nb", "\"a\nb\"", false},
		"delete":          {"a\x7f", "\"a\x7f\"", false},
		"beyond ASCII":    {"ä", `"ä"`, false},
		"not even UTF-8":  {"\xff", "\"\xff\"", false},
		"a tab at an end": {"a\t", "\"a\t\"", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := QuoteKey(tc.key); got != tc.want {
				t.Errorf("quoted %s, want %s", got, tc.want)
			}
			if got := ValidKey(tc.key); got != tc.valid {
				t.Errorf("valid %t, want %t", got, tc.valid)
			}
		})
	}
}

func TestHTTPEnvironment(t *testing.T) {
	t.Parallel()
	if got := EnvHTTPHeader(12); got != "AGENTTASK_HTTP_HEADER_12" {
		t.Errorf("header 12 is in %s", got)
	}
}
