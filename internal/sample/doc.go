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
// A Ledger performs an effect once for each idempotency key, and counts how often it
// was asked for and how often performed. Its HTTP API takes the key as
// draft-ietf-httpapi-idempotency-key-header-07 ("The Idempotency-Key HTTP Header
// Field", IETF HTTPAPI working group) describes:
//
//	no key, or one that cannot be read           400
//	first request with a key                     201, the record
//	a repeat while the first has no answer yet   409, Retry-After: 1
//	a repeat afterwards                          the first answer again, a success or an
//	                                             error, with Idempotent-Replayed: true
//	the same key and another effect              422
//	the same key after its expiry                as the first
//
// What makes an effect the same is its fingerprint: method, path, kind and the body as
// a JSON value; the run, task and step that sent it are only noted. Key, answer and
// effect are one write of the file: none is there without the others. How long a key
// lives, 24 hours unless set otherwise, stands in GET /idempotency, to which each
// problem with a key points.
//
// An error is kept once the request has been processed: a refund that is declined is
// one. What is turned away before that, for its form, a fault or a failed write, leaves
// the key free.
//
// Effects sent to /effects/raw are performed each time they are asked for, so that a
// step that ran twice shows.
//
// For tests the ledger fails on purpose: Fault names how, and adminRoutes where to set
// it.
//
// # The contract
//
// A program that runs as a step needs nothing of the operator's code: files in
// /agenttask, some environment variables and two exit codes are all of it, and
// Program is that much. A test compares the names with those of package stepexec.
package sample
