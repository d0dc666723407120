// Package reread keeps what files hold, and reads them again when they have changed: certificates that somebody else replaces while
// a server uses them. There is nothing that runs: whoever wants the value looks, which costs a stat of each file.
package reread

import (
	"fmt"
	"io/fs"
	"os"
	"sync/atomic"
	"time"
)

// Files are files that are read together.
type Files[T any] struct {
	paths []string
	parse func(contents [][]byte) (T, error)
	last  atomic.Pointer[read[T]]
}

// read is what was read at one time.
type read[T any] struct {
	stamps []stamp
	value  T
	// good tells that there is a value; err is why the files as they are now have given none.
	good bool
	err  error
}

// stamp is another one when a file has changed. One that is replaced has another inode, also when it is as large and as old.
type stamp struct {
	modified time.Time
	size     int64
	info     fs.FileInfo
}

func (s stamp) same(other stamp) bool {
	return s.modified.Equal(other.modified) && s.size == other.size && os.SameFile(s.info, other.info)
}

// New returns files that parse makes a value of; it is given their contents in the order of the paths. Nothing is read yet.
func New[T any](parse func(contents [][]byte) (T, error), paths ...string) *Files[T] {
	return &Files[T]{paths: paths, parse: parse}
}

// Get returns the value of the files as they are. When they cannot be read, or parse fails, as in the moment in which one of two
// files has been replaced, it is the value of before with that error; without one of before there is only the error, which names the
// file.
func (f *Files[T]) Get() (value T, ok bool, err error) {
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

func (f *Files[T]) stat() ([]stamp, error) {
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

func (f *Files[T]) read() (value T, err error) {
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
