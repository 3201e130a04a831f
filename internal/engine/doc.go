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
//	         (cancel, deadline, could not start)  also ─▶ Succeeded, Retrying, Unknown
//
//	Running ─▶ Unknown ─▶ Succeeded, Skipped, Retrying, Failed, Cancelled
//	            │  ▲      (effect Once: it may have taken effect, and left no word)
//	            ▼  │ not settled
//	          Checking ─▶ Succeeded, Retrying, Failed, Cancelled
//
// and besides:
//
//	(no record) ─▶ Succeeded   a step of the run has succeeded under its key (Reused)
//	(no record) ─▶ Checking    check.when is Before: done is Succeeded, not done Running
//	Running ─▶ Verifying       ended well, and spec.verify tests it: Succeeded or Failed
//	Unknown ─▶ as Running      the program's own word came in late
//	any ─▶ Failed, Cancelled   with its task
//
// In Checking and Verifying the step consists in the attempts of another action, which
// has a record of its own in actions and goes through Running, Retrying and Stopping by
// the same code.
//
// Invariants, each held by a test:
//
//   - Decide never panics and never changes what it is given.
//   - A finished record never changes: its phase, output and key stay for ever.
//   - An attempt's number only grows, and is in the status before its Job is made.
//   - A step starts only when every step before it in the plan has succeeded, or was
//     skipped by a decision.
//   - One call makes at most one transition of a step: it ends at most one attempt
//     and starts at most one.
//   - Attempt n+1 starts only when the pod of attempt n is dead or gone.
//   - With effect Once the fence is opened for no pod but the one that the record of the
//     running attempt names, and the call that opens it makes none.
//   - With effect Once an attempt that may have taken effect is followed by another only
//     by its program's own word, its check, onUnknown or a decision; and only when its
//     pod is provably dead, or gone and a decision says so.
//   - A pod is let go only when its attempt's outcome stands in the record, or no record
//     names it.
//   - A call that changes nothing returns a status equal to the one it was given.
//
// Where to look: decide.go has the ladder from top to bottom; activity.go says which
// action a step consists in; steps.go starts and settles an attempt, attempt.go drives a
// running one; outcome.go reads an attempt's end from its pod; fence.go takes the pod of
// an attempt that must not start twice through the fence; unknown.go, check.go and
// decisions.go settle what is not known; verify.go tests steps by running them twice;
// retry.go says whether and when an attempt is tried again; plan.go and validate.go check
// the plan, render.go renders actions and keys; conditions.go derives phase and
// conditions; simulate.go runs a plan without a cluster.
package engine
