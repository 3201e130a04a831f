// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
)

// etcd talks to etcd through the JSON that it serves beside gRPC.
type etcd struct{ url string }

// etcdEvent is one change of one key.
type etcdEvent struct {
	Type string `json:"type"` // DELETE, or nothing
	KV   struct {
		Key      []byte `json:"key"`
		Value    []byte `json:"value"`
		Revision int64  `json:"mod_revision,string"`
		// Version counts the changes of the key since it was made, from 1.
		Version int64 `json:"version,string"`
	} `json:"kv"`
}

// everything is etcd's range of all keys.
var everything = []byte{0}

type etcdHeader struct {
	Revision int64 `json:"revision,string"`
}

func (e etcd) post(ctx context.Context, path string, body any) (io.ReadCloser, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, e.url+path, bytes.NewReader(mustJSON(body)))
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(response.Body, 1024))
		_ = response.Body.Close()
		return nil, fmt.Errorf("etcd: %s: %s: %s", path, response.Status, text)
	}
	return response.Body, nil
}

// revision is that of the last change.
func (e etcd) revision(ctx context.Context) (int64, error) {
	body, err := e.post(ctx, "/v3/kv/range", map[string]any{"key": []byte("/registry"), "count_only": true})
	if err != nil {
		return 0, err
	}
	defer func() { _ = body.Close() }()
	answer := struct{ Header etcdHeader }{}
	err = json.NewDecoder(body).Decode(&answer)
	return answer.Header.Revision, err
}

// watch tells every change from a revision on, in order, until the context is done.
func (e etcd) watch(ctx context.Context, from int64, handle func([]etcdEvent) error) error {
	body, err := e.post(ctx, "/v3/watch", map[string]any{"create_request": map[string]any{
		"key": everything, "range_end": everything, "start_revision": from,
	}})
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }()
	answers := json.NewDecoder(body)
	for {
		answer := struct {
			Result struct {
				Canceled     bool
				CancelReason string `json:"cancel_reason"`
				Compacted    int64  `json:"compact_revision,string"`
				Events       []etcdEvent
			}
			Error json.RawMessage
		}{}
		if err := answers.Decode(&answer); err != nil {
			return fmt.Errorf("etcd: watch: %w", err)
		}
		switch {
		case answer.Error != nil:
			return fmt.Errorf("etcd: watch: %s", answer.Error)
		case answer.Result.Compacted > 0:
			return fmt.Errorf("etcd: watch from %d: all before %d is gone", from, answer.Result.Compacted)
		case answer.Result.Canceled:
			return errors.New("etcd: watch: " + answer.Result.CancelReason)
		}
		if err := handle(answer.Result.Events); err != nil {
			return err
		}
	}
}

// snapshot writes a snapshot as etcdctl snapshot save does.
func (e etcd) snapshot(ctx context.Context, to io.Writer) error {
	body, err := e.post(ctx, "/v3/maintenance/snapshot", map[string]any{})
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }()
	answers := json.NewDecoder(body)
	for {
		answer := struct {
			Result struct{ Blob []byte }
			Error  json.RawMessage
		}{}
		err := answers.Decode(&answer)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("etcd: snapshot: %w", err)
		case answer.Error != nil:
			return fmt.Errorf("etcd: snapshot: %s", answer.Error)
		}
		if _, err := to.Write(answer.Result.Blob); err != nil {
			return err
		}
	}
}
