// Package containerlog reads the log files of a container: the file that the container runtime writes, and the files
// that syncloop has rotated because they grew too large. syncloop's logrotate creates these files; `quartet logs` reads
// them as one log.
//
// The names are the kubelet's, so that log shippers for its nodes find them. 0.log is the file in use.
// 0.log.20060102-150405 was rotated at that time, in the time zone of the machine. 0.log.20060102-150405.gz is its
// compressed form, and 0.log.20060102-150405.tmp is the compressed form while it is written. Other files are ignored.
package containerlog

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

const (
	// stampLayout is the layout of the rotation time in a file name.
	stampLayout = "20060102-150405"
	// compressedSuffix is the suffix of a file compressed with gzip.
	compressedSuffix = ".gz"
	// temporarySuffix is the suffix of a file that is being compressed.
	temporarySuffix = ".tmp"
)

// Rotated is a rotated file of a log.
type Rotated struct {
	// Path is the path of the file.
	Path string
	// Compressed is true if the file is compressed with gzip.
	Compressed bool
	// stamp sorts the files of a log by age.
	stamp string
}

// Files holds the files of one log, except the one in use.
type Files struct {
	// Rotated lists the rotated files, the oldest first.
	Rotated []Rotated
	// Unused lists the files that a killed compression has left: a partial file, and a file whose compressed form is
	// complete.
	Unused []string
}

// RotatedPath returns the path to which the file in use is renamed at a time.
func RotatedPath(log string, at time.Time) string { return log + "." + at.Format(stampLayout) }

// CompressedPath returns the path of the compressed form of a rotated file.
func CompressedPath(rotated string) string { return rotated + compressedSuffix }

// TemporaryPath returns the path of the compressed form while it is written.
func TemporaryPath(rotated string) string { return rotated + temporarySuffix }

// List lists the files of a log. The file in use need not exist. It fails if the directory cannot be read.
func List(log string) (Files, error) {
	entries, err := os.ReadDir(filepath.Dir(log))
	if err != nil {
		return Files{}, err
	}
	var names []string
	for _, entry := range entries {
		if !entry.IsDir() {
			names = append(names, entry.Name())
		}
	}
	return sorted(log, names), nil
}

// Remove removes all files of a log, the one in use last, so that a killed removal can be repeated. Missing files are
// no error.
func Remove(log string) error {
	files, err := List(log)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	paths := files.Unused
	for _, file := range files.Rotated {
		paths = append(paths, file.Path)
	}
	var errs []error
	for _, path := range append(paths, log) {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// sorted classifies the files of a directory for one log.
func sorted(log string, names []string) Files {
	var files Files
	dir, prefix := filepath.Dir(log), filepath.Base(log)+"."
	for _, name := range names {
		rest, ours := strings.CutPrefix(name, prefix)
		if !ours {
			continue
		}
		rest, temporary := strings.CutSuffix(rest, temporarySuffix)
		stamp, compressed := strings.CutSuffix(rest, compressedSuffix)
		if _, err := time.Parse(stampLayout, stamp); err != nil {
			continue
		}
		path := filepath.Join(dir, name)
		if temporary || (!compressed && slices.Contains(names, name+compressedSuffix)) {
			files.Unused = append(files.Unused, path)
			continue
		}
		files.Rotated = append(files.Rotated, Rotated{Path: path, Compressed: compressed, stamp: stamp})
	}
	slices.SortFunc(files.Rotated, func(a, b Rotated) int { return cmp.Compare(a.stamp, b.stamp) })
	return files
}
