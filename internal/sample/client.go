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
	"net"
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

// call is one request to the ledger.
type call struct {
	method, path string
	query        url.Values
	// key and body are sent where they are given.
	key  string
	body []byte
}

// reply is what came back.
type reply struct {
	host   string
	status int
	header http.Header
	doc    []byte
	// said is a sentence about it.
	said string
}

// send sends a call once. Whether it is sent again is the operator's to say: of several
// layers that retry, the attempts multiply.
func (p Program) send(ctx context.Context, base string, c call) (*reply, error) {
	req, err := c.request(ctx, base)
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
	said := fmt.Sprintf("%s answered %s%s", req.URL.Host, resp.Status, detail(doc))
	return &reply{host: req.URL.Host, status: resp.StatusCode, header: resp.Header, doc: doc, said: said}, nil
}

func (c call) request(ctx context.Context, base string) (*http.Request, error) {
	target, err := url.Parse(base)
	if err != nil || target.Host == "" || (target.Scheme != "http" && target.Scheme != "https") {
		return nil, failf("--url %q is not the URL of a ledger: give one such as http://ledger", base)
	}
	target = target.JoinPath(c.path)
	query := url.Values{}
	for name, values := range c.query {
		if values[0] != "" {
			query[name] = values
		}
	}
	target.RawQuery = query.Encode()
	req, err := http.NewRequestWithContext(ctx, c.method, target.String(), bytes.NewReader(c.body))
	if err != nil {
		return nil, failf("making the request: %v", err)
	}
	// net/http sends a request with a key again by itself where a kept connection broke;
	// without GetBody it cannot.
	req.GetBody = nil
	if c.key != "" {
		req.Header.Set(KeyHeader, quoteKey(c.key))
	}
	if c.body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	return req, nil
}

// lostError is a request whose answer did not come.
type lostError struct {
	host string
	// unsent: no connection came about, so nothing was asked for.
	unsent bool
	err    error
}

func (e *lostError) Error() string { return fmt.Sprintf("no answer from %s: %v", e.host, e.err) }

func lost(ctx context.Context, target *url.URL, err error) error {
	if ctx.Err() != nil {
		return stopped("waiting for the ledger")
	}
	if wrapped := (*url.Error)(nil); errors.As(err, &wrapped) {
		err = wrapped.Err
	}
	op := (*net.OpError)(nil)
	return &lostError{host: target.Host, unsent: errors.As(err, &op) && op.Op == "dial", err: err}
}

// again turns a lost answer into the wish for another attempt: right where the repeat
// has the same key, or changes nothing.
func again(err error) error {
	if gone := (*lostError)(nil); errors.As(err, &gone) {
		return retryf("%v", gone)
	}
	return err
}

// judge turns an answer into a document, another attempt, or the end.
func judge(r *reply) ([]byte, error) {
	switch {
	case r.status == http.StatusOK || r.status == http.StatusCreated:
		if len(r.doc) == maxAnswer || !json.Valid(r.doc) {
			return nil, failf("%s, but with no record: is --url a ledger's?", r.said)
		}
		return bytes.TrimSpace(r.doc), nil
	case transient(r.status):
		return nil, &Exit{Code: exitRetry, Message: r.said, RetryAfter: retryAfter(r.header)}
	case r.status >= 300 && r.status < 400:
		return nil, failf("%s: give the URL it points to, %s, in --url", r.said, r.header.Get("Location"))
	default:
		return nil, failf("%s", r.said)
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
