// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/engine"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
)

// framed is an output's lines in the log, and what announces them.
func framed(doc string) (string, *stepexec.LogOutput) {
	sum := stepexec.SHA256Hex([]byte(doc))
	lines := []string{stepexec.LogBegin + " " + sum}
	text := base64.StdEncoding.EncodeToString([]byte(doc))
	for len(text) > 0 {
		n := min(len(text), stepexec.LogLine)
		lines = append(lines, stepexec.LogData+" "+text[:n])
		text = text[n:]
	}
	lines = append(lines, stepexec.LogEnd+" "+sum)
	return strings.Join(lines, "\n") + "\n", &stepexec.LogOutput{SHA256: sum, Bytes: int64(len(doc)), Lines: int64(len(lines))}
}

func TestParseFrameReadsPastWhatIsNotOfIt(t *testing.T) {
	doc := `"` + strings.Repeat("x", 10_000) + `"`
	frame, announced := framed(doc)
	head, tail, _ := strings.Cut(frame, "\n")
	head += "\n"
	for name, log := range map[string]string{
		"nothing":                                 frame,
		"a line of 17 kB before it":               strings.Repeat("e", 17_000) + "\n" + frame,
		"a line of 5 MB before it":                strings.Repeat("e", 5_000_000) + "\n" + frame,
		"a line of 5 MB within it":                head + strings.Repeat("e", 5_000_000) + "\n" + tail,
		"a long line that ends as a frame begins": strings.Repeat("e", 2*stepexec.LogLine) + head + frame,
		"2,000 lines of 4 kB before it":           strings.Repeat(strings.Repeat("e", 4000)+"\n", 2000) + frame,
		"half a frame before it":                  frame[:len(frame)/2] + "\n" + frame,
		"a frame of more than was announced":      strings.Replace(frame, stepexec.LogEnd, stepexec.LogData+" AAAA\n"+stepexec.LogEnd, 1) + frame,
	} {
		t.Run(name, func(t *testing.T) {
			got, problem, err := parseFrame(strings.NewReader(log), announced)
			if string(got) != doc || problem != "" || err != nil {
				t.Errorf("%d bytes, problem %q, error %v", len(got), problem, err)
			}
		})
	}
}

// endless is a log of one line again and again.
type endless string

func (e endless) Read(p []byte) (int, error) { return copy(p, e), nil }

func TestParseFrameEnds(t *testing.T) {
	frame, announced := framed(`"` + strings.Repeat("x", 10_000) + `"`)
	begin, _, _ := strings.Cut(frame, "\n")
	for name, tt := range map[string]struct {
		log  io.Reader
		want string
	}{
		"cut off":                    {strings.NewReader(frame[:len(frame)/2]), "does not hold it whole"},
		"more than was announced":    {strings.NewReader(strings.Replace(frame, stepexec.LogEnd, stepexec.LogData+" AAAA\n"+stepexec.LogEnd, 1)), "does not hold it whole"},
		"no base64":                  {strings.NewReader(strings.Replace(frame, stepexec.LogData+" I", stepexec.LogData+" ?", 1)), "as it was written"},
		"lines without an end":       {endless(strings.Repeat("e", 999) + "\n"), "more than 268435456 bytes"},
		"one line without an end":    {endless(strings.Repeat("e", 1000)), "more than 268435456 bytes"},
		"a frame without an end":     {io.MultiReader(strings.NewReader(begin+"\n"), endless(stepexec.LogData+" "+strings.Repeat("A", 1000)+"\n")), "more than 268435456 bytes"},
		"a frame that has not begun": {strings.NewReader(strings.TrimPrefix(frame, begin)), "does not hold it whole"},
	} {
		t.Run(name, func(t *testing.T) {
			got, problem, err := parseFrame(tt.log, announced)
			if got != nil || err != nil || !strings.Contains(problem, tt.want) {
				t.Errorf("%d bytes, problem %q, error %v; want a problem that says %q", len(got), problem, err, tt.want)
			}
		})
	}
	_, problem, err := parseFrame(io.MultiReader(strings.NewReader(frame[:200]), iotest.ErrReader(io.ErrUnexpectedEOF)), announced)
	if problem != "" || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a connection that breaks: problem %q, error %v", problem, err)
	}
}

// store is an API server that knows one ConfigMap, and answers as it is told.
type store struct {
	client.Client
	kept        *corev1.ConfigMap
	get, create error
	// lands says that what create answers with an error is there all the same.
	lands bool
}

var configMaps = schema.GroupResource{Resource: "configmaps"}

func (s *store) Get(_ context.Context, key client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	switch {
	case s.get != nil:
		return s.get
	case s.kept == nil:
		return apierrors.NewNotFound(configMaps, key.Name)
	}
	s.kept.DeepCopyInto(obj.(*corev1.ConfigMap))
	return nil
}

func (s *store) Create(_ context.Context, obj client.Object, _ ...client.CreateOption) error {
	if s.create == nil || s.lands {
		s.kept = obj.(*corev1.ConfigMap)
	}
	return s.create
}

// reconcilerOf has a store, and logs that a server answers.
func reconcilerOf(t *testing.T, s *store, status int, log string) *Reconciler {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, log)
	}))
	t.Cleanup(server.Close)
	logs, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	r := &Reconciler{Client: s, Live: s, Logs: logs}
	r.defaults()
	return r
}

func podThatSays(t *testing.T, announced *stepexec.LogOutput, code int32) *corev1.Pod {
	t.Helper()
	message, err := json.Marshal(stepexec.Result{Version: stepexec.ResultVersion, Outcome: stepexec.OutcomeSucceeded, LogOutput: announced})
	if err != nil {
		t.Fatal(err)
	}
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "job"}, Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{
		Name: stepexec.ContainerStep, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Message: string(message)}},
	}}}}
}

func TestKeepOutput(t *testing.T) {
	doc := `"` + strings.Repeat("x", 10_000) + `"`
	frame, announced := framed(doc)
	down, exists := apierrors.NewInternalError(errors.New("no route to host")), apierrors.NewAlreadyExists(configMaps, "job")
	forged := *announced
	forged.Bytes = 1
	tests := map[string]struct {
		store                *store
		logStatus            int
		announced            *stepexec.LogOutput
		code                 int32
		wantKept             bool
		wantProblem          string
		wantRefusal, wantWhy string
	}{
		"it is stored": {store: &store{}, wantKept: true},
		"it is stored, and the answer is an error":  {store: &store{create: exists, lands: true}, wantKept: true},
		"something else is stored under its name":   {store: &store{create: exists, kept: &corev1.ConfigMap{}}, wantProblem: "exists and holds something else"},
		"its log cannot be read just now":           {store: &store{}, logStatus: 500, wantRefusal: v1alpha1.ReasonUnavailable, wantWhy: "from the log of pod job"},
		"its log is gone":                           {store: &store{}, logStatus: 404, wantProblem: "log is gone"},
		"the store cannot be read just now":         {store: &store{get: down}, wantRefusal: v1alpha1.ReasonUnavailable, wantWhy: "no route to host"},
		"the store cannot be written just now":      {store: &store{create: down}, wantRefusal: v1alpha1.ReasonUnavailable, wantWhy: "no route to host"},
		"the store is refused":                      {store: &store{create: apierrors.NewForbidden(configMaps, "job", errors.New("quota"))}, wantRefusal: v1alpha1.ReasonRefused, wantWhy: "quota"},
		"it was stored before, its size is another": {store: &store{kept: &corev1.ConfigMap{Data: map[string]string{outputKey: doc}}}, announced: &forged, wantProblem: "does not hold it whole"},
		"its program did not succeed":               {store: &store{}, code: 137},
		"its announcement is none":                  {store: &store{}, announced: &stepexec.LogOutput{SHA256: announced.SHA256, Bytes: 1, Lines: -5000}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			status := max(tt.logStatus, http.StatusOK)
			if tt.announced == nil {
				tt.announced = announced
			}
			r := reconcilerOf(t, tt.store, status, frame)
			task := &v1alpha1.AgentTask{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "task", UID: "u"}}
			world := &engine.World{Pod: podThatSays(t, tt.announced, tt.code)}
			if err := r.keepOutput(t.Context(), task, &engine.Current{Step: "one", ActionStatus: &v1alpha1.ActionStatus{JobName: "job"}}, world); err != nil {
				t.Fatal(err)
			}
			refusal := engine.Refusal{}
			if world.Refusal != nil {
				refusal = *world.Refusal
			}
			if (world.Output != nil) != tt.wantKept || refusal.Reason != tt.wantRefusal || !strings.Contains(refusal.Message, tt.wantWhy) || (refusal.Retry > 0) != (tt.wantRefusal != "") {
				t.Errorf("output %v, refusal %+v", world.Output, refusal)
			}
			if !strings.Contains(world.OutputProblem, tt.wantProblem) || (tt.wantProblem == "") != (world.OutputProblem == "") {
				t.Errorf("problem %q, want %q", world.OutputProblem, tt.wantProblem)
			}
		})
	}
}

func TestAnOperatorThatEndsBlamesNobody(t *testing.T) {
	_, announced := framed(`"x"`)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r := reconcilerOf(t, &store{get: context.Canceled}, http.StatusOK, "")
	world := &engine.World{Pod: podThatSays(t, announced, 0)}
	if err := r.keepOutput(ctx, &v1alpha1.AgentTask{}, &engine.Current{ActionStatus: &v1alpha1.ActionStatus{JobName: "job"}}, world); err == nil || world.Refusal != nil {
		t.Errorf("error %v, refusal %v", err, world.Refusal)
	}
	task := stored("one", 3)
	if _, err := r.loadOutputs(ctx, task, engine.World{}, []string{"one"}, nil); err == nil {
		t.Error("outputs were loaded")
	}
}

// stored is a task whose one step has its output in a ConfigMap.
func stored(step string, size int64) *v1alpha1.AgentTask {
	task := &v1alpha1.AgentTask{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "task"}}
	task.Status.Steps = []v1alpha1.StepStatus{{Name: step, ActionStatus: v1alpha1.ActionStatus{Phase: v1alpha1.StepSucceeded,
		OutputRef: &v1alpha1.OutputRef{URI: configMapScheme + "job", SHA256: stepexec.SHA256Hex([]byte(`"x"`)), Bytes: size}}}}
	return task
}

func TestLoadOutputsSaysWhatCannotBeReadJustNow(t *testing.T) {
	whole := &corev1.ConfigMap{Data: map[string]string{outputKey: `"x"`}}
	for name, tt := range map[string]struct {
		store                   *store
		size                    int64
		output, problem, notNow string
	}{
		"it is there":             {store: &store{kept: whole}, size: 3, output: `"x"`},
		"it is gone":              {store: &store{}, size: 3, problem: "is gone"},
		"it has another size":     {store: &store{kept: whole}, size: 1, problem: "3 bytes, not 1"},
		"the API server is down":  {store: &store{get: apierrors.NewInternalError(errors.New("etcd"))}, size: 3, notNow: "etcd"},
		"the operator may not":    {store: &store{get: apierrors.NewForbidden(configMaps, "job", errors.New("no right"))}, size: 3, notNow: "no right"},
		"the API server is quiet": {store: &store{get: context.DeadlineExceeded}, size: 3, notNow: "deadline"},
	} {
		t.Run(name, func(t *testing.T) {
			r := reconcilerOf(t, tt.store, http.StatusOK, "")
			got, err := r.loadOutputs(t.Context(), stored("one", tt.size), engine.World{}, []string{"one"}, nil)
			one := got["one"]
			if err != nil || string(one.Output) != tt.output || !strings.Contains(one.Problem, tt.problem) || (one.Problem == "") != (tt.problem == "") {
				t.Errorf("loaded %+v, error %v", one, err)
			}
			if !strings.Contains(one.Unavailable, tt.notNow) || (one.Unavailable == "") != (tt.notNow == "") {
				t.Errorf("unavailable %q, want %q", one.Unavailable, tt.notNow)
			}
		})
	}
}
