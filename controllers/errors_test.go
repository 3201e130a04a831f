// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"errors"
	"fmt"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
)

func TestWhatIsARefusal(t *testing.T) {
	jobs := schema.GroupResource{Group: "batch", Resource: "jobs"}
	tests := map[string]struct {
		err  error
		want string
	}{
		"a quota":                        {apierrors.NewForbidden(jobs, "x", errors.New("exceeded quota")), v1alpha1.ReasonRefused},
		"an object that is not valid":    {apierrors.NewInvalid(batchv1.SchemeGroupVersion.WithKind("Job").GroupKind(), "x", nil), v1alpha1.ReasonRefused},
		"a webhook's no with a code 500": {apierrors.NewInternalError(errors.New(`admission webhook "a.example.com" denied the request`)), v1alpha1.ReasonRefused},
		"a webhook that does not answer": {apierrors.NewInternalError(errors.New(`failed calling webhook "a.example.com": connection refused`)), v1alpha1.ReasonUnavailable},
		"wrapped":                        {fmt.Errorf("creating: %w", apierrors.NewForbidden(jobs, "x", nil)), v1alpha1.ReasonRefused},
		"a conflict":                     {apierrors.NewConflict(jobs, "x", nil), ""},
		"too many requests":              {apierrors.NewTooManyRequests("later", 1), ""},
		"a time-out":                     {apierrors.NewTimeoutError("etcd", 1), ""},
		"a fault of the network":         {errors.New("connection reset by peer"), ""},
	}
	for name, tc := range tests {
		if got := refusal(tc.err); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

func TestWhenAReconcileComesAgain(t *testing.T) {
	other := errors.New("other")
	if r, err := result(errStale); err != nil || r.RequeueAfter != staleRetry {
		t.Errorf("stale: %v, %v", r, err)
	}
	if r, err := result(fmt.Errorf("x: %w", errGone)); err != nil || r.RequeueAfter != 0 {
		t.Errorf("gone: %v, %v", r, err)
	}
	if _, err := result(other); !errors.Is(err, other) {
		t.Errorf("other: %v", err)
	}
}
