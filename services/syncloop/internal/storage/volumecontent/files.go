// Package volumecontent says which files the volumes have that a pod only describes: configMap, secret, downwardAPI and projected
// ones. It touches nothing: the objects, tokens and facts of the node that the files are made of are asked for through functions that
// are passed in. Package volumeprojected has volumes in place with what it says, and package atomicdir writes that.
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

// The longest that Linux takes, in bytes.
const (
	maxName = 255
	maxPath = 4096
)

// File is a file of a volume.
type File struct {
	// Data is what is in it. It may be secret, and is only read.
	Data []byte
	// Mode has its permissions.
	Mode fs.FileMode
	// UID is the user that owns it; nil is the one that the process runs as.
	UID *int64
}

// String tells of a file without what is in it, which may be secret.
func (f File) String() string { return fmt.Sprintf("%d bytes, mode %04o", len(f.Data), f.Mode) }

// GoString is String.
func (f File) GoString() string { return f.String() }

// Files are the files of a volume, by their paths in it. A path is relative and clean.
type Files map[string]File

// Check fails when the files cannot be below one folder: for a path that would lead out of it, is too long, begins with the ".."
// which is kept for what the folder needs itself, or is that of a file and of a folder.
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

// cleanPath checks a path in a volume and leaves out what is not needed in it.
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
	if strings.HasPrefix(clean, "..") { // as of "./..data"
		return "", fmt.Errorf("path %q begins with \"..\"", p)
	}
	return clean, nil
}
