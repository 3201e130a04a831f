// Command mkimage writes a container image without a container engine: a
// scratch image around one static program, as an archive that containerd,
// `docker load` and `kind load image-archive` all read.
//
//	mkimage -tag REF -out FILE -program PATH -name manager [-user 65532] [-ca FILE]
//	mkimage -tag REF -out FILE -busybox PATH
//
// The same input gives the same bytes, so an image's digest changes only when
// what is in it changes.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

type options struct {
	tag, out      string
	program, name string
	user, ca      string
	busybox       string
	arch          string
}

func main() {
	var o options
	flag.StringVar(&o.tag, "tag", "", "the image's full reference, such as ghcr.io/agenttask-dev/runner:dev")
	flag.StringVar(&o.out, "out", "", "the archive to write")
	flag.StringVar(&o.program, "program", "", "a static Linux program, which becomes the entrypoint")
	flag.StringVar(&o.name, "name", "", "the program's file name in the image's root folder")
	flag.StringVar(&o.user, "user", "65532", "the numeric user that the program runs as")
	flag.StringVar(&o.ca, "ca", "", "certificates of authorities to put at /etc/ssl/certs/ca-certificates.crt")
	flag.StringVar(&o.busybox, "busybox", "", "a static busybox: the image gets a link for each of its applets")
	flag.StringVar(&o.arch, "arch", runtime.GOARCH, "the image's architecture")
	flag.Parse()
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, "mkimage:", err)
		os.Exit(1)
	}
}

func run(o options) error {
	tag, err := name.NewTag(o.tag, name.StrictValidation)
	if err != nil {
		return fmt.Errorf("-tag: %w", err)
	}
	if o.out == "" {
		return errors.New("-out is empty: name the archive to write")
	}
	root, config, err := o.contents()
	if err != nil {
		return err
	}
	image, err := build(root, config, o.arch)
	if err != nil {
		return err
	}
	return write(o.out, tag, image)
}

// contents says what is in the image and how it is run.
func (o options) contents() (*tree, v1.Config, error) {
	switch {
	case o.busybox != "" && o.program == "":
		root, err := busyboxTree(o.busybox)
		return root, v1.Config{Cmd: []string{"sh"}, Env: []string{"PATH=/bin"}}, err
	case o.program != "" && o.busybox == "" && o.name != "":
		root, err := programTree(o.program, o.name, o.user, o.ca)
		return root, v1.Config{Entrypoint: []string{"/" + o.name}, User: o.user, WorkingDir: "/"}, err
	default:
		return nil, v1.Config{}, errors.New("want either -program with -name, or -busybox")
	}
}

func build(root *tree, config v1.Config, arch string) (v1.Image, error) {
	layer, err := tarball.LayerFromOpener(root.open)
	if err != nil {
		return nil, err
	}
	image, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return nil, err
	}
	file, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Config = "linux", arch, config
	return mutate.ConfigFile(image, file)
}

// write puts the archive in its place whole or not at all.
func write(path string, tag name.Tag, image v1.Image) error {
	partial, err := os.CreateTemp(filepath.Dir(path), ".partial-*")
	if err != nil {
		return err
	}
	defer os.Remove(partial.Name())
	defer partial.Close()
	if err := tarball.Write(tag, image, partial); err != nil {
		return err
	}
	if err := partial.Chmod(0o644); err != nil {
		return err
	}
	if err := partial.Close(); err != nil {
		return err
	}
	return os.Rename(partial.Name(), path)
}
