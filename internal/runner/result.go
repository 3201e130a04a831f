// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package runner

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"sort"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/agenttask-dev/agenttask/internal/stepexec"
)

// maxMessage is the most bytes of a result's message.
const maxMessage = 1024

// A result without its message always fits: the output, and room for the rest.
const _ = uint(stepexec.MaxResult - stepexec.MaxInlineOutput - 512)

// exitCode is the runner's own exit code for res: the table of the package comment.
func exitCode(res stepexec.Result) int {
	switch res.Outcome {
	case stepexec.OutcomeSucceeded:
		return 0
	case stepexec.OutcomeRetry:
		return stepexec.ExitRetry
	case stepexec.OutcomeTimeout:
		return 124
	case stepexec.OutcomeInterrupted:
		if res.ExitCode == 137 {
			return 137
		}
		return 143
	}
	if res.ExitCode != 0 {
		return res.ExitCode
	}
	return 1
}

// writeResult writes res to the termination message at path, in one write.
func writeResult(path string, res stepexec.Result) error {
	text, err := encode(res)
	if err == nil {
		err = writeOnce(path, text)
	}
	if err != nil {
		return fmt.Errorf("the result (%s) could not be written: %w", strings.TrimSpace(string(res.Outcome)+" "+res.Reason), err)
	}
	return nil
}

func writeOnce(path string, text []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	if _, err := f.Write(text); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

// encode gives res as JSON of at most stepexec.MaxResult bytes, its message
// shortened as far as that takes.
func encode(res stepexec.Result) ([]byte, error) {
	res.Version = stepexec.ResultVersion
	whole := shorten(strings.ToValidUTF8(res.Message, "\uFFFD"), maxMessage)
	res.Message = whole
	text, err := marshal(res)
	if err != nil || len(text) <= stepexec.MaxResult {
		return text, err
	}
	// cuts are where the message may end; the longest that fits is looked for.
	cuts := []int{}
	for i := range whole {
		cuts = append(cuts, i)
	}
	slices.Reverse(cuts)
	best := sort.Search(len(cuts), func(i int) bool {
		res.Message = whole[:cuts[i]] + "…"
		text, err = marshal(res)
		return err != nil || len(text) <= stepexec.MaxResult
	})
	if best == len(cuts) {
		return nil, fmt.Errorf("it does not fit into %d bytes", stepexec.MaxResult)
	}
	res.Message = whole[:cuts[best]] + "…"
	return marshal(res)
}

// marshal is json.Marshal that leaves <, > and & as they are.
func marshal(res stepexec.Result) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(res); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// shorten cuts s to at most limit bytes, between characters, and marks the cut.
func shorten(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	end := limit - len("…")
	for !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + "…"
}

// readMessage reads what the program left for people: the first bytes of the file,
// without control characters. Empty where there is none, or none to be read.
func readMessage(path string) string {
	raw, _, err := readRegular(path, maxMessage)
	if err != nil {
		return ""
	}
	return clean(string(raw))
}

// clean makes s fit to be shown: valid UTF-8, a space for each tab, and no other
// control character than newlines.
func clean(s string) string {
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		switch {
		case r == '\t':
			return ' '
		case r == '\n':
			return r
		case unicode.IsControl(r):
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, "")))
}
