// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"strings"
	"sync"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
		for _, obj := range []client.Object{&admissionv1.ValidatingAdmissionPolicy{}, &admissionv1.ValidatingAdmissionPolicyBinding{}} {
			err := r.Live.Get(ctx, client.ObjectKey{Name: name}, obj)
			switch {
			case apierrors.IsNotFound(err):
				absent = append(absent, name)
			case err != nil:
				logf.FromContext(ctx).Info("cannot see whether the admission policies are installed", "error", err.Error())
				g.looked = now
				return g.answer
			}
			if err != nil {
				break
			}
		}
	}
	g.looked, g.answer = now, ""
	if len(absent) > 0 {
		g.answer = "the admission policies " + strings.Join(absent, ", ") + " or their bindings are not installed"
	}
	metrics.PoliciesMissing(len(absent))
	return g.answer
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
