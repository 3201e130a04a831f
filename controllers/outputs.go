// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"bufio"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/engine"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
)

// Outputs of more than 2 KiB are kept in a ConfigMap that the task owns, under the
// attempt's Job name. This file is the one place that knows so: another store takes
// its place behind keepOutput and loadOutputs, told apart by the scheme of the URI.
const (
	configMapScheme = "configmap:"
	outputKey       = "output.json"
)

// keepOutput moves the large output of an attempt that has succeeded from its pod's
// log to where it stays, before the success is recorded. Doing it again is harmless:
// the ConfigMap's name and content are the attempt's.
func (r *Reconciler) keepOutput(ctx context.Context, task *v1alpha1.AgentTask, record *v1alpha1.StepStatus, world *engine.World) error {
	announced := announcedOutput(world)
	if announced == nil {
		return nil
	}
	ref := &v1alpha1.OutputRef{URI: configMapScheme + record.JobName, SHA256: announced.SHA256, Bytes: announced.Bytes}
	kept, err := r.loadOutput(ctx, task, ref)
	switch {
	case err != nil:
		return err
	case kept.Problem == "":
		world.Output = ref
		return nil
	case world.Pod == nil:
		world.OutputProblem = "the pod was deleted before its log was read"
		return nil
	}
	output, problem, err := r.readLog(ctx, world.Pod, announced)
	if err != nil || problem != "" {
		world.OutputProblem = problem
		return err
	}
	err = r.Create(ctx, outputConfigMap(task, record, output))
	switch {
	case apierrors.IsAlreadyExists(err):
		world.OutputProblem = fmt.Sprintf("ConfigMap %s exists and holds something else", record.JobName)
	case err != nil && refused(err):
		world.Refusal = &engine.Refusal{Reason: v1alpha1.ReasonRefused, Message: fmt.Sprintf("the API server refused the ConfigMap of the step's output: %v", err), Retry: r.refusalBackoff(task)}
	case err != nil:
		return err
	default:
		world.Output = ref
	}
	return nil
}

// announcedOutput is the large output that an attempt which succeeded announces, or nil.
func announcedOutput(world *engine.World) *stepexec.LogOutput {
	pod := world.Pod
	if pod == nil {
		pod = world.LastPod
	}
	if pod == nil {
		return nil
	}
	result := engine.ResultOf(pod)
	if result == nil || result.Outcome != stepexec.OutcomeSucceeded {
		return nil
	}
	return result.LogOutput
}

func outputConfigMap(task *v1alpha1.AgentTask, record *v1alpha1.StepStatus, output []byte) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Name:            record.JobName,
			Namespace:       task.Namespace,
			Labels:          map[string]string{v1alpha1.LabelManaged: "true", v1alpha1.LabelStep: record.Name},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(task, v1alpha1.GroupVersion.WithKind("AgentTask"))},
		},
		Immutable: new(true),
		Data:      map[string]string{outputKey: string(output)},
	}
}

// readLog reads an announced output from the end of the pod's log and checks it. A
// problem is what reading again would not mend.
func (r *Reconciler) readLog(ctx context.Context, pod *corev1.Pod, announced *stepexec.LogOutput) (output []byte, problem string, err error) {
	if announced.Bytes > stepexec.MaxOutput || announced.Lines > 3+stepexec.MaxOutput*2/stepexec.LogLine {
		return nil, fmt.Sprintf("it has %d bytes, and at most %d are kept", announced.Bytes, stepexec.MaxOutput), nil
	}
	stream, err := r.Logs.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{
		Container: stepexec.ContainerStep, TailLines: new(announced.Lines + strayLines),
	}).Stream(ctx)
	switch {
	case apierrors.IsNotFound(err), apierrors.IsBadRequest(err):
		return nil, fmt.Sprintf("the pod's log is gone: %v", err), nil
	case err != nil:
		return nil, "", fmt.Errorf("reading the log of pod %s: %w", pod.Name, err)
	}
	defer func() { _ = stream.Close() }()
	output, err = parseFrame(stream, announced)
	if err != nil {
		return nil, err.Error(), nil
	}
	if sum := stepexec.SHA256Hex(output); sum != announced.SHA256 {
		return nil, fmt.Sprintf("the log holds an output with sha256 %s, not %s", sum, announced.SHA256), nil
	}
	return output, "", nil
}

// strayLines is how many lines of standard error may stand after or between the lines
// of an output in the log.
const strayLines = 1000

// parseFrame takes an output out of the lines that frame it.
func parseFrame(log io.Reader, announced *stepexec.LogOutput) ([]byte, error) {
	var encoded strings.Builder
	inside := false
	lines := bufio.NewScanner(io.LimitReader(log, 4*stepexec.MaxOutput))
	lines.Buffer(nil, 4*stepexec.LogLine)
	for lines.Scan() {
		switch line := lines.Text(); {
		case line == stepexec.LogBegin+" "+announced.SHA256:
			inside = true
			encoded.Reset()
		case line == stepexec.LogEnd+" "+announced.SHA256 && inside:
			return base64.StdEncoding.DecodeString(encoded.String())
		case inside:
			if data, ok := strings.CutPrefix(line, stepexec.LogData+" "); ok {
				encoded.WriteString(data)
			}
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("reading the pod's log: %w", err)
	}
	return nil, fmt.Errorf("the pod's log does not hold it whole (was the log rotated?)")
}

// loadOutputs reads the outputs of the named steps, on top of those that were read.
func (r *Reconciler) loadOutputs(ctx context.Context, task *v1alpha1.AgentTask, world engine.World, names []string, have map[string]engine.Loaded) (map[string]engine.Loaded, error) {
	loaded := maps.Clone(have)
	if loaded == nil {
		loaded = map[string]engine.Loaded{}
	}
	for _, name := range names {
		ref := outputRefOf(task, world, name)
		if ref == nil {
			return nil, fmt.Errorf("there is no output of step %s to load", name)
		}
		output, err := r.loadOutput(ctx, task, ref)
		if err != nil {
			return nil, err
		}
		loaded[name] = output
	}
	return loaded, nil
}

// outputRefOf is where a step's large output is kept: as its record says, or, for the
// attempt that has just ended and whose success is not written yet, as was observed.
func outputRefOf(task *v1alpha1.AgentTask, world engine.World, name string) *v1alpha1.OutputRef {
	if running := runningRecord(task); running != nil && running.Name == name {
		return world.Output
	}
	for i := range task.Status.Steps {
		if record := &task.Status.Steps[i]; record.Name == name {
			return record.OutputRef
		}
	}
	return nil
}

// loadOutput reads one output and checks it. A problem is what reading again would not
// mend.
func (r *Reconciler) loadOutput(ctx context.Context, task *v1alpha1.AgentTask, ref *v1alpha1.OutputRef) (engine.Loaded, error) {
	name, ok := strings.CutPrefix(ref.URI, configMapScheme)
	if !ok {
		return engine.Loaded{Problem: fmt.Sprintf("its uri %s is of no kind that is known", ref.URI)}, nil
	}
	kept := &corev1.ConfigMap{}
	err := r.Live.Get(ctx, types.NamespacedName{Namespace: task.Namespace, Name: name}, kept)
	switch {
	case apierrors.IsNotFound(err):
		return engine.Loaded{Problem: fmt.Sprintf("ConfigMap %s, which kept it, is gone", name)}, nil
	case err != nil:
		return engine.Loaded{}, err
	}
	output := kept.Data[outputKey]
	if sum := stepexec.SHA256Hex([]byte(output)); sum != ref.SHA256 {
		return engine.Loaded{Problem: fmt.Sprintf("ConfigMap %s holds an output with sha256 %s, not %s", name, sum, ref.SHA256)}, nil
	}
	return engine.Loaded{Output: []byte(output)}, nil
}
