// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// AuditLog is what the API server was asked, by everybody.
type AuditLog struct {
	path   string
	client client.Client
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
	info, err := os.Stat(a.path)
	if err != nil {
		return 0, err
	}
	return Mark(info.Size()), nil
}

// Since reads the requests from a mark on that all keep functions keep. All that was
// answered before Since was called is among them.
func (a *AuditLog) Since(ctx context.Context, mark Mark, keep ...func(Request) bool) ([]Request, error) {
	if err := a.flush(ctx, mark); err != nil {
		return nil, err
	}
	list, err := a.read(mark)
	if err != nil {
		return nil, err
	}
	var kept []Request
next:
	for _, r := range list {
		for _, f := range keep {
			if !f(r) {
				continue next
			}
		}
		kept = append(kept, r)
	}
	return kept, nil
}

// flush makes a request of its own and waits until the log shows it.
func (a *AuditLog) flush(ctx context.Context, mark Mark) error {
	name := fmt.Sprintf("audit-mark-%d", time.Now().UnixNano())
	probe := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	if err := a.client.Create(ctx, probe, client.DryRunAll); err != nil {
		return err
	}
	return wait.PollUntilContextTimeout(ctx, 10*time.Millisecond, 10*time.Second, true, func(context.Context) (bool, error) {
		text, err := a.text(mark)
		return bytes.Contains(text, []byte(name)), err
	})
}

func (a *AuditLog) text(mark Mark) ([]byte, error) {
	file, err := os.Open(a.path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	if _, err := file.Seek(int64(mark), io.SeekStart); err != nil {
		return nil, err
	}
	return io.ReadAll(file)
}

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

func (a *AuditLog) read(mark Mark) ([]Request, error) {
	text, err := a.text(mark)
	if err != nil {
		return nil, err
	}
	var list []Request
	lines := bufio.NewReader(bytes.NewReader(text))
	for {
		line, err := lines.ReadBytes('\n')
		if err == io.EOF {
			return list, nil // what stands after the last newline is still being written
		}
		if err != nil {
			return nil, err
		}
		e := auditEvent{}
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, fmt.Errorf("audit log: %w", err)
		}
		if e.ObjectRef == nil {
			continue
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
		list = append(list, r)
	}
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
