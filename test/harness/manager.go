// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/controllers"
)

// RunnerImage is the runner's image of managers that are started here. Nobody pulls it.
const RunnerImage = "runner.invalid/agenttask:test"

// ManagerOptions of a Manager. The zero value is the operator as its command runs it.
type ManagerOptions struct {
	// Name tells managers apart in the audit log, where it stands in the user agent.
	Name string
	// Namespaces are those whose tasks it runs. Default: all.
	Namespaces []string
	// Faults is the manager's line to the API server. Default: one without faults.
	Faults *Faults
	// Wrap stands between that line and the API server.
	Wrap func(http.RoundTripper) http.RoundTripper
	// LeaderElection lets it work only while it holds a Lease. Default: it works at once.
	LeaderElection *LeaderElection
	// Change changes the Reconciler before it is set up.
	Change func(*controllers.Reconciler)
	// RecheckInterval, Clock, Rand, MaxConcurrent and Logs are the Reconciler's.
	RecheckInterval time.Duration
	Clock           clock.Clock
	Rand            func() float64
	MaxConcurrent   int
	Logs            kubernetes.Interface
	// Logger is where it logs. Default: nowhere.
	Logger logr.Logger
}

// LeaderElection says which Lease a manager holds while it works, and for how long.
type LeaderElection struct {
	// Namespace is the Lease's. Default: the first of the manager's namespaces.
	Namespace string
	// LeaseDuration is how long others wait for a leader that says nothing, RenewDeadline
	// how long the leader tries to renew before it gives up, RetryPeriod how often each
	// tries. Default: 1.5 s, 1 s, 0.2 s.
	LeaseDuration, RenewDeadline, RetryPeriod time.Duration
}

// leaderElectionID is the name of the Lease, as in cmd/manager.
const leaderElectionID = "operator.agenttask.dev"

// Manager is an operator that runs in this process.
type Manager struct {
	Reconciler *controllers.Reconciler
	// Faults is its line to the API server.
	Faults *Faults

	elected <-chan struct{}
	cancel  context.CancelFunc
	ended   chan struct{}
	elects  bool
	err     error
}

// StartManager starts an operator, wired as cmd/manager wires it, and returns when its
// caches have read what is there.
func (c *Cluster) StartManager(o ManagerOptions) (*Manager, error) {
	if o.Faults == nil {
		o.Faults = NewFaults()
	}
	config := rest.CopyConfig(c.operator)
	config.QPS = -1
	config.UserAgent = "agenttask-operator/" + o.Name
	if o.Wrap != nil {
		config.Wrap(o.Wrap)
	}
	config.Wrap(o.Faults.Wrap)
	options, err := c.managerOptions(o)
	if err != nil {
		return nil, err
	}
	mgr, err := ctrl.NewManager(config, options)
	if err != nil {
		return nil, err
	}
	m := &Manager{Faults: o.Faults, elected: mgr.Elected(), ended: make(chan struct{}), elects: o.LeaderElection != nil}
	if m.Reconciler, err = reconciler(mgr, o); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	m.cancel = cancel
	go func() {
		if err := mgr.Start(ctx); !m.Faults.Dead() {
			m.err = err
		}
		m.Faults.Die() // a process that has ended says nothing more
		close(m.ended)
	}()
	if err := m.waitForCaches(ctx, mgr.GetCache()); err != nil {
		m.Kill()
		return nil, fmt.Errorf("the manager's caches did not come up: %w", err)
	}
	return m, nil
}

// waitForCaches waits until the caches have read what is there.
func (m *Manager) waitForCaches(ctx context.Context, caches cache.Cache) error {
	task := &metav1.PartialObjectMetadata{}
	task.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("AgentTask"))
	for _, obj := range []client.Object{task, &batchv1.Job{}, &corev1.Pod{}} {
		informer, err := caches.GetInformer(ctx, obj, cache.BlockUntilSynced(false))
		if err != nil {
			return err
		}
		err = wait.PollUntilContextTimeout(ctx, 5*time.Millisecond, startTimeout, true, func(context.Context) (bool, error) {
			select {
			case <-m.ended:
				return false, errors.New("the manager has ended")
			default:
				return informer.HasSynced(), nil
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) managerOptions(o ManagerOptions) (ctrl.Options, error) {
	options := ctrl.Options{
		Scheme:                  c.Scheme,
		Logger:                  o.Logger,
		Cache:                   cache.Options{ByObject: controllers.CacheByObject()},
		Client:                  client.Options{Cache: &client.CacheOptions{DisableFor: []client.Object{&corev1.ConfigMap{}}}},
		Metrics:                 metricsserver.Options{BindAddress: "0"},
		HealthProbeBindAddress:  "0",
		Controller:              ctrlconfig.Controller{SkipNameValidation: new(true)},
		GracefulShutdownTimeout: new(10 * time.Second),
		MapperProvider:          func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return c.Client.RESTMapper(), nil },
	}
	if o.Logger.GetSink() == nil {
		options.Logger = logr.Discard()
	}
	for _, name := range o.Namespaces {
		if options.Cache.DefaultNamespaces == nil {
			options.Cache.DefaultNamespaces = map[string]cache.Config{}
		}
		options.Cache.DefaultNamespaces[name] = cache.Config{}
	}
	if o.LeaderElection == nil {
		return options, nil
	}
	options.LeaderElection, options.LeaderElectionID, options.LeaderElectionReleaseOnCancel = true, leaderElectionID, true
	options.LeaderElectionNamespace = o.LeaderElection.Namespace
	if options.LeaderElectionNamespace == "" && len(o.Namespaces) > 0 {
		options.LeaderElectionNamespace = o.Namespaces[0]
	}
	options.LeaseDuration = new(cmp.Or(o.LeaderElection.LeaseDuration, 1500*time.Millisecond))
	options.RenewDeadline = new(cmp.Or(o.LeaderElection.RenewDeadline, time.Second))
	options.RetryPeriod = new(cmp.Or(o.LeaderElection.RetryPeriod, 200*time.Millisecond))
	return options, c.allowLeases(options.LeaderElectionNamespace)
}

func reconciler(mgr ctrl.Manager, o ManagerOptions) (*controllers.Reconciler, error) {
	logs := o.Logs
	if logs == nil {
		client, err := kubernetes.NewForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient())
		if err != nil {
			return nil, err
		}
		logs = client
	}
	r := &controllers.Reconciler{
		Client:          mgr.GetClient(),
		Live:            mgr.GetAPIReader(),
		Logs:            logs,
		Events:          mgr.GetEventRecorder("agenttask"),
		RunnerImage:     RunnerImage,
		Clock:           o.Clock,
		Rand:            o.Rand,
		RecheckInterval: o.RecheckInterval,
		MaxConcurrent:   o.MaxConcurrent,
	}
	if o.Change != nil {
		o.Change(r)
	}
	return r, r.SetupWithManager(mgr)
}

// Elected is closed when the operator works: without leader election, from its start on.
func (m *Manager) Elected() <-chan struct{} { return m.elected }

// Ended is closed when the operator has ended, be it since it lost its Lease.
func (m *Manager) Ended() <-chan struct{} { return m.ended }

// Err is why an operator has ended that nobody stopped and whose line was not dead.
func (m *Manager) Err() error {
	select {
	case <-m.ended:
		return m.err
	default:
		return nil
	}
}

// Kill ends the operator as SIGKILL would: nothing gets through any more, in neither
// direction, and then it ends.
func (m *Manager) Kill() {
	m.Faults.Die()
	m.cancel()
	<-m.ended
}

// Stop stops the operator and waits until it has stopped. It may be called again, and
// after Kill. Frozen, it must be thawed first. That it had lost its Lease is no error.
func (m *Manager) Stop() error {
	lost := m.elects && m.Err() != nil
	m.cancel()
	<-m.ended
	if m.err != nil && !lost {
		return fmt.Errorf("manager: %w", m.err)
	}
	return nil
}
