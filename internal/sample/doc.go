// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

// Package sample is what the sample image runs: a small plan-and-execute agent
// whose steps hand their results on, a ledger that records the effects they have,
// and steps that misbehave on purpose.
//
// # The agent
//
// Eight steps turn a topic into a published report: Plan, Gather (twice), Compare,
// Draft, Review, Publish, Notify. They need no model and no network but the ledger:
// the questions and the two sources are embedded, and the same input always gives
// the same output. Only Publish and Notify change anything outside themselves, and
// they do it under the step's idempotency key.
//
// # The ledger
//
// A Ledger keeps one record for each idempotency key, so it shows what happened
// and, by its count of requests, what would have happened twice. Its HTTP API
// takes the key as draft-ietf-httpapi-idempotency-key-header ("The Idempotency-Key
// HTTP Header Field", IETF HTTPAPI working group) describes:
//
//	no key, or one that cannot be read           400
//	first request with a key                     201, the record
//	the same key and the same effect             200, the record again, Idempotent-Replayed: true
//	the same key and another effect              422
//
// The effect is the request's kind and its body as a JSON value; the task and the
// step that sent it are only noted. A repeat that comes while the first request is
// being written waits for it, and keys do not expire; the draft's 409 for a request
// in flight and its expiry are not there yet.
//
// # The contract
//
// A program that runs as a step needs nothing of the operator's code: files in
// /agenttask, some environment variables and two exit codes are all of it, and
// Program is that much. A test compares the names with those of package stepexec.
package sample
