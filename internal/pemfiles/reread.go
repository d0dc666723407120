package pemfiles

import (
	"fmt"
	"io/fs"
	"os"
	"sync/atomic"
	"time"
)

// Rereader caches a value that is parsed from files, and reads the files again when they have changed, for example a
// certificate that is replaced while a server uses it. It has no goroutine: each Get costs one stat of each file.
type Rereader[T any] struct {
	paths []string
	parse func(contents [][]byte) (T, error)
	last  atomic.Pointer[read[T]]
}

// read is the result of one reading.
type read[T any] struct {
	stamps []stamp
	value  T
	// good is true if there is a value. err says why the current files could not be parsed.
	good bool
	err  error
}

// stamp identifies a version of a file. A replaced file has another inode, even if size and time are the same.
type stamp struct {
	modified time.Time
	size     int64
	info     fs.FileInfo
}

func (s stamp) same(other stamp) bool {
	return s.modified.Equal(other.modified) && s.size == other.size && os.SameFile(s.info, other.info)
}

// NewRereader returns a Rereader whose value is made by parse, which receives the contents in the order of the paths.
// It reads nothing yet.
func NewRereader[T any](parse func(contents [][]byte) (T, error), paths ...string) *Rereader[T] {
	return &Rereader[T]{paths: paths, parse: parse}
}

// Get returns the value of the current files. If they cannot be read or parsed, for example when only one of two files
// has been replaced, it returns the previous value together with the error. Without a previous value it returns only
// the error, which names the file.
func (f *Rereader[T]) Get() (value T, ok bool, err error) {
	last := f.last.Load()
	stamps, err := f.stat()
	if last != nil && err == nil && same(last.stamps, stamps) {
		return last.value, last.good, last.err
	}
	next := &read[T]{stamps: stamps, err: err}
	if err == nil {
		next.value, next.err = f.read()
	}
	next.good = next.err == nil
	if !next.good && last != nil && last.good {
		next.value, next.good = last.value, true
	}
	f.last.Store(next)
	return next.value, next.good, next.err
}

func (f *Rereader[T]) stat() ([]stamp, error) {
	stamps := make([]stamp, 0, len(f.paths))
	for _, path := range f.paths {
		info, err := os.Stat(path)
		if err != nil {
			return nil, err
		}
		stamps = append(stamps, stamp{modified: info.ModTime(), size: info.Size(), info: info})
	}
	return stamps, nil
}

func same(a, b []stamp) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if !a[i].same(b[i]) {
			return false
		}
	}
	return true
}

func (f *Rereader[T]) read() (value T, err error) {
	contents := make([][]byte, 0, len(f.paths))
	for _, path := range f.paths {
		content, err := os.ReadFile(path)
		if err != nil {
			return value, err
		}
		contents = append(contents, content)
	}
	if value, err = f.parse(contents); err != nil {
		return value, fmt.Errorf("%s: %w", f.paths[0], err)
	}
	return value, nil
}
