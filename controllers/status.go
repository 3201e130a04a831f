// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
)

// checkpoint is the body of a status write. It leaves the spec out, which the API
// server takes from what it holds: a long plan does not travel with every step.
type checkpoint struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        checkpointMeta            `json:"metadata"`
	Status          *v1alpha1.AgentTaskStatus `json:"status"`
}

type checkpointMeta struct {
	Name            string    `json:"name"`
	Namespace       string    `json:"namespace"`
	UID             types.UID `json:"uid"`
	ResourceVersion string    `json:"resourceVersion"`
}

// metadataOnly asks for an answer without spec and status, which we just sent.
const metadataOnly = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"

// newCheckpoints makes the client that checkpoints are written with.
func newCheckpoints(config *rest.Config, httpClient *http.Client) (rest.Interface, error) {
	scheme := runtime.NewScheme()
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		return nil, err
	}
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	return apiutil.RESTClientForGVK(v1alpha1.GroupVersion.WithKind("AgentTask"), false, false, config, serializer.NewCodecFactory(scheme), httpClient)
}

// writeStatus is the compare-and-swap that every checkpoint goes through: the UID and
// resourceVersion of what was read are in the write, so it fails with a conflict where
// anything has changed since. On success the task is as written.
func (r *Reconciler) writeStatus(ctx context.Context, task *v1alpha1.AgentTask, status v1alpha1.AgentTaskStatus) error {
	body := &bytes.Buffer{}
	encoder := json.NewEncoder(body)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(checkpoint{
		TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "AgentTask"},
		Metadata: checkpointMeta{task.Name, task.Namespace, task.UID, task.ResourceVersion},
		Status:   &status,
	})
	if err != nil {
		return err
	}
	written := &metav1.PartialObjectMetadata{}
	err = r.checkpoints.Put().Namespace(task.Namespace).Resource("agenttasks").Name(task.Name).SubResource("status").
		SetHeader("Accept", metadataOnly).SetHeader("Content-Type", runtime.ContentTypeJSON).Body(body.Bytes()).Do(ctx).Into(written)
	if err != nil {
		r.memory.dropTask(client.ObjectKeyFromObject(task))
		if apierrors.IsConflict(err) {
			return errStale
		}
		return err
	}
	task.Status, task.ResourceVersion = status, written.ResourceVersion
	r.memory.keepTask(task)
	return nil
}
