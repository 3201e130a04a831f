// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"bytes"
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
)

func TestIsWriteRequest(t *testing.T) {
	for what, want := range map[string]bool{
		"GET /api/v1/namespaces/ns/pods/x":                                        false,
		"POST /api/v1/namespaces/ns/pods":                                         true,
		"POST /api/v1/namespaces/ns/pods?dryRun=All":                              false,
		"PATCH /api/v1/namespaces/events/pods/x":                                  true,
		"POST /apis/events.k8s.io/v1/namespaces/ns/events":                        false,
		"PATCH /api/v1/namespaces/ns/events/x":                                    false,
		"PUT /apis/coordination.k8s.io/v1/namespaces/ns/leases/x":                 false,
		"PUT /apis/agenttask.dev/v1alpha1/namespaces/ns/agenttasks/x/status":      true,
		"POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews":             false,
		"DELETE /apis/batch/v1/namespaces/ns/jobs/x?propagationPolicy=Background": true,
	} {
		t.Run(what, func(t *testing.T) {
			method, url, _ := bytes.Cut([]byte(what), []byte(" "))
			if got := IsWriteRequest(request(t.Context(), t, string(method), string(url), "")); got != want {
				t.Errorf("got %t", got)
			}
		})
	}
}

func TestNewWriteReadsWhatWasSent(t *testing.T) {
	pod := &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Name: "x", Namespace: "ns"}}
	body := &bytes.Buffer{}
	if err := protobuf.NewSerializer(clientgoscheme.Scheme, clientgoscheme.Scheme).Encode(pod, body); err != nil {
		t.Fatal(err)
	}
	got := newWrite(request(t.Context(), t, http.MethodPost, podsPath, ""), body.Bytes())
	want := Write{Verb: "create", Resource: "pods", Namespace: "ns", Name: "x", Body: asJSON(pod)}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error("(-want +got):\n" + diff)
	}
	got = newWrite(request(t.Context(), t, http.MethodPut, "/apis/agenttask.dev/v1alpha1/namespaces/ns/agenttasks/t/status", ""), []byte(`{}`))
	if !got.Is("update", "agenttasks/status") || got.Group != "agenttask.dev" || got.Name != "t" {
		t.Errorf("got %+v", got)
	}
}
