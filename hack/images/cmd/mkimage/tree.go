package main

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sort"
	"strings"
)

// tree is the file system of an image, in the order it is written.
type tree struct {
	entries []entry
}

type entry struct {
	header  tar.Header
	content []byte
}

func (t *tree) dir(path string, mode int64) {
	t.entries = append(t.entries, entry{header: tar.Header{Typeflag: tar.TypeDir, Name: path + "/", Mode: mode}})
}

func (t *tree) file(path string, mode int64, content []byte) {
	t.entries = append(t.entries, entry{
		header:  tar.Header{Typeflag: tar.TypeReg, Name: path, Mode: mode, Size: int64(len(content))},
		content: content,
	})
}

func (t *tree) link(path, target string) {
	t.entries = append(t.entries, entry{header: tar.Header{Typeflag: tar.TypeSymlink, Name: path, Linkname: target, Mode: 0o777}})
}

// open writes the tree as a tar stream. Times and owners are left at zero.
func (t *tree) open() (io.ReadCloser, error) {
	var buffer bytes.Buffer
	archive := tar.NewWriter(&buffer)
	for _, e := range t.entries {
		if err := archive.WriteHeader(&e.header); err != nil {
			return nil, err
		}
		if _, err := archive.Write(e.content); err != nil {
			return nil, err
		}
	}
	if err := archive.Close(); err != nil {
		return nil, err
	}
	return io.NopCloser(&buffer), nil
}

// programTree holds the program, a name for its user, a /tmp that anyone may
// write, and the certificates that outgoing TLS needs.
func programTree(program, name, user, ca string) (*tree, error) {
	content, err := readStatic(program)
	if err != nil {
		return nil, err
	}
	t := &tree{}
	accounts(t, "nonroot:x:"+user+":"+user+":nonroot:/:/sbin/nologin\n", "nonroot:x:"+user+":\n")
	if ca != "" {
		certificates, err := os.ReadFile(ca)
		if err != nil {
			return nil, err
		}
		t.dir("etc/ssl", 0o755)
		t.dir("etc/ssl/certs", 0o755)
		t.file("etc/ssl/certs/ca-certificates.crt", 0o644, certificates)
	}
	t.file(name, 0o755, content)
	return t, nil
}

// busyboxTree holds busybox under the name of each applet that it lists.
func busyboxTree(busybox string) (*tree, error) {
	content, err := readStatic(busybox)
	if err != nil {
		return nil, err
	}
	list, err := exec.Command(busybox, "--list").Output()
	if err != nil {
		return nil, fmt.Errorf("%s --list: %w", busybox, err)
	}
	applets := strings.Fields(string(list))
	sort.Strings(applets)
	t := &tree{}
	accounts(t, "nobody:x:65534:65534:nobody:/:/bin/false\n", "nogroup:x:65534:\n")
	t.dir("root", 0o700)
	t.dir("bin", 0o755)
	t.file("bin/busybox", 0o755, content)
	for _, applet := range applets {
		if applet != "busybox" {
			t.link("bin/"+applet, "busybox")
		}
	}
	return t, nil
}

func accounts(t *tree, user, group string) {
	t.dir("tmp", 0o1777)
	t.dir("etc", 0o755)
	t.file("etc/passwd", 0o644, []byte("root:x:0:0:root:/root:/bin/sh\n"+user))
	t.file("etc/group", 0o644, []byte("root:x:0:\n"+group))
}

// readStatic reads a program and refuses one that could not start in an image
// that has no libraries.
func readStatic(path string) ([]byte, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	program, err := elf.NewFile(bytes.NewReader(content))
	if err != nil {
		return nil, fmt.Errorf("%s is not a Linux program: %w", path, err)
	}
	for _, p := range program.Progs {
		if p.Type == elf.PT_INTERP {
			return nil, errors.New(path + " is linked dynamically and could not start in an empty image: build it with CGO_ENABLED=0, or use a static package")
		}
	}
	return content, nil
}
