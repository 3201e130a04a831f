// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// maxFrame is the most bytes that one event of a watch may have.
const maxFrame = 16 << 20

// frame is one message of a watch as it came over the wire.
type frame struct {
	bytes []byte
	// event says that it tells of an object: it is no bookmark, and no error.
	event bool
}

// frames takes the body of a watch apart.
type frames struct {
	reader   *bufio.Reader
	protobuf bool
}

// newFrames reads a body of a content type: lines of JSON, or protobuf messages behind
// their length.
func newFrames(body io.Reader, contentType string) *frames {
	return &frames{reader: bufio.NewReader(body), protobuf: strings.HasPrefix(contentType, runtime.ContentTypeProtobuf)}
}

// next is the next message, whole.
func (f *frames) next() (frame, error) {
	if !f.protobuf {
		line, err := f.reader.ReadBytes('\n')
		if err != nil {
			return frame{}, err
		}
		e := struct{ Type string }{}
		if err := json.Unmarshal(line, &e); err != nil {
			return frame{}, fmt.Errorf("watch: %w", err)
		}
		return frame{line, isEvent(e.Type)}, nil
	}
	head := make([]byte, 4)
	if _, err := io.ReadFull(f.reader, head); err != nil {
		return frame{}, err
	}
	size := binary.BigEndian.Uint32(head)
	if size > maxFrame {
		return frame{}, fmt.Errorf("watch: a message of %d bytes", size)
	}
	message := make([]byte, 4+size)
	copy(message, head)
	if _, err := io.ReadFull(f.reader, message[4:]); err != nil {
		return frame{}, err
	}
	e := metav1.WatchEvent{}
	if err := e.Unmarshal(message[4:]); err != nil {
		return frame{}, fmt.Errorf("watch: %w", err)
	}
	return frame{message, isEvent(e.Type)}, nil
}

func isEvent(kind string) bool { return kind == "ADDED" || kind == "MODIFIED" || kind == "DELETED" }
