// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

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
	// Wrap stands between the manager and the API server.
	Wrap func(http.RoundTripper) http.RoundTripper
	// RecheckInterval, Clock, Rand, MaxConcurrent and Logs are the Reconciler's.
	RecheckInterval time.Duration
	Clock           clock.Clock
	Rand            func() float64
	MaxConcurrent   int
	Logs            kubernetes.Interface
	// Logger is where it logs. Default: nowhere.
	Logger logr.Logger
}

// Manager is an operator that runs in this process.
type Manager struct {
	Reconciler *controllers.Reconciler
	cancel     context.CancelFunc
	ended      chan struct{}
	err        error
}

// StartManager starts an operator, wired as cmd/manager wires it, and returns when its
// caches have read what is there.
func (c *Cluster) StartManager(o ManagerOptions) (*Manager, error) {
	config := rest.CopyConfig(c.operator)
	config.QPS = -1
	config.UserAgent = "agenttask-operator/" + o.Name
	if o.Wrap != nil {
		config.Wrap(o.Wrap)
	}
	mgr, err := ctrl.NewManager(config, c.managerOptions(o))
	if err != nil {
		return nil, err
	}
	m := &Manager{ended: make(chan struct{})}
	if m.Reconciler, err = reconciler(mgr, o); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	m.cancel = cancel
	go func() {
		m.err = mgr.Start(ctx)
		close(m.ended)
	}()
	if !mgr.GetCache().WaitForCacheSync(ctx) {
		return nil, errors.Join(errors.New("the manager's caches did not come up"), m.Stop())
	}
	return m, nil
}

func (c *Cluster) managerOptions(o ManagerOptions) ctrl.Options {
	options := ctrl.Options{
		Scheme:                  c.Scheme,
		Logger:                  o.Logger,
		Cache:                   cache.Options{ByObject: controllers.CacheByObject()},
		Client:                  client.Options{Cache: &client.CacheOptions{DisableFor: []client.Object{&corev1.ConfigMap{}}}},
		Metrics:                 metricsserver.Options{BindAddress: "0"},
		HealthProbeBindAddress:  "0",
		Controller:              ctrlconfig.Controller{SkipNameValidation: new(true)},
		GracefulShutdownTimeout: new(10 * time.Second),
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
	return options
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
	return r, r.SetupWithManager(mgr)
}

// Stop stops the operator and waits until it has stopped. It may be called again.
func (m *Manager) Stop() error {
	m.cancel()
	<-m.ended
	if m.err != nil {
		return fmt.Errorf("manager: %w", m.err)
	}
	return nil
}
