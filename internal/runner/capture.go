// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package runner

import (
	"bytes"
	"io"
	"os"
	"syscall"
	"time"
)

// drainLimit is how long to read on from the program's standard output when all its
// processes are gone. Only somebody else who holds the pipe can use it up.
const drainLimit = 5 * time.Second

// capture reads the program's standard output to its end, keeps up to maxRaw bytes
// and passes all of it on to the log.
type capture struct {
	pipe *os.File
	log  io.Writer
	done chan struct{}

	// Of the reading goroutine until done is closed.
	kept bytes.Buffer
	size int64
}

// newCapture starts a capture, and gives the end of the pipe that the program
// writes to.
func newCapture(log io.Writer) (*os.File, *capture, error) {
	var fds [2]int
	if err := syscall.Pipe2(fds[:], syscall.O_CLOEXEC); err != nil {
		return nil, nil, err
	}
	// Only the reading end does not block, so that it takes a deadline; the program
	// gets an ordinary pipe.
	if err := syscall.SetNonblock(fds[0], true); err != nil {
		return nil, nil, err
	}
	c := &capture{pipe: os.NewFile(uintptr(fds[0]), "stdout"), log: log, done: make(chan struct{})}
	go c.read()
	return os.NewFile(uintptr(fds[1]), "stdout"), c, nil
}

func (c *capture) read() {
	defer close(c.done)
	defer c.pipe.Close()
	buf := make([]byte, 64<<10)
	logging := true
	for {
		n, err := c.pipe.Read(buf)
		if logging {
			_, logErr := c.log.Write(buf[:n])
			logging = logErr == nil
		}
		c.keep(buf[:n])
		if err != nil { // the end, or the deadline
			return
		}
	}
}

// keep holds on to p, or to nothing where that would be too much.
func (c *capture) keep(p []byte) {
	c.size += int64(len(p))
	if c.size > maxRaw {
		c.kept = bytes.Buffer{}
		return
	}
	c.kept.Write(p)
}

// finish waits for the end of the output.
func (c *capture) finish() {
	_ = c.pipe.SetReadDeadline(time.Now().Add(drainLimit)) // fails where it has ended
	<-c.done
}

// bytes gives what was printed, and how much; nothing of it where that is more than
// maxRaw. Only after finish.
func (c *capture) bytes() ([]byte, int64) {
	return c.kept.Bytes(), c.size
}
