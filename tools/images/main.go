// Command images makes an image archive from one static program: a single layer with the program in it, and a
// configuration that runs it. The archive is in docker's format, which `ctr images import` reads. The same program
// gives the same archive, byte for byte.
//
//	images -program bin/images/hello -name quartet.local/hello:1 -out bin/images/hello.tar
package main

import (
	"archive/tar"
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

func main() {
	program := flag.String("program", "", "static program to put into the image")
	ref := flag.String("name", "", "name of the image with its tag")
	out := flag.String("out", "", "archive to write")
	flag.Parse()
	if err := run(*program, *ref, *out); err != nil {
		fmt.Fprintf(os.Stderr, "images: %v\n", err)
		os.Exit(1)
	}
}

func run(program, ref, out string) error {
	tag, err := name.NewTag(ref, name.StrictValidation)
	if err != nil {
		return fmt.Errorf("reading -name %q: %w", ref, err)
	}
	img, err := imageOf(program)
	if err != nil {
		return fmt.Errorf("making %s from %s: %w", ref, program, err)
	}
	// Written beside its place and renamed, so that an archive is never there in half.
	tmp := out + ".tmp"
	if err := tarball.WriteToFile(tmp, tag, img); err != nil {
		return fmt.Errorf("writing %s: %w", tmp, err)
	}
	if err := os.Rename(tmp, out); err != nil {
		return fmt.Errorf("putting %s in place: %w", out, err)
	}
	return nil
}

// imageOf makes an image whose entry point is the program, at the root of an otherwise empty file system.
func imageOf(program string) (v1.Image, error) {
	content, err := os.ReadFile(program)
	if err != nil {
		return nil, err
	}
	path := "/" + filepath.Base(program)
	layerBytes, err := layerOf(path, content)
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(layerBytes)), nil
	})
	if err != nil {
		return nil, err
	}
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return nil, err
	}
	file, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	file = file.DeepCopy()
	file.OS = "linux"
	file.Architecture = runtime.GOARCH
	file.Config.Entrypoint = []string{path}
	file.Config.WorkingDir = "/"
	return mutate.ConfigFile(img, file)
}

// layerOf is a tar with a world-writable /tmp and the program, owned by root.
func layerOf(path string, content []byte) ([]byte, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: "tmp/", Mode: 0o1777}); err != nil {
		return nil, err
	}
	header := &tar.Header{Typeflag: tar.TypeReg, Name: path[1:], Mode: 0o755, Size: int64(len(content))}
	if err := w.WriteHeader(header); err != nil {
		return nil, err
	}
	if _, err := w.Write(content); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}
