package volumes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// The modes of DirectoryOrCreate and FileOrCreate.
const (
	hostDirMode  = 0o755
	hostFileMode = 0o644
)

// HostPath is the Plugin for hostPath volumes: paths of the node, which outlive the pod.
type HostPath struct{}

// Name implements Plugin.
func (HostPath) Name() string { return "kubernetes.io~host-path" }

// CanSupport implements Plugin.
func (HostPath) CanSupport(v *v1.Volume) bool { return v.HostPath != nil }

// Refreshes implements Plugin.
func (HostPath) Refreshes() bool { return false }

// Path implements InPlace.
func (HostPath) Path(v *v1.Volume) string { return v.HostPath.Path }

// TearDown implements Plugin. It is a no-op because the path belongs to the node.
func (HostPath) TearDown(context.Context, string) error { return nil }

// SetUp implements Plugin. It checks that the path has the type of the volume, or creates it.
func (HostPath) SetUp(ctx context.Context, r Request) error {
	source := r.Volume.HostPath
	if slices.Contains(strings.Split(source.Path, "/"), "..") {
		return fmt.Errorf("invalid HostPath `%s`: must not contain '..'", source.Path)
	}
	if source.Type == nil || *source.Type == v1.HostPathUnset {
		return nil
	}
	defer Asking(ctx, "disk of "+source.Path)()
	info, err := os.Stat(source.Path)
	switch missing := errors.Is(err, fs.ErrNotExist); {
	case missing && *source.Type == v1.HostPathDirectoryOrCreate:
		return os.MkdirAll(source.Path, hostDirMode)
	case missing && *source.Type == v1.HostPathFileOrCreate:
		return makeHostFile(source.Path)
	case err != nil:
		return fmt.Errorf("hostPath type check failed: %w", err)
	}
	mode := info.Mode()
	device := mode&fs.ModeDevice != 0
	for _, check := range []struct {
		description string
		types       []v1.HostPathType
		matches     bool
	}{
		{"directory", []v1.HostPathType{v1.HostPathDirectory, v1.HostPathDirectoryOrCreate}, mode.IsDir()},
		{"file", []v1.HostPathType{v1.HostPathFile, v1.HostPathFileOrCreate}, mode.IsRegular()},
		{"socket file", []v1.HostPathType{v1.HostPathSocket}, mode&fs.ModeSocket != 0},
		{"character device", []v1.HostPathType{v1.HostPathCharDev}, device && mode&fs.ModeCharDevice != 0},
		{"block device", []v1.HostPathType{v1.HostPathBlockDev}, device && mode&fs.ModeCharDevice == 0},
	} {
		if slices.Contains(check.types, *source.Type) {
			if !check.matches {
				return fmt.Errorf("hostPath type check failed: %s is not a %s", filepath.Clean(source.Path), check.description)
			}
			return nil
		}
	}
	return fmt.Errorf("%s is an invalid volume type", *source.Type)
}

// makeHostFile creates an empty file in an existing directory.
func makeHostFile(path string) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, hostFileMode)
	if err != nil {
		return err
	}
	return file.Close()
}
