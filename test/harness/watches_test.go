// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// speaker is a watch that a test speaks into, and what was heard at the other end.
type speaker struct {
	t    *testing.T
	out  *io.PipeWriter
	body io.Closer

	mu    sync.Mutex
	lines []string
	err   error
}

// speak opens a watch of pods that w follows.
func speak(t *testing.T, w *Watches) *speaker {
	t.Helper()
	in, out := io.Pipe()
	body := w.follow(&http.Response{Header: http.Header{"Content-Type": {"application/json"}}, Body: in}, "pods")
	s := &speaker{t: t, out: out, body: body}
	go func() {
		lines := bufio.NewReader(body)
		for {
			text, err := lines.ReadString('\n')
			s.mu.Lock()
			if err != nil {
				s.err = err
				s.mu.Unlock()
				return
			}
			s.lines = append(s.lines, strings.Trim(text, "{}\n"))
			s.mu.Unlock()
		}
	}()
	return s
}

func (s *speaker) say(kinds ...string) {
	s.t.Helper()
	for i, kind := range kinds {
		if _, err := fmt.Fprintf(s.out, "{\"type\":%q,\"n\":%d}\n", kind, i+1); err != nil {
			s.t.Fatal(err)
		}
	}
}

func (s *speaker) heard(want ...int) {
	s.t.Helper()
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	var got []int
	for _, line := range s.lines {
		n := 0
		_, text, _ := strings.Cut(line, `"n":`)
		if _, err := fmt.Sscan(text, &n); err != nil {
			s.t.Fatal(err)
		}
		got = append(got, n)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		s.t.Error("heard (-want +got):\n" + diff)
	}
}

func (s *speaker) close() {
	_ = s.body.Close()
	_ = s.out.Close()
}

const event, bookmark = "MODIFIED", "BOOKMARK"

func TestWatchesFreeze(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := NewWatches("pods", "jobs")
		s := speak(t, w)
		defer s.close()
		w.Freeze("jobs")
		s.say(event)
		s.heard(1)
		w.Freeze("pods")
		s.say(event, event, bookmark)
		s.heard(1)
		if got := w.Events("pods"); got != 3 {
			t.Errorf("%d events", got)
		}
		w.Resume("pods")
		s.heard(1, 1, 2, 3)
	})
}

func TestWatchesDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := NewWatches("pods")
		s := speak(t, w)
		defer s.close()
		w.Delay("pods", 2)
		s.say(event, event, bookmark, event, event)
		s.heard(1, 2, 3)
		w.Delay("pods", 0)
		s.heard(1, 2, 3, 4, 5)
	})
}

func TestWatchesDrop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := NewWatches("pods")
		s := speak(t, w)
		defer s.close()
		s.say(event)
		s.heard(1)
		w.Drop("pods", 2)
		s.say(event, bookmark, event, event)
		s.heard(1, 1, 2, 4)
	})
}

func TestWatchesEndWhileFrozen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := NewWatches("pods")
		s := speak(t, w)
		defer s.close()
		w.Freeze("pods")
		s.say(event)
		_ = s.out.CloseWithError(ErrCut)
		s.heard()
		if s.mu.Lock(); !errors.Is(s.err, ErrCut) {
			t.Errorf("error %v", s.err)
		}
		s.mu.Unlock()
	})
}

func TestFramesOfProtobuf(t *testing.T) {
	body := &bytes.Buffer{}
	for _, kind := range []string{event, bookmark} {
		message, err := (&metav1.WatchEvent{Type: kind, Object: runtime.RawExtension{Raw: []byte("an object")}}).Marshal()
		if err != nil {
			t.Fatal(err)
		}
		_ = binary.Write(body, binary.BigEndian, uint32(len(message)))
		body.Write(message)
	}
	whole := bytes.Clone(body.Bytes())
	in := newFrames(body, "application/vnd.kubernetes.protobuf;stream=watch")
	var got []byte
	var events []bool
	for {
		frame, err := in.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		got, events = append(got, frame.bytes...), append(events, frame.event)
	}
	if !bytes.Equal(whole, got) || !cmp.Equal([]bool{true, false}, events) {
		t.Errorf("got %d of %d bytes, events %v", len(got), len(whole), events)
	}
}

func TestWatchesServeOldOnce(t *testing.T) {
	w := NewWatches("pods")
	var asked []string
	line := w.Wrap(RoundTrip(func(r *http.Request) (*http.Response, error) {
		asked = append(asked, r.URL.RawQuery)
		return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader("{}")), Request: r}, nil
	}))
	w.ServeOld("77", "pods")
	for _, url := range []string{
		podsPath + "?resourceVersionMatch=NotOlderThan&sendInitialEvents=true&watch=true",
		podsPath + "?limit=5",
		podPath,
		podsPath + "?limit=500&resourceVersion=0",
		podsPath + "?limit=500&resourceVersion=0",
	} {
		if _, err := send(t, line, request(t.Context(), t, http.MethodGet, url, "")); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{"limit=5", "", "limit=500&resourceVersion=77&resourceVersionMatch=Exact", "limit=500&resourceVersion=0"}
	if diff := cmp.Diff(want, asked); diff != "" {
		t.Error("(-want +got):\n" + diff)
	}
	if !w.ServedOld("pods") {
		t.Error("ServedOld is false")
	}
}
