// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"io"
	"net/http"
	"slices"
	"sync"
)

// Watches stands between a manager and what the API server tells it unasked. By resource
// it can hold events back, let some get lost, and make a manager that starts begin with
// an older view. What is read live is not touched, and neither are writes.
//
// Its caches begin with a list and then watch: a watch that would begin with what is
// there is refused, which clients answer so.
type Watches struct {
	resources []string

	mu   sync.Mutex
	wake *sync.Cond
	of   map[string]*feed
}

// feed is what is done to the events of a resource.
type feed struct {
	frozen bool
	delay  int
	events int64
	drops  []int64 // numbers of events that get lost
	old    string  // the version that the next list of a cache is of
	served bool
}

// NewWatches is for the watches of some resources, such as "agenttasks", "jobs", "pods".
func NewWatches(resources ...string) *Watches {
	w := &Watches{resources: resources, of: map[string]*feed{}}
	w.wake = sync.NewCond(&w.mu)
	for _, name := range resources {
		w.of[name] = &feed{}
	}
	return w
}

// change changes what is done to a resource's events. It panics where NewWatches was not
// told of the resource.
func (w *Watches) change(resource string, f func(*feed)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	of, ok := w.of[resource]
	if !ok {
		panic("harness: NewWatches was not told of " + resource)
	}
	f(of)
	w.wake.Broadcast()
}

// Freeze lets the watches of a resource fall silent. What comes waits for Resume.
func (w *Watches) Freeze(resource string) { w.change(resource, func(f *feed) { f.frozen = true }) }

// Resume delivers what a frozen watch has held back.
func (w *Watches) Resume(resource string) { w.change(resource, func(f *feed) { f.frozen = false }) }

// Delay delivers each event of a resource when n later ones have come. 0 delivers at once
// what is held back, and all that comes.
func (w *Watches) Delay(resource string, n int) { w.change(resource, func(f *feed) { f.delay = n }) }

// Drop loses the n-th event of a resource that comes from now on: 1 is the next.
func (w *Watches) Drop(resource string, n int64) {
	w.change(resource, func(f *feed) { f.drops = append(f.drops, f.events+n) })
}

// Events is how many events of a resource have come from the API server.
func (w *Watches) Events(resource string) int64 {
	var n int64
	w.change(resource, func(f *feed) { n = f.events })
	return n
}

// ServeOld answers the first list that a cache asks for, of each of the resources, with
// what was there at a resource version, and lets its watch go on from there. It must be
// called before the manager starts.
func (w *Watches) ServeOld(version string, resources ...string) {
	for _, resource := range resources {
		w.change(resource, func(f *feed) { f.old = version })
	}
}

// ServedOld says whether the API server has answered such a list of a resource.
func (w *Watches) ServedOld(resource string) bool {
	served := false
	w.change(resource, func(f *feed) { served = f.served })
	return served
}

// Wrap is for ManagerOptions.
func (w *Watches) Wrap(next http.RoundTripper) http.RoundTripper {
	return RoundTrip(func(r *http.Request) (*http.Response, error) {
		t := targetOf(r.URL.Path)
		if r.Method != http.MethodGet || t.name != "" || !slices.Contains(w.resources, t.resource) {
			return next.RoundTrip(r)
		}
		query := r.URL.Query()
		switch {
		case query.Get("sendInitialEvents") == "true":
			return answerNoInitialEvents(r), nil
		case query.Has("watch"):
			response, err := next.RoundTrip(r)
			if err == nil && response.StatusCode == http.StatusOK {
				response.Body = w.follow(response, t.resource)
			}
			return response, err
		default:
			return w.list(r, next, t.resource)
		}
	})
}

// list answers a list. Caches ask for any version, which version 0 means; who reads live
// does not.
func (w *Watches) list(r *http.Request, next http.RoundTripper, resource string) (*http.Response, error) {
	query, old := r.URL.Query(), ""
	if query.Get("resourceVersion") == "0" {
		w.change(resource, func(f *feed) { old, f.old = f.old, "" })
	}
	if old == "" {
		return next.RoundTrip(r)
	}
	query.Set("resourceVersion", old)
	query.Set("resourceVersionMatch", "Exact")
	r = r.Clone(r.Context())
	r.URL.RawQuery = query.Encode()
	response, err := next.RoundTrip(r)
	if err == nil && response.StatusCode == http.StatusOK {
		w.change(resource, func(f *feed) { f.served = true })
	}
	return response, err
}

// follow reads a watch's answer, and hands on what may be known.
func (w *Watches) follow(response *http.Response, resource string) io.ReadCloser {
	b := &watchBody{watches: w, resource: resource, inner: response.Body}
	go b.fill(newFrames(response.Body, response.Header.Get("Content-Type")))
	return b
}

// watchBody is the answer to a watch. Its fields are guarded by the Watches' lock.
type watchBody struct {
	watches  *Watches
	resource string
	inner    io.ReadCloser
	held     []frame
	rest     []byte // of the message that is being read
	err      error
}

// fill takes in what the API server says, until it says no more.
func (b *watchBody) fill(in *frames) {
	for {
		frame, err := in.next()
		b.watches.change(b.resource, func(f *feed) {
			switch {
			case err != nil:
				b.err = err
			case !frame.event:
				b.held = append(b.held, frame)
			default:
				f.events++
				if !slices.Contains(f.drops, f.events) {
					b.held = append(b.held, frame)
				}
			}
		})
		if err != nil {
			return
		}
	}
}

// Read hands on the next message, when it may be known. The end of the connection cannot
// be held back.
func (b *watchBody) Read(p []byte) (int, error) {
	w := b.watches
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(b.rest) == 0 {
		switch {
		case b.due(w.of[b.resource]):
			b.rest, b.held = b.held[0].bytes, b.held[1:]
		case b.err != nil:
			return 0, b.err
		default:
			w.wake.Wait()
		}
	}
	n := copy(p, b.rest)
	b.rest = b.rest[n:]
	return n, nil
}

// due says whether the first message that is held may be known.
func (b *watchBody) due(f *feed) bool {
	if f.frozen || len(b.held) == 0 {
		return false
	}
	later := 0
	for _, frame := range b.held[1:] {
		if frame.event {
			later++
		}
	}
	return !b.held[0].event || later >= f.delay
}

// Close ends the watch.
func (b *watchBody) Close() error { return b.inner.Close() }
