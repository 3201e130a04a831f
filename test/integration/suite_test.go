// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

// Package integration_test runs the operator against a real API server and
// kube-controller-manager, with a kubelet that plays pods from a script.
package integration_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	"github.com/agenttask-dev/agenttask/test/harness"
)

// How long what must come may take, and how long what must not come is waited for.
const (
	soon   = 20 * time.Second
	later  = 60 * time.Second
	aWhile = 300 * time.Millisecond
	poll   = 10 * time.Millisecond
)

var (
	cluster *harness.Cluster
	logger  logr.Logger
)

func TestIntegration(t *testing.T) {
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		t.Fatal("KUBEBUILDER_ASSETS is not set: run make test-integration, or set it to what hack/cluster/cluster.sh build prints")
	}
	RegisterFailHandler(Fail)
	SetDefaultEventuallyTimeout(soon)
	SetDefaultEventuallyPollingInterval(poll)
	SetDefaultConsistentlyDuration(aWhile)
	SetDefaultConsistentlyPollingInterval(poll)
	suite, reporter := GinkgoConfiguration()
	reporter.Succinct = !testing.Verbose()
	RunSpecs(t, "AgentTask against a real API server", suite, reporter)
}

var _ = BeforeSuite(func() {
	logger = zap.New(zap.WriteTo(GinkgoWriter), zap.UseDevMode(true))
	ctrl.SetLogger(logger)
	klog.SetLogger(logger)
	var err error
	cluster, err = harness.Start(harness.Options{})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() { Expect(cluster.Stop()).To(Succeed()) })
})

var ctx = context.Background()
