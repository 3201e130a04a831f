// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package runner

import (
	"errors"
	"math"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/agenttask-dev/agenttask/internal/stepexec"
)

// maxRetryAfter bounds the wait that a program may ask for: a year.
const maxRetryAfter = 365 * 24 * time.Hour

// retryAfter reads the wait that the program asks for. One that cannot be read is
// no wait, and is noted in the message.
func (r *Runner) retryAfter(message string, now time.Time) (int64, string) {
	raw, _, err := readRegular(r.in(stepexec.RetryAfterPath), 256)
	if errors.Is(err, os.ErrNotExist) {
		return 0, message
	}
	if err == nil {
		if seconds, ok := parseRetryAfter(string(raw), now); ok {
			return seconds, message
		}
	}
	const note = "(" + stepexec.RetryAfterPath + " was ignored: it must hold seconds or an HTTP date)"
	return 0, shorten(message, maxMessage-len(note)-1) + " " + note
}

// parseRetryAfter reads a Retry-After of RFC 9110, section 10.2.3, as whole seconds
// from now, rounded up.
func parseRetryAfter(s string, now time.Time) (int64, bool) {
	const limit = int64(maxRetryAfter / time.Second)
	s = strings.TrimSpace(s)
	if s != "" && strings.Trim(s, "0123456789") == "" {
		seconds, err := strconv.ParseInt(s, 10, 64)
		if err != nil { // more than 64 bits hold
			return limit, true
		}
		return min(seconds, limit), true
	}
	at, ok := parseHTTPDate(s, now)
	if !ok {
		return 0, false
	}
	seconds := math.Ceil(at.Sub(now).Seconds())
	return int64(min(max(seconds, 0), float64(limit))), true
}

// parseHTTPDate reads the three forms of RFC 9110, section 5.6.7. A two-digit year
// that seems more than 50 years away is the last one that ended so.
func parseHTTPDate(s string, now time.Time) (time.Time, bool) {
	for _, layout := range []string{"Mon, 02 Jan 2006 15:04:05 GMT", time.ANSIC} {
		if t, err := time.Parse(layout, s); err == nil {
			return t, true
		}
	}
	t, err := time.Parse("Monday, 02-Jan-06 15:04:05 GMT", s)
	if err != nil {
		return time.Time{}, false
	}
	for t.AddDate(100, 0, 0).Before(now.AddDate(50, 0, 0)) {
		t = t.AddDate(100, 0, 0)
	}
	for t.After(now.AddDate(50, 0, 0)) {
		t = t.AddDate(-100, 0, 0)
	}
	return t, true
}
