// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package stepexec

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/json"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
)

const (
	maxNameTask = 20
	maxNameStep = 24
	nameHash    = 10
)

// JobName is the name of an attempt's Job and of its pod:
//
//	<task, at most 20>-<step, at most 24>-<10 of base32 sha256(task UID, step, role)>-<attempt>
//
// The same arguments give the same name, always; the hash keeps apart what is equal
// after cutting. It is a DNS label of at most 63 characters for attempts below 100,000.
func JobName(taskName string, taskUID types.UID, step string, role v1alpha1.Role, attempt int32) string {
	sum := digest(string(taskUID), step, role)
	hash := strings.ToLower(base32.StdEncoding.EncodeToString(sum[:]))[:nameHash]
	return strings.Join([]string{
		label(taskName, maxNameTask), label(step, maxNameStep), hash, strconv.Itoa(int(attempt)),
	}, "-")
}

// SplitJobName takes a Job's name apart into what is the same for every attempt of the
// step, and the attempt. The attempt is 0 where the name is not of JobName's making.
func SplitJobName(name string) (base string, attempt int32) {
	cut := strings.LastIndexByte(name, '-')
	if cut < 0 {
		return name, 0
	}
	n, err := strconv.ParseInt(name[cut+1:], 10, 32)
	if err != nil {
		return name, 0
	}
	return name[:cut], int32(n)
}

// label makes a readable DNS label part of at most n characters. A name that would
// begin with a digit is fine in a label; one that would end in '-' is not.
func label(name string, n int) string {
	name = strings.ReplaceAll(name, ".", "-")
	if len(name) > n {
		name = name[:n]
	}
	return strings.Trim(name, "-")
}

// digest hashes a list of values so that no two lists have the same encoding.
func digest(values ...any) [sha256.Size]byte {
	doc, err := json.Marshal(values)
	if err != nil {
		panic("stepexec: digest of values that are not JSON: " + err.Error())
	}
	return sha256.Sum256(doc)
}
