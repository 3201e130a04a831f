// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
)

// assetsVariable names the folder with etcd, kube-apiserver, kube-controller-manager
// and kubectl.
const assetsVariable = "KUBEBUILDER_ASSETS"

// OperatorUser is who the operator's managers are to the API server: a user with the
// operator's own ClusterRole and no other right.
const OperatorUser = "agenttask-operator"

// startTimeout is how long each part of the control plane may take to come up.
const startTimeout = 60 * time.Second

// Options of a Cluster. The zero value is what tests want.
type Options struct {
	// Fsync makes etcd sync each write to disk, as a real one does. Default: it does not.
	Fsync bool
	// AuditLevel is how much of each write the audit log holds: Metadata, Request or
	// RequestResponse. Default: Request.
	AuditLevel string
	// ControllerManagerArgs are added to kube-controller-manager's, and win.
	ControllerManagerArgs []string
}

// Cluster is a control plane without nodes.
type Cluster struct {
	// Config is an administrator's, Client a client of theirs.
	Config *rest.Config
	Client client.WithWatch
	Scheme *runtime.Scheme
	// Kubeconfig is the path of a kubeconfig of theirs.
	Kubeconfig string
	// Audit reads what the API server was asked.
	Audit *AuditLog
	// Dir holds the logs and is removed by Stop.
	Dir string

	env         *envtest.Environment
	follower    *follower
	outsider    *Outsider
	controllers *process
	operator    *rest.Config
	assets      string
	root        string
}

// Start starts a control plane, installs the CRDs and the operator's ClusterRole.
func Start(options Options) (*Cluster, error) {
	assets := os.Getenv(assetsVariable)
	if assets == "" {
		return nil, errors.New(assetsVariable + " is not set: it must name a folder with etcd, kube-apiserver, kube-controller-manager and kubectl; " +
			"hack/cluster/cluster.sh build prints one, and make test-integration sets it")
	}
	dir, err := os.MkdirTemp("", "agenttask-harness-")
	if err != nil {
		return nil, err
	}
	c := &Cluster{Dir: dir, assets: assets, Scheme: runtime.NewScheme()}
	if err := c.start(options); err != nil {
		return nil, errors.Join(err, c.Stop())
	}
	return c, nil
}

func (c *Cluster) start(options Options) error {
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(c.Scheme); err != nil {
			return err
		}
	}
	var err error
	if c.root, err = moduleRoot(); err != nil {
		return err
	}
	if err := c.startControlPlane(options); err != nil {
		return err
	}
	if err := c.startControllers(options); err != nil {
		return err
	}
	if err := c.giveRights(); err != nil {
		return err
	}
	if err := c.waitForServiceAccount("default"); err != nil {
		return fmt.Errorf("kube-controller-manager does not work: %w\n%s", err, c.controllers.tail())
	}
	return nil
}

// startControlPlane starts etcd and the API server, with an audit log and the
// admission plugins that a careful cluster has.
func (c *Cluster) startControlPlane(options Options) error {
	c.env = &envtest.Environment{
		BinaryAssetsDirectory:    c.assets,
		CRDDirectoryPaths:        []string{filepath.Join(c.root, "config", "crd", "bases")},
		ErrorIfCRDPathMissing:    true,
		Scheme:                   c.Scheme,
		ControlPlaneStartTimeout: startTimeout,
		ControlPlaneStopTimeout:  startTimeout,
	}
	// In folders of ours, so that both can be stopped and started again.
	c.env.ControlPlane.Etcd = &envtest.Etcd{DataDir: filepath.Join(c.Dir, "etcd")}
	if options.Fsync {
		c.env.ControlPlane.Etcd.Configure().Disable("unsafe-no-fsync")
	}
	server := c.env.ControlPlane.GetAPIServer()
	server.CertDir = filepath.Join(c.Dir, "apiserver")
	if err := os.Mkdir(server.CertDir, 0o700); err != nil {
		return err
	}
	server.Path = filepath.Join(c.Dir, "kube-apiserver")
	start := fmt.Sprintf("#!/bin/sh\necho $$ >'%s'\nexec '%s' \"$@\"\n", c.serverPID(), filepath.Join(c.assets, "kube-apiserver"))
	if err := os.WriteFile(server.Path, []byte(start), 0o700); err != nil {
		return err
	}
	policy, log := filepath.Join(c.Dir, "audit-policy.yaml"), filepath.Join(c.Dir, "audit.log")
	if err := os.WriteFile(policy, auditPolicy(options.AuditLevel), 0o600); err != nil {
		return err
	}
	server.Configure().
		Set("disable-admission-plugins", "StorageObjectInUseProtection").
		Set("enable-admission-plugins", "OwnerReferencesPermissionEnforcement").
		Set("audit-policy-file", policy).
		Set("audit-log-path", log).
		Set("audit-log-maxsize", "2000")
	config, err := c.env.Start()
	if err != nil {
		return fmt.Errorf("starting etcd and the API server of %s: %w", c.assets, err)
	}
	config.QPS = -1
	c.Config, c.Kubeconfig = config, filepath.Join(c.Dir, "admin.kubeconfig")
	if err := os.WriteFile(c.Kubeconfig, c.env.KubeConfig, 0o600); err != nil {
		return err
	}
	c.Client, err = client.NewWithWatch(config, client.Options{Scheme: c.Scheme})
	c.Audit = newAuditLog(log, c.Client)
	c.follower = newFollower(etcd{c.env.ControlPlane.Etcd.URL.String()})
	if err != nil {
		return err
	}
	c.outsider, err = c.newOutsider()
	return err
}

// Stop ends every process that Start started and removes what they left.
func (c *Cluster) Stop() error {
	var errs []error
	if c.follower != nil {
		c.follower.pause()
	}
	if c.controllers != nil {
		errs = append(errs, c.controllers.stop())
	}
	if c.env != nil {
		errs = append(errs, c.env.Stop())
	}
	return errors.Join(append(errs, os.RemoveAll(c.Dir))...)
}

// NewNamespace makes a namespace with a generated name, in which pods can be made.
func (c *Cluster) NewNamespace(ctx context.Context, prefix string, labels map[string]string) (string, error) {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: prefix + "-", Labels: labels}}
	if err := c.Client.Create(ctx, namespace); err != nil {
		return "", err
	}
	return namespace.Name, c.waitForServiceAccount(namespace.Name)
}

func (c *Cluster) waitForServiceAccount(namespace string) error {
	err := wait.PollUntilContextTimeout(context.Background(), 20*time.Millisecond, startTimeout, true, func(ctx context.Context) (bool, error) {
		err := c.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "default"}, &corev1.ServiceAccount{})
		return err == nil, client.IgnoreNotFound(err)
	})
	if err != nil {
		return fmt.Errorf("service account default of namespace %s: %w", namespace, err)
	}
	return nil
}

// DeleteNamespace asks for a namespace's deletion and does not wait for it.
func (c *Cluster) DeleteNamespace(ctx context.Context, name string) error {
	err := c.Client.Delete(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	if apierrors.IsConflict(err) {
		return nil
	}
	return client.IgnoreNotFound(err)
}

// Revision is the API server's resource version now: that of the last change to anything.
func (c *Cluster) Revision(ctx context.Context) (string, error) {
	revision, err := c.follower.etcd.revision(ctx)
	return strconv.FormatInt(revision, 10), err
}

// Kubectl runs kubectl as an administrator and returns what it prints.
func (c *Cluster) Kubectl(ctx context.Context, args ...string) (string, error) {
	return c.KubectlInput(ctx, "", args...)
}

// KubectlInput is Kubectl with a standard input.
func (c *Cluster) KubectlInput(ctx context.Context, input string, args ...string) (string, error) {
	command := exec.CommandContext(ctx, filepath.Join(c.assets, "kubectl"), append([]string{"--kubeconfig", c.Kubeconfig}, args...)...)
	var out, problems bytes.Buffer
	command.Stdin, command.Stdout, command.Stderr = bytes.NewBufferString(input), &out, &problems
	if err := command.Run(); err != nil {
		return out.String(), fmt.Errorf("kubectl %v: %w: %s", args, err, problems.String())
	}
	return out.String(), nil
}

// moduleRoot is the folder of go.mod, at or above the working directory.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("no go.mod at or above the working directory")
		}
		dir = parent
	}
}
