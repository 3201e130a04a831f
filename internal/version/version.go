// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

// Package version holds the version that is built.
package version

// Version is set at link time: -ldflags "-X github.com/agenttask-dev/agenttask/internal/version.Version=v1.2.3".
var Version = "dev"
