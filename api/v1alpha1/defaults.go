// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import "time"

// Defaults and limits that the field documentation names.
const (
	DefaultTimeout      = time.Hour
	DefaultStartTimeout = 10 * time.Minute
	DefaultRetryLimit   = 4
	DefaultBackoffBase  = time.Second
	DefaultBackoffCap   = time.Minute
	DefaultMaxElapsed   = 15 * time.Minute
	DefaultCheckTimeout = time.Minute
	DefaultHTTPTimeout  = 30 * time.Second

	// DefaultKeyHeader carries the idempotency key of an http action.
	DefaultKeyHeader = "Idempotency-Key"
	// MaxKey is the longest idempotency key, in bytes.
	MaxKey = 255

	// MaxInlineOutput is the largest output, in bytes, that stands in the record itself.
	MaxInlineOutput = 2 << 10
	// MaxOutput is the largest output, in bytes, that a ConfigMap keeps.
	MaxOutput = 900 << 10
	// MaxInput is the largest rendered input, in bytes: annotations of an object may
	// hold 256 KiB together.
	MaxInput = 128 << 10
	// MaxLoaded is how many bytes of outputs that ConfigMaps keep are read for one
	// rendered input, all of them together: as values they take twenty times as much.
	MaxLoaded = 2 << 20
	// MaxStatus is the hard limit of a status, in bytes of JSON.
	MaxStatus = 512 << 10
	// MaxMessage is the longest message of a record, in bytes.
	MaxMessage = 1024
)

// RunTimeout is how long one attempt's program may run.
func (s *Step) RunTimeout() time.Duration {
	if s.Timeout == nil || s.Timeout.Duration <= 0 {
		return DefaultTimeout
	}
	return s.Timeout.Duration
}

// RunTimeout is how long one attempt of the check may run.
func (c *Check) RunTimeout() time.Duration {
	if c.Timeout == nil || c.Timeout.Duration <= 0 {
		return DefaultCheckTimeout
	}
	return c.Timeout.Duration
}

// RequestTimeout is how long the one request may take.
func (h *HTTPAction) RequestTimeout() time.Duration {
	if h.Timeout == nil || h.Timeout.Duration <= 0 {
		return DefaultHTTPTimeout
	}
	return h.Timeout.Duration
}

// Policy is what becomes of an unknown outcome.
func (s *Step) Policy() OnUnknown {
	if s.OnUnknown == "" {
		return UnknownPause
	}
	return s.OnUnknown
}

// StartDeadline is how long an attempt's pod may take until its program runs.
func (s *Step) StartDeadline() time.Duration {
	if s.StartTimeout == nil || s.StartTimeout.Duration <= 0 {
		return DefaultStartTimeout
	}
	return s.StartTimeout.Duration
}
