// Package containerlog knows the log of a container as it lies on the disk: the file that the container runtime writes to,
// and those that syncloop has put aside since it grew too large. syncloop's logrotate makes these files, `quartet logs`
// reads them as the one log that they are.
//
// The names are the kubelet's, so that log shippers made for its nodes find them: 0.log is the file in use,
// 0.log.20060102-150405 one that was put aside then, in the time of the machine, 0.log.20060102-150405.gz the same compressed, and
// 0.log.20060102-150405.tmp what is being compressed. Any other file of the folder is not looked at.
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
	// stampLayout is how the time of a rotation stands in a name.
	stampLayout = "20060102-150405"
	// compressedSuffix ends the name of a file that was compressed with gzip.
	compressedSuffix = ".gz"
	// temporarySuffix ends the name of one that is being made.
	temporarySuffix = ".tmp"
)

// Rotated is a file of a log that was put aside.
type Rotated struct {
	// Path is where it is.
	Path string
	// Compressed is true when it is gzip.
	Compressed bool
	// stamp orders the files of a log by age.
	stamp string
}

// Files are the files of one log besides the one in use.
type Files struct {
	// Rotated has those that were put aside, the oldest first.
	Rotated []Rotated
	// Unused has the paths of what a process left that was killed while it compressed: half of a file, and one of which
	// there is the whole compressed one.
	Unused []string
}

// RotatedPath is where the file in use goes that is put aside at a moment.
func RotatedPath(log string, at time.Time) string { return log + "." + at.Format(stampLayout) }

// CompressedPath is where the compressed form of a file goes that was put aside.
func CompressedPath(rotated string) string { return rotated + compressedSuffix }

// TemporaryPath is where that is made.
func TemporaryPath(rotated string) string { return rotated + temporarySuffix }

// List lists the files of a log; the file in use need not be there. It fails when the folder cannot be read.
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

// Remove removes all files of a log, the one in use last: who is killed meanwhile begins again. Files that are not there are as
// good as removed.
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

// sorted tells what the files of a folder are to a log.
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
