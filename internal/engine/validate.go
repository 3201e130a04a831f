// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"fmt"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/expr"
)

// ValidatePlan checks what the API server cannot: that each expression can be compiled
// and refers only to steps before it, and what stands in fields that may hold anything.
func ValidatePlan(task *v1alpha1.AgentTask) *Problem {
	var earlier []string
	for i := range task.Spec.Steps {
		step := &task.Spec.Steps[i]
		if err := checkStep(task, step, earlier); err != nil {
			return &Problem{v1alpha1.ReasonInvalidPlan, fmt.Sprintf("spec.steps[%d] (%s): %v", i, step.Name, err)}
		}
		earlier = append(earlier, step.Name)
	}
	if task.Spec.Verify != nil {
		if err := sourceOf(task, nil, v1alpha1.RoleObserve).check(nil); err != nil {
			return &Problem{v1alpha1.ReasonInvalidPlan, "spec." + err.Error()}
		}
	}
	return nil
}

func checkStep(task *v1alpha1.AgentTask, step *v1alpha1.Step, earlier []string) error {
	if err := sourceOf(task, step, v1alpha1.RoleMain).check(earlier); err != nil {
		return err
	}
	if step.Effect == v1alpha1.EffectOnce && task.Spec.PodTemplate != nil && task.Spec.PodTemplate.Spec.NodeName != "" {
		return errors.New("effect Once cannot go with podTemplate.spec.nodeName, which passes by the scheduler and its gates; use nodeSelector with kubernetes.io/hostname")
	}
	if step.IdempotencyKey != "" {
		if err := checkText("idempotencyKey", step.IdempotencyKey, expr.Scope{}, earlier); err != nil {
			return err
		}
	}
	if step.Check == nil {
		return nil
	}
	if err := sourceOf(task, step, v1alpha1.RoleCheck).check(earlier); err != nil {
		return err
	}
	return checkAnswer(step.Check)
}

// checkAnswer checks how a check's answer is read.
func checkAnswer(check *v1alpha1.Check) error {
	if check.Done == "" && check.Output != nil {
		return errors.New("check.output needs check.done; leave it out, or say by check.done when the effect has happened")
	}
	if check.Done != "" {
		template, err := expr.CompileBool("check.done", check.Done, expr.Scope{Result: true})
		if err == nil {
			err = template.Check(nil)
		}
		if err != nil {
			return err
		}
	}
	return checkJSON("check.output", check.Output, expr.Scope{Result: true}, nil)
}

// check checks the action's fields.
func (s source) check(earlier []string) error {
	switch {
	case s.run != nil:
		return s.checkRun(earlier)
	case s.http != nil && s.input != nil:
		return fmt.Errorf("%sinput is for run; what an http action sends stands in %shttp.body", s.path, s.path)
	case s.http != nil:
		return s.checkHTTP(earlier)
	}
	return errors.New("it has no action that this version of the operator knows; give run or http")
}

func (s source) checkRun(earlier []string) error {
	for _, e := range s.run.Env {
		if strings.Contains(e.Value, "${") {
			return fmt.Errorf("%srun.env %s: values must not hold expressions (${...}); give the value in the step's input", s.path, e.Name)
		}
	}
	return checkJSON(s.path+"input", s.input, s.scope, earlier)
}

func (s source) checkHTTP(earlier []string) error {
	path := s.path + "http."
	if s.http.Body != nil && (s.http.Method == "GET" || s.http.Method == "HEAD") {
		return fmt.Errorf("%sbody: a %s request has none; put it into the url", path, s.http.Method)
	}
	if err := checkText(path+"url", s.http.URL, s.scope, earlier); err != nil {
		return err
	}
	for i, h := range s.http.Headers {
		if err := checkText(fmt.Sprintf("%sheaders[%d].value", path, i), h.Value, s.headerScope(), earlier); err != nil {
			return err
		}
	}
	return checkJSON(path+"body", s.http.Body, s.scope, earlier)
}

func checkText(path, text string, scope expr.Scope, earlier []string) error {
	template, err := expr.CompileString(path, text, scope)
	if err != nil {
		return err
	}
	return template.Check(earlier)
}

func checkJSON(path string, doc *apiextensionsv1.JSON, scope expr.Scope, earlier []string) error {
	if doc == nil {
		return nil
	}
	template, err := expr.CompileIn(path, doc.Raw, scope)
	if err != nil {
		return err
	}
	return template.Check(earlier)
}
