// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
)

// scaleOperator sets how many replicas the deployed operator has, and waits for them.
func scaleOperator(replicas int) {
	GinkgoHelper()
	kubectl("-n", operatorNamespace, "scale", "deployment/"+operatorDeployment, fmt.Sprintf("--replicas=%d", replicas))
	awaitOperator()
}

// withoutDeployedOperator takes the deployed operator away until the end of the
// container or spec.
func withoutDeployedOperator() {
	GinkgoHelper()
	DeferCleanup(scaleOperator, 1)
	scaleOperator(0)
}

// operatorBuild is the operator as a program of this machine.
type operatorBuild struct{ program, kubeconfig, runnerImage string }

// buildOperator builds the operator from the sources. It will act with the rights that
// config/rbac gives to the deployed one.
func buildOperator() operatorBuild {
	GinkgoHelper()
	dir, err := os.MkdirTemp("", "agenttask-e2e-")
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(os.RemoveAll, dir)
	b := operatorBuild{program: filepath.Join(dir, "manager"), kubeconfig: filepath.Join(dir, "kubeconfig"), runnerImage: runnerImage()}

	build := exec.Command("go", "build", "-buildvcs=false", "-trimpath", "-o", b.program, "./cmd/manager")
	build.Dir = repository
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	out, err := build.CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), "go build: %s", out)

	kubeconfig, err := clientcmd.LoadFromFile(os.Getenv("KUBECONFIG"))
	Expect(err).NotTo(HaveOccurred())
	for _, user := range kubeconfig.AuthInfos {
		user.Impersonate = "system:serviceaccount:" + operatorNamespace + ":agenttask-operator"
	}
	Expect(clientcmd.WriteToFile(*kubeconfig, b.kubeconfig)).To(Succeed())
	return b
}

// runnerImage is the runner's image that the deployed operator uses.
func runnerImage() string {
	GinkgoHelper()
	deployment, err := clientset.AppsV1().Deployments(operatorNamespace).Get(ctx, operatorDeployment, metav1.GetOptions{})
	Expect(err).NotTo(HaveOccurred())
	for _, arg := range deployment.Spec.Template.Spec.Containers[0].Args {
		if image, ok := strings.CutPrefix(arg, "--runner-image="); ok {
			return image
		}
	}
	Fail("the operator's Deployment does not say --runner-image")
	return ""
}

// operator is a running operator of this machine.
type operator struct {
	name   string
	cmd    *exec.Cmd
	exited chan struct{} // closed when it has ended

	mu  sync.Mutex
	log bytes.Buffer
}

// localOperators are all that the tests have started.
var localOperators []*operator

// start starts the operator, which is stopped with the spec, if it has not ended before.
func (b operatorBuild) start(name string, flags ...string) *operator {
	GinkgoHelper()
	o := &operator{name: name, exited: make(chan struct{})}
	flags = append([]string{"--runner-image=" + b.runnerImage, "--metrics-bind-address=0", "--health-probe-bind-address=0", "--log-format=text"}, flags...)
	o.cmd = exec.Command(b.program, flags...)
	o.cmd.Env = append(os.Environ(), "KUBECONFIG="+b.kubeconfig)
	o.cmd.Stdout, o.cmd.Stderr = o, o
	Expect(o.cmd.Start()).To(Succeed())
	go func() {
		defer close(o.exited)
		_ = o.cmd.Wait() // its exit code stays in ProcessState
	}()
	localOperators = append(localOperators, o)
	DeferCleanup(o.stop)
	return o
}

// Write takes the operator's log.
func (o *operator) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.log.Write(p)
}

func (o *operator) printed() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.log.String()
}

// kill ends the operator with SIGKILL.
func (o *operator) kill() {
	_ = o.cmd.Process.Kill() // an error means that it has ended already
	<-o.exited
}

// stop ends the operator as Kubernetes would: SIGTERM, upon which it gives its lease
// back, and SIGKILL after a grace.
func (o *operator) stop() {
	const grace = 10 * time.Second
	_ = o.cmd.Process.Signal(syscall.SIGTERM) // an error means that it has ended already
	select {
	case <-o.exited:
	case <-time.After(grace):
		o.kill()
	}
}

// freeze stops the operator in the middle of whatever it does, thaw lets it go on.
func (o *operator) freeze() {
	GinkgoHelper()
	Expect(o.cmd.Process.Signal(syscall.SIGSTOP)).To(Succeed())
}

func (o *operator) thaw() {
	GinkgoHelper()
	Expect(o.cmd.Process.Signal(syscall.SIGCONT)).To(Succeed())
}

// showLocalOperators prints the ends of the local operators' logs.
func showLocalOperators() {
	const shown = 3
	for _, o := range localOperators[max(0, len(localOperators)-shown):] {
		lines := strings.Split(o.printed(), "\n")
		fmt.Fprintf(GinkgoWriter, "\n--- log of the local operator %s\n%s\n", o.name, strings.Join(lines[max(0, len(lines)-200):], "\n"))
	}
}
