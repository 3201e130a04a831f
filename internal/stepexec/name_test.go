// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package stepexec

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
)

const uid = types.UID("5f3a2c1e-8d47-4b6a-9c0e-2b1d3f4a5c6d")

// These names must never change: a running attempt is found by its name, and another
// name would be another Job.
func TestJobNameIsWhatItAlwaysWas(t *testing.T) {
	tests := map[string]struct {
		task, step string
		role       v1alpha1.Role
		attempt    int32
		want       string
	}{
		"short names stand whole":             {"report", "plan", v1alpha1.RoleMain, 1, "report-plan-wzyxb5sryh-1"},
		"the attempt is the last part":        {"report", "plan", v1alpha1.RoleMain, 12, "report-plan-wzyxb5sryh-12"},
		"another role is another name":        {"report", "plan", "check", 1, "report-plan-w73hfqlqxf-1"},
		"long names are cut":                  {"a-task-whose-name-is-very-long", "a-step-whose-name-is-as-long-as-may-be", v1alpha1.RoleMain, 1, "a-task-whose-name-is-a-step-whose-name-is-as-esgbd7ny36-1"},
		"no part ends in a hyphen":            {"nineteen-characters-here", "twenty-three-letters-is-cut-here", v1alpha1.RoleMain, 1, "nineteen-characters-twenty-three-letters-is-xtrmab73mu-1"},
		"dots of a task's name become '-'":    {"team.report.v1", "plan", v1alpha1.RoleMain, 1, "team-report-v1-plan-wzyxb5sryh-1"},
		"a name of digits is a label as well": {"2026", "1", v1alpha1.RoleMain, 1, "2026-1-5jwo5cma7p-1"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := JobName(tt.task, uid, tt.step, tt.role, tt.attempt); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}

func TestJobNamesDifferAfterCutting(t *testing.T) {
	seen := map[string]string{}
	long := strings.Repeat("x", 24)
	for _, task := range []string{"report", "report.a", "report-a"} {
		for _, step := range []string{"a", "a-b", "b", long, long + "a", long + "b", long[:23] + "-", long[:23] + "-a", long[:22] + "--", "main", "a-main"} {
			for _, role := range []v1alpha1.Role{v1alpha1.RoleMain, v1alpha1.RoleCheck} {
				for _, attempt := range []int32{1, 2, 11, 99999} {
					name := JobName(task, uid+types.UID(task), step, role, attempt)
					from := strings.Join([]string{task, step, string(role), string('0' + attempt%10)}, "|")
					if other, ok := seen[name]; ok && other != from {
						t.Errorf("%s is of %s and of %s", name, other, from)
					}
					seen[name] = from
				}
			}
		}
	}
}

// valid is a name as the API server accepts it: lower-case, digits and hyphens, with
// dots too for a task.
func valid(name string, limit int, dots bool) bool {
	check := validation.IsDNS1123Label
	if dots {
		check = validation.IsDNS1123Subdomain
	}
	return len(name) <= limit && len(check(name)) == 0
}

func FuzzJobName(f *testing.F) {
	f.Add("report", "plan", "report", "plan-b", int32(1), int32(1))
	f.Add("report", "a", "report", "a-1", int32(11), int32(1))
	f.Add("a.b", "x", "a-b", "x", int32(1), int32(1))
	f.Add("nineteen-characters-here", "twenty-three-letters-is-cut-here", "nineteen-characters", "twenty-three-letters-is-", int32(3), int32(3))
	f.Add(strings.Repeat("a", 20), strings.Repeat("b", 24)+"c", strings.Repeat("a", 20), strings.Repeat("b", 24)+"d", int32(99999), int32(99999))
	f.Fuzz(func(t *testing.T, task1, step1, task2, step2 string, attempt1, attempt2 int32) {
		if !valid(task1, 253, true) || !valid(task2, 253, true) || !valid(step1, 40, false) || !valid(step2, 40, false) {
			t.Skip()
		}
		attempt1, attempt2 = 1+attempt1&0xffff, 1+attempt2&0xffff
		uid1, uid2 := types.UID("u-"+task1), types.UID("u-"+task2)
		name1, name2 := JobName(task1, uid1, step1, v1alpha1.RoleMain, attempt1), JobName(task2, uid2, step2, v1alpha1.RoleMain, attempt2)
		for _, name := range []string{name1, name2} {
			if problems := validation.IsDNS1123Label(name); len(problems) > 0 {
				t.Errorf("%s: %v", name, problems)
			}
		}
		same := task1 == task2 && step1 == step2 && attempt1 == attempt2
		if same != (name1 == name2) {
			t.Errorf("%q %q %d and %q %q %d: %s and %s", task1, step1, attempt1, task2, step2, attempt2, name1, name2)
		}
		if JobName(task1, "other", step1, v1alpha1.RoleMain, attempt1) == name1 {
			t.Error("another task of that name has the same name for its Job")
		}
		if label := label(task1, 63); len(validation.IsValidLabelValue(label)) > 0 {
			t.Errorf("label %q of task %q", label, task1)
		}
	})
}
