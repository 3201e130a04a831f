// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
)

// Write is a request of a manager that could change something.
type Write struct {
	// N is its number among the manager's writes, from 1.
	N int64
	// Verb is create, update, patch or delete.
	Verb                                          string
	Group, Resource, Subresource, Namespace, Name string
	// Body is what was sent, as JSON.
	Body []byte
	// Struck are the faults that struck it.
	Struck []FaultKind
	// Code is what the API server answered: 0 where it has not answered, or was not asked.
	Code int
}

// String describes the write: "write 6: update agenttasks/status refund".
func (w Write) String() string {
	return strings.TrimSpace(fmt.Sprintf("write %d: %s %s %s", w.N, w.Verb, w.resource(), w.Name))
}

// Is says whether it is the verb on the resource: Is("update", "agenttasks/status").
func (w Write) Is(verb, resource string) bool { return w.Verb == verb && w.resource() == resource }

func (w Write) resource() string {
	if w.Subresource == "" {
		return w.Resource
	}
	return w.Resource + "/" + w.Subresource
}

// target is what the path of a request names.
type target struct{ group, namespace, resource, name, subresource string }

// targetOf takes a path apart: /api/V/... or /apis/GROUP/V/..., then
// [namespaces/NS/]RESOURCE[/NAME[/SUBRESOURCE]].
func targetOf(path string) target {
	t := target{}
	parts := strings.Split(strings.Trim(path, "/"), "/")
	switch {
	case len(parts) > 2 && parts[0] == "api":
		parts = parts[2:]
	case len(parts) > 3 && parts[0] == "apis":
		t.group, parts = parts[1], parts[3:]
	default:
		return t
	}
	if len(parts) > 2 && parts[0] == "namespaces" && !slices.Contains([]string{"status", "finalize"}, parts[2]) {
		t.namespace, parts = parts[1], parts[2:]
	}
	for i, field := range []*string{&t.resource, &t.name, &t.subresource} {
		if i < len(parts) {
			*field = parts[i]
		}
	}
	return t
}

// IsWriteRequest says whether a request is a write. Events, Leases, reviews of somebody's
// rights and dry runs are none.
func IsWriteRequest(r *http.Request) bool {
	if r.Method == http.MethodGet || r.Method == http.MethodHead || r.URL.Query().Has("dryRun") {
		return false
	}
	t := targetOf(r.URL.Path)
	return t.resource != "" && t.resource != "events" && t.resource != "leases" && !strings.HasSuffix(t.resource, "reviews")
}

var verbs = map[string]string{
	http.MethodPost: "create", http.MethodPut: "update", http.MethodPatch: "patch", http.MethodDelete: "delete",
}

func newWrite(r *http.Request, body []byte) Write {
	t := targetOf(r.URL.Path)
	w := Write{
		Verb: verbs[r.Method], Group: t.group, Resource: t.resource, Subresource: t.subresource, Namespace: t.namespace, Name: t.name,
		Body: body,
	}
	if bytes.HasPrefix(body, protobufMark) {
		if obj, _, err := decoder.Decode(body, nil, nil); err == nil {
			w.Body = asJSON(obj)
		}
	}
	if w.Name == "" {
		named := struct {
			Metadata struct{ Name string }
		}{}
		if json.Unmarshal(w.Body, &named) == nil {
			w.Name = named.Metadata.Name
		}
	}
	return w
}

// protobufMark begins what is encoded as Kubernetes' protobuf.
var protobufMark = []byte("k8s\x00")

// decoder reads every object that the harness knows, in each encoding.
var decoder = newDecoder()

func newDecoder() runtime.Decoder {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			panic("harness: " + err.Error())
		}
	}
	return serializer.NewCodecFactory(scheme).UniversalDeserializer()
}

func asJSON(obj runtime.Object) []byte {
	doc, err := json.Marshal(obj)
	if err != nil {
		return nil
	}
	return doc
}
