// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package stepexec

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"strconv"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
)

// Action is what one step does, rendered: all that makes its effect, and nothing
// that may be mended without changing it (image, resources, environment).
type Action struct {
	// Step is the step's name, Role what the action is for it.
	Step string
	Role v1alpha1.Role
	// Kind is the action's kind: run or http.
	Kind string
	// Command and Args of a run action; method and URL of an http action.
	Command, Args []string
	// Input is the rendered input, or what an http action sends, as canonical JSON.
	Input []byte
}

// RunActionOf is the action that runs a program.
func RunActionOf(step string, role v1alpha1.Role, run *v1alpha1.RunAction, input []byte) Action {
	return Action{Step: step, Role: role, Kind: "run", Command: run.Command, Args: run.Args, Input: input}
}

// HTTPActionOf is the action that sends a request. A body of nil is none.
func HTTPActionOf(step string, role v1alpha1.Role, method, url string, body []byte) Action {
	if body == nil {
		body = []byte("null")
	}
	return Action{Step: step, Role: role, Kind: "http", Command: []string{method, url}, Input: body}
}

// Key is the idempotency key of the action in a run: <runID>.<step>.<sha256>. It
// depends on nothing else: not on the attempt, the step's position or the clock. At
// most 169 characters, all of which may stand in a header.
func (a Action) Key(runID string) string {
	sum := digest("agenttask.dev/key/v1", runID, a.identity())
	return runID + "." + a.Step + "." + hex.EncodeToString(sum[:])
}

// Hash is the action's hash, the same in every run.
func (a Action) Hash() string {
	sum := digest("agenttask.dev/action/v1", a.identity())
	return "sha256:" + hex.EncodeToString(sum[:])
}

func (a Action) identity() []any {
	return []any{a.Step, a.Role, a.Kind, nonNil(a.Command), nonNil(a.Args), json.RawMessage(a.Input)}
}

// nonNil makes an absent list and an empty one the same.
func nonNil(list []string) []string {
	if list == nil {
		return []string{}
	}
	return list
}

// Seed is AGENTTASK_SEED: a number from 0 to 2^53-1 that depends on the key alone,
// small enough for every language's numbers.
func Seed(key string) string {
	sum := digest("agenttask.dev/seed/v1", key)
	return strconv.FormatUint(binary.BigEndian.Uint64(sum[:8])>>11, 10)
}

// SpecHash is by which a change to a started step's definition is noticed: the first
// 16 hex digits of the sha256 of its JSON. A field added to the API must be absent
// when unset, or steps started before it look changed. The same goes for defaults: the
// API server fills in none of a step's, since kubectl apply would take each for a change.
func SpecHash(step *v1alpha1.Step) string {
	plain := *step
	if plain.Effect == v1alpha1.EffectIdempotent {
		plain.Effect = ""
	}
	if plain.OnUnknown == v1alpha1.UnknownPause {
		plain.OnUnknown = ""
	}
	if plain.Run != nil && plain.Run.Output == v1alpha1.OutputFile {
		run := *plain.Run
		run.Output = ""
		plain.Run = &run
	}
	sum := digest(plain)
	return hex.EncodeToString(sum[:8])
}

// PlanHash is the sha256 of all steps.
func PlanHash(steps []v1alpha1.Step) string {
	sum := digest(steps)
	return "sha256:" + hex.EncodeToString(sum[:])
}
