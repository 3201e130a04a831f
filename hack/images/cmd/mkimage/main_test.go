package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

func sampleTree() *tree {
	t := &tree{}
	accounts(t, "nonroot:x:65532:65532::/:\n", "nonroot:x:65532:\n")
	t.file("manager", 0o755, []byte("program"))
	t.link("alias", "manager")
	return t
}

func writeSample(t *testing.T) (string, name.Tag) {
	t.Helper()
	tag, err := name.NewTag("ghcr.io/agenttask-dev/operator:dev", name.StrictValidation)
	if err != nil {
		t.Fatal(err)
	}
	image, err := build(sampleTree(), v1.Config{Entrypoint: []string{"/manager"}, User: "65532"}, "amd64")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "image.tar")
	if err := write(path, tag, image); err != nil {
		t.Fatal(err)
	}
	return path, tag
}

func TestTheSameInputGivesTheSameArchive(t *testing.T) {
	var archives [2][]byte
	for i := range archives {
		path, _ := writeSample(t)
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		archives[i] = content
	}
	if !bytes.Equal(archives[0], archives[1]) {
		t.Error("two archives of one tree differ")
	}
}

func TestTheArchiveHoldsTheImageUnderItsTag(t *testing.T) {
	path, tag := writeSample(t)
	image, err := tarball.ImageFromPath(path, &tag)
	if err != nil {
		t.Fatal(err)
	}
	file, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if file.OS != "linux" || file.Architecture != "amd64" || file.Config.User != "65532" {
		t.Errorf("got %s/%s, user %q", file.OS, file.Architecture, file.Config.User)
	}
}

func TestBadInputIsRefused(t *testing.T) {
	script := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(script, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	valid := options{tag: "ghcr.io/agenttask-dev/runner:dev", out: filepath.Join(t.TempDir(), "out.tar"), program: script, name: "runner"}
	for want, change := range map[string]func(*options){
		"is not a Linux program": func(*options) {},
		"-tag":                   func(o *options) { o.tag = "runner" },
		"-out is empty":          func(o *options) { o.out = "" },
		"either -program":        func(o *options) { o.busybox = script },
	} {
		t.Run(want, func(t *testing.T) {
			o := valid
			change(&o)
			if err := run(o); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want an error with %q", err, want)
			}
		})
	}
}
