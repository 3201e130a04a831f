// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// bumpRevision is by how much a restore raises etcd's revision, so that no client has seen
// a later one.
const bumpRevision = 1_000_000_000

// Snapshot writes a snapshot of etcd to a file. Nothing is stopped for it.
func (c *Cluster) Snapshot(ctx context.Context, path string) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(c.follower.etcd.snapshot(ctx, file), file.Close())
}

// Restore goes back to a snapshot, as etcd's documentation says it is done for Kubernetes:
// the API server is killed and etcd stopped, the snapshot becomes etcd's data with a raised
// revision and all before it compacted, and both are started again, under their old
// addresses and with their old certificates. The kube-controller-manager, kubelets and
// managers go on as they are. When Restore returns, the API server answers.
func (c *Cluster) Restore(ctx context.Context, path string) error {
	etcd, server := c.env.ControlPlane.Etcd, c.env.ControlPlane.APIServer
	c.follower.pause()
	if err := c.killServer(ctx); err != nil {
		return err
	}
	if err := etcd.Stop(); err != nil {
		return err
	}
	if err := os.RemoveAll(etcd.DataDir); err != nil {
		return err
	}
	command := exec.CommandContext(ctx, filepath.Join(c.assets, "etcdutl"), "snapshot", "restore", path, "--data-dir", etcd.DataDir,
		"--bump-revision", strconv.Itoa(bumpRevision), "--mark-compacted")
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("etcdutl snapshot restore: %w: %s", err, out)
	}
	if err := etcd.Start(); err != nil {
		return err
	}
	revision, err := c.follower.etcd.revision(ctx)
	if err != nil {
		return err
	}
	c.follower.resume(Restore{Snapshot: revision - bumpRevision, First: revision + 1})
	if err := server.Start(); err != nil {
		return err
	}
	return wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, startTimeout, true, func(ctx context.Context) (bool, error) {
		return c.Client.List(ctx, &corev1.NamespaceList{}, client.Limit(1)) == nil, nil
	})
}

// serverPID is the file that holds the API server's process ID.
func (c *Cluster) serverPID() string { return filepath.Join(c.Dir, "kube-apiserver.pid") }

// killServer kills the API server, which would otherwise wait for its clients, and returns
// when it has ended.
func (c *Cluster) killServer(ctx context.Context) error {
	text, err := os.ReadFile(c.serverPID())
	if err != nil {
		return err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return err
	}
	server, err := os.FindProcess(pid)
	if err != nil {
		return err
	}
	if err := server.Kill(); err != nil {
		return fmt.Errorf("killing the API server: %w", err)
	}
	return wait.PollUntilContextTimeout(ctx, 10*time.Millisecond, startTimeout, true, func(context.Context) (bool, error) {
		return c.env.ControlPlane.APIServer.Stop() == nil, nil
	})
}
