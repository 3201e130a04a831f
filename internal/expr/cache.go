// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package expr

import (
	"container/list"
	"crypto/sha256"
	"sync"
)

const (
	// cacheEntries and cacheWeight bound the compiled templates that are kept: their
	// number, and their approximate size in bytes.
	cacheEntries = 4096
	cacheWeight  = 64 << 20
	// exprWeight is about what one compiled expression takes, in bytes.
	exprWeight = 16 << 10
)

type cacheKey [sha256.Size]byte

func keyOf(root string, doc []byte, scope Scope) cacheKey {
	h := sha256.New()
	h.Write([]byte{scope.bits()})
	h.Write([]byte(root))
	h.Write([]byte{0})
	h.Write(doc)
	return cacheKey(h.Sum(nil))
}

// cache keeps the templates used last.
type cache struct {
	mu      sync.Mutex
	entries map[cacheKey]*list.Element
	order   *list.List // of cacheEntry, the one used last first
	weight  int
	// maxEntries and maxWeight are the bounds.
	maxEntries, maxWeight int
}

type cacheEntry struct {
	key      cacheKey
	template *Template
}

func newCache(maxEntries, maxWeight int) *cache {
	return &cache{
		entries: map[cacheKey]*list.Element{}, order: list.New(),
		maxEntries: maxEntries, maxWeight: maxWeight,
	}
}

func (c *cache) get(key cacheKey) (*Template, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.entries[key]
	if !ok {
		return nil, false
	}
	c.order.MoveToFront(e)
	return e.Value.(cacheEntry).template, true
}

// add keeps t, and forgets the templates used longest ago until the bounds hold.
func (c *cache) add(key cacheKey, t *Template) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.entries[key]; ok || t.weight > c.maxWeight {
		return
	}
	c.entries[key] = c.order.PushFront(cacheEntry{key, t})
	c.weight += t.weight
	for len(c.entries) > c.maxEntries || c.weight > c.maxWeight {
		oldest := c.order.Back()
		e := c.order.Remove(oldest).(cacheEntry)
		delete(c.entries, e.key)
		c.weight -= e.template.weight
	}
}
