// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package runner

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/agenttask-dev/agenttask/api/v1alpha1"
	"github.com/agenttask-dev/agenttask/internal/stepexec"
)

// markerPath is the file that says that an attempt which must not start twice has
// started. It stands in the pod's emptyDir, which outlives the container: kubelet can
// start the container of a pod again, after it was restarted itself or has lost its
// records, although the pod says restartPolicy Never.
//
// It guards against that, and not against the program, which runs as the same user and
// can delete it.
const markerPath = stepexec.MountPath + "/started"

// mark leaves the marker and gives nil, or it gives the result of an attempt that must
// not start: the marker is there already, or it cannot be left.
//
// It is called before anything else, and the marker is never taken away: where the runner
// reports that nothing ran, the operator may start another attempt elsewhere, and a later
// start of this container must not run it after all.
func (r *Runner) mark() *stepexec.Result {
	path := r.in(markerPath)
	err := writeMarker(path, time.Now())
	var res stepexec.Result
	switch {
	case err == nil:
		return nil
	case errors.Is(err, os.ErrExist):
		res = stepexec.Result{
			Outcome: stepexec.OutcomeInterrupted,
			Reason:  v1alpha1.ReasonStartedTwice,
			Message: "the container was started a second time, and ran nothing; what came of its first start" +
				firstStart(path) + " is not known",
		}
	default:
		res = neverRan(interrupted(fmt.Sprintf("nothing was started: the file that keeps it from starting twice (%s) "+
			"could not be written: %v", markerPath, cause(err))))
	}
	return &res
}

// writeMarker makes the file at path, which must not exist, and returns when it will
// outlive a crash of the node.
func writeMarker(path string, now time.Time) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	if _, err := f.WriteString(now.UTC().Format(time.RFC3339) + "\n"); err != nil {
		f.Close()
		return err
	}
	if err := f.Sync(); err != nil {
		f.Close()
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}

// firstStart tells, for the middle of a sentence, the time that a marker holds.
func firstStart(path string) string {
	raw, _, err := readRegular(path, 64)
	if err != nil {
		return ""
	}
	at, err := time.Parse(time.RFC3339, strings.TrimSpace(string(raw)))
	if err != nil {
		return ""
	}
	return " at " + at.UTC().Format(time.RFC3339)
}
