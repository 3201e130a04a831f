// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
)

// recorded is where etcd keeps what a Recorder takes down.
var recorded = []string{
	"/registry/agenttask.dev/agenttasks/", "/registry/agenttask.dev/agentdecisions/",
	"/registry/jobs/", "/registry/pods/", "/registry/configmaps/",
}

// syncTimeout is how long what etcd has done may take to be known here.
const syncTimeout = 30 * time.Second

// History is all that happened in a namespace.
type History struct {
	// Revisions are all states of all tasks, decisions, Jobs, pods and ConfigMaps, in the
	// order in which etcd took them.
	Revisions []Revision
	// Requests are all that the API server was asked about the namespace, by everybody.
	Requests []Request
	// Restores are the revisions at which etcd was restored: what is before one and later
	// than its snapshot was undone.
	Restores []Restore
}

// Restore is one of etcd.
type Restore struct {
	// Snapshot is the last revision of the snapshot, First the first after it.
	Snapshot, First int64
}

// Revision is a state of an object.
type Revision struct {
	// RV is etcd's revision, by which all objects' states are in order.
	RV int64
	// Created says that it is the object's first state, Deleted that the object went: the
	// state is its last one then.
	Created, Deleted bool
	// One of these is set.
	Task      *v1alpha1.AgentTask
	Decision  *v1alpha1.AgentDecision
	Job       *batchv1.Job
	Pod       *corev1.Pod
	ConfigMap *corev1.ConfigMap

	key string
}

// Object is the one that is set.
func (r Revision) Object() client.Object {
	switch {
	case r.Task != nil:
		return r.Task
	case r.Decision != nil:
		return r.Decision
	case r.Job != nil:
		return r.Job
	case r.Pod != nil:
		return r.Pod
	case r.ConfigMap != nil:
		return r.ConfigMap
	}
	return nil
}

// Recorder takes down what happens in a namespace.
type Recorder struct {
	namespace string
	follower  *follower
	audit     *AuditLog

	mu        sync.Mutex // guards what History reads; the follower's lock guards the rest
	revisions []Revision
	last      map[string]Revision

	changes  []change
	versions map[string]int64
	restores []Restore
}

// change is a key's, as etcd told it.
type change struct {
	etcdEvent
	key      string
	restored *Restore
}

// Record begins to take down what happens in a namespace. There must be nothing in it but
// what Kubernetes itself makes.
func (c *Cluster) Record(ctx context.Context, namespace string) (*Recorder, error) {
	if err := c.follower.start(ctx); err != nil {
		return nil, err
	}
	r := &Recorder{
		namespace: namespace, follower: c.follower, audit: c.Audit,
		last: map[string]Revision{}, versions: map[string]int64{},
	}
	c.follower.mu.Lock()
	defer c.follower.mu.Unlock()
	c.follower.recorders[namespace] = r
	return r, nil
}

// Close ends the record, and forgets the requests about the namespace.
func (r *Recorder) Close() {
	r.follower.mu.Lock()
	delete(r.follower.recorders, r.namespace)
	r.follower.mu.Unlock()
	r.audit.Forget(r.namespace)
}

// Revision is that of the last change that was heard of, 0 where there was none. It is
// cheap, and may be a moment behind.
func (r *Recorder) Revision() int64 {
	r.follower.mu.Lock()
	defer r.follower.mu.Unlock()
	if len(r.changes) == 0 {
		return 0
	}
	return r.changes[len(r.changes)-1].KV.Revision
}

// History is all that happened before it was called. It fails where anything is missing.
func (r *Recorder) History(ctx context.Context) (*History, error) {
	if err := r.follower.sync(ctx); err != nil {
		return nil, err
	}
	requests, err := r.audit.In(ctx, r.namespace)
	if err != nil {
		return nil, err
	}
	list, err := r.known()
	if err != nil {
		return nil, err
	}
	r.follower.mu.Lock()
	defer r.follower.mu.Unlock()
	return &History{Revisions: list, Requests: requests, Restores: slices.Clone(r.restores)}, nil
}

// Wait waits until what has happened so far is as done says, which is asked at once and
// after each change.
func (r *Recorder) Wait(ctx context.Context, done func([]Revision) bool) error {
	asked := -1
	for {
		changed, err := r.follower.next()
		if err != nil {
			return err
		}
		list, err := r.known()
		if err != nil {
			return err
		}
		if len(list) != asked && done(list) {
			return nil
		}
		asked = len(list)
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// known are the revisions that were heard of so far.
func (r *Recorder) known() ([]Revision, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.follower.mu.Lock()
	changes := r.changes[len(r.revisions):]
	r.follower.mu.Unlock()
	for _, c := range changes {
		revision, err := r.decode(c)
		if err != nil {
			return nil, fmt.Errorf("%s at revision %d: %w", c.key, c.KV.Revision, err)
		}
		r.revisions = append(r.revisions, revision)
	}
	return slices.Clone(r.revisions), nil
}

// add takes down a change. Versions of a key follow one another, so that none is missing.
func (r *Recorder) add(e etcdEvent, key string) error {
	before := r.versions[key]
	if e.Type == "DELETE" {
		delete(r.versions, key)
	} else {
		r.versions[key] = e.KV.Version
	}
	if e.Type != "DELETE" && e.KV.Version != before+1 {
		return fmt.Errorf("%s: version %d follows version %d: the record is not complete", key, e.KV.Version, before)
	}
	c := change{etcdEvent: e, key: key}
	if n := len(r.restores); n > 0 && (len(r.changes) == 0 || r.changes[len(r.changes)-1].KV.Revision < r.restores[n-1].First) {
		c.restored = new(r.restores[n-1])
	}
	r.changes = append(r.changes, c)
	return nil
}

// restore goes back to what was there at a snapshot.
func (r *Recorder) restore(to Restore) {
	r.restores = append(r.restores, to)
	r.versions = map[string]int64{}
	for _, c := range r.changes {
		switch {
		case c.KV.Revision > to.Snapshot:
		case c.Type == "DELETE":
			delete(r.versions, c.key)
		default:
			r.versions[c.key] = c.KV.Version
		}
	}
}

// decode reads a change.
func (r *Recorder) decode(c change) (Revision, error) {
	if c.restored != nil {
		r.last = map[string]Revision{}
		for _, old := range r.revisions {
			switch {
			case old.RV > c.restored.Snapshot:
			case old.Deleted:
				delete(r.last, old.key)
			default:
				r.last[old.key] = old
			}
		}
	}
	if c.Type == "DELETE" {
		revision := r.last[c.key]
		if revision.Object() == nil {
			return revision, errors.New("nothing is known of what was deleted")
		}
		delete(r.last, c.key)
		revision.RV, revision.Created, revision.Deleted = c.KV.Revision, false, true
		return revision, nil
	}
	obj, _, err := decoder.Decode(c.KV.Value, nil, nil)
	if err != nil {
		return Revision{}, err
	}
	revision := Revision{RV: c.KV.Revision, Created: c.KV.Version == 1, key: c.key}
	switch obj := obj.(type) {
	case *v1alpha1.AgentTask:
		revision.Task = obj
	case *v1alpha1.AgentDecision:
		revision.Decision = obj
	case *batchv1.Job:
		revision.Job = obj
	case *corev1.Pod:
		revision.Pod = obj
	case *corev1.ConfigMap:
		revision.ConfigMap = obj
	default:
		return revision, fmt.Errorf("a %T", obj)
	}
	revision.Object().SetResourceVersion(strconv.FormatInt(c.KV.Revision, 10))
	r.last[c.key] = revision
	return revision, nil
}
