// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"bufio"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"
	"time"

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
func (r *Reconciler) keepOutput(ctx context.Context, task *v1alpha1.AgentTask, record *engine.Current, world *engine.World) error {
	announced := announcedOutput(world)
	if announced == nil {
		return nil
	}
	ref := &v1alpha1.OutputRef{URI: configMapScheme + record.JobName, SHA256: announced.SHA256, Bytes: announced.Bytes}
	kept, err := r.loadOutput(ctx, task, ref)
	switch {
	case err != nil:
		return r.outputUnavailable(ctx, task, world, fmt.Errorf("looking for the step's stored output: %w", err))
	case kept.Problem == "":
		world.Output = ref
		return nil
	case world.Pod == nil:
		world.OutputProblem = "the pod was deleted before its log was read"
		return nil
	}
	output, problem, err := r.readLog(ctx, world.Pod, announced)
	switch {
	case err != nil:
		return r.outputUnavailable(ctx, task, world, fmt.Errorf("reading the step's output from the log of pod %s: %w", world.Pod.Name, err))
	case problem != "":
		world.OutputProblem = problem
		return nil
	}
	return r.storeOutput(ctx, task, outputConfigMap(task, record, output), ref, world)
}

// storeOutput makes the ConfigMap of an output. One that exists already is taken if it
// holds that output: it was made by a request whose answer was lost, or another leader.
func (r *Reconciler) storeOutput(ctx context.Context, task *v1alpha1.AgentTask, kept *corev1.ConfigMap, ref *v1alpha1.OutputRef, world *engine.World) error {
	err := r.Create(ctx, kept)
	if apierrors.IsAlreadyExists(err) {
		var found engine.Loaded
		if found, err = r.loadOutput(ctx, task, ref); err == nil && found.Problem != "" {
			world.OutputProblem = fmt.Sprintf("ConfigMap %s exists and holds something else: %s", kept.Name, found.Problem)
			return nil
		}
	}
	switch {
	case err == nil:
		world.Output = ref
		return nil
	case refusal(err) == v1alpha1.ReasonRefused:
		world.Refusal = &engine.Refusal{Reason: v1alpha1.ReasonRefused, Message: fmt.Sprintf("the API server refused the ConfigMap of the step's output: %v", err), Retry: r.refusalBackoff(task)}
		return nil
	}
	return r.outputUnavailable(ctx, task, world, fmt.Errorf("storing the step's output: %w", err))
}

// outputUnavailable lets the attempt wait for what cannot be read or stored just now. The
// task says so, and can be cancelled; only the operator's own end is an error.
func (r *Reconciler) outputUnavailable(ctx context.Context, task *v1alpha1.AgentTask, world *engine.World, err error) error {
	if ctx.Err() != nil {
		return err
	}
	world.Refusal = &engine.Refusal{Reason: v1alpha1.ReasonUnavailable, Message: err.Error(), Retry: r.refusalBackoff(task)}
	return nil
}

// announcedOutput is the large output that an attempt which succeeded announces, or nil.
func announcedOutput(world *engine.World) *stepexec.LogOutput {
	pod := world.SeenPod()
	if pod == nil {
		return nil
	}
	result := engine.ResultOf(pod)
	if result == nil || result.Outcome != stepexec.OutcomeSucceeded {
		return nil
	}
	return result.LogOutput
}

func outputConfigMap(task *v1alpha1.AgentTask, record *engine.Current, output []byte) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Name:            record.JobName,
			Namespace:       task.Namespace,
			Labels:          map[string]string{v1alpha1.LabelManaged: "true", v1alpha1.LabelStep: record.Step},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(task, v1alpha1.GroupVersion.WithKind("AgentTask"))},
		},
		Immutable: new(true),
		Data:      map[string]string{outputKey: string(output)},
	}
}

// logTimeout is how long reading a log may take: a node that stops in the middle of it
// must not hold a worker.
const logTimeout = time.Minute

// readLog reads an announced output from the end of the pod's log and checks it. A
// problem is what reading again would not mend.
func (r *Reconciler) readLog(ctx context.Context, pod *corev1.Pod, announced *stepexec.LogOutput) (output []byte, problem string, err error) {
	if announced.Bytes > stepexec.MaxOutput || announced.Lines > 3+stepexec.MaxOutput*2/stepexec.LogLine {
		return nil, fmt.Sprintf("it has %d bytes, and at most %d are kept", announced.Bytes, stepexec.MaxOutput), nil
	}
	ctx, cancel := context.WithTimeout(ctx, logTimeout)
	defer cancel()
	stream, err := r.Logs.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{
		Container: stepexec.ContainerStep, TailLines: new(announced.Lines + strayLines),
	}).Stream(ctx)
	switch {
	case apierrors.IsNotFound(err), apierrors.IsBadRequest(err):
		return nil, fmt.Sprintf("the pod's log is gone: %v", err), nil
	case err != nil:
		return nil, "", err
	}
	defer func() { _ = stream.Close() }()
	output, problem, err = parseFrame(stream, announced)
	if err != nil || problem != "" {
		return nil, problem, err
	}
	if sum := stepexec.SHA256Hex(output); sum != announced.SHA256 {
		return nil, fmt.Sprintf("the log holds an output with sha256 %s, not %s", sum, announced.SHA256), nil
	}
	return output, "", nil
}

// strayLines is how many lines of standard error may stand after or between the lines
// of an output in the log.
const strayLines = 1000

// maxLog is how much of a log is read for one output, in bytes, so that a log without
// an end has one. Lines that are no part of an output are read past, however long.
const maxLog = 256 << 20

// parseFrame takes an output out of the lines that frame it. It keeps no more of them
// than the output may have. A problem is what reading again would not mend.
func parseFrame(log io.Reader, announced *stepexec.LogOutput) (output []byte, problem string, err error) {
	begin, end := stepexec.LogBegin+" "+announced.SHA256, stepexec.LogEnd+" "+announced.SHA256
	most := base64.StdEncoding.EncodedLen(int(announced.Bytes))
	limited := &io.LimitedReader{R: log, N: maxLog}
	lines := bufio.NewReaderSize(limited, 2*stepexec.LogLine)
	var encoded strings.Builder
	inside, part := false, false
	for {
		line, more, err := lines.ReadLine()
		switch {
		case errors.Is(err, io.EOF) && limited.N <= 0:
			return nil, fmt.Sprintf("the end of the pod's log has more than %d bytes", maxLog), nil
		case errors.Is(err, io.EOF):
			return nil, "the pod's log does not hold it whole (was the log rotated?)", nil
		case err != nil:
			return nil, "", err
		}
		whole := !part && !more
		part = more
		switch text := string(line); {
		case !whole:
		case text == begin:
			inside = true
			encoded.Reset()
		case text == end && inside:
			output, err = base64.StdEncoding.DecodeString(encoded.String())
			if err != nil {
				return nil, fmt.Sprintf("the pod's log does not hold it as it was written: %v", err), nil
			}
			return output, "", nil
		case inside:
			data, ok := strings.CutPrefix(text, stepexec.LogData+" ")
			if !ok {
				continue
			}
			if inside = encoded.Len()+len(data) <= most; inside {
				encoded.WriteString(data)
			}
		}
	}
}

// loadOutputs reads the outputs of the named steps, on top of those that were read. That
// one cannot be read just now is the engine's to judge, and no error.
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
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case err != nil:
			output = engine.Loaded{Unavailable: err.Error()}
		}
		loaded[name] = output
	}
	return loaded, nil
}

// outputRefOf is where a step's large output is kept: as its record says, or, for the
// attempt that has just ended and whose success is not written yet, as was observed.
func outputRefOf(task *v1alpha1.AgentTask, world engine.World, name string) *v1alpha1.OutputRef {
	if running := engine.CurrentOf(task); running != nil && running.Step == name {
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
	if int64(len(output)) != ref.Bytes {
		return engine.Loaded{Problem: fmt.Sprintf("ConfigMap %s holds an output of %d bytes, not %d", name, len(output), ref.Bytes)}, nil
	}
	if sum := stepexec.SHA256Hex([]byte(output)); sum != ref.SHA256 {
		return engine.Loaded{Problem: fmt.Sprintf("ConfigMap %s holds an output with sha256 %s, not %s", name, sum, ref.SHA256)}, nil
	}
	return engine.Loaded{Output: []byte(output)}, nil
}
