// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package faults_test

import (
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard())
	code := m.Run()
	if err := stopLabs(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// started is the control plane that the tests share, from the first of them on.
var started struct {
	once sync.Once
	lab  *lab
	err  error
}

// theLab is the shared control plane.
func theLab(t *testing.T) *lab {
	t.Helper()
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		t.Fatal("KUBEBUILDER_ASSETS is not set: run make test-faults, or set it to what hack/cluster/cluster.sh build prints")
	}
	started.once.Do(func() { started.lab, started.err = startLab() })
	if started.err != nil {
		t.Fatal(started.err)
	}
	return started.lab
}

func stopLabs() error {
	if started.lab == nil {
		return nil
	}
	return started.lab.stop()
}
