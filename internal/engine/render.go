// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/expr"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
)

// rendered is an action with its expressions evaluated.
type rendered struct {
	run  *v1alpha1.RunAction
	http *v1alpha1.HTTPAction
	// input is the program's, or the request.
	input   []byte
	timeout time.Duration
	// identity is what the action is, and key under which idempotency key.
	identity stepexec.Action
	key      string
}

// source is where an action stands in the plan.
type source struct {
	path    string
	run     *v1alpha1.RunAction
	http    *v1alpha1.HTTPAction
	input   *apiextensionsv1.JSON
	timeout time.Duration
	// scope is what its expressions may use.
	scope expr.Scope
}

// sourceOf finds the action that has a role for a step; it is empty where the plan has
// none (any more).
func sourceOf(task *v1alpha1.AgentTask, step *v1alpha1.Step, role v1alpha1.Role) source {
	switch role {
	case v1alpha1.RoleCheck:
		check := step.Check
		if check == nil {
			return source{}
		}
		return source{"check.", check.Run, check.HTTP, check.Input, check.RunTimeout(), expr.Scope{Key: true}}
	case v1alpha1.RoleObserve, v1alpha1.RoleObserveAgain:
		if task.Spec.Verify == nil {
			return source{}
		}
		observe := &task.Spec.Verify.Observe
		return source{"verify.observe.", observe.Run, observe.HTTP, observe.Input, v1alpha1.DefaultCheckTimeout, expr.Scope{Key: true}}
	}
	return source{"", step.Run, step.HTTP, step.Input, step.RunTimeout(), expr.Scope{}}
}

// headerScope is what the values of a request's headers may use: the key too, since they
// are no part of it.
func (s source) headerScope() expr.Scope {
	s.scope.Key = true
	return s.scope
}

// renderMain renders a step's own action and finds its key.
func (d *decider) renderMain(step *v1alpha1.Step) (rendered, *Problem) {
	from := sourceOf(d.Task, step, v1alpha1.RoleMain)
	r, problem := d.identify(from, step.Name, v1alpha1.RoleMain, "")
	r.key = r.identity.Key(d.Status.RunID)
	if problem != nil || len(d.Load) > 0 {
		return r, problem
	}
	if step.IdempotencyKey != "" {
		key, problem := d.ownKey(step)
		if problem != nil || len(d.Load) > 0 {
			return r, problem
		}
		r.key = key
	}
	return r, d.complete(&r, from)
}

// renderRole renders another of a step's actions, which serves the step's own and is
// given its key.
func (d *decider) renderRole(step *v1alpha1.Step, role v1alpha1.Role, key string) (rendered, *Problem) {
	if role == v1alpha1.RoleAgain { // the very same action
		r, problem := d.renderMain(step)
		r.identity.Role = role
		return r, problem
	}
	from := sourceOf(d.Task, step, role)
	if role == v1alpha1.RoleCheck && from.input == nil {
		from.input = step.Input
	}
	r, problem := d.identify(from, step.Name, role, key)
	r.key = key
	if problem != nil || len(d.Load) > 0 {
		return r, problem
	}
	return r, d.complete(&r, from)
}

// identify renders what makes an action's identity: a program's input, or a request's
// URL and body.
func (d *decider) identify(from source, step string, role v1alpha1.Role, key string) (rendered, *Problem) {
	r := rendered{run: from.run, http: from.http, timeout: from.timeout}
	switch {
	case from.run != nil:
		input, problem := d.renderInput(from, key)
		r.input = input
		r.identity = stepexec.RunActionOf(step, role, from.run, orNull(input))
		return r, problem
	case from.http != nil:
		url, problem := d.renderText(from.path+"http.url", from.http.URL, from.scope, key)
		body := []byte(nil)
		if problem == nil && from.http.Body != nil {
			body, problem = d.renderJSON(from.path+"http.body", from.http.Body, from.scope, key)
		}
		r.timeout = min(r.timeout, from.http.RequestTimeout())
		r.identity = stepexec.HTTPActionOf(step, role, from.http.Method, url, body)
		return r, problem
	}
	r.identity = stepexec.Action{Step: step, Role: role, Input: []byte("null")}
	return r, &Problem{v1alpha1.ReasonInputInvalid, fmt.Sprintf("the plan has no %s of the step any more", role)}
}

func orNull(doc []byte) []byte {
	if doc == nil {
		return []byte("null")
	}
	return doc
}

func (d *decider) renderInput(from source, key string) ([]byte, *Problem) {
	if from.input == nil {
		return []byte("{}"), nil
	}
	input, problem := d.renderJSON(from.path+"input", from.input, from.scope, key)
	if problem != nil || len(d.Load) > 0 {
		return nil, problem
	}
	return input, tooLargeInput(input)
}

func tooLargeInput(input []byte) *Problem {
	if len(input) <= v1alpha1.MaxInput {
		return nil
	}
	return &Problem{v1alpha1.ReasonInputTooLarge, fmt.Sprintf(
		"the rendered input has %d bytes, and at most %d may be given to a program; pass a reference to it instead", len(input), v1alpha1.MaxInput)}
}

// complete makes the request of an http action, now that its key is known.
func (d *decider) complete(r *rendered, from source) *Problem {
	if r.http == nil {
		return nil
	}
	http := r.http
	request := stepexec.HTTPRequest{
		Method: http.Method, URL: r.identity.Command[1], SuccessCodes: http.SuccessCodes, Output: http.Output, OutputHeaders: http.OutputHeaders,
	}
	request.Timeout.Duration = r.timeout
	if http.Body != nil {
		request.Body = r.identity.Input
	}
	if http.Method != "GET" && http.Method != "HEAD" {
		request.KeyHeader = &stepexec.HTTPKeyHeader{}
		if http.KeyHeader != nil {
			request.KeyHeader.Name, request.KeyHeader.Bare = http.KeyHeader.Name, http.KeyHeader.Format == v1alpha1.KeyBare
		}
	}
	if http.TLS != nil && http.TLS.CA != nil {
		request.CAEnv = stepexec.EnvHTTPCA
	}
	for i, h := range http.Headers {
		header := stepexec.HTTPHeader{Name: h.Name}
		if h.SecretKeyRef != nil {
			header.FromEnv = stepexec.EnvHTTPHeader(i)
		} else {
			value, problem := d.renderText(fmt.Sprintf("%shttp.headers[%d].value", from.path, i), h.Value, from.headerScope(), r.key)
			if problem != nil || len(d.Load) > 0 {
				return problem
			}
			header.Value = value
		}
		request.Headers = append(request.Headers, header)
	}
	return r.encode(&request)
}

func (r *rendered) encode(request *stepexec.HTTPRequest) *Problem {
	err := request.Validate()
	if err == nil {
		r.input, err = request.Encode()
	}
	if err != nil {
		return &Problem{v1alpha1.ReasonInputInvalid, "http: " + err.Error()}
	}
	return tooLargeInput(r.input)
}

// ownKey is the key that a step gives itself.
func (d *decider) ownKey(step *v1alpha1.Step) (string, *Problem) {
	key, problem := d.renderText("idempotencyKey", step.IdempotencyKey, expr.Scope{}, "")
	switch {
	case len(d.Load) > 0:
		return "", nil
	case problem != nil && problem.Reason == v1alpha1.ReasonInputInvalid:
		return "", &Problem{v1alpha1.ReasonKeyInvalid, problem.Message}
	case problem != nil:
		return "", problem
	case !stepexec.ValidKey(key) || len(key) > v1alpha1.MaxKey:
		return "", &Problem{v1alpha1.ReasonKeyInvalid, fmt.Sprintf(
			"idempotencyKey is %q, and must be 1 to %d printable ASCII characters without spaces", shorten(key), v1alpha1.MaxKey)}
	}
	return key, nil
}

func (d *decider) renderJSON(path string, doc *apiextensionsv1.JSON, scope expr.Scope, key string) ([]byte, *Problem) {
	template, err := expr.CompileIn(path, doc.Raw, scope)
	vars, problem := d.prepare(template, err, key)
	if vars == nil {
		return nil, problem
	}
	out, err := template.Render(*vars)
	if err != nil {
		return nil, &Problem{v1alpha1.ReasonInputInvalid, err.Error()}
	}
	return out, nil
}

func (d *decider) renderText(path, text string, scope expr.Scope, key string) (string, *Problem) {
	template, err := expr.CompileString(path, text, scope)
	vars, problem := d.prepare(template, err, key)
	if vars == nil {
		return "", problem
	}
	out, err := template.RenderString(*vars)
	if err != nil {
		return "", &Problem{v1alpha1.ReasonInputInvalid, err.Error()}
	}
	return out, nil
}

// prepare gathers what a compiled template refers to. It is nil where the template cannot
// be rendered, or not before more is loaded.
func (d *decider) prepare(template *expr.Template, err error, key string) (*expr.Vars, *Problem) {
	if err != nil {
		return nil, &Problem{v1alpha1.ReasonInputInvalid, err.Error()}
	}
	vars, problem := d.vars(template, key)
	if problem != nil || len(d.Load) > 0 {
		return nil, problem
	}
	return &vars, nil
}

// sameAction renders a started action again. Where it is not what the record says,
// nothing may run under its key.
func (d *decider) sameAction(a activity) (rendered, bool) {
	if d.frozen != nil {
		return rendered{}, false
	}
	var what rendered
	var problem *Problem
	if a.main() {
		what, problem = d.renderMain(a.step)
	} else {
		what, problem = d.renderRole(a.step, a.role, a.record.IdempotencyKey)
	}
	if len(d.Load) > 0 {
		return rendered{}, false
	}
	switch {
	case problem != nil && problem.Reason == v1alpha1.ReasonUnavailable:
		d.wait(a, problem.Reason, problem.Message)
		d.wakeAfter(unavailableRecheck)
		return rendered{}, false
	case problem != nil:
		d.frozen = &Problem{problem.Reason, fmt.Sprintf(
			"step %s has started, and its input can no longer be rendered: %s; put back what it needs to go on, or cancel the task", a.record.Name, problem.Message)}
		d.wakeAfter(conflictRecheck)
		return rendered{}, false
	case what.identity.Hash() == a.ActionHash && what.key == a.IdempotencyKey:
		return what, true
	}
	d.frozen = &Problem{v1alpha1.ReasonPlanChanged, fmt.Sprintf(
		"step %s has started, and its action is no longer what its first attempt ran (params changed?): its key was %s and would be %s; take the change back to go on, or create another AgentTask",
		a.record.Name, a.IdempotencyKey, what.key)}
	return rendered{}, false
}
