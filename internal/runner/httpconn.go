// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package runner

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"syscall"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
)

// maxRedirects is how many redirects of a GET or HEAD are followed.
const maxRedirects = 10

// maxResponseHeader is the most bytes of an answer's headers.
const maxResponseHeader = 1 << 20

// newTransport sends each request over a connection of its own and never again: see
// Runner.HTTP.
func newTransport(authorities *x509.CertPool) *http.Transport {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	return &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DisableKeepAlives:      true,
		DisableCompression:     true,
		Protocols:              protocols,
		MaxResponseHeaderBytes: maxResponseHeader,
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: authorities},
	}
}

// redirect gives the request that a response to req asks for, after hops others. Where it
// may not be made, why says so; both are empty where the response is no redirect.
func (x *exchange) redirect(req *http.Request, response *http.Response, hops int) (next *http.Request, why string) {
	if x.success(response.StatusCode) ||
		!slices.Contains([]int{301, 302, 303, 307, 308}, response.StatusCode) || response.Header.Get("Location") == "" {
		return nil, ""
	}
	to, err := req.URL.Parse(response.Header.Get("Location"))
	if err != nil || (to.Scheme != "http" && to.Scheme != "https") || to.Hostname() == "" {
		return nil, "it redirects to what is no http or https URL"
	}
	switch {
	case !x.reads():
		return nil, fmt.Sprintf("it redirects to %s, which is not followed with %s; set url to where it leads", place(to, req.URL), x.spec.Method)
	case hops == maxRedirects:
		return nil, fmt.Sprintf("it is the end of %d redirects, and the next leads to %s", maxRedirects, place(to, req.URL))
	case req.URL.Scheme == "https" && to.Scheme == "http":
		return nil, fmt.Sprintf("it redirects to %s, which is not followed from https; set url to where it leads", place(to, req.URL))
	}
	next = req.Clone(req.Context())
	next.URL = to
	if origin(to) != origin(req.URL) {
		// The headers are for the step's own URL; this one gets none of its secrets,
		// nor does any that follows.
		next.Host = ""
		next.Header = http.Header{"User-Agent": req.Header["User-Agent"]}
		if accept := req.Header["Accept"]; accept != nil {
			next.Header["Accept"] = accept
		}
	}
	return next, ""
}

// place names where a redirect leads, without what may be secret.
func place(to, from *url.URL) string {
	if origin(to) == origin(from) {
		return "another path of the same server"
	}
	return to.Scheme + "://" + to.Host
}

// origin is what two URLs of one server have in common: scheme, host and port.
func origin(u *url.URL) string {
	port := u.Port()
	switch {
	case port != "":
	case u.Scheme == "https":
		port = "443"
	default:
		port = "80"
	}
	return u.Scheme + "://" + strings.ToLower(u.Hostname()) + ":" + port
}

// broken is the result of a request that got no answer, or not all of it; soFar is what is
// known of that.
func (x *exchange) broken(ctx context.Context, err error, soFar string) stepexec.Result {
	ended := context.Cause(ctx)
	if !x.sent.Load() {
		return neverRan(x.unsent(ended, err))
	}
	res := stepexec.Result{Outcome: stepexec.OutcomeRetry, Reason: v1alpha1.ReasonConnection}
	switch {
	case errors.Is(ended, errStopped):
		res = interrupted("stopped from outside while it waited for the answer of " + x.at)
	case errors.Is(ended, errTimeout):
		res.Reason = v1alpha1.ReasonTimeout
		res.Message = fmt.Sprintf("the timeout of %v passed while it waited for the answer of %s; set http.timeout to allow more",
			x.spec.Timeout.Duration, x.at)
	default:
		res.Message = brokenBy(err, x.at)
	}
	res.Message = soFar + res.Message
	if x.once {
		res.Outcome = stepexec.OutcomeInterrupted
		res.Message += "; it may have taken effect"
	}
	return res
}

// unsent is the result of a request for which there was no connection.
func (x *exchange) unsent(ended, err error) stepexec.Result {
	res := stepexec.Result{Outcome: stepexec.OutcomeRetry, Reason: v1alpha1.ReasonConnection}
	switch {
	case errors.Is(ended, errStopped):
		return interrupted("stopped from outside before the request was sent")
	case errors.Is(ended, errTimeout):
		res.Message = fmt.Sprintf("no connection to %s within the timeout of %v", x.at, x.spec.Timeout.Duration)
	default:
		res.Message = fmt.Sprintf("no connection to %s: %s", x.at, unreachable(err))
	}
	return res
}

// unreachable says why there was no connection.
func unreachable(err error) string {
	if name, ok := errors.AsType[*net.DNSError](err); ok {
		return "its name cannot be resolved: " + name.Err
	}
	text := oneLine(err.Error(), 400)
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		text += "; give the authority that signed it in http.tls.ca"
	}
	return text
}

// brokenBy says how the connection to host broke, and nothing of what came over it.
func brokenBy(err error, host string) string {
	errno := syscall.Errno(0)
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return host + " closed the connection"
	case errors.As(err, &errno):
		return fmt.Sprintf("the connection to %s broke (%v)", host, errno)
	}
	return fmt.Sprintf("the connection to %s broke, or what came is no HTTP", host)
}
