// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
)

// The test of spec.verify: what the observer sees after a step's own run and after a
// second one with the same key must be the same, and so must the two outputs.

const untested = "it had succeeded, and its test was not made to the end"

func (d *decider) startVerify(a activity, message string) {
	if d.taskEnds() {
		d.endByTask(a, untested)
		return
	}
	a.Reason, a.Message = "", shorten(message)
	d.event(false, v1alpha1.EventStepVerifying, fmt.Sprintf("step %s succeeded, and is run a second time with the same key", a.record.Name))
	d.startRole(a.record, v1alpha1.RoleObserve, v1alpha1.StepVerifying)
}

// verifyNext is what follows each part of the test.
var verifyNext = map[v1alpha1.Role]v1alpha1.Role{
	v1alpha1.RoleObserve: v1alpha1.RoleAgain,
	v1alpha1.RoleAgain:   v1alpha1.RoleObserveAgain,
}

// verifyEnded goes on with the test of a step, a part of which has ended.
func (d *decider) verifyEnded(a activity) {
	main := d.mainOf(a.record)
	next, more := verifyNext[a.role]
	switch {
	case d.taskEnds():
		d.endByTask(main, untested)
	case a.Phase != v1alpha1.StepSucceeded:
		d.finish(main, v1alpha1.StepFailed, v1alpha1.ReasonVerifyFailed, fmt.Sprintf("%s ended as %s: %s: %s", a.name(), a.Phase, a.Reason, a.Message))
	case more:
		d.startRole(a.record, next, v1alpha1.StepVerifying)
	default:
		d.compare(main)
	}
}

// compare ends a step by what its two runs left.
func (d *decider) compare(a activity) {
	record := a.record
	seen := difference(roleOf(record, v1alpha1.RoleObserve), roleOf(record, v1alpha1.RoleObserveAgain))
	said := difference(&record.ActionStatus, roleOf(record, v1alpha1.RoleAgain))
	switch {
	case seen != "":
		d.finish(a, v1alpha1.StepFailed, v1alpha1.ReasonNotIdempotent, "run a second time with the same key, it changed the world again; the observer's view differs "+seen)
	case said != "":
		d.finish(a, v1alpha1.StepFailed, v1alpha1.ReasonNotIdempotent, "run a second time with the same key, its output differs "+said)
	default:
		d.finish(a, v1alpha1.StepSucceeded, "", a.Message)
	}
}

// difference says where two results differ, or is empty.
func difference(first, second *v1alpha1.ActionStatus) string {
	switch {
	case first == nil || second == nil:
		return "since one of them is missing"
	case first.OutputRef != nil || second.OutputRef != nil:
		if first.OutputRef != nil && second.OutputRef != nil && first.OutputRef.SHA256 == second.OutputRef.SHA256 {
			return ""
		}
		return "in a result of more than 2 KiB; see the ConfigMaps that the records name"
	}
	return differs("", rawOutput(first), rawOutput(second))
}

func rawOutput(a *v1alpha1.ActionStatus) any {
	if a.Output == nil {
		return nil
	}
	var value any
	if err := json.Unmarshal(a.Output.Raw, &value); err != nil {
		return string(a.Output.Raw)
	}
	return value
}

// differs finds the first place where two JSON values differ.
func differs(at string, a, b any) string {
	switch a := a.(type) {
	case map[string]any:
		if b, ok := b.(map[string]any); ok {
			return differsIn(at, a, b)
		}
	case []any:
		if b, ok := b.([]any); ok && len(a) == len(b) {
			for i := range a {
				if found := differs(fmt.Sprintf("%s[%d]", at, i), a[i], b[i]); found != "" {
					return found
				}
			}
			return ""
		}
	}
	if reflect.DeepEqual(a, b) {
		return ""
	}
	before, after := brief(a), brief(b)
	if at == "" {
		return fmt.Sprintf("as a whole: %s, then %s", before, after)
	}
	return fmt.Sprintf("at %s: %s, then %s", at, before, after)
}

func differsIn(at string, a, b map[string]any) string {
	all := maps.Clone(a)
	maps.Copy(all, b)
	for _, key := range slices.Sorted(maps.Keys(all)) {
		one, here := a[key]
		two, there := b[key]
		place := at + "." + key
		switch {
		case !here:
			return fmt.Sprintf("at %s: nothing, then %s", place, brief(two))
		case !there:
			return fmt.Sprintf("at %s: %s, then nothing", place, brief(one))
		}
		if found := differs(place, one, two); found != "" {
			return found
		}
	}
	return ""
}

// brief is a JSON value, shortened.
func brief(value any) string {
	const most = 200
	doc, err := json.Marshal(value)
	if err != nil {
		return err.Error()
	}
	if len(doc) > most {
		return string(doc[:most]) + "…"
	}
	return string(doc)
}
