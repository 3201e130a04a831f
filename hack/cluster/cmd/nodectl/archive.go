package main

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// archivedImage is one entry of the manifest.json of a docker archive.
type archivedImage struct {
	// Config is the file name of the image's configuration: its digest, with
	// "sha256:" before it or ".json" after it.
	Config   string
	RepoTags []string
}

func (i archivedImage) heldIn(held map[string]string) bool {
	id := "sha256:" + strings.TrimSuffix(strings.TrimPrefix(i.Config, "sha256:"), ".json")
	for _, tag := range i.RepoTags {
		if held[tag] != id {
			return false
		}
	}
	return true
}

func readArchive(path string) ([]archivedImage, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	archive := tar.NewReader(file)
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("%s has no manifest.json: it must be a docker archive, as written by `docker save`", path)
		}
		if err != nil {
			return nil, fmt.Errorf("%s is not a tar archive: %w", path, err)
		}
		if header.Name != "manifest.json" {
			continue
		}
		var images []archivedImage
		if err := json.NewDecoder(archive).Decode(&images); err != nil {
			return nil, fmt.Errorf("%s: manifest.json: %w", path, err)
		}
		return images, nil
	}
}
