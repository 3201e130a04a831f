// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"crypto/tls"
	"io"
	"net/http"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// What config/default installs, as a cluster's administrator looks at it.
var _ = Describe("The installed operator", func() {
	operatorPod := func() *corev1.Pod {
		GinkgoHelper()
		pods, err := clientset.CoreV1().Pods(operatorNamespace).List(ctx, metav1.ListOptions{LabelSelector: operatorSelector})
		Expect(err).NotTo(HaveOccurred())
		Expect(pods.Items).To(HaveLen(1))
		return &pods.Items[0]
	}

	It("runs under Pod Security restricted", func() {
		namespace, err := clientset.CoreV1().Namespaces().Get(ctx, operatorNamespace, metav1.GetOptions{})
		Expect(err).NotTo(HaveOccurred())
		Expect(namespace.Labels).To(HaveKeyWithValue("pod-security.kubernetes.io/enforce", "restricted"))
		pod := operatorPod()
		Expect(pod.Status.Phase).To(Equal(corev1.PodRunning))
		Expect(pod.Status.ContainerStatuses[0].RestartCount).To(BeZero())
		security := pod.Spec.Containers[0].SecurityContext
		Expect(security.ReadOnlyRootFilesystem).To(HaveValue(BeTrue()))
		Expect(security.AllowPrivilegeEscalation).To(HaveValue(BeFalse()))
	})

	It("may do nothing that it does not need", func() {
		user := "system:serviceaccount:" + operatorNamespace + ":agenttask-operator"
		for _, needed := range [][2]string{{"create", "jobs.batch"}, {"create", "pods"}, {"patch", "pods"}, {"update", "agenttasks.agenttask.dev/status"}, {"get", "pods/log"}} {
			Expect(allowed("default", user, needed[0], needed[1])).To(BeTrue(), "%v", needed)
		}
		for _, other := range [][2]string{{"get", "secrets"}, {"list", "configmaps"}, {"delete", "configmaps"}, {"create", "pods/exec"}, {"update", "pods"}, {"create", "agentdecisions.agenttask.dev"},
			{"update", "jobs.batch"}, {"update", "agenttasks.agenttask.dev"}, {"create", "agenttasks.agenttask.dev"}, {"create", "roles.rbac.authorization.k8s.io"}} {
			Expect(allowed("default", user, other[0], other[1])).To(BeFalse(), "%v", other)
		}
	})

	It("is healthy and ready", func() {
		for _, path := range []string{"/healthz", "/readyz"} {
			answer, err := clientset.CoreV1().RESTClient().Get().
				AbsPath("/api/v1/namespaces", operatorNamespace, "pods", operatorPod().Name+":8081", "proxy", path).DoRaw(ctx)
			Expect(err).NotTo(HaveOccurred(), path)
			Expect(string(answer)).To(Equal("ok"), path)
		}
	})

	It("shows its metrics to those who may see them, and to nobody else", func() {
		namespace := makeNamespace("metrics")
		address := forwardPort(operatorNamespace, "service/agenttask-operator-metrics", "8443")
		status, _ := getMetrics(address, "")
		Expect(status).To(Equal(http.StatusUnauthorized), "without a token")
		status, _ = getMetrics(address, serviceAccountToken(namespace, "stranger"))
		Expect(status).To(Equal(http.StatusForbidden), "with a token that is bound to no role")

		token := serviceAccountToken(namespace, "scraper")
		binding, err := clientset.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: namespace},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "agenttask-metrics-reader"},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: "scraper"}},
		}, metav1.CreateOptions{})
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func() {
			Expect(clientset.RbacV1().ClusterRoleBindings().Delete(ctx, binding.Name, metav1.DeleteOptions{})).To(Succeed())
		})
		Eventually(func(g Gomega) {
			status, body := getMetrics(address, token)
			g.Expect(status).To(Equal(http.StatusOK), body)
			g.Expect(body).To(ContainSubstring("agenttask_checkpoints_total"))
		}).WithTimeout(stepTimeout).Should(Succeed()) // a refusal is remembered for a while
	})
})

// serviceAccountToken makes a service account and returns a token of it.
func serviceAccountToken(namespace, name string) string {
	GinkgoHelper()
	accounts := clientset.CoreV1().ServiceAccounts(namespace)
	_, err := accounts.Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	Expect(err).NotTo(HaveOccurred())
	request, err := accounts.CreateToken(ctx, name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	Expect(err).NotTo(HaveOccurred())
	return request.Status.Token
}

// getMetrics asks the metrics endpoint, whose certificate it has made itself.
func getMetrics(address, token string) (status int, body string) {
	GinkgoHelper()
	request, err := http.NewRequest(http.MethodGet, "https://"+address+"/metrics", http.NoBody)
	Expect(err).NotTo(HaveOccurred())
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	defer transport.CloseIdleConnections()
	answer, err := (&http.Client{Transport: transport, Timeout: answerTimeout}).Do(request)
	Expect(err).NotTo(HaveOccurred())
	defer func() { _ = answer.Body.Close() }()
	raw, err := io.ReadAll(answer.Body)
	Expect(err).NotTo(HaveOccurred())
	return answer.StatusCode, string(raw)
}
