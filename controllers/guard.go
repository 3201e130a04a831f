// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"strings"
	"sync"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/agenttask-dev/agenttask/internal/metrics"
)

// Policies are the ValidatingAdmissionPolicies of config/policy, and the names of their
// bindings.
var Policies = []string{"agenttask-decisions", "agenttask-fence", "agenttask-jobs", "agenttask-step-pods"}

// guardInterval is how often it is looked whether the policies are installed.
const guardInterval = time.Minute

// guard knows which policies are missing, as of its last look.
type guard struct {
	mu     sync.Mutex
	looked time.Time
	answer string
}

// missing says which policies are not installed, or is empty where all are or that cannot
// be seen just now.
func (g *guard) missing(ctx context.Context, r *Reconciler) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := r.Clock.Now()
	if !g.looked.IsZero() && now.Sub(g.looked) < guardInterval {
		return g.answer
	}
	var absent []string
	for _, name := range Policies {
		there, err := installed(ctx, r.Live, name)
		switch {
		case err != nil:
			logf.FromContext(ctx).Info("cannot see whether the admission policies are installed", "error", err.Error())
			g.looked = now
			return g.answer
		case !there:
			absent = append(absent, name)
		}
	}
	g.looked, g.answer = now, ""
	if len(absent) > 0 {
		g.answer = "the admission policies " + strings.Join(absent, ", ") + " or their bindings are not installed"
	}
	metrics.PoliciesMissing(len(absent))
	return g.answer
}

// installed says whether a policy and its binding are there.
func installed(ctx context.Context, from client.Reader, name string) (bool, error) {
	for _, obj := range []client.Object{&admissionv1.ValidatingAdmissionPolicy{}, &admissionv1.ValidatingAdmissionPolicyBinding{}} {
		if err := from.Get(ctx, client.ObjectKey{Name: name}, obj); err != nil {
			return false, client.IgnoreNotFound(err)
		}
	}
	return true, nil
}

// watchPolicies keeps the metric up to date and says in the log when the fence is not
// guarded, until ctx ends.
func (r *Reconciler) watchPolicies(ctx context.Context) error {
	said := ""
	for {
		if missing := r.guard.missing(ctx, r); missing != said {
			logf.FromContext(ctx).Info("the fence of steps with effect Once", "unguarded", missing)
			said = missing
		}
		select {
		case <-ctx.Done():
			return nil
		case <-r.Clock.After(guardInterval):
		}
	}
}
