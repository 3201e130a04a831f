// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"math"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
)

// policy is a retry policy with its defaults filled in.
type policy struct {
	limit      int32
	base, cap  time.Duration
	maxElapsed time.Duration
	onTimeout  bool
}

func policyOf(step *v1alpha1.Step) policy {
	p := policy{limit: v1alpha1.DefaultRetryLimit, maxElapsed: v1alpha1.DefaultMaxElapsed}
	retry := step.Retry
	if retry == nil {
		retry = &v1alpha1.RetryPolicy{}
	}
	if retry.Limit != nil {
		p.limit = *retry.Limit
	}
	if retry.MaxElapsed != nil {
		p.maxElapsed = retry.MaxElapsed.Duration
	}
	p.onTimeout = retry.OnTimeout
	p.base, p.cap = backoffOf(retry.Backoff)
	return p
}

// backoffOf fills in the bound that is missing so that base is never above cap.
func backoffOf(b *v1alpha1.Backoff) (base, limit time.Duration) {
	base, limit = v1alpha1.DefaultBackoffBase, v1alpha1.DefaultBackoffCap
	if b == nil {
		return base, limit
	}
	if b.Cap != nil {
		limit = max(b.Cap.Duration, 0)
	}
	if b.Base != nil {
		base = max(b.Base.Duration, 0)
	}
	switch {
	case b.Cap == nil:
		limit = max(limit, base)
	case b.Base == nil:
		base = min(base, limit)
	}
	return base, limit
}

// wait is full jitter: a draw from 0 to min(cap, base * 2^n) before retry n, on top
// of what the program asked for.
func (p policy) wait(n int32, retryAfter time.Duration, rand float64) time.Duration {
	bound := math.Min(float64(p.cap), math.Ldexp(float64(p.base), int(min(n, 62))))
	return retryAfter + time.Duration(rand*bound)
}

// retryOrFail gives a failed attempt its next one, where its kind and the policy allow.
func (d *decider) retryOrFail(a activity, v Verdict) {
	p := policyOf(a.step)
	if v.Class == Final || (v.Class == TimedOut && !p.onTimeout) {
		d.finish(a, v1alpha1.StepFailed, v.Reason, v.Message)
		return
	}
	if a.FirstFailureTime == nil {
		a.FirstFailureTime = new(metav1.NewTime(d.Now))
	}
	if a.Attempt > p.limit {
		d.finish(a, v1alpha1.StepFailed, v.Reason, fmt.Sprintf("%s; no retry left: retry.limit of %d is reached", v.Message, p.limit))
		return
	}
	next := d.Now.Add(p.wait(a.Attempt-1, v.RetryAfter, d.Rand()))
	if last := a.FirstFailureTime.Add(p.maxElapsed); next.After(last) {
		d.finish(a, v1alpha1.StepFailed, v.Reason, fmt.Sprintf("%s; no retry left: the next one would start after retry.maxElapsed of %s", v.Message, p.maxElapsed))
		return
	}
	a.Phase = v1alpha1.StepRetrying
	a.Reason, a.Message = v.Reason, shorten(v.Message)
	a.NextAttemptTime = new(metav1.NewMicroTime(next))
	d.wakeAt(next)
	d.event(true, v1alpha1.EventStepRetrying, fmt.Sprintf("%s attempt %d of at most %d ended: %s: %s; next at %s",
		a.name(), a.Attempt, p.limit+1, v.Reason, v.Message, next.UTC().Format(time.RFC3339)))
}
