// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"encoding/json"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/test/harness"
)

// effectOnce: the effects of a step with effect Once are at most one, and exactly one if
// it is recorded as succeeded by its own pod; those of an idempotent step all go under one
// key, which the other side takes once.
func effectOnce(v *view) []Violation {
	counts, keys := v.effects()
	var found []Violation
	for uid := range v.tasks {
		task := v.last(uid)
		for i := range task.Spec.Steps {
			name := task.Spec.Steps[i].Name
			a := attempt{task: uid, step: name}
			n := counts[a]
			s := record(task, name)
			succeeded := s != nil && s.Phase == v1alpha1.StepSucceeded && !wordOfAnother(s)
			switch effectOf(task, name) {
			case v1alpha1.EffectOnce:
				if n > 1 {
					found = append(found, broken(0, "the effect of step %s happened %d times", name, n))
				}
			case v1alpha1.EffectNone:
				continue
			}
			if len(keys[a]) > 1 {
				found = append(found, broken(0, "the effect of step %s went under %d keys", name, len(keys[a])))
			}
			if succeeded && n == 0 {
				found = append(found, broken(0, "step %s succeeded, and its effect never happened", name))
			}
		}
	}
	return found
}

// effects counts the effects of each step, and under which keys they went. The attempt's
// number is left out.
func (v *view) effects() (counts map[attempt]int, keys map[attempt]map[string]bool) {
	counts, keys = map[attempt]int{}, map[attempt]map[string]bool{}
	for _, e := range v.Effects {
		if !e.Done || len(v.pods[e.Pod]) == 0 {
			continue
		}
		a, ok := v.attemptOfPod(v.pods[e.Pod][0].Pod)
		if !ok {
			continue
		}
		a.number = 0
		counts[a]++
		if keys[a] == nil {
			keys[a] = map[string]bool{}
		}
		keys[a][e.Key] = true
	}
	return counts, keys
}

// conditional: each write of the operator that could hit something else than it was meant
// for says what it was meant for.
func conditional(v *view) []Violation {
	var found []Violation
	for i := range v.Requests {
		r := &v.Requests[i]
		if r.User != harness.OperatorUser {
			continue
		}
		if what := unconditional(r); what != "" {
			found = append(found, broken(0, "%s %s", r, what))
		}
	}
	return found
}

// unconditional says which condition a write lacks, or nothing.
func unconditional(r *harness.Request) string {
	switch {
	case r.Resource == "events" || r.Resource == "leases":
	case r.Verb == "deletecollection":
		return "is not of one object"
	case r.Verb == "delete":
		options := struct {
			Preconditions struct{ UID string }
		}{}
		if json.Unmarshal(r.Body, &options) != nil || options.Preconditions.UID == "" {
			return "has no UID precondition"
		}
	case r.Verb == "patch" && r.Resource == "pods":
		if !testsUID(r.Body) {
			return "does not test the UID"
		}
	case (r.Verb == "update" || r.Verb == "patch") && r.Subresource == "status":
		body := struct {
			Metadata struct{ UID, ResourceVersion string }
		}{}
		if json.Unmarshal(r.Body, &body) != nil || body.Metadata.ResourceVersion == "" {
			return "carries no resourceVersion"
		}
		if body.Metadata.UID == "" {
			return "carries no UID"
		}
	case r.Verb == "update", r.Verb == "patch":
		return "is of a kind that is not expected of the operator"
	}
	return ""
}

func testsUID(body []byte) bool {
	var ops []struct {
		Op, Path string
		Value    any
	}
	if json.Unmarshal(body, &ops) != nil {
		return false
	}
	for _, op := range ops {
		if value, ok := op.Value.(string); ok && op.Op == "test" && op.Path == "/metadata/uid" && value != "" {
			return true
		}
	}
	return false
}

// settles: each time what had to come came within the bound, and nothing was written
// after it.
func settles(v *view) []Violation {
	var found []Violation
	for _, r := range v.Rests {
		if r.Missing != "" {
			found = append(found, broken(0, "it did not come to rest: %s", r.Missing))
		}
		for _, write := range r.Late {
			found = append(found, broken(0, "at rest, it still wrote: %s", write))
		}
	}
	if len(v.Rests) == 0 {
		found = append(found, broken(0, "nobody looked whether it came to rest"))
	}
	return found
}
