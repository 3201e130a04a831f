// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package runner

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"os"
	"sync/atomic"
	"time"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
)

// HTTPOptions are how to send the step's request; what to send stands in its input.
type HTTPOptions struct {
	// Once says that the request must not be sent twice: see Runner.HTTP, and
	// Options.Once.
	Once bool
	// Grace is how long a request of Once that was sent may still wait for its answer
	// after the container is told to stop. Keep it below the pod's grace period.
	Grace time.Duration
}

// HTTP sends the one request of the step's input, a stepexec.HTTPRequest, writes the
// result and returns the exit code for the runner itself. It may be called once in a
// process.
//
// The request is sent once: over a connection of its own, with HTTP/1.1, since the
// standard library sends a request again where a kept connection or an HTTP/2 stream
// fails, a POST with an Idempotency-Key too. Redirects are followed for GET and HEAD
// alone, at most maxRedirects of them, never from https to http, and without the step's
// headers where they lead to another origin.
//
// How an attempt's end becomes an outcome, first match wins. With Once, what may have
// taken effect is not tried again; "sent" means that there was a connection to send it
// on:
//
//	the request                                outcome      with Once    reason
//	may have been sent by an earlier start                  Interrupted  StartedTwice
//	cannot be made from the input              Failed       Failed       InputInvalid
//	  or its key                               Failed       Failed       KeyInvalid
//	  or what a Secret or ConfigMap holds      Failed       Failed       ContainerConfigError
//	is stopped from outside (TERM, INT, QUIT)  Interrupted  Interrupted  Killed
//	cannot be sent                             Retry        Retry        ConnectionFailed
//	was sent, and its timeout passes           Retry        Interrupted  Timeout
//	was sent, and the connection breaks        Retry        Interrupted  ConnectionFailed
//	a code of successCodes, output fits        Succeeded    Succeeded
//	                        and does not       Failed       Failed       OutputTooLarge
//	a redirect that is not followed            Failed       Failed       HTTPStatus
//	409, 425, 429                              Retry        Retry        HTTPStatus
//	408, 503 with Retry-After                  Retry        Retry        HTTPStatus
//	408, 503 without                           Retry        Interrupted  HTTPStatus
//	any other 5xx                              Retry        Interrupted  HTTPStatus
//	422, where the key was sent                Failed       Failed       KeyReused
//	any other code                             Failed       Failed       HTTPStatus
//
// 408 and 503 mean that the request was not processed, by RFC 9110; but proxies answer so
// as well when the server behind them breaks off a request that they had passed on. A
// Retry-After is the word of somebody who turned it away.
//
// Where the request provably was not sent, the result says so too (NotStarted). The exit
// codes are those of Exec.
//
// Messages name the server, the status, and the title and detail of a problem document
// (RFC 9457): no path, no query, no header and nothing else of a body, all of which may
// hold secrets.
func (r *Runner) HTTP(o HTTPOptions) int {
	return r.report(r.request(o, takeSignals()))
}

// request sends the request and judges what becomes of it.
func (r *Runner) request(o HTTPOptions, signals <-chan os.Signal) stepexec.Result {
	if o.Once {
		if refused := r.mark(); refused != nil {
			return *refused
		}
	}
	x, refused := r.prepare()
	if refused != nil {
		return neverRan(*refused)
	}
	x.once = o.Once

	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	go x.watch(ctx, cancel, o.Grace, signals, r.timer())
	a := x.send(ctx)
	if a.response != nil {
		defer a.response.Body.Close()
	}
	res, output := x.judge(ctx, a)
	if res.Outcome == stepexec.OutcomeSucceeded {
		return r.succeeded(output, "")
	}
	return res
}

// exchange is the request on its way.
type exchange struct {
	spec *stepexec.HTTPRequest
	url  *url.URL
	// header holds all headers but Host, host that one.
	header http.Header
	host   string
	// keySent says that the idempotency key is among them.
	keySent bool
	// authorities are whom to trust; nil: the image's.
	authorities *x509.CertPool
	once        bool

	// at is the host, with its port, that the request is sent to, by now perhaps by a
	// redirect.
	at string
	// sent says that there was a connection, on which some of the request may be gone.
	sent atomic.Bool
}

// Causes to end a request early.
var (
	errTimeout = errors.New("the timeout has passed")
	errStopped = errors.New("stopped from outside")
)

// watch ends the request at its timeout, and when the container is told to stop: at once,
// but for a request of Once that was sent. Its answer is worth waiting for, since without
// one nobody knows whether it took effect.
func (x *exchange) watch(ctx context.Context, end context.CancelCauseFunc, grace time.Duration,
	signals <-chan os.Signal, after func(time.Duration) <-chan time.Time) {
	expired := after(x.spec.Timeout.Duration)
	var graceOver <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-expired:
			end(errTimeout)
		case <-graceOver:
			end(errStopped)
		case sig := <-signals:
			switch {
			case !stops(sig) || graceOver != nil:
			case x.once && x.sent.Load() && grace > 0:
				graceOver = after(grace)
			default:
				end(errStopped)
			}
		}
	}
}

// answer is what came of a request.
type answer struct {
	// response is what the server answered, its body not read; nil where there is none.
	response *http.Response
	// misdirected says why its redirect was not followed.
	misdirected string
	// err is why there is no response.
	err error
}

// send sends the request and follows its redirects.
func (x *exchange) send(ctx context.Context) answer {
	transport := newTransport(x.authorities)
	trace := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { x.sent.Store(true) }}
	req, err := x.first(httptrace.WithClientTrace(ctx, trace))
	for hops := 0; err == nil; hops++ {
		x.at = req.URL.Host
		var response *http.Response
		if response, err = transport.RoundTrip(req); err != nil {
			break
		}
		next, why := x.redirect(req, response, hops)
		if next == nil {
			return answer{response: response, misdirected: why}
		}
		response.Body.Close()
		req = next
	}
	return answer{err: err}
}

// first is the request to the step's own URL.
func (x *exchange) first(ctx context.Context) (*http.Request, error) {
	var body io.Reader
	if len(x.spec.Body) > 0 && !x.reads() {
		body = bytes.NewReader(x.spec.Body)
	}
	req, err := http.NewRequestWithContext(ctx, x.spec.Method, x.url.String(), body)
	if err != nil {
		return nil, err
	}
	req.GetBody = nil // so that it cannot be sent again
	req.Header, req.Host = x.header, x.host
	if user := x.url.User; user != nil && req.Header.Get("Authorization") == "" {
		password, _ := user.Password()
		req.SetBasicAuth(user.Username(), password)
	}
	return req, nil
}

// reads says that the method is one that changes nothing.
func (x *exchange) reads() bool {
	return x.spec.Method == http.MethodGet || x.spec.Method == http.MethodHead
}

// judge turns what came of the request into the result: the table at Runner.HTTP. output
// is that of a success.
func (x *exchange) judge(ctx context.Context, a answer) (res stepexec.Result, output []byte) {
	if a.response == nil {
		return x.broken(ctx, a.err, ""), nil
	}
	if !x.success(a.response.StatusCode) {
		return x.refused(a), nil
	}
	raw, err := io.ReadAll(io.LimitReader(a.response.Body, maxRaw+1))
	if err != nil {
		return x.broken(ctx, err, x.said(a.response.StatusCode)+", but its answer did not arrive whole: "), nil
	}
	doc := x.document(a.response, raw)
	if doc == nil || len(doc) > stepexec.MaxOutput {
		return failed(v1alpha1.ReasonOutputTooLarge, fmt.Sprintf("%s, but the output that its answer makes is over the "+
			"limit of %d bytes and was not kept; ask the server for less", x.said(a.response.StatusCode), stepexec.MaxOutput)), nil
	}
	return stepexec.Result{Outcome: stepexec.OutcomeSucceeded}, doc
}
