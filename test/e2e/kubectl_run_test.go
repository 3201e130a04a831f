// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"strings"
	"sync"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// kubectl runs kubectl, which must succeed, and returns what it prints.
func kubectl(args ...string) string {
	GinkgoHelper()
	out, err := tryKubectl("", args...)
	Expect(err).NotTo(HaveOccurred())
	return out
}

// tryKubectl runs kubectl with something on its standard input.
func tryKubectl(stdin string, args ...string) (string, error) {
	cmd := exec.Command("kubectl", args...)
	cmd.Stdin = strings.NewReader(stdin)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, stderr.String())
	}
	return stdout.String(), nil
}

// running is a kubectl that goes on, such as logs --follow or port-forward.
type running struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// startKubectl starts a kubectl, which is ended with the spec, if not by itself before.
func startKubectl(args ...string) *running {
	GinkgoHelper()
	r := &running{}
	cmd := exec.Command("kubectl", args...)
	cmd.Stdout, cmd.Stderr = r, r
	Expect(cmd.Start()).To(Succeed())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // what it prints is what counts
	}()
	DeferCleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
	})
	return r
}

var _ io.Writer = (*running)(nil)

// Write takes what the process prints.
func (r *running) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.Write(p)
}

// printed is all that the process has printed.
func (r *running) printed() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.String()
}

var forwarding = regexp.MustCompile(`Forwarding from 127\.0\.0\.1:(\d+)`)

// forwardPort makes a port of the cluster reachable and returns its address here.
func forwardPort(namespace, target, port string) string {
	GinkgoHelper()
	forward := startKubectl("-n", namespace, "port-forward", target, ":"+port, "--address=127.0.0.1")
	Eventually(forward.printed).WithTimeout(stepTimeout).Should(MatchRegexp(forwarding.String()))
	return "127.0.0.1:" + forwarding.FindStringSubmatch(forward.printed())[1]
}
