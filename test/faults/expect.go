// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

// SameEnd is I9, which compares a history with that of the undisturbed run.
var SameEnd = Invariant{ID: "I9", Name: "SameEnd", Sentence: "the end state equals the undisturbed run's, UIDs and times apart"}

// Touched is the attempt that an outside actor did something to.
type Touched struct {
	Step    string
	Attempt int32
}

// Difference is something that a fault may rightly cost.
type Difference struct {
	// Name says what, in the fault's table.
	Name string
	// apply changes what is wanted, as far as the history shows that it was cost.
	apply func(want *End, have End, v *view)
}

// CheckEnd compares the end with the undisturbed run's, after what the fault may rightly
// cost and did.
func CheckEnd(h *History, undisturbed End, may []Difference) []Violation {
	have, want, v := EndOf(h), undisturbed.clone(), viewOf(h)
	for _, d := range may {
		d.apply(&want, have, v)
	}
	diff := have.Diff(want)
	if diff == "" {
		return nil
	}
	found := broken(0, "the end is not the undisturbed run's:\n%s", diff)
	found.Invariant = SameEnd.ID
	return []Violation{found}
}
