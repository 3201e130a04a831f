// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package sample

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// journal is the ledger's file: one change a line, appended and synced.
type journal struct {
	file *os.File
	size int64
	err  error // set once the file's state is no longer known
}

// openJournal reads the file's changes and makes it ready for more. A last line
// without its end was torn by a crash before anybody got an answer; it is cut off.
func openJournal(path string, apply func(change) error) (*journal, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("opening the ledger's file: %w; give a path that can be written in --file", err)
	}
	j := &journal{file: file}
	if err := j.load(path, apply); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return j, nil
}

func (j *journal) load(path string, apply func(change) error) error {
	doc, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("reading the ledger's file: %w", err)
	}
	whole := doc[:bytes.LastIndexByte(doc, '\n')+1]
	n := 0
	for line := range bytes.Lines(whole) {
		n++
		c, err := decodeChange(line)
		if err == nil {
			err = apply(c)
		}
		if err != nil {
			return fmt.Errorf("%s, line %d, is not of this ledger: %w; mend the line, or name another file in --file", path, n, err)
		}
	}
	j.size = int64(len(whole))
	if err := j.file.Truncate(j.size); err != nil {
		return fmt.Errorf("cutting off the torn end of the ledger's file: %w", err)
	}
	return syncDir(filepath.Dir(path))
}

// decodeChange reads a line. The line spells strings as it likes; a body must have
// its one spelling again to be compared.
func decodeChange(line []byte) (change, error) {
	var c change
	if err := json.Unmarshal(line, &c); err != nil {
		return change{}, err
	}
	if c.Effect == nil {
		return c, nil
	}
	body, err := canonical(c.Effect.Body)
	c.Effect.Body = body
	return c, err
}

// append writes c and returns when it is on disk.
func (j *journal) append(c change) error {
	if j.err != nil {
		return j.err
	}
	line, err := json.Marshal(c)
	if err != nil {
		return fmt.Errorf("encoding a line of the ledger's file: %w", err)
	}
	line = append(line, '\n')
	if _, err := j.file.WriteAt(line, j.size); err != nil {
		return errors.Join(fmt.Errorf("writing the ledger's file: %w", err), j.undo())
	}
	if err := j.file.Sync(); err != nil {
		// What is on disk is unknown after a failed sync, and another sync would not
		// tell; reading the file again does.
		j.err = fmt.Errorf("syncing the ledger's file: %w; restart the ledger", err)
		return j.err
	}
	j.size += int64(len(line))
	return nil
}

// undo takes away what a failed write may have left.
func (j *journal) undo() error {
	if err := j.file.Truncate(j.size); err != nil {
		j.err = fmt.Errorf("cutting off a failed write of the ledger's file: %w; restart the ledger", err)
	}
	return j.err
}

func (j *journal) close() error { return j.file.Close() }

// syncDir makes a new file's name as durable as its contents.
func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("opening the ledger's directory: %w", err)
	}
	return errors.Join(dir.Sync(), dir.Close())
}
