// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

// Package engine decides what a task does next. It is pure: no client, no context,
// no logger, no clock. Decide takes the task as read, what was observed of its
// current attempt, the time and a random source, and returns a value: the new
// status, and the actions that may follow once that status is written.
//
// A step's states (a step without a record has not been started):
//
//	            start                 ended well
//	(no record) ─────▶ Running ─────────────────────────▶ Succeeded
//	                    │  ▲  │ ended badly, no retry left
//	      ended badly,  │  │  └───────────────────────────▶ Failed
//	      retry left    ▼  │ nextAttemptTime
//	                  Retrying ──────────────────────────▶ Failed, Cancelled
//	                                                        ▲
//	Running ─▶ Stopping ────────────────────────────────────┘
//	         (cancel, deadline, could not start)  also ─▶ Succeeded, Retrying
//
// Invariants, each held by a test:
//
//   - Decide never panics and never changes what it is given.
//   - A finished record never changes: its phase, output and key stay for ever.
//   - An attempt's number only grows, and is in the status before its Job is made.
//   - A step starts only when every step before it in the plan has succeeded.
//   - One call makes at most one transition of a step: it ends at most one attempt
//     and starts at most one.
//   - Attempt n+1 starts only when the pod of attempt n is dead or gone.
//   - A call that changes nothing returns a status equal to the one it was given.
//
// Where to look: decide.go has the ladder from top to bottom; steps.go starts and
// settles an attempt; outcome.go reads an attempt's end from its pod; retry.go says
// whether and when it is tried again; plan.go checks the plan and renders inputs;
// conditions.go derives phase and conditions; simulate.go runs a plan without a
// cluster.
package engine
