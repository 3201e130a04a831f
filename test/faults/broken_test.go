// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package faults_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
	"github.com/agenttask-dev/agenttask/test/faults"
	"github.com/agenttask-dev/agenttask/test/harness"
)

// Operators that are broken on purpose: the real one, whose requests are changed on their
// way. Each of them must be found out.
func TestBrokenOperatorsAreFoundOut(t *testing.T) {
	l := theLab(t)
	for name, c := range map[string]struct {
		run  func(w *world)
		want []string
	}{
		"the status is written by a merge without resourceVersion":      {run: bareMerge, want: []string{"I4", "I7"}},
		"Job and pod are made before the status says so":                {run: intentLate, want: []string{"I5"}},
		"the gate is removed before the pod is bound":                   {run: noGate, want: []string{"I1"}},
		"UIDs are not compared, and a stranger's pod is taken for ours": {run: strangerTaken, want: []string{"I4"}},
		"the pod's UID is not tested when its gate is removed":          {run: untestedPatch, want: []string{"I7"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			found := faults.Check(l.run(t, plans[0], func(w *world) {
				w.bound = brokenBound
				c.run(w)
			}))
			t.Logf("found: %v", found)
			for _, id := range c.want {
				if !slices.ContainsFunc(found, func(v faults.Violation) bool { return v.Invariant == id }) {
					t.Errorf("%s is not found to be violated", id)
				}
			}
		})
	}
}

// brokenBound is how long a broken operator is waited for, which may well get stuck.
const brokenBound = 3 * time.Second

// broken lets an operator's requests be changed.
func broken(wrap func(http.RoundTripper) http.RoundTripper) func(*harness.ManagerOptions) {
	return func(o *harness.ManagerOptions) { o.Wrap, o.RecheckInterval = wrap, recheck }
}

func isStatusWrite(r *http.Request) bool {
	return r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/agenttasks/") && strings.HasSuffix(r.URL.Path, "/status")
}

func isPost(r *http.Request, resource string) bool {
	return r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/"+resource)
}

// bareMerge writes the status whatever is there. An operator that was frozen before such a
// write then overwrites what another one did since.
func bareMerge(w *world) {
	w.allow("agenttasks/status", "patch")
	merge := harness.Each(func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
		if !isStatusWrite(r) {
			return next.RoundTrip(r)
		}
		r = r.Clone(r.Context())
		r.Method = http.MethodPatch
		doc := map[string]any{}
		if err := json.Unmarshal(readAll(w, r), &doc); err != nil {
			w.problem("a status: %w", err)
		}
		delete(doc, "metadata")
		setBody(w, r, string(types.MergePatchType), doc)
		return next.RoundTrip(r)
	})
	line := harness.NewFaults(harness.Fault{At: 4, Kind: harness.FreezeBefore})
	w.begin(line, broken(merge))
	w.operator("second", nil)
	w.rest()
	line.Thaw()
	w.rest()
}

// intentLate makes Job and pod before the status says so: a status write is answered as if
// it were done, and done when the pod is there. The operator dies before that.
func intentLate(w *world) {
	held := &heldWrite{w: w}
	line := harness.NewFaults(harness.Fault{At: 3, Kind: harness.DieAfter})
	w.begin(line, broken(harness.Each(held.roundTrip)))
	w.operator("second", nil)
	w.rest()
}

// heldWrite is a status write that waits for a pod to be made.
type heldWrite struct {
	w     *world
	mu    sync.Mutex
	write *http.Request
	body  []byte
}

func (h *heldWrite) roundTrip(r *http.Request, next http.RoundTripper) (*http.Response, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case isStatusWrite(r) && h.write == nil:
		h.body = readAll(h.w, r)
		h.write = r.Clone(r.Context())
		return h.pretend(r)
	case isPost(r, "pods") && h.write != nil:
		response, err := next.RoundTrip(r)
		h.write.Body = io.NopCloser(bytes.NewReader(h.body))
		if late, failed := next.RoundTrip(h.write); failed == nil {
			_ = late.Body.Close()
		}
		h.write = nil
		return response, err
	}
	return next.RoundTrip(r)
}

// pretend answers a status write that was not done.
func (h *heldWrite) pretend(r *http.Request) (*http.Response, error) {
	sent := metav1.PartialObjectMetadata{}
	if err := json.Unmarshal(h.body, &sent); err != nil {
		h.w.problem("a status: %w", err)
	}
	sent.TypeMeta = metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadata"}
	doc, err := json.Marshal(sent)
	return &http.Response{
		StatusCode: http.StatusOK, Request: r, Header: http.Header{"Content-Type": []string{"application/json"}}, Body: io.NopCloser(bytes.NewReader(doc)),
	}, err
}

// noGate makes pods without the gate.
func noGate(w *world) {
	w.begin(harness.NewFaults(harness.Fault{At: 1, Kind: harness.ActAfter, Act: func(harness.Write) {}}),
		broken(harness.Each(func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
			if isPost(r, "pods") {
				pod := sentPod(w, r)
				pod.Spec.SchedulingGates = nil
				setBody(w, r, "application/json", pod)
			}
			return next.RoundTrip(r)
		})))
	w.rest()
}

// untestedPatch removes the gate of whatever pod has the name.
func untestedPatch(w *world) {
	w.begin(harness.NewFaults(harness.Fault{At: 1, Kind: harness.ActAfter, Act: func(harness.Write) {}}),
		broken(harness.Each(func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
			if r.Method == http.MethodPatch && strings.Contains(r.URL.Path, "/pods/") {
				var ops []map[string]any
				if err := json.Unmarshal(readAll(w, r), &ops); err != nil {
					w.problem("a patch: %w", err)
				}
				setBody(w, r, string(types.JSONPatchType), slices.DeleteFunc(ops, func(op map[string]any) bool { return op["op"] == "test" }))
			}
			return next.RoundTrip(r)
		})))
	w.rest()
}

// strangerTaken takes a pod for its own that somebody else made under the first step's
// name, and what that pod says for the step's result.
func strangerTaken(w *world) {
	blind := &blindReader{w: w, sent: map[string]*corev1.Pod{}}
	line := harness.NewFaults(harness.Fault{At: 1, Kind: harness.ActAfter, Act: func(harness.Write) { w.strangerThatEnded() }})
	w.begin(line, broken(harness.Each(blind.roundTrip)))
	w.rest()
}

// strangerThatEnded makes a pod of nobody's under the first step's name, whose program has
// succeeded.
func (w *world) strangerThatEnded() {
	task, err := w.task()
	if err != nil {
		w.problem("the stranger: %w", err)
		return
	}
	key := client.ObjectKey{Namespace: w.ns, Name: stepexec.JobName(taskName, task.UID, look, v1alpha1.RoleMain, 1)}
	if err := w.Outsider().StrangerPod(w.ctx, key); err != nil {
		w.problem("the stranger: %w", err)
		return
	}
	pod := &corev1.Pod{}
	if err := w.Client.Get(w.ctx, key, pod); err != nil {
		w.problem("the stranger: %w", err)
		return
	}
	pod.Status.Phase = corev1.PodSucceeded
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: stepexec.ContainerStep, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
		Reason: "Completed", Message: fmt.Sprintf(`{"v":%d,"outcome":"Succeeded","output":{"order":8,"charge":"c-8"}}`, stepexec.ResultVersion),
	}}}}
	if err := w.Client.Status().Update(w.ctx, pod); err != nil {
		w.problem("the stranger: %w", err)
	}
}

// blindReader shows the operator each pod that it reads by name as if it were controlled
// by whom the operator meant it to be.
type blindReader struct {
	w    *world
	mu   sync.Mutex
	sent map[string]*corev1.Pod
}

func (b *blindReader) roundTrip(r *http.Request, next http.RoundTripper) (*http.Response, error) {
	if isPost(r, "pods") {
		pod := sentPod(b.w, r)
		b.mu.Lock()
		b.sent[pod.Name] = pod
		b.mu.Unlock()
	}
	b.mu.Lock()
	sent := b.sent[r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]]
	b.mu.Unlock()
	if r.Method != http.MethodGet || sent == nil || !strings.Contains(r.URL.Path, "/pods/") {
		return next.RoundTrip(r)
	}
	r = r.Clone(r.Context())
	r.Header.Set("Accept", "application/json")
	response, err := next.RoundTrip(r)
	if err != nil || response.StatusCode != http.StatusOK {
		return response, err
	}
	pod := &corev1.Pod{}
	if err := json.NewDecoder(response.Body).Decode(pod); err != nil {
		b.w.problem("a pod: %w", err)
	}
	_ = response.Body.Close()
	pod.OwnerReferences = sent.OwnerReferences
	text, err := json.Marshal(pod)
	response.Body, response.ContentLength = io.NopCloser(bytes.NewReader(text)), int64(len(text))
	response.Header.Set("Content-Length", strconv.Itoa(len(text)))
	return response, err
}

// allow gives the operator a right in the case's namespace that it does not have.
func (w *world) allow(resource, verb string) {
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "broken"}, Rules: []rbacv1.PolicyRule{{
		APIGroups: []string{v1alpha1.GroupVersion.Group}, Resources: []string{resource}, Verbs: []string{verb}}}}
	binding := &rbacv1.RoleBinding{ObjectMeta: role.ObjectMeta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role.Name},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: harness.OperatorUser}}}
	for _, obj := range []client.Object{role, binding} {
		if err := w.Client.Create(w.ctx, obj); err != nil {
			w.problem("a right: %w", err)
		}
	}
}

// readAll reads a request's body, which stays to be read.
func readAll(w *world, r *http.Request) []byte {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		w.problem("a request's body: %w", err)
	}
	_ = r.Body.Close()
	r.Body = io.NopCloser(bytes.NewReader(body))
	return body
}

// sentPod is the pod that a request sends, in whatever encoding.
func sentPod(w *world, r *http.Request) *corev1.Pod {
	pod := &corev1.Pod{}
	if _, _, err := scheme.Codecs.UniversalDeserializer().Decode(readAll(w, r), nil, pod); err != nil {
		w.problem("a pod: %w", err)
	}
	return pod
}

func setBody(w *world, r *http.Request, contentType string, doc any) {
	body, err := json.Marshal(doc)
	if err != nil {
		w.problem("a request's body: %w", err)
	}
	r.Header.Set("Content-Type", contentType)
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
}
