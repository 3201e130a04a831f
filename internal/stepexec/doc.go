// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

// Package stepexec says what a step looks like when it runs: the Job and its pod, their
// name, the idempotency key, and the contract between the operator, the runner and the
// step's program. It is pure: the same input gives the same Job, name and key.
package stepexec
