// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

// Package e2e runs the operator and its steps as a user would: real containers on a
// real cluster, installed from config/default and driven with kubectl.
//
// It needs KUBECONFIG, kubectl and go on the PATH, and the images of that cluster;
// make test-e2e sees to all of it. The operator stays installed afterwards.
//
//	AGENTTASK_E2E_SEED   seed of the random moments at which the operator is killed
//	AGENTTASK_E2E_KEEP   1: leave the tests' namespaces, to be looked at
//	AGENTTASK_SOAK       how many tasks run while the operator dies all the time; by default
//	                     few, 50 for a proof that takes some minutes
//
// Where the cluster is not that of hack/cluster, the specs are left out that stop the
// node's own programs.
package e2e

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
)

// How long things may take on a machine of two cores that has other work, too.
const (
	pollInterval   = 200 * time.Millisecond
	answerTimeout  = 10 * time.Second // what the API server or the operator does at once
	stepTimeout    = 60 * time.Second // a pod to start, or a short step to end
	rolloutTimeout = 2 * time.Minute  // a Deployment, its images being there
	planTimeout    = 3 * time.Minute  // a plan of some steps to end
	cleanupTimeout = 2 * time.Minute  // a namespace to be gone
)

const (
	repository         = "../.."
	operatorNamespace  = "agenttask-system"
	operatorDeployment = "agenttask-operator"
	operatorSelector   = "app.kubernetes.io/name=agenttask-operator"
)

// The cluster, as the tests talk to it beside kubectl.
var (
	ctx       = context.Background()
	config    *rest.Config
	api       client.WithWatch
	clientset *kubernetes.Clientset
)

func TestE2E(t *testing.T) {
	if os.Getenv("KUBECONFIG") == "" {
		message := "KUBECONFIG is not set: make test-e2e starts a cluster and sets it"
		if os.Getenv("CI") == "true" {
			t.Fatal(message)
		}
		t.Skip(message)
	}
	if clusterDir() == "" {
		t.Log("LEFT OUT: the specs that stop the kubelet, which need the cluster of hack/cluster, and root")
	}
	RegisterFailHandler(Fail)
	SetDefaultEventuallyPollingInterval(pollInterval)
	SetDefaultEventuallyTimeout(answerTimeout)
	RunSpecs(t, "AgentTask on a real cluster")
}

var _ = BeforeSuite(func() {
	connect()
	installOperator()
})

// connect makes the clients.
func connect() {
	var err error
	config, err = clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	Expect(err).NotTo(HaveOccurred())
	config.QPS = -1
	scheme := runtime.NewScheme()
	Expect(clientgoscheme.AddToScheme(scheme)).To(Succeed())
	Expect(v1alpha1.AddToScheme(scheme)).To(Succeed())
	api, err = client.NewWithWatch(config, client.Options{Scheme: scheme})
	Expect(err).NotTo(HaveOccurred())
	clientset, err = kubernetes.NewForConfig(config)
	Expect(err).NotTo(HaveOccurred())
}

// installOperator installs what config/default holds. An operator that runs already is
// restarted, since its image may have been built anew under the same tag.
func installOperator() {
	_, err := clientset.AppsV1().Deployments(operatorNamespace).Get(ctx, operatorDeployment, metav1.GetOptions{})
	ranBefore := err == nil
	kubectl("apply", "-k", repository+"/config/default")
	if ranBefore {
		kubectl("-n", operatorNamespace, "rollout", "restart", "deployment/"+operatorDeployment)
	}
	awaitOperator()
}

// awaitOperator waits until the deployed operator is as many pods as it should be.
func awaitOperator() {
	GinkgoHelper()
	_, err := tryKubectl("", "-n", operatorNamespace, "rollout", "status", "deployment/"+operatorDeployment, "--timeout="+rolloutTimeout.String())
	if err != nil {
		showOperator()
	}
	Expect(err).NotTo(HaveOccurred())
	Eventually(func(g Gomega) {
		deployment, err := clientset.AppsV1().Deployments(operatorNamespace).Get(ctx, operatorDeployment, metav1.GetOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		pods, err := clientset.CoreV1().Pods(operatorNamespace).List(ctx, metav1.ListOptions{LabelSelector: operatorSelector})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(pods.Items).To(HaveLen(int(*deployment.Spec.Replicas)), "pods of the operator, those that end included")
	}).WithTimeout(rolloutTimeout).Should(Succeed())
}

// namespaces are those of the tests that are there now.
var namespaces []string

// makeNamespace makes a namespace that takes only restricted pods, and deletes it at
// the end of the container or spec it is called in.
func makeNamespace(purpose string) string {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		GenerateName: "agenttask-e2e-" + purpose + "-",
		Labels:       map[string]string{"pod-security.kubernetes.io/enforce": "restricted"},
	}}
	Expect(api.Create(ctx, namespace)).To(Succeed())
	namespaces = append(namespaces, namespace.Name)
	DeferCleanup(func() {
		if os.Getenv("AGENTTASK_E2E_KEEP") != "1" {
			Expect(client.IgnoreNotFound(api.Delete(ctx, namespace))).To(Succeed())
		}
	})
	return namespace.Name
}

var _ = AfterSuite(func() {
	if os.Getenv("AGENTTASK_E2E_KEEP") == "1" {
		GinkgoWriter.Printf("kept: namespaces %v\n", namespaces)
		return
	}
	for _, name := range namespaces {
		Eventually(func(g Gomega) {
			_, err := clientset.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
			g.Expect(apierrors.IsNotFound(err)).To(BeTrue(), "namespace %s is still there", name)
		}).WithTimeout(cleanupTimeout).Should(Succeed())
	}
})

// A spec that failed shows what a person would look at first.
var _ = AfterEach(func() {
	if !CurrentSpecReport().Failed() {
		return
	}
	for _, name := range namespaces {
		show("-n", name, "get", "agenttasks,jobs,pods", "-o", "wide")
		show("-n", name, "describe", "agenttasks")
		show("-n", name, "describe", "pods")
		show("-n", name, "get", "events", "--sort-by=.lastTimestamp")
	}
	showOperator()
	showLocalOperators()
})

// showOperator prints the deployed operator's pods and logs.
func showOperator() {
	show("-n", operatorNamespace, "get", "pods", "-o", "wide")
	show("-n", operatorNamespace, "describe", "pods", "-l", operatorSelector)
	show("-n", operatorNamespace, "logs", "-l", operatorSelector, "--prefix", "--tail=300")
}

// show prints what a kubectl command prints.
func show(args ...string) {
	out, err := tryKubectl("", args...)
	fmt.Fprintf(GinkgoWriter, "\n--- kubectl %v\n%s", args, out)
	if err != nil {
		fmt.Fprintf(GinkgoWriter, "%v\n", err)
	}
}
