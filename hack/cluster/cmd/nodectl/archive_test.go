package main

import (
	"archive/tar"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func archiveWith(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "image.tar")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	archive := tar.NewWriter(file)
	if err := archive.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content))}); err != nil {
		t.Fatal(err)
	}
	if _, err := archive.Write([]byte(content)); err != nil {
		t.Fatal(err)
	}
	if err := archive.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestAnImageIsHeldOnlyWithEveryTagAndTheSameContent(t *testing.T) {
	const manifest = `[{"Config":"sha256:aa","RepoTags":["x:1","x:2"],"Layers":["l.tar"]}]`
	images, err := readArchive(archiveWith(t, "manifest.json", manifest))
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		held map[string]string
		want bool
	}{
		"both tags stand for it":         {map[string]string{"x:1": "sha256:aa", "x:2": "sha256:aa"}, true},
		"one tag is absent":              {map[string]string{"x:1": "sha256:aa"}, false},
		"one tag stands for another one": {map[string]string{"x:1": "sha256:aa", "x:2": "sha256:bb"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := images[0].heldIn(tc.held); got != tc.want {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}

func TestWhatIsNoImageArchiveIsRefused(t *testing.T) {
	if _, err := readArchive(archiveWith(t, "notes.txt", "hello")); err == nil || !strings.Contains(err.Error(), "docker save") {
		t.Errorf("got %v, want an error that says what to use", err)
	}
}
