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
// By default a spread of the cases is run, the same every time. AGENTTASK_FAULTS_ALL=1 runs
// all single faults, AGENTTASK_FAULTS_PAIRS=1 all pairs of crashes, AGENTTASK_FAULT_CASE=ID
// one case (or those whose ID a regular expression matches); AGENTTASK_FAULTS_REPORT names
// a file for the table, AGENTTASK_FAULTS_WORKERS says how many cases run at once.
//
// Where to look: history.go is what the predicates read, invariants.go lists them,
// expect.go says what a fault may rightly cost. In the tests, plans_test.go has what is
// run, cases_test.go, outsiders_test.go and restore_test.go what disturbs it,
// world_test.go and matrix_test.go how, and broken_test.go the operators that must be
// found out.
package faults
