// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package runner

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
)

func (x *exchange) success(code int) bool {
	if len(x.spec.SuccessCodes) == 0 {
		return code >= 200 && code <= 299
	}
	return slices.Contains(x.spec.SuccessCodes, int32(code))
}

// said begins a message: who answered what.
func (x *exchange) said(code int) string {
	return fmt.Sprintf("%s answered %s with %s", x.at, x.spec.Method,
		strings.TrimSpace(strconv.Itoa(code)+" "+http.StatusText(code)))
}

// refused is the result of an answer that is no success: the table at Runner.HTTP.
func (x *exchange) refused(a answer) stepexec.Result {
	code := a.response.StatusCode
	wait, asked := parseRetryAfter(a.response.Header.Get("Retry-After"), time.Now())
	message := x.said(code)
	if word := problem(a.response); word != "" {
		message += " (" + word + ")"
	}
	retry := stepexec.Result{Outcome: stepexec.OutcomeRetry, Reason: v1alpha1.ReasonHTTPStatus, Message: message, RetryAfterSeconds: wait}
	unknown := stepexec.Result{Outcome: stepexec.OutcomeInterrupted, Reason: v1alpha1.ReasonHTTPStatus,
		Message: message + ", which does not tell whether the request took effect"}
	switch {
	case code == http.StatusConflict:
		if x.keySent {
			retry.Message += "; a request with the same key is still in flight"
		}
		return retry
	case code == http.StatusTooEarly, code == http.StatusTooManyRequests:
		return retry
	case code == http.StatusRequestTimeout, code == http.StatusServiceUnavailable:
		if x.once && !asked {
			return unknown
		}
		return retry
	case code >= 500:
		if x.once {
			return unknown
		}
		return retry
	case code == http.StatusUnprocessableEntity && x.keySent:
		return failed(v1alpha1.ReasonKeyReused, message+"; it has seen the idempotency key with another payload, "+
			"or it takes this payload for invalid")
	case a.misdirected != "":
		message += "; " + a.misdirected
	}
	return failed(v1alpha1.ReasonHTTPStatus, message)
}

// maxProblem is the most bytes of a problem document that are read, maxProblemText of
// each of its texts that are shown.
const (
	maxProblem     = 64 << 10
	maxProblemText = 200
)

// problem is what a problem document (RFC 9457) tells people: its title and detail. Empty
// where the response holds none.
func problem(response *http.Response) string {
	if mediaType(response) != "application/problem+json" {
		return ""
	}
	raw, err := io.ReadAll(io.LimitReader(response.Body, maxProblem))
	if err != nil {
		return ""
	}
	var members map[string]any
	if json.Unmarshal(raw, &members) != nil {
		return ""
	}
	var texts []string
	for _, name := range []string{"title", "detail"} {
		text, _ := members[name].(string) // others are to be ignored
		if text = oneLine(text, maxProblemText); text != "" {
			texts = append(texts, text)
		}
	}
	return strings.Join(texts, ": ")
}

// oneLine makes s, which somebody else wrote, fit to stand in a message.
func oneLine(s string, limit int) string {
	return shorten(strings.Join(strings.Fields(clean(s)), " "), limit)
}

func mediaType(response *http.Response) string {
	kind, _, err := mime.ParseMediaType(response.Header.Get("Content-Type"))
	if err != nil {
		return ""
	}
	return kind
}

// document is the output that a response makes, in canonical form, or nil where its body
// is too large to be read.
//
// A body that says it is JSON and is none, or that the canonical form would change, is
// taken for text: the request has taken effect, and nothing of its answer is lost.
func (x *exchange) document(response *http.Response, raw []byte) []byte {
	if len(raw) > maxRaw {
		return nil
	}
	if kind := mediaType(response); len(raw) > 0 && (kind == "application/json" || strings.HasSuffix(kind, "+json")) {
		if body, err := stepexec.Canonical(raw); err == nil {
			if doc, err := x.wrap(response, body); err == nil {
				return doc
			}
		}
	}
	body := []byte("null")
	switch {
	case len(raw) == 0:
	case utf8.Valid(raw):
		body = quote(string(raw))
	default:
		body = quote(base64.StdEncoding.EncodeToString(raw))
	}
	doc, err := x.wrap(response, body)
	if err != nil { // cannot be: it holds strings and a number
		return nil
	}
	return doc
}

// wrap makes the output of a body: as it is, or with the status and headers around it.
func (x *exchange) wrap(response *http.Response, body []byte) ([]byte, error) {
	if x.spec.Output != v1alpha1.HTTPOutputResponse {
		return stepexec.Canonical(body)
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, `{"body":%s,"headers":{`, body)
	names := []string{}
	for _, name := range x.spec.OutputHeaders {
		if len(response.Header.Values(name)) > 0 {
			names = append(names, strings.ToLower(name))
		}
	}
	slices.Sort(names)
	for i, name := range slices.Compact(names) {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, "%s:%s", quote(name), quote(strings.Join(response.Header.Values(name), ", ")))
	}
	fmt.Fprintf(&b, `},"status":%d}`, response.StatusCode)
	return stepexec.Canonical(b.Bytes())
}

// quote is s as a JSON string. Bytes of it that are not UTF-8 are replaced.
func quote(s string) []byte {
	text, _ := jsontext.AppendQuote(nil, strings.ToValidUTF8(s, "\uFFFD")) // which leaves no error
	return text
}
