// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
)

// writeStatus is the compare-and-swap that every checkpoint goes through: the
// resourceVersion of what was read is in the write, so it fails with a conflict
// where anything has changed since. On success the task is as written.
func (r *Reconciler) writeStatus(ctx context.Context, task *v1alpha1.AgentTask, status v1alpha1.AgentTaskStatus) error {
	next := *task
	next.Status = status
	if err := r.Status().Update(ctx, &next); err != nil {
		return err
	}
	*task = next
	r.memory.with(client.ObjectKeyFromObject(task), task.UID, func(m *taskMemory) { m.written = task.ResourceVersion })
	return nil
}
