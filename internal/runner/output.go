// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package runner

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
)

// maxRaw is the most bytes of an output that are read: the limit holds for the
// canonical form, so white space gets as much room again.
const maxRaw = 2 * stepexec.MaxOutput

// document is a program's output, or what is wrong with it.
type document struct {
	// json is the output in canonical form.
	json []byte
	// given says that the program left it; a missing file is null without it.
	given bool
	// reason and problem say what is wrong; both empty where nothing is.
	reason, problem string
}

// output reads the program's output from its standard output, where that was
// captured, else from its file.
func (r *Runner) output(out *capture) document {
	if out != nil {
		raw, size := out.bytes()
		if size <= maxRaw && len(bytes.TrimSpace(raw)) == 0 {
			return document{reason: v1alpha1.ReasonOutputMissing, problem: "run.output is Stdout and the program " +
				"printed nothing; print one JSON document, null for none"}
		}
		return parse("standard output", raw, size)
	}
	raw, size, err := readRegular(r.in(stepexec.OutputPath), maxRaw)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return document{json: []byte("null")}
	case err != nil:
		return document{reason: v1alpha1.ReasonOutputInvalid, problem: fmt.Sprintf("%s %v", stepexec.OutputPath, err)}
	}
	return parse(stepexec.OutputPath, raw, size)
}

// parse makes the document of raw, read from a place called where; size is how
// large it is where that is more than was read.
func parse(where string, raw []byte, size int64) document {
	if size > maxRaw {
		return tooLarge(size)
	}
	doc, err := stepexec.Canonical(raw)
	if err != nil {
		return document{given: true, reason: v1alpha1.ReasonOutputInvalid,
			problem: where + complaint(raw, err)}
	}
	if len(doc) > stepexec.MaxOutput {
		return tooLarge(int64(len(doc)))
	}
	return document{json: doc, given: true}
}

func tooLarge(size int64) document {
	return document{given: true, reason: v1alpha1.ReasonOutputTooLarge,
		problem: fmt.Sprintf("the output is %d bytes, the limit is %d; write less, or keep it elsewhere and return a reference",
			size, stepexec.MaxOutput)}
}

// complaint says where and why raw is not JSON, and nothing of what stands there, or
// which number of it cannot be kept.
func complaint(raw []byte, err error) string {
	syntax, ok := errors.AsType[*jsontext.SyntacticError](err)
	if !ok {
		return ": " + err.Error()
	}
	const no = " is not one JSON document: "
	if len(bytes.TrimSpace(raw)) == 0 {
		return no + "it is empty"
	}
	return fmt.Sprintf("%s%s: %s", no, position(raw, syntax.ByteOffset), syntaxCause(syntax.Err))
}

// position names an offset as an editor does: lines and columns from 1, columns in
// characters.
func position(raw []byte, offset int64) string {
	before := raw[:min(offset, int64(len(raw)))]
	line := 1 + bytes.Count(before, []byte("\n"))
	column := 1 + utf8.RuneCount(before[bytes.LastIndexByte(before, '\n')+1:])
	return fmt.Sprintf("line %d, column %d (byte %d)", line, column, offset)
}

// syntaxCause is the parser's cause without the text it quotes: "invalid character
// 'x' after object name" becomes "invalid character after object name".
func syntaxCause(err error) string {
	switch {
	case err == nil:
		return "invalid syntax"
	case errors.Is(err, io.ErrUnexpectedEOF):
		return "it ends too early"
	case errors.Is(err, jsontext.ErrDuplicateName):
		return "an object has the same name twice"
	}
	text := err.Error()
	i := strings.IndexAny(text, "'\"`")
	if i < 0 {
		return text
	}
	quoted, err := strconv.QuotedPrefix(text[i:])
	if err != nil {
		return "invalid syntax"
	}
	return strings.TrimSpace(text[:i]) + text[i+len(quoted):]
}

// readRegular reads at most limit bytes of a regular file, and says how large it is.
// It follows no symbolic link and does not hang at a FIFO: the program may have put
// anything there.
func readRegular(path string, limit int64) ([]byte, int64, error) {
	fd, err := syscall.Open(path, syscall.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, syscall.ELOOP):
		return nil, 0, errors.New("is a symbolic link, not a regular file")
	case errors.Is(err, syscall.ENXIO):
		return nil, 0, errors.New("is not a regular file")
	case err != nil:
		return nil, 0, fmt.Errorf("cannot be read: %w", err)
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, 0, fmt.Errorf("cannot be read: %w", cause(err))
	}
	if !info.Mode().IsRegular() {
		return nil, 0, errors.New("is not a regular file")
	}
	raw, err := io.ReadAll(io.LimitReader(f, limit))
	if err != nil {
		return nil, 0, fmt.Errorf("cannot be read: %w", cause(err))
	}
	return raw, max(info.Size(), int64(len(raw))), nil
}
