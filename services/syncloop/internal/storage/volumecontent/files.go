// Package volumecontent computes the files of volumes that a pod describes: configMap, secret, downwardAPI and
// projected ones. It does no I/O: objects, tokens and facts about the node come from functions that are passed in.
// Package volumeprojected sets up volumes with the result, and package atomicdir writes it.
package volumecontent

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
)

// Linux' maximum lengths in bytes.
const (
	maxName = 255
	maxPath = 4096
)

// File is a file of a volume.
type File struct {
	// Data is the content. It may be secret, and is not changed.
	Data []byte
	// Mode has its permissions.
	Mode fs.FileMode
	// UID is the owner; nil for the user of the process.
	UID *int64
}

// String describes a file without its content, which may be secret.
func (f File) String() string { return fmt.Sprintf("%d bytes, mode %04o", len(f.Data), f.Mode) }

// GoString is String.
func (f File) GoString() string { return f.String() }

// Files maps relative, clean paths to the files of a volume.
type Files map[string]File

// Check fails if the files cannot be below one directory: for a path that leads out of it, is too long, begins with the
// reserved "..", or is that of a file and a directory.
func (f Files) Check() error {
	for _, p := range slices.Sorted(maps.Keys(f)) {
		clean, err := cleanPath(p)
		if err != nil {
			return err
		}
		if clean != p {
			return fmt.Errorf("path %q is not clean: say %q", p, clean)
		}
		for parent := path.Dir(p); parent != "."; parent = path.Dir(parent) {
			if _, ok := f[parent]; ok {
				return fmt.Errorf("path %q is that of a file, and path %q is below it; give one of them another path", parent, p)
			}
		}
	}
	return nil
}

// cleanPath validates and cleans a path in a volume.
func cleanPath(p string) (string, error) {
	switch {
	case p == "":
		return "", errors.New("path is empty")
	case path.IsAbs(p):
		return "", fmt.Errorf("path %q is absolute; it has to be relative to the volume", p)
	case len(p) > maxPath:
		return "", fmt.Errorf("path %q... is longer than %d bytes", p[:maxName], maxPath)
	case strings.ContainsRune(p, 0):
		return "", fmt.Errorf("path %q has a NUL in it", p)
	case strings.HasPrefix(p, ".."):
		return "", fmt.Errorf("path %q begins with \"..\"", p)
	}
	for name := range strings.SplitSeq(p, "/") {
		if name == ".." {
			return "", fmt.Errorf("path %q has a \"..\" in it", p)
		}
		if len(name) > maxName {
			return "", fmt.Errorf("path %q has a name that is longer than %d bytes", p, maxName)
		}
	}
	clean := path.Clean(p)
	if clean == "." {
		return "", fmt.Errorf("path %q is that of the volume itself", p)
	}
	if strings.HasPrefix(clean, "..") { // as in "./..data"
		return "", fmt.Errorf("path %q begins with \"..\"", p)
	}
	return clean, nil
}
