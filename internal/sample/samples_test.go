// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package sample

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
)

const samplesDir = "../../config/samples"

func readSample(t *testing.T, name string) []byte {
	t.Helper()
	doc, err := os.ReadFile(filepath.Join(samplesDir, name))
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

func strict(t *testing.T, doc []byte, v any) {
	t.Helper()
	if err := yaml.UnmarshalStrict(doc, v); err != nil {
		t.Fatal(err)
	}
}

// sampleNames are the files of the samples' directory, without the list of them.
func sampleNames(t *testing.T) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(samplesDir, "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, p := range paths {
		if name := filepath.Base(p); name != "kustomization.yaml" {
			names = append(names, name)
		}
	}
	return names
}

func TestEverySampleIsListedAndExplained(t *testing.T) {
	var list struct {
		APIVersion, Kind string
		Resources        []string
	}
	strict(t, readSample(t, "kustomization.yaml"), &list)
	names := sampleNames(t)
	slices.Sort(list.Resources)
	if diff := cmp.Diff(names, list.Resources); diff != "" {
		t.Errorf("kustomization.yaml (-files +listed):\n%s", diff)
	}
	for _, name := range names {
		doc := string(readSample(t, name))
		about, _, _ := strings.Cut(doc, "apiVersion:")
		if !strings.HasPrefix(doc, "# ") || !strings.Contains(about, "\n#   kubectl ") {
			t.Errorf("%s: it begins with what it shows and the commands to watch it with", name)
		}
		if strings.Contains(doc, "namespace:") {
			t.Errorf("%s: samples name no namespace", name)
		}
	}
}

func TestEverySampleTaskFitsTheAPI(t *testing.T) {
	for _, name := range sampleNames(t) {
		short, isTask := strings.CutPrefix(strings.TrimSuffix(name, ".yaml"), "agenttask_")
		if !isTask {
			continue
		}
		t.Run(short, func(t *testing.T) {
			var task v1alpha1.AgentTask
			strict(t, readSample(t, name), &task)
			if task.APIVersion != v1alpha1.GroupVersion.String() || task.Kind != "AgentTask" || task.Name != short {
				t.Errorf("%s %s %s; want an AgentTask named %s", task.APIVersion, task.Kind, task.Name, short)
			}
			checkReferences(t, task)
			for _, s := range task.Spec.Steps {
				if (s.Run == nil || len(s.Run.Command) == 0) && s.HTTP == nil {
					t.Errorf("step %s has neither a command nor a request", s.Name)
				} else if s.Run != nil && s.Run.Command[0] == "/sample-agent" && (s.Run.Image != sampleImage || s.Run.ImagePullPolicy != corev1.PullIfNotPresent) {
					t.Errorf("step %s: image %s, %s", s.Name, s.Run.Image, s.Run.ImagePullPolicy)
				}
			}
		})
	}
}

const sampleImage = "ghcr.io/agenttask-dev/sample-agent:dev"

var (
	expressions = regexp.MustCompile(`\$\{([^}]*)\}`)
	stepNames   = regexp.MustCompile(`^steps(?:\.([a-z0-9_]+)|\['([-a-z0-9]+)'\])\.output\b`)
	paramNames  = regexp.MustCompile(`^params\.([a-z0-9_]+)$`)
)

// checkReferences: each expression of a step's input reads a parameter that is there
// or the output of an earlier step.
func checkReferences(t *testing.T, task v1alpha1.AgentTask) {
	t.Helper()
	var params map[string]any
	if task.Spec.Params != nil {
		strict(t, task.Spec.Params.Raw, &params)
	}
	earlier := map[string]bool{}
	for _, s := range task.Spec.Steps {
		if s.Input != nil {
			for _, m := range expressions.FindAllStringSubmatch(string(s.Input.Raw), -1) {
				if param := paramNames.FindStringSubmatch(m[1]); param != nil && params[param[1]] != nil {
					continue
				}
				if step := stepNames.FindStringSubmatch(m[1]); step != nil && earlier[step[1]+step[2]] {
					continue
				}
				t.Errorf("step %s: ${%s} names no parameter and no earlier step", s.Name, m[1])
			}
		}
		if earlier[s.Name] {
			t.Errorf("step %s is there twice", s.Name)
		}
		earlier[s.Name] = true
	}
}

func TestResearchHasItsEightSteps(t *testing.T) {
	var task v1alpha1.AgentTask
	strict(t, readSample(t, "agenttask_research.yaml"), &task)
	got := map[string]v1alpha1.Effect{}
	var order []string
	for _, s := range task.Spec.Steps {
		order = append(order, s.Name)
		got[s.Name] = s.Effect
	}
	want := []string{"plan", "gather-a", "gather-b", "compare", "draft", "review", "publish", "notify"}
	if diff := cmp.Diff(want, order); diff != "" {
		t.Errorf("steps (-want +got):\n%s", diff)
	}
	for name, effect := range got {
		changes := name == "publish" || name == "notify"
		if changes != (effect == v1alpha1.EffectIdempotent) {
			t.Errorf("step %s has the effect %s", name, effect)
		}
	}
}

func TestLedgerManifestsAreRestricted(t *testing.T) {
	deploymentDoc, serviceDoc, _ := bytes.Cut(readSample(t, "ledger.yaml"), []byte("\n---\n"))
	var deployment appsv1.Deployment
	var service corev1.Service
	strict(t, deploymentDoc, &deployment)
	strict(t, serviceDoc, &service)

	pod := deployment.Spec.Template
	if *deployment.Spec.Replicas != 1 || deployment.Spec.Strategy.Type != appsv1.RecreateDeploymentStrategyType {
		t.Error("two ledgers would not see each other's keys: one replica, Recreate")
	}
	for _, selector := range []map[string]string{deployment.Spec.Selector.MatchLabels, service.Spec.Selector} {
		if diff := cmp.Diff(pod.Labels, selector); diff != "" {
			t.Errorf("selector (-pod +selector):\n%s", diff)
		}
	}
	if p := service.Spec.Ports[0]; service.Name != "ledger" || p.Port != 80 || p.TargetPort.StrVal != pod.Spec.Containers[0].Ports[0].Name {
		t.Errorf("service %s: %+v", service.Name, p)
	}
	c := pod.Spec.Containers[0]
	if c.Image != sampleImage || c.ReadinessProbe == nil || c.Ports[0].ContainerPort != 8080 {
		t.Errorf("container: %+v", c)
	}
	sc, psc := c.SecurityContext, pod.Spec.SecurityContext
	if !*psc.RunAsNonRoot || psc.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault ||
		*sc.AllowPrivilegeEscalation || !slices.Equal(sc.Capabilities.Drop, []corev1.Capability{"ALL"}) {
		t.Error("the pod does not meet the Pod Security level restricted")
	}
}
