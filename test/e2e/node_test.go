// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
)

// clusterDir is the folder of the cluster of hack/cluster, where KUBECONFIG is its: only
// then its node is this machine. Empty: it is another cluster.
func clusterDir() string {
	dir := filepath.Dir(os.Getenv("KUBECONFIG"))
	if _, err := os.Stat(filepath.Join(dir, ".agenttask-cluster")); err != nil || os.Geteuid() != 0 {
		return ""
	}
	return dir
}

// cluster runs a verb of hack/cluster/cluster.sh.
func cluster(verb string) (string, error) {
	cmd := exec.Command(repository+"/hack/cluster/cluster.sh", verb)
	cmd.Env = append(os.Environ(), "AGENTTASK_CLUSTER_DIR="+clusterDir())
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// killDaemon ends one of the cluster's daemons with SIGKILL.
func killDaemon(name string) {
	GinkgoHelper()
	status, _ := cluster("status") // it fails where another daemon does not run
	for line := range strings.Lines(status) {
		if fields := strings.Fields(line); len(fields) == 4 && fields[0] == name && fields[1] == "running" {
			pid, err := strconv.Atoi(fields[3])
			Expect(err).NotTo(HaveOccurred())
			Expect(syscall.Kill(pid, syscall.SIGKILL)).To(Succeed())
			Eventually(func() error { return syscall.Kill(pid, 0) }).Should(MatchError(syscall.ESRCH), "%s, process %d", name, pid)
			return
		}
	}
	Fail(name + " does not run:\n" + status)
}

// startDaemons starts those of the cluster's daemons that do not run, and waits until the
// node is ready.
func startDaemons() {
	GinkgoHelper()
	out, err := cluster("up")
	Expect(err).NotTo(HaveOccurred(), "cluster.sh up: %s", out)
}

// ctr runs a command of containerd's own client, and returns what it prints.
func ctr(args ...string) (string, error) {
	args = append([]string{"--address", clusterDir() + "/containerd/containerd.sock", "--namespace", "k8s.io"}, args...)
	out, err := exec.Command("ctr", args...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("ctr %v: %w: %s", args, err, out)
	}
	return strings.TrimSpace(string(out)), err
}

// containerOf is the ID of the container of a step's pod, as containerd knows it, or empty.
func containerOf(g Gomega, pod *corev1.Pod) string {
	id, err := ctr("containers", "list", "--quiet",
		fmt.Sprintf(`labels."io.kubernetes.pod.uid"==%s,labels."io.kubernetes.container.name"==step`, pod.UID))
	g.Expect(err).NotTo(HaveOccurred())
	return id
}

// forget kills a container and removes its record from containerd, which must then be
// started anew: it keeps another in memory.
func forget(id string) {
	GinkgoHelper()
	_, err := ctr("tasks", "kill", "--signal", "SIGKILL", id)
	Expect(err).NotTo(HaveOccurred())
	Eventually(func() error {
		_, _ = ctr("tasks", "delete", id) // containerd may have done it, or it has not ended yet
		_, err := ctr("containers", "delete", id)
		return err
	}).WithTimeout(stepTimeout).Should(Succeed())
}

// What the node's own programs do to a step with effect Once, which only a node that is
// this machine lets us try.
var _ = clusterDir() != "" && Describe("A step with effect Once, on a node", Ordered, func() {
	var namespace string
	var book ledger

	BeforeAll(func() {
		namespace = makeNamespace("node")
		book = ledger(namespace)
		book.start()
		DeferCleanup(startDaemons)
	})

	It("whose kubelet dies and starts again ends with one effect, whenever its program ends", func() {
		makeTask(namespace, "meanwhile").Steps(heldStep("meanwhile", "before")).Create()
		makeTask(namespace, "later").Steps(heldStep("later", "before")).Create()
		book.hold("answer", "after")
		makeTask(namespace, "answered").Steps(
			ledgerStep("pay", "/effects/raw", `5`).Once().Key("answer").RequestTimeout(planTimeout)).Create()
		keys := map[string]string{"meanwhile": "meanwhile", "later": "later", "answered": "answer"}
		for name, key := range keys {
			book.awaitHeld(key)
			awaitRunning(namespace, name, "pay")
		}

		killDaemon("kubelet")
		book.release("meanwhile")
		book.release("answer")
		Eventually(func() int { return len(book.effects()) }).WithTimeout(stepTimeout).Should(Equal(2), "effects while there is no kubelet")
		Expect(readTask(Default, namespace, "meanwhile").Status.Phase).To(Equal(v1alpha1.TaskRunning))
		startDaemons()
		book.release("later")

		for name, key := range keys {
			record := recordOf(awaitEnd(namespace, name, v1alpha1.TaskSucceeded), "pay")
			Expect(record.Attempt).To(BeEquivalentTo(1), "task %s", name)
			book.expectOneEffect(key)
		}
	})

	It("whose container the runtime forgets runs its program once, and is settled by its check", func() {
		makeTask(namespace, "forgotten").Steps(heldStep("forgotten", "after").CheckLedger()).Create()
		book.awaitHeld("forgotten")
		first := awaitRunning(namespace, "forgotten", "pay")

		killDaemon("kubelet")
		forget(containerOf(Default, readPod(Default, namespace, first.JobName)))
		killDaemon("containerd")
		startDaemons()

		record := recordOf(awaitEnd(namespace, "forgotten", v1alpha1.TaskSucceeded), "pay")
		Expect(record.Reason).To(Equal(v1alpha1.ReasonCheckedDone))
		Expect(record.Attempt).To(BeEquivalentTo(1))
		book.expectOneEffect("forgotten")
	})

	// The kubelet starts a container a second time where neither the runtime nor the pod's
	// status tells that it ran. So the container runs while the kubelet cannot write that
	// status, and then the runtime forgets it.
	It("whose container is started a second time runs its program once, and says so", func() {
		hear := muteNode(namespace)
		makeTask(namespace, "twice").Steps(heldStep("twice", "after")).Create()
		book.awaitHeld("twice")
		record := awaitPhase(namespace, "twice", "pay", v1alpha1.StepRunning)
		pod := readPod(Default, namespace, record.JobName)
		Expect(pod.Status.ContainerStatuses).To(BeEmpty(), "the API server does not know that it runs")
		first := containerOf(Default, pod)
		Expect(first).NotTo(BeEmpty())

		killDaemon("kubelet")
		forget(first)
		killDaemon("containerd")
		hear()
		startDaemons()

		Eventually(func(g Gomega) {
			pod = readPod(g, namespace, record.JobName)
			g.Expect(pod.Status.ContainerStatuses).To(HaveLen(1))
			end := pod.Status.ContainerStatuses[0].State.Terminated
			g.Expect(end).NotTo(BeNil())
			g.Expect(end.ContainerID).NotTo(Or(BeEmpty(), HaveSuffix(first)), "another container has run and ended")
		}).WithTimeout(planTimeout).Should(Succeed())
		record = awaitPhase(namespace, "twice", "pay", v1alpha1.StepUnknown)
		Expect(record.Reason).To(Equal(v1alpha1.ReasonStartedTwice))
		Expect(record.Message).To(ContainSubstring("the container was started a second time, and ran nothing; what came of its first start at "))
		Expect(record.Attempt).To(BeEquivalentTo(1))
		book.expectOneEffect("twice")

		decide(readTask(Default, namespace, "twice"), "Complete", "null")
		awaitEnd(namespace, "twice", v1alpha1.TaskSucceeded)
		book.expectOneEffect("twice")
	})
})

func readPod(g Gomega, namespace, name string) *corev1.Pod {
	pod := &corev1.Pod{}
	g.Expect(api.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, pod)).To(Succeed())
	return pod
}

// muteNode keeps the nodes from writing the status of a namespace's pods, until the
// function that it returns is called.
func muteNode(namespace string) (hear func()) {
	GinkgoHelper()
	policy := &admissionv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: namespace},
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
				Operations: []admissionv1.OperationType{admissionv1.Update},
				Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods/status"}},
			}}}},
			Validations: []admissionv1.Validation{{Expression: `!request.userInfo.username.startsWith("system:node:")`}},
		},
	}
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: namespace},
		Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName:        namespace,
			ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
			MatchResources:    &admissionv1.MatchResources{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: namespace}}},
		},
	}
	hear = func() {
		GinkgoHelper()
		for _, obj := range []client.Object{binding, policy} {
			Expect(client.IgnoreNotFound(api.Delete(ctx, obj))).To(Succeed())
		}
		awaitNodeMayWrite(namespace, true)
	}
	DeferCleanup(hear)
	Expect(api.Create(ctx, policy)).To(Succeed())
	Expect(api.Create(ctx, binding)).To(Succeed())
	awaitNodeMayWrite(namespace, false)
	return hear
}

// awaitNodeMayWrite waits until the API server takes, or refuses, a node's write of a
// pod's status in a namespace. The ledger's pod is what it is tried on.
func awaitNodeMayWrite(namespace string, may bool) {
	GinkgoHelper()
	pods, err := clientset.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=ledger"})
	Expect(err).NotTo(HaveOccurred())
	Expect(pods.Items).NotTo(BeEmpty())
	pod := pods.Items[0]
	asNode := rest.CopyConfig(config)
	asNode.Impersonate = rest.ImpersonationConfig{UserName: "system:node:" + pod.Spec.NodeName, Groups: []string{"system:nodes"}}
	node, err := kubernetes.NewForConfig(asNode)
	Expect(err).NotTo(HaveOccurred())
	const policyTimeout = 30 * time.Second
	Eventually(func(g Gomega) {
		_, err := node.CoreV1().Pods(namespace).Patch(ctx, pod.Name, types.MergePatchType, []byte(`{"status": {"message": "x"}}`),
			metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}, "status")
		if may {
			g.Expect(err).NotTo(HaveOccurred())
		} else {
			g.Expect(err).To(MatchError(ContainSubstring("ValidatingAdmissionPolicy")))
		}
	}).WithTimeout(policyTimeout).Should(Succeed())
}
