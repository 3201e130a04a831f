// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package runner

import (
	"bytes"
	"encoding/base64"
	"os"
	"syscall"

	"github.com/agenttask-dev/agenttask/internal/stepexec"
)

// writeFrame writes doc to the log as stepexec.LogOutput describes, and gives its
// announcement. A newline goes before it, since the program's last line may have
// none; it is not one of the frame's lines.
func writeFrame(log *os.File, doc []byte) (*stepexec.LogOutput, error) {
	// The program shared this file and some programs make it non-blocking, which
	// would cut the frame short when the log is slow.
	if err := syscall.SetNonblock(int(log.Fd()), false); err != nil {
		return nil, cause(err)
	}
	text, announced := frame(doc)
	if _, err := log.Write(append([]byte("\n"), text...)); err != nil {
		return nil, cause(err)
	}
	return announced, nil
}

// frame gives doc's frame and its announcement.
func frame(doc []byte) ([]byte, *stepexec.LogOutput) {
	sum := stepexec.SHA256Hex(doc)
	coded := make([]byte, base64.StdEncoding.EncodedLen(len(doc)))
	base64.StdEncoding.Encode(coded, doc)

	var b bytes.Buffer
	b.Grow(len(coded) + len(coded)/stepexec.LogLine + 256)
	line := func(parts ...string) {
		for _, p := range parts {
			b.WriteString(p)
		}
		b.WriteByte('\n')
	}
	lines := int64(2)
	line(stepexec.LogBegin, " ", sum)
	for len(coded) > 0 {
		n := min(len(coded), stepexec.LogLine)
		line(stepexec.LogData, " ", string(coded[:n]))
		coded = coded[n:]
		lines++
	}
	line(stepexec.LogEnd, " ", sum)
	return b.Bytes(), &stepexec.LogOutput{SHA256: sum, Bytes: int64(len(doc)), Lines: lines}
}
