// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package sample

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"net/http"
	"net/url"
	"slices"
)

// CheckEffect asks the ledger whether the effect of the step's key has happened, and
// leaves {done, output} as output: a step's check.
func CheckEffect(ctx context.Context, p Program, base string) error {
	key, err := p.env(envKey)
	if err != nil {
		return err
	}
	doc, err := p.get(ctx, base, pathEffects+"/lookup", url.Values{"key": {key}})
	if err != nil {
		return err
	}
	var found lookupAnswer
	if err := json.Unmarshal(doc, &found); err != nil {
		return failf("the ledger's answer: %v: is --url a ledger's?", err)
	}
	return p.rawOutput(doc)
}

// maxObserved is how many keys a view may have.
const maxObserved = 200

// View is what the effects of a ledger amount to: the same as long as no effect happens.
type View struct {
	// Performed is how many effects there are.
	Performed int64 `json:"performed"`
	// Effects are by key.
	Effects []ViewItem `json:"effects"`
}

// ViewItem is the effects of a key. How often they were asked for is not in it, and
// neither are times.
type ViewItem struct {
	Key  string `json:"key"`
	Path string `json:"path"`
	Task string `json:"task,omitempty"`
	Step string `json:"step,omitempty"`
	Kind string `json:"kind,omitempty"`
	// Performed is how many there are.
	Performed int64 `json:"performed"`
	// Digest begins the sha256 of the last one's body.
	Digest string `json:"digest"`
}

// ObserveEffects leaves the ledger's View as output: a verification's observer. The input
// is a Filter, or null.
func ObserveEffects(ctx context.Context, p Program, base string) error {
	var f Filter
	if err := p.input(&f); err != nil {
		return err
	}
	doc, err := p.get(ctx, base, pathEffects, url.Values{
		"run": {f.Run}, "task": {f.Task}, "step": {f.Step}, "kind": {f.Kind}, "key": {f.Key}, "path": {f.Path},
	})
	if err != nil {
		return err
	}
	var entries []Entry
	if err := json.Unmarshal(doc, &entries); err != nil {
		return failf("the ledger's answer: %v: is --url a ledger's?", err)
	}
	v := view(entries)
	if len(v.Effects) > maxObserved {
		return failf("there are effects of %d keys, more than %d: name run, task, step, kind, key or path in input", len(v.Effects), maxObserved)
	}
	return p.output(v)
}

func view(entries []Entry) View {
	items := map[string]*ViewItem{}
	for _, e := range entries {
		item := items[e.Key]
		if item == nil {
			item = &ViewItem{Key: e.Key}
			items[e.Key] = item
		}
		sum := sha256.Sum256(e.Body)
		item.Path, item.Task, item.Step, item.Kind = e.Path, e.Task, e.Step, e.Kind
		item.Performed++
		item.Digest = hex.EncodeToString(sum[:6])
	}
	v := View{Performed: int64(len(entries)), Effects: []ViewItem{}}
	for _, key := range slices.Sorted(maps.Keys(items)) {
		v.Effects = append(v.Effects, *items[key])
	}
	return v
}

// get reads a resource of the ledger; where it does not answer, another attempt may.
func (p Program) get(ctx context.Context, base, path string, query url.Values) ([]byte, error) {
	r, err := p.send(ctx, base, call{method: http.MethodGet, path: path, query: query})
	if err != nil {
		return nil, again(err)
	}
	return judge(r)
}
