package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"debug/elf"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// image returns the image in memory. It contains no time stamps.
func (s *imageSpec) image() (v1.Image, error) {
	content, err := s.layer()
	if err != nil {
		return nil, err
	}
	// An archive is created on the machine that loads it, so its creation time counts more than its size.
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(content)), nil
	}, tarball.WithCompressionLevel(gzip.BestSpeed), tarball.WithCompressedCaching)
	if err != nil {
		return nil, err
	}
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return nil, err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS = "linux"
	config.Architecture = runtime.GOARCH
	config.Config.Entrypoint = s.entrypoint
	config.Config.Cmd = s.cmd
	config.Config.WorkingDir = "/"
	config.Config.User = s.user
	config.Config.Env = s.env
	if len(s.labels) > 0 {
		config.Config.Labels = s.labels
	}
	return mutate.ConfigFile(img, config)
}

// layer returns the tar of the image's only layer: its directories, then its programs and its links, owned by root
// unless a flag sets another owner.
func (s *imageSpec) layer() ([]byte, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, d := range s.directories() {
		header := &tar.Header{Typeflag: tar.TypeDir, Name: d.place + "/", Mode: d.mode, Uid: d.uid, Gid: d.gid}
		if err := w.WriteHeader(header); err != nil {
			return nil, err
		}
	}
	for _, f := range s.files {
		if err := s.addFile(w, f); err != nil {
			return nil, err
		}
	}
	for _, l := range s.links {
		header := &tar.Header{Typeflag: tar.TypeSymlink, Name: l.place, Linkname: l.target, Mode: linkMode}
		if err := w.WriteHeader(header); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}

func (s *imageSpec) addFile(w *tar.Writer, f file) error {
	content, err := os.ReadFile(filepath.Clean(f.source))
	if err != nil {
		return err
	}
	if err := s.checkLinked(content); err != nil {
		return fmt.Errorf("%s: %w", f.source, err)
	}
	info, err := os.Stat(f.source)
	if err != nil {
		return err
	}
	mode := int64(dataMode)
	switch {
	case f.mode != 0:
		mode = f.mode
	case info.Mode()&0o100 != 0:
		mode = programMode
	}
	header := &tar.Header{Typeflag: tar.TypeReg, Name: f.place, Mode: mode, Size: int64(len(content))}
	if err := w.WriteHeader(header); err != nil {
		return err
	}
	_, err = w.Write(content)
	return err
}

// checkLinked refuses a program that needs a loader or libraries that the image lacks: it could not start and would
// fail with "no such file or directory". Other files, such as libraries or image archives, pass.
func (s *imageSpec) checkLinked(content []byte) error {
	program, err := elf.NewFile(bytes.NewReader(content))
	if err != nil {
		return nil // it is not an ELF program
	}
	loader, err := loaderOf(program)
	if err != nil || loader == "" {
		return err
	}
	if !slices.ContainsFunc(s.files, func(f file) bool { return "/"+f.place == loader }) {
		return fmt.Errorf("it is linked dynamically, and the image does not have its loader %s: remove it and build it again with make, or name the loader and its libraries with -file", loader)
	}
	libraries, err := program.ImportedLibraries()
	if err != nil {
		return fmt.Errorf("reading which libraries it needs: %w", err)
	}
	for _, library := range libraries {
		if !slices.ContainsFunc(s.files, func(f file) bool { return path.Base(f.place) == library }) {
			return fmt.Errorf("it is linked dynamically, and the image does not have its library %s: name it with -file", library)
		}
	}
	return nil
}

// loaderOf returns the loader of a program with shared libraries; empty for a program without one.
func loaderOf(program *elf.File) (string, error) {
	for _, p := range program.Progs {
		if p.Type != elf.PT_INTERP {
			continue
		}
		name, err := io.ReadAll(p.Open())
		if err != nil {
			return "", fmt.Errorf("reading its loader: %w", err)
		}
		return strings.TrimRight(string(name), "\x00"), nil
	}
	return "", nil
}

// write writes the archive beside its place and renames it, so that the archive is never incomplete.
func write(out string, tag name.Tag, img v1.Image) error {
	tmp := out + ".tmp"
	if err := tarball.WriteToFile(tmp, tag, img); err != nil {
		return fmt.Errorf("writing %s: %w", tmp, err)
	}
	if err := os.Rename(tmp, out); err != nil {
		return fmt.Errorf("putting %s in place: %w", out, err)
	}
	return nil
}
