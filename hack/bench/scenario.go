// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/test/harness"
)

// scenario is a number of tasks, one after the other or all at once.
type scenario struct {
	name         string
	tasks, steps int
	together     bool
}

// Names of the scenarios.
const (
	shortPlan  = "20 steps"
	longPlan   = "200 steps"
	throughput = "throughput"
)

// bound is how long a scenario may take.
const bound = 5 * time.Minute

func scenarios(scale int) []scenario {
	return []scenario{
		{shortPlan, 10, 20, false},
		{longPlan, 1, 200, false},
		{throughput, scale, 5, true},
	}
}

// result is what was measured of one side in one scenario.
type result struct {
	steps         int
	elapsed       time.Duration
	cpu           time.Duration
	peak          int64 // bytes
	gaps          []time.Duration
	writes, bad   int
	events        int
	rejectedLines []string
}

func (s scenario) run(ctx context.Context, cluster *harness.Cluster, side side) (result, error) {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	namespace, err := cluster.NewNamespace(ctx, "bench", nil)
	if err != nil {
		return result{}, err
	}
	p, err := startSide(side, cluster.Kubeconfig)
	if err != nil {
		return result{}, err
	}
	defer p.stop()
	// One task before the measurement: connections, caches and the first watch.
	if _, err := s.drive(ctx, cluster, namespace, "warm", 1); err != nil {
		return result{}, fmt.Errorf("%w\n%s", err, p.output())
	}
	mark, err := cluster.Audit.Mark()
	if err != nil {
		return result{}, err
	}
	cpu, err := p.cpu()
	if err != nil {
		return result{}, err
	}
	r := result{steps: s.tasks * s.steps}
	if r.elapsed, err = s.drive(ctx, cluster, namespace, "task", s.tasks); err != nil {
		return result{}, fmt.Errorf("%w\n%s", err, p.output())
	}
	after, err := p.cpu()
	if err != nil {
		return result{}, err
	}
	r.cpu = after - cpu
	if r.peak, err = p.peak(); err != nil {
		return result{}, err
	}
	requests, err := cluster.Audit.Since(ctx, mark, harness.InNamespace(namespace))
	if err != nil {
		return result{}, err
	}
	r.read(requests, side, s)
	return r, nil
}

// drive makes tasks and waits until all have succeeded.
func (s scenario) drive(ctx context.Context, cluster *harness.Cluster, namespace, name string, count int) (time.Duration, error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended, err := endings(ctx, cluster, namespace)
	if err != nil {
		return 0, err
	}
	start := time.Now()
	waves, size := count, 1
	if s.together {
		waves, size = 1, count
	}
	for wave := range waves {
		going := map[string]bool{}
		for i := range size {
			task := harness.MakeTask(namespace, fmt.Sprintf("%s-%d", name, wave*size+i))
			for step := range s.steps {
				task.Step(fmt.Sprintf("step-%d", step))
			}
			going[task.Obj().Name] = true
			if err := cluster.Client.Create(ctx, task.Obj()); err != nil {
				return 0, err
			}
		}
		if err := waitFor(ctx, ended, going); err != nil {
			return 0, err
		}
	}
	return time.Since(start), nil
}

// endings tells of each task of a namespace that has ended.
func endings(ctx context.Context, cluster *harness.Cluster, namespace string) (<-chan *v1alpha1.AgentTask, error) {
	informers, err := cache.New(cluster.Config, cache.Options{Scheme: cluster.Scheme, DefaultNamespaces: map[string]cache.Config{namespace: {}}})
	if err != nil {
		return nil, err
	}
	ended := make(chan *v1alpha1.AgentTask, 1000)
	err = hear(ctx, informers, &v1alpha1.AgentTask{}, func(obj any) {
		if task, ok := obj.(*v1alpha1.AgentTask); ok && task.Status.Phase.Finished() {
			ended <- task
		}
	})
	if err != nil {
		return nil, err
	}
	go func() { _ = informers.Start(ctx) }()
	if !informers.WaitForCacheSync(ctx) {
		return nil, ctx.Err()
	}
	return ended, nil
}

// waitFor waits until all the named tasks have succeeded.
func waitFor(ctx context.Context, ended <-chan *v1alpha1.AgentTask, going map[string]bool) error {
	for len(going) > 0 {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d tasks have not ended within %s", len(going), bound)
		case task := <-ended:
			if task.Status.Phase != v1alpha1.TaskSucceeded {
				return fmt.Errorf("task %s ended as %s", task.Name, task.Status.Phase)
			}
			delete(going, task.Name)
		}
	}
	return nil
}

// read counts what the audit log says of one side, and takes its gaps: from the answer
// to a pod's end until the answer to the making of the task's next pod.
func (r *result) read(requests []harness.Request, side side, s scenario) {
	ends := map[string]time.Time{}
	slices.SortFunc(requests, func(a, b harness.Request) int { return a.End.Compare(b.End) })
	for _, q := range requests {
		if q.Resource == "pods" && q.Subresource == "status" && !q.Rejected() {
			ends[taskOf(q.Name)] = q.End
		}
		if !strings.HasPrefix(q.UserAgent, side.agent) || !q.IsWrite() {
			continue
		}
		switch {
		case q.Resource == "events":
			r.events++
			continue
		case q.Rejected():
			r.bad++
			r.rejectedLines = append(r.rejectedLines, q.String())
		}
		r.writes++
		if end, ok := ends[taskOf(q.Name)]; ok && !s.together && q.Resource == "pods" && q.Verb == "create" {
			r.gaps = append(r.gaps, q.End.Sub(end))
			delete(ends, taskOf(q.Name))
		}
	}
	slices.Sort(r.gaps)
}

// taskOf is the task's part of a pod's name: task-N of task-N-step-M-hash-1.
func taskOf(pod string) string {
	parts := strings.SplitN(pod, "-", 3)
	return strings.Join(parts[:min(2, len(parts))], "-")
}

func (r result) quantile(q float64) time.Duration {
	if len(r.gaps) == 0 {
		return 0
	}
	return r.gaps[min(int(q*float64(len(r.gaps))), len(r.gaps)-1)]
}
