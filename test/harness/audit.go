// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func auditPolicy(level string) []byte {
	if level == "" {
		level = "Request"
	}
	return fmt.Appendf(nil, `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
omitManagedFields: true
rules:
- level: None
  resources: [{group: coordination.k8s.io}]
- level: %s
  verbs: [create, update, patch, delete, deletecollection]
- level: Metadata
  verbs: [get, list, watch]
  resources: [{group: agenttask.dev}, {group: batch}, {group: "", resources: [pods, pods/log, configmaps]}]
`, level)
}

// AuditLog is what the API server was asked, by everybody. Each line is read once.
type AuditLog struct {
	path   string
	client client.Client

	mu     sync.Mutex
	offset int64 // where the first line that was not read yet begins
	count  Mark
	in     map[string][]entry // by namespace
	marks  map[string]bool    // requests of its own that were read
}

func newAuditLog(path string, c client.Client) *AuditLog {
	return &AuditLog{path: path, client: c, in: map[string][]entry{}, marks: map[string]bool{}}
}

// entry is a request and its number in the log.
type entry struct {
	number Mark
	Request
}

// Request is one that the API server has answered.
type Request struct {
	User, UserAgent            string
	Verb                       string
	Group, Resource, Namespace string
	Subresource, Name          string
	Code                       int32
	Message                    string
	Body                       json.RawMessage
	Start, End                 time.Time
}

// String tells a request in a line.
func (r Request) String() string {
	resource := r.Resource
	if r.Subresource != "" {
		resource += "/" + r.Subresource
	}
	line := fmt.Sprintf("%s %-6s %-18s %s/%s %d", r.Start.Format("15:04:05.000000"), r.Verb, resource, r.Namespace, r.Name, r.Code)
	return strings.TrimSpace(line + " " + r.Message)
}

// IsWrite says whether the request could change something.
func (r Request) IsWrite() bool {
	switch r.Verb {
	case "create", "update", "patch", "delete", "deletecollection":
		return true
	}
	return false
}

// Rejected says whether the API server answered with an error.
func (r Request) Rejected() bool { return r.Code >= 400 }

// Is says whether it is the verb on the resource: Is("create", "pods"), Is("update",
// "agenttasks/status").
func (r Request) Is(verb, resource string) bool {
	have := r.Resource
	if r.Subresource != "" {
		have += "/" + r.Subresource
	}
	return r.Verb == verb && have == resource
}

// Mark is a place in the log.
type Mark int64

// Mark is the end of the log as it is now.
func (a *AuditLog) Mark() (Mark, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	err := a.read()
	return a.count, err
}

// Since are the requests from a mark on that all keep functions keep. All that was
// answered before Since was called is among them.
func (a *AuditLog) Since(ctx context.Context, mark Mark, keep ...func(Request) bool) ([]Request, error) {
	if err := a.flush(ctx); err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	var found []entry
	for _, list := range a.in {
		for _, e := range list {
			if e.number >= mark {
				found = append(found, e)
			}
		}
	}
	slices.SortFunc(found, func(a, b entry) int { return cmp.Compare(a.number, b.number) })
	return kept(found, keep), nil
}

// In are the requests about what is in a namespace that all keep functions keep. It is
// Since for one namespace, and looks at no other.
func (a *AuditLog) In(ctx context.Context, namespace string, keep ...func(Request) bool) ([]Request, error) {
	if err := a.flush(ctx); err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return kept(a.in[namespace], keep), nil
}

// Forget drops what is known about a namespace so far.
func (a *AuditLog) Forget(namespace string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.in, namespace)
}

func kept(list []entry, keep []func(Request) bool) []Request {
	var requests []Request
	for _, e := range list {
		if !slices.ContainsFunc(keep, func(f func(Request) bool) bool { return !f(e.Request) }) {
			requests = append(requests, e.Request)
		}
	}
	return requests
}

// flush makes a request of its own and waits until the log shows it.
func (a *AuditLog) flush(ctx context.Context) error {
	name := markPrefix + rand.String(16)
	probe := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	if err := a.client.Create(ctx, probe, client.DryRunAll); err != nil {
		return err
	}
	return wait.PollUntilContextTimeout(ctx, 5*time.Millisecond, 10*time.Second, true, func(context.Context) (bool, error) {
		a.mu.Lock()
		defer a.mu.Unlock()
		err := a.read()
		found := a.marks[name]
		delete(a.marks, name)
		return found, err
	})
}

// markPrefix begins the names of the log's own requests.
const markPrefix = "audit-mark-"

// auditEvent is what is read of an event of audit.k8s.io.
type auditEvent struct {
	Verb      string `json:"verb"`
	UserAgent string `json:"userAgent"`
	User      struct {
		Username string `json:"username"`
	} `json:"user"`
	ObjectRef *struct {
		Resource, Namespace, Name, APIGroup, Subresource string
	} `json:"objectRef"`
	ResponseStatus *struct {
		Code    int32  `json:"code"`
		Message string `json:"message"`
	} `json:"responseStatus"`
	RequestObject            json.RawMessage  `json:"requestObject"`
	RequestReceivedTimestamp metav1.MicroTime `json:"requestReceivedTimestamp"`
	StageTimestamp           metav1.MicroTime `json:"stageTimestamp"`
}

// read reads on from where it was left. What stands after the last newline is still being
// written.
func (a *AuditLog) read() error {
	file, err := os.Open(a.path)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	if _, err := file.Seek(a.offset, io.SeekStart); err != nil {
		return err
	}
	lines := bufio.NewReaderSize(file, 1<<20)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		a.offset += int64(len(line))
		if err := a.add(line); err != nil {
			return fmt.Errorf("audit log: %w", err)
		}
	}
}

// add takes a line in.
func (a *AuditLog) add(line []byte) error {
	e := auditEvent{}
	if err := json.Unmarshal(line, &e); err != nil {
		return err
	}
	a.count++
	switch {
	case e.ObjectRef == nil:
		return nil
	case strings.HasPrefix(e.ObjectRef.Name, markPrefix):
		a.marks[e.ObjectRef.Name] = true
		return nil
	}
	r := Request{
		User: e.User.Username, UserAgent: e.UserAgent, Verb: e.Verb, Body: e.RequestObject,
		Group: e.ObjectRef.APIGroup, Resource: e.ObjectRef.Resource, Subresource: e.ObjectRef.Subresource,
		Namespace: e.ObjectRef.Namespace, Name: e.ObjectRef.Name,
		Start: e.RequestReceivedTimestamp.Time, End: e.StageTimestamp.Time,
	}
	if e.ResponseStatus != nil {
		r.Code, r.Message = e.ResponseStatus.Code, e.ResponseStatus.Message
	}
	a.in[r.Namespace] = append(a.in[r.Namespace], entry{a.count - 1, r})
	return nil
}

// InNamespace keeps requests about what is in a namespace.
func InNamespace(name string) func(Request) bool {
	return func(r Request) bool { return r.Namespace == name }
}

// OperatorWrite keeps the writes of the operator's managers, events apart.
func OperatorWrite(r Request) bool {
	return r.User == OperatorUser && r.IsWrite() && r.Resource != "events"
}

// List tells requests, a line each.
func List(requests []Request) string {
	lines := make([]string, 0, len(requests))
	for _, r := range requests {
		lines = append(lines, r.String())
	}
	return strings.Join(lines, "\n")
}
