// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

// Command manager is the AgentTask operator.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
	_ "time/tzdata" // expressions that name a time zone mean the same on every host

	"github.com/spf13/pflag"
	"go.uber.org/zap/zapcore"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	corev1 "k8s.io/api/core/v1"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/controllers"
	"github.com/agenttask-dev/agenttask/internal/version"
)

// shutdownTimeout is how long running reconciles may take to end, so that the Lease is
// released before the pod's terminationGracePeriodSeconds of 10 are over.
const shutdownTimeout = 7 * time.Second

// leaderElectionID is the name of the Lease that the leader holds.
const leaderElectionID = "operator.agenttask.dev"

type options struct {
	leaderElect     bool
	leaderNamespace string
	leaderIdentity  string
	probeAddr       string
	metricsAddr     string
	metricsSecure   bool
	metricsCertDir  string
	runnerImage     string
	namespaces      []string
	maxConcurrent   int
	recheck         time.Duration
	logLevel        string
	logFormat       string
	showVersion     bool
}

func main() {
	o := options{}
	flags := o.flags()
	if err := flags.Parse(os.Args[1:]); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			return
		}
		fail(err)
	}
	if slices.Contains(o.namespaces, "") {
		fail(fmt.Errorf("--watch-namespaces %q holds an empty name; leave the flag out to watch all namespaces", strings.Join(o.namespaces, ",")))
	}
	if o.showVersion {
		fmt.Println(version.Version)
		return
	}
	if err := run(ctrl.SetupSignalHandler(), o); err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintf(os.Stderr, "manager: %v\n", err)
	os.Exit(1)
}

func (o *options) flags() *pflag.FlagSet {
	flags := pflag.NewFlagSet("manager", pflag.ContinueOnError)
	flags.SortFlags = false
	flags.StringVar(&o.runnerImage, "runner-image", "ghcr.io/agenttask-dev/runner:"+version.Version, "image that holds the runner; each step's pod takes the runner from it")
	flags.StringSliceVar(&o.namespaces, "watch-namespaces", nil, "namespaces whose tasks are run, separated by commas (default: all)")
	flags.IntVar(&o.maxConcurrent, "max-concurrent-reconciles", controllers.DefaultMaxConcurrent, "how many tasks are worked on at once")
	flags.DurationVar(&o.recheck, "recheck-interval", controllers.DefaultRecheckInterval, "how often a running step is looked at though nothing was heard of it")
	flags.BoolVar(&o.leaderElect, "leader-elect", false, "run only while holding the Lease "+leaderElectionID+"; needed with more than one replica")
	flags.StringVar(&o.leaderNamespace, "leader-elect-namespace", "", "namespace of the Lease (default: the pod's own)")
	flags.StringVar(&o.leaderIdentity, "leader-elect-identity", "", "name of this process in the Lease; one that starts again under the same name goes on at once, so no two that live may share it (default: host name and a random part)")
	flags.StringVar(&o.probeAddr, "health-probe-bind-address", ":8081", "address of /healthz and /readyz; 0 turns them off")
	flags.StringVar(&o.metricsAddr, "metrics-bind-address", ":8443", "address of /metrics; 0 turns it off")
	flags.BoolVar(&o.metricsSecure, "metrics-secure", true, "serve metrics over HTTPS, to those whom the API server authenticates and authorizes")
	flags.StringVar(&o.metricsCertDir, "metrics-cert-dir", "", "directory with tls.crt and tls.key for metrics (default: a self-signed certificate)")
	flags.StringVar(&o.logLevel, "log-level", "info", "debug, info or error")
	flags.StringVar(&o.logFormat, "log-format", "json", "json or text")
	flags.BoolVar(&o.showVersion, "version", false, "print the version and exit")
	flags.Usage = func() {
		fmt.Fprintf(os.Stderr, "The AgentTask operator runs AgentTasks on Kubernetes, one step at a time.\n\nUsage:\n  manager [flags]\n\nFlags:\n%s", flags.FlagUsages())
	}
	return flags
}

func run(ctx context.Context, o options) error {
	log, err := o.logger()
	if err != nil {
		return err
	}
	ctrl.SetLogger(zap.New(log...))
	config, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("no cluster to talk to: %w", err)
	}
	// The API server's own priority and fairness limits the operator; a second limit
	// in the client would only slow every step.
	config.QPS = -1
	config.UserAgent = "agenttask-operator/" + version.Version
	mgr, err := o.manager(config)
	if err != nil {
		return err
	}
	logs, err := kubernetes.NewForConfigAndClient(config, mgr.GetHTTPClient())
	if err != nil {
		return err
	}
	reconciler := &controllers.Reconciler{
		Client:          mgr.GetClient(),
		Live:            mgr.GetAPIReader(),
		Logs:            logs,
		Events:          mgr.GetEventRecorder("agenttask"),
		RunnerImage:     o.runnerImage,
		RecheckInterval: o.recheck,
		MaxConcurrent:   o.maxConcurrent,
	}
	if err := reconciler.SetupWithManager(mgr); err != nil {
		return err
	}
	ctrl.Log.Info("starting", "version", version.Version, "runnerImage", o.runnerImage, "namespaces", o.namespaces)
	return mgr.Start(ctx)
}

func (o *options) manager(config *rest.Config) (ctrl.Manager, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	lock, err := o.lock(config)
	if err != nil {
		return nil, err
	}
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		LeaderElectionResourceLockInterface: lock,
		Scheme:                              scheme,
		Cache:                               cache.Options{ByObject: controllers.CacheByObject(), DefaultNamespaces: o.cachedNamespaces()},
		Client:                              client.Options{Cache: &client.CacheOptions{DisableFor: []client.Object{&corev1.ConfigMap{}}}},
		LeaderElection:                      o.leaderElect,
		LeaderElectionID:                    leaderElectionID,
		LeaderElectionNamespace:             o.leaderNamespace,
		LeaderElectionReleaseOnCancel:       true,
		GracefulShutdownTimeout:             new(shutdownTimeout),
		HealthProbeBindAddress:              o.probeAddr,
		Metrics:                             o.metrics(),
	})
	if err != nil {
		return nil, err
	}
	if err := mgr.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return nil, err
	}
	return mgr, mgr.AddReadyzCheck("ping", healthz.Ping)
}

// lock is the Lease under the identity that was given, or nil for the manager's own.
func (o *options) lock(config *rest.Config) (resourcelock.Interface, error) {
	if !o.leaderElect || o.leaderIdentity == "" {
		return nil, nil
	}
	namespace := o.leaderNamespace
	if namespace == "" {
		text, err := os.ReadFile(podNamespaceFile)
		if err != nil {
			return nil, fmt.Errorf("outside of a pod, --leader-elect-identity needs --leader-elect-namespace: %w", err)
		}
		namespace = string(text)
	}
	return resourcelock.NewFromKubeconfig(resourcelock.LeasesResourceLock, namespace, leaderElectionID,
		resourcelock.ResourceLockConfig{Identity: o.leaderIdentity}, config, renewDeadline)
}

const (
	// podNamespaceFile holds a pod's own namespace.
	podNamespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"
	// renewDeadline is how long the leader tries to renew the Lease before it gives up.
	renewDeadline = 10 * time.Second
)

func (o *options) metrics() metricsserver.Options {
	m := metricsserver.Options{BindAddress: o.metricsAddr, SecureServing: o.metricsSecure, CertDir: o.metricsCertDir}
	if o.metricsSecure {
		m.FilterProvider = filters.WithAuthenticationAndAuthorization
	}
	return m
}

func (o *options) cachedNamespaces() map[string]cache.Config {
	if len(o.namespaces) == 0 {
		return nil
	}
	namespaces := map[string]cache.Config{}
	for _, name := range o.namespaces {
		namespaces[strings.TrimSpace(name)] = cache.Config{}
	}
	return namespaces
}

func (o *options) logger() ([]zap.Opts, error) {
	var level zapcore.Level
	switch o.logLevel {
	case "debug":
		level = zapcore.DebugLevel
	case "info":
		level = zapcore.InfoLevel
	case "error":
		level = zapcore.ErrorLevel
	default:
		return nil, fmt.Errorf("--log-level %q: must be debug, info or error", o.logLevel)
	}
	opts := []zap.Opts{zap.Level(level)}
	switch o.logFormat {
	case "json":
		opts = append(opts, zap.JSONEncoder())
	case "text":
		opts = append(opts, zap.ConsoleEncoder())
	default:
		return nil, fmt.Errorf("--log-format %q: must be json or text", o.logFormat)
	}
	return opts, nil
}
