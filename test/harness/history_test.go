// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func changed(key string, revision, version int64, value string) etcdEvent {
	e := etcdEvent{}
	e.KV.Key, e.KV.Value, e.KV.Revision, e.KV.Version = []byte(key), []byte(value), revision, version
	if value == "" {
		e.Type = "DELETE"
	}
	return e
}

func pod(note string) string {
	return fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"x","namespace":"ns","annotations":{"note":%q}}}`, note)
}

const podKey = "/registry/pods/ns/x"

func recordOf(t *testing.T) (*follower, *Recorder) {
	t.Helper()
	f := newFollower(etcd{})
	r := &Recorder{namespace: "ns", follower: f, last: map[string]Revision{}, versions: map[string]int64{}}
	f.recorders["ns"] = r
	return f, r
}

// lines tells revisions in a line each.
func lines(t *testing.T, r *Recorder) []string {
	t.Helper()
	list, err := r.known()
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, revision := range list {
		line := fmt.Sprintf("%d %s rv %s", revision.RV, revision.Object().GetAnnotations()["note"], revision.Object().GetResourceVersion())
		if revision.Created {
			line += " created"
		}
		if revision.Deleted {
			line += " deleted"
		}
		out = append(out, line)
	}
	return out
}

func TestHistoryHoldsEachRevision(t *testing.T) {
	f, r := recordOf(t)
	events := []etcdEvent{
		changed(podKey, 5, 1, pod("a")),
		changed("/registry/pods/other/x", 6, 4, pod("z")),
		changed("/registry/leases/ns/x", 7, 9, "anything"),
		changed("/registry/configmaps/ns/kube-root-ca.crt", 8, 2, "anything"),
		changed(podKey, 9, 2, pod("b")),
		changed(podKey, 10, 0, ""),
		changed(podKey, 11, 1, pod("c")),
	}
	if err := f.take(events); err != nil {
		t.Fatal(err)
	}
	want := []string{"5 a rv 5 created", "9 b rv 9", "10 b rv 9 deleted", "11 c rv 11 created"}
	if diff := cmp.Diff(want, lines(t, r)); diff != "" {
		t.Error("(-want +got):\n" + diff)
	}
	if f.seen != 11 || r.Revision() != 11 {
		t.Errorf("seen %d, revision %d", f.seen, r.Revision())
	}
}

func TestHistoryNoticesWhatIsMissing(t *testing.T) {
	for name, events := range map[string][]etcdEvent{
		"the first":    {changed(podKey, 5, 2, pod("a"))},
		"one between":  {changed(podKey, 5, 1, pod("a")), changed(podKey, 7, 3, pod("c"))},
		"the deletion": {changed(podKey, 5, 1, pod("a")), changed(podKey, 7, 1, pod("c"))},
	} {
		t.Run(name, func(t *testing.T) {
			f, _ := recordOf(t)
			if err := f.take(events); err == nil || !strings.Contains(err.Error(), "not complete") {
				t.Errorf("error %v", err)
			}
		})
	}
}

// TestHistoryGoesBackWithARestore: what follows a restore follows the snapshot, and not
// what was undone.
func TestHistoryGoesBackWithARestore(t *testing.T) {
	f, r := recordOf(t)
	if err := f.take([]etcdEvent{changed(podKey, 5, 1, pod("a")), changed(podKey, 6, 2, pod("b")), changed(podKey, 7, 3, pod("undone"))}); err != nil {
		t.Fatal(err)
	}
	r.restore(Restore{Snapshot: 6, First: 1007})
	if err := f.take([]etcdEvent{changed(podKey, 1007, 0, "")}); err != nil {
		t.Fatal(err)
	}
	want := []string{"5 a rv 5 created", "6 b rv 6", "7 undone rv 7", "1007 b rv 6 deleted"}
	if diff := cmp.Diff(want, lines(t, r)); diff != "" {
		t.Error("(-want +got):\n" + diff)
	}
	if err := f.take([]etcdEvent{changed(podKey, 1008, 4, pod("c"))}); err == nil {
		t.Error("a version that follows what was undone was taken")
	}
}

func TestEtcdWatchTellsWhyItEnds(t *testing.T) {
	for want, answer := range map[string]string{
		"all before 12 is gone": `{"result":{"canceled":true,"compact_revision":"12"}}`,
		"no leader":             `{"result":{"canceled":true,"cancel_reason":"no leader"}}`,
		"broken":                `{"error":{"message":"broken"}}`,
		"EOF":                   `{"result":{"created":true}}`,
	} {
		t.Run(want, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				asked := struct {
					Create struct {
						From int64 `json:"start_revision"`
					} `json:"create_request"`
				}{}
				if err := json.NewDecoder(r.Body).Decode(&asked); err != nil || asked.Create.From != 7 {
					http.Error(w, "asked for the wrong revision", http.StatusBadRequest)
					return
				}
				_, _ = w.Write([]byte(answer))
			}))
			defer server.Close()
			err := etcd{server.URL}.watch(context.Background(), 7, func([]etcdEvent) error { return nil })
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("error %v", err)
			}
		})
	}
}
