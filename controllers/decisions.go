// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/engine"
)

// openDecisions are the AgentDecisions on a task that were not answered.
func (r *Reconciler) openDecisions(ctx context.Context, task types.NamespacedName) ([]*v1alpha1.AgentDecision, error) {
	list := &v1alpha1.AgentDecisionList{}
	if err := r.List(ctx, list, client.InNamespace(task.Namespace), client.MatchingFields{indexDecisions: task.Name}); err != nil {
		return nil, err
	}
	var open []*v1alpha1.AgentDecision
	for i := range list.Items {
		open = append(open, &list.Items[i])
	}
	return open, nil
}

// answerDecision writes into a decision what became of it, once.
func (r *Reconciler) answerDecision(ctx context.Context, task *v1alpha1.AgentTask, a engine.Action) error {
	if a.Answer.Reason != v1alpha1.ReasonApplied {
		// A newer task may have applied it.
		if err := r.newest(ctx, task); err != nil {
			return err
		}
	}
	if err := r.writeAnswer(ctx, a.Decision, a.Answer); err != nil {
		return err
	}
	r.memory.did(task, a.Decision.UID, r.Clock.Now())
	return nil
}

// refuseDecisions answers those on a task that is not there.
func (r *Reconciler) refuseDecisions(ctx context.Context, task types.NamespacedName) error {
	open, err := r.openDecisions(ctx, task)
	if err != nil || len(open) == 0 {
		return err
	}
	uid, err := r.liveUID(ctx, task)
	if err != nil {
		return err
	}
	if uid != "" {
		return errStale
	}
	for _, decision := range open {
		why := engine.Problem{Reason: v1alpha1.ReasonOtherTask, Message: fmt.Sprintf("there is no AgentTask %s", task.Name)}
		if err := r.writeAnswer(ctx, decision, why); err != nil {
			return err
		}
	}
	return nil
}

func (r *Reconciler) writeAnswer(ctx context.Context, decision *v1alpha1.AgentDecision, answer engine.Problem) error {
	applied := metav1.ConditionFalse
	if answer.Reason == v1alpha1.ReasonApplied {
		applied = metav1.ConditionTrue
	}
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": decision.UID, "resourceVersion": decision.ResourceVersion},
		"status": v1alpha1.AgentDecisionStatus{Conditions: []metav1.Condition{{
			Type: v1alpha1.ConditionApplied, Status: applied, Reason: answer.Reason, Message: answer.Message,
			ObservedGeneration: decision.Generation, LastTransitionTime: metav1.NewTime(r.Clock.Now()),
		}}},
	})
	if err != nil {
		return err
	}
	target := &v1alpha1.AgentDecision{ObjectMeta: metav1.ObjectMeta{Namespace: decision.Namespace, Name: decision.Name}}
	return client.IgnoreNotFound(r.Status().Patch(ctx, target, client.RawPatch(types.MergePatchType, body)))
}
