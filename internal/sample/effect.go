// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package sample

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// maxAnswer is the most bytes of an answer that the client reads.
const maxAnswer = 1 << 20

// requestTimeout is how long the client waits for an answer.
const requestTimeout = 15 * time.Second

// NewClient is a client that sends each request once and follows no redirect.
func NewClient() *http.Client {
	return &http.Client{
		Timeout:       requestTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// EffectOptions are the flags of the commands that have an effect.
type EffectOptions struct {
	// URL is the ledger's, without /effects.
	URL string
	// Kind is what sort of effect it is.
	Kind string
	// Work is how long to work between the ledger's answer and the output: whoever
	// stops the program there sees the next attempt repeat the request, and the
	// ledger not repeat the effect.
	Work time.Duration
}

// Effect sends the step's input to the ledger, and leaves the record as output.
func Effect(ctx context.Context, p Program, o EffectOptions) error {
	if o.Kind == "" {
		return failf("--kind is missing: give what sort of effect it is, for example --kind publish")
	}
	body, err := p.rawInput()
	if err != nil {
		return err
	}
	return p.effect(ctx, o, body)
}

func (p Program) effect(ctx context.Context, o EffectOptions, body []byte) error {
	record, err := p.send(ctx, o, body)
	if err != nil {
		return err
	}
	if err := p.work(ctx, o.Work); err != nil {
		return err
	}
	return p.rawOutput(record)
}

// send sends the effect once. Whether it is sent again is the operator's to say: of
// several layers that retry, the attempts multiply.
func (p Program) send(ctx context.Context, o EffectOptions, body []byte) ([]byte, error) {
	req, err := p.request(ctx, o, body)
	if err != nil {
		return nil, err
	}
	resp, err := p.Client.Do(req)
	if err != nil {
		return nil, lost(ctx, req.URL, err)
	}
	defer resp.Body.Close()
	doc, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, lost(ctx, req.URL, err)
	}
	return judge(req.URL, resp, doc)
}

func (p Program) request(ctx context.Context, o EffectOptions, body []byte) (*http.Request, error) {
	base, err := url.Parse(o.URL)
	if err != nil || base.Host == "" || (base.Scheme != "http" && base.Scheme != "https") {
		return nil, failf("--url %q is not the URL of a ledger: give one such as http://ledger", o.URL)
	}
	key, err := p.env(envKey)
	if err != nil {
		return nil, err
	}
	target := base.JoinPath("effects")
	target.RawQuery = url.Values{"task": {p.Getenv(envTask)}, "step": {p.Getenv(envStep)}, "kind": {o.Kind}}.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target.String(), bytes.NewReader(body))
	if err != nil {
		return nil, failf("making the request: %v", err)
	}
	// net/http sends a request with this header again by itself where a kept connection
	// broke; without GetBody it cannot.
	req.GetBody = nil
	req.Header.Set(KeyHeader, quoteKey(key))
	req.Header.Set("Content-Type", "application/json")
	return req, nil
}

// lost is a request whose answer did not come: whether it had its effect is unknown,
// so it is sent again under the same key.
func lost(ctx context.Context, target *url.URL, err error) error {
	if ctx.Err() != nil {
		return stopped("waiting for the ledger")
	}
	if wrapped := (*url.Error)(nil); errors.As(err, &wrapped) {
		err = wrapped.Err
	}
	return retryf("no answer from %s: %v", target.Host, err)
}

// judge turns an answer into the record, another attempt, or the end.
func judge(target *url.URL, resp *http.Response, doc []byte) ([]byte, error) {
	said := fmt.Sprintf("%s answered %s%s", target.Host, resp.Status, detail(doc))
	switch code := resp.StatusCode; {
	case code == http.StatusOK || code == http.StatusCreated:
		if len(doc) == maxAnswer || !json.Valid(doc) {
			return nil, failf("%s, but with no record: is --url a ledger's?", said)
		}
		return bytes.TrimSpace(doc), nil
	case transient(code):
		err := &Exit{Code: exitRetry, Message: said, RetryAfter: retryAfter(resp.Header)}
		return nil, err
	case code >= 300 && code < 400:
		return nil, failf("%s: give the URL it points to, %s, in --url", said, resp.Header.Get("Location"))
	default:
		return nil, failf("%s", said)
	}
}

// transient says whether the same request may be answered otherwise later.
func transient(code int) bool {
	switch code {
	case http.StatusRequestTimeout, http.StatusConflict, http.StatusTooEarly, http.StatusTooManyRequests:
		return true
	}
	return code >= 500
}

// retryAfter is the header's value where it can be read.
func retryAfter(h http.Header) string {
	v := strings.TrimSpace(h.Get("Retry-After"))
	if _, err := strconv.ParseUint(v, 10, 31); err == nil {
		return v
	}
	if _, err := http.ParseTime(v); err == nil {
		return v
	}
	return ""
}

// detail is what an answer says for people, where it is a problem document.
func detail(doc []byte) string {
	var p problem
	if json.Unmarshal(doc, &p) != nil || p.Detail == "" {
		return ""
	}
	return " (" + p.Detail + ")"
}
