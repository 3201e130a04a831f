// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"encoding/json"
	"strings"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
)

// maxObject is the largest task, in bytes of JSON: etcd takes 1.5 MiB, and managedFields
// take some of it.
const maxObject = 1200 << 10

// small is the size of a status for which the rest of the task need not be counted: the
// API server took it with a spec of its own.
const small = 128 << 10

// tooLarge says how large the checkpoint would be, and how large it may be, where it
// would be too large to be written.
func (d *decider) tooLarge() (size, limit int, yes bool) {
	size, limit = statusSize(&d.Status), v1alpha1.MaxStatus
	if size > small {
		limit = min(limit, maxObject-restSize(d.Task))
	}
	return size, limit, size > limit
}

// restSize is about how many bytes of JSON a task has without its status.
func restSize(task *v1alpha1.AgentTask) int {
	size := 0
	for key, value := range task.Annotations {
		size += len(key) + jsonSize(value)
	}
	spec, err := json.Marshal(task.Spec)
	if err != nil {
		return size
	}
	return size + len(spec)
}

// statusSize is about how many bytes of JSON a status has, a little more rather than
// less: what varies is counted, and the rest of a record estimated.
func statusSize(status *v1alpha1.AgentTaskStatus) int {
	const perStep, perUnknown, perDecision, base = 200, 200, 250, 16 << 10
	size := base
	for i := range status.Steps {
		r := &status.Steps[i]
		size += perStep + 2*len(r.Name)
		for _, action := range actionsOf(r) {
			size += actionSize(action)
		}
		if r.Unknown != nil {
			size += perUnknown + jsonSize(r.Unknown.Message)
		}
		if r.Decision != nil {
			size += perDecision + len(r.Decision.Name) + jsonSize(r.Decision.DecidedBy) + jsonSize(r.Decision.Reason)
		}
	}
	return size
}

func actionSize(a *v1alpha1.ActionStatus) int {
	const perAction, perRef = 500, 150
	size := perAction + len(a.IdempotencyKey) + len(a.ActionHash) + len(a.JobName) + jsonSize(a.Message)
	if a.Output != nil {
		size += jsonSize(string(a.Output.Raw))
	}
	if a.OutputRef != nil {
		size += perRef + len(a.OutputRef.URI)
	}
	return size
}

// jsonSize is about how many bytes a text has in the API server's JSON, which writes
// each of <, > and & with six and puts a backslash before quotes.
func jsonSize(text string) int {
	size := len(text)
	for _, c := range []string{"<", ">", "&"} {
		size += 5 * strings.Count(text, c)
	}
	return size + strings.Count(text, `"`) + strings.Count(text, "\n")
}
