// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// process is one that was started here and is ended by its own handle.
type process struct {
	command *exec.Cmd
	log     string
	ended   chan struct{}
	err     error
}

func startProcess(log, path string, args ...string) (*process, error) {
	file, err := os.Create(log)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	p := &process{command: exec.Command(path, args...), log: log, ended: make(chan struct{})}
	p.command.Stdout, p.command.Stderr = file, file
	if err := p.command.Start(); err != nil {
		return nil, err
	}
	go func() {
		p.err = p.command.Wait()
		close(p.ended)
	}()
	return p, nil
}

// stop asks the process to end, and kills it where it does not.
func (p *process) stop() error {
	select {
	case <-p.ended:
		return fmt.Errorf("%s had ended by itself: %w\n%s", p.command.Path, p.err, p.tail())
	default:
	}
	_ = p.command.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.ended:
		return nil
	case <-time.After(20 * time.Second):
		_ = p.command.Process.Kill()
		<-p.ended
		return errors.New(p.command.Path + " did not end when asked to, and was killed")
	}
}

// tail is the end of the process's log.
func (p *process) tail() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-20):], "\n")
}

// startControllers starts kube-controller-manager with all its default controllers:
// the Job controller, the garbage collector, the pod garbage collector, quota.
func (c *Cluster) startControllers(options Options) error {
	user, err := c.env.AddUser(envtest.User{Name: "kube-controller-manager", Groups: []string{"system:masters"}}, nil)
	if err != nil {
		return err
	}
	kubeconfig, err := user.KubeConfig()
	if err != nil {
		return err
	}
	file, ca := filepath.Join(c.Dir, "controller-manager.kubeconfig"), filepath.Join(c.Dir, "ca.crt")
	if err := os.WriteFile(file, kubeconfig, 0o600); err != nil {
		return err
	}
	if err := os.WriteFile(ca, c.Config.CAData, 0o600); err != nil {
		return err
	}
	args := append([]string{
		"--kubeconfig=" + file,
		"--secure-port=0",
		"--leader-elect=false",
		"--root-ca-file=" + ca,
		"--service-account-private-key-file=" + filepath.Join(c.env.ControlPlane.APIServer.CertDir, "sa-signer.key"),
		"--kube-api-qps=500", "--kube-api-burst=1000",
	}, options.ControllerManagerArgs...)
	c.controllers, err = startProcess(filepath.Join(c.Dir, "controller-manager.log"), filepath.Join(c.assets, "kube-controller-manager"), args...)
	return err
}
