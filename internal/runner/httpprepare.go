// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package runner

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
	"github.com/agenttask-dev/agenttask/internal/version"
)

// prepare reads the step's input and what its environment adds to it. It gives the result
// of a request that cannot be made.
func (r *Runner) prepare() (*exchange, *stepexec.Result) {
	refused := func(reason string, err error) (*exchange, *stepexec.Result) {
		res := failed(reason, fmt.Sprintf("the request cannot be made: %v", err))
		return nil, &res
	}
	doc, err := os.ReadFile(r.in(stepexec.InputPath))
	if err != nil {
		return refused(v1alpha1.ReasonInputInvalid, fmt.Errorf("%s cannot be read: %w", stepexec.InputPath, cause(err)))
	}
	x := &exchange{}
	if x.spec, err = stepexec.DecodeHTTPRequest(doc); err != nil {
		return refused(v1alpha1.ReasonInputInvalid, err)
	}
	if x.url, err = url.Parse(x.spec.URL); err != nil {
		return refused(v1alpha1.ReasonInputInvalid, errors.New("url is not a URL"))
	}
	if err := x.readHeaders(r.env); err != nil {
		return refused(v1alpha1.ReasonContainerConfig, err)
	}
	if err := x.readKey(r.env); err != nil {
		return refused(v1alpha1.ReasonKeyInvalid, err)
	}
	if err := x.readAuthorities(r.env); err != nil {
		return refused(v1alpha1.ReasonContainerConfig, err)
	}
	return x, nil
}

// environment looks up a variable.
type environment func(name string) (string, bool)

// readHeaders fills in the headers.
func (x *exchange) readHeaders(env environment) error {
	x.header = http.Header{"User-Agent": {"agenttask-runner/" + version.Version}}
	if len(x.spec.Body) > 0 && !x.reads() {
		x.header.Set("Content-Type", "application/json")
	}
	// Those that are given take the place of ours, and stand beside each other.
	for _, h := range x.spec.Headers {
		x.header.Del(h.Name)
	}
	for _, h := range x.spec.Headers {
		value, err := valueOf(h, env)
		if err != nil {
			return err
		}
		if http.CanonicalHeaderKey(h.Name) == "Host" {
			x.host = value
			continue
		}
		x.header.Add(h.Name, value)
	}
	return nil
}

func valueOf(h stepexec.HTTPHeader, env environment) (string, error) {
	if h.FromEnv == "" {
		return h.Value, nil
	}
	value, ok := env(h.FromEnv)
	if !ok {
		return "", fmt.Errorf("there is no value for the header %s", h.Name)
	}
	value = strings.TrimRight(value, "\r\n") // most files that Secrets are made from end so
	if !stepexec.ValidHeaderValue(value) {
		return "", fmt.Errorf("the value for the header %s holds a newline or another control character", h.Name)
	}
	return value, nil
}

// readKey adds the header with the idempotency key.
func (x *exchange) readKey(env environment) error {
	h := x.spec.KeyHeader
	if h == nil {
		return nil
	}
	key, _ := env(stepexec.EnvKey)
	if !stepexec.ValidKey(key) {
		return errors.New("its idempotency key must be visible ASCII, and not empty")
	}
	if !h.Bare {
		key = stepexec.QuoteKey(key)
	}
	x.header.Set(orElse(h.Name, v1alpha1.DefaultKeyHeader), key)
	x.keySent = true
	return nil
}

// readAuthorities reads the certificates that the server is trusted by.
func (x *exchange) readAuthorities(env environment) error {
	if x.spec.CAEnv == "" {
		return nil
	}
	bundle, _ := env(x.spec.CAEnv)
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM([]byte(bundle)) {
		return errors.New("tls.ca holds no certificate in PEM")
	}
	x.authorities = pool
	return nil
}
