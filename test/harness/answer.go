// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"bytes"
	"io"
	"net/http"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// answer is one that the API server could have given.
func answer(r *http.Request, status metav1.Status) *http.Response {
	status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	status.Status = metav1.StatusFailure
	body := mustJSON(status)
	return &http.Response{
		Status:     strconv.Itoa(int(status.Code)) + " " + http.StatusText(int(status.Code)),
		StatusCode: int(status.Code),
		Proto:      "HTTP/2.0", ProtoMajor: 2,
		Header:        http.Header{"Content-Type": {runtime.ContentTypeJSON}},
		Body:          io.NopCloser(bytes.NewReader(body)),
		ContentLength: int64(len(body)),
		Request:       r,
	}
}

func answerConflict(r *http.Request) *http.Response {
	return answer(r, metav1.Status{
		Code: http.StatusConflict, Reason: metav1.StatusReasonConflict,
		Message: "the object has been modified",
	})
}

func answerTooMany(r *http.Request, after time.Duration) *http.Response {
	seconds := max(1, int(after/time.Second))
	a := answer(r, metav1.Status{
		Code: http.StatusTooManyRequests, Reason: metav1.StatusReasonTooManyRequests,
		Message: "too many requests", Details: &metav1.StatusDetails{RetryAfterSeconds: int32(seconds)},
	})
	a.Header.Set("Retry-After", strconv.Itoa(seconds))
	return a
}

func answerError(r *http.Request) *http.Response {
	return answer(r, metav1.Status{
		Code: http.StatusInternalServerError, Reason: metav1.StatusReasonInternalError, Message: "an error inside the API server",
	})
}

func answerTimeout(r *http.Request) *http.Response {
	return answer(r, metav1.Status{
		Code: http.StatusGatewayTimeout, Reason: metav1.StatusReasonTimeout, Message: "the request took too long",
	})
}

// answerNoInitialEvents refuses a watch that would begin with what is there, so that the
// client asks for a list first.
func answerNoInitialEvents(r *http.Request) *http.Response {
	return answer(r, metav1.Status{
		Code: http.StatusUnprocessableEntity, Reason: metav1.StatusReasonInvalid,
		Message: "sendInitialEvents is not supported",
	})
}
