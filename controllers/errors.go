// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"errors"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
)

// errStale says that what was read is older than what the API server holds: the
// reconcile ends before it does anything, and comes again.
var errStale = errors.New("the task that was read is not the newest")

// errGone says that the task is gone, though its deletion was not heard of yet.
var errGone = errors.New("the task is gone")

// staleRetry gives the watch a moment to bring what is newer.
const staleRetry = 20 * time.Millisecond

// result turns an error into what the queue is told. It is the only place that does.
func result(err error) (ctrl.Result, error) {
	switch {
	case errors.Is(err, errGone):
		return ctrl.Result{}, nil
	case errors.Is(err, errStale):
		return ctrl.Result{RequeueAfter: staleRetry}, nil
	}
	return ctrl.Result{}, err
}

// refusal says why the API server does not make an object, as against a fault on the
// way: Refused by quota, limit ranges, admission policies and webhooks, Pod Security,
// validation, rights, a namespace that is being deleted; Unavailable where a webhook does
// not answer. It is empty for any other error.
func refusal(err error) string {
	status := apierrors.APIStatus(nil)
	switch {
	case apierrors.IsForbidden(err), apierrors.IsInvalid(err), apierrors.IsBadRequest(err),
		apierrors.IsMethodNotSupported(err), apierrors.IsRequestEntityTooLargeError(err), apierrors.IsNotAcceptable(err):
		return v1alpha1.ReasonRefused
	case !errors.As(err, &status):
		return ""
	case strings.Contains(status.Status().Message, "failed calling webhook"):
		return v1alpha1.ReasonUnavailable
	case strings.Contains(status.Status().Message, "admission webhook"):
		return v1alpha1.ReasonRefused
	}
	return ""
}

func refused(err error) bool { return refusal(err) != "" }
