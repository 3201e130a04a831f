// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"errors"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime"
)

// errStale says that what was read is older than what the API server holds: the
// reconcile ends before it does anything, and comes again.
var errStale = errors.New("the task that was read is not the newest")

// staleRetry gives the watch a moment to bring what is newer.
const staleRetry = 20 * time.Millisecond

// result turns an error into what the queue is told. It is the only place that does.
func result(err error) (ctrl.Result, error) {
	if errors.Is(err, errStale) || apierrors.IsConflict(err) {
		return ctrl.Result{RequeueAfter: staleRetry}, nil
	}
	return ctrl.Result{}, err
}

// refused says whether an error is the API server's no to an object, as against a fault
// on the way: quota, limit ranges, admission policies and webhooks, Pod Security,
// validation, rights, a namespace that is being deleted.
func refused(err error) bool {
	switch {
	case apierrors.IsForbidden(err), apierrors.IsInvalid(err), apierrors.IsBadRequest(err),
		apierrors.IsMethodNotSupported(err), apierrors.IsRequestEntityTooLargeError(err), apierrors.IsNotAcceptable(err):
		return true
	}
	status := apierrors.APIStatus(nil)
	return errors.As(err, &status) && strings.Contains(status.Status().Message, "admission webhook")
}
