// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

// Package faults holds what is promised of the operator as predicates over the complete
// history of a task: every revision of every object in etcd's order, every request that
// the API server answered, and every effect that a step's program had. The tests of this
// package run the operator through the fault matrix, a case for each fault at each write,
// and check each case's history.
//
//	I1 OneUngated        at most one pod per attempt loses its gate, and the status named it in an earlier revision
//	I2 NoLateStart       no pod loses its gate once its step is done or a later attempt exists
//	I3 DeadBeforeNext    attempt n+1 only after the pod of attempt n is provably dead
//	I4 OnlyForward       phases only go forward, results never change, nothing is done that did not succeed
//	I5 InOrder           step n+1 only after step n
//	I6 EffectOnce        each external effect at most once, exactly once if its step is done
//	I7 Conditional       every status write carries a resourceVersion, every pod patch tests the UID, every delete has a UID precondition
//	I8 Settles           a terminal or waiting state within a bound after faults stop, then no more writes
//	I9 SameEnd           the end state equals the undisturbed run's, UIDs and times apart
//
// Where to look: history.go is what the predicates read, invariants.go lists them; the
// cases stand in cases_test.go, how one is run in run_test.go.
package faults
