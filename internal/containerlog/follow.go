package containerlog

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	// pollPeriod is the interval at which the files are read if the kernel reports no change, and at which Running is
	// called.
	pollPeriod = time.Second
	// settleTime is how long a rotated file is still read before its successor: the runtime may finish a write to it
	// shortly after the successor exists.
	settleTime = 100 * time.Millisecond
)

// follow reads new lines until the container has ended and everything was read.
func (r *reader) follow(ctx context.Context, running func(context.Context) (bool, error)) error {
	changed, stop := watch(filepath.Dir(r.log))
	defer stop()
	for {
		switch continues, err := r.turn(ctx, changed); {
		case err != nil:
			return err
		case continues:
			continue
		}
		quiet, err := wait(ctx, changed, pollPeriod)
		if err != nil {
			return err
		}
		if !quiet {
			continue
		}
		runs, err := running(ctx)
		if err != nil {
			return err
		}
		if runs {
			continue
		}
		for continues := true; continues; {
			if continues, err = r.turn(ctx, nil); err != nil {
				return err
			}
		}
		return nil
	}
}

// turn reads the rest of the current file, and moves on to its successor if there is one. It reports whether it moved
// on.
func (r *reader) turn(ctx context.Context, changed <-chan struct{}) (continues bool, err error) {
	if r.former != nil {
		if err := r.former.drain(ctx, r.print); err != nil {
			return false, err
		}
	}
	if r.current != nil {
		if err := r.current.drain(ctx, r.print); err != nil {
			return false, err
		}
	}
	if err := r.out.Flush(); err != nil {
		return false, err
	}
	next, err := r.next()
	if err != nil || next == nil {
		return false, err
	}
	if r.current != nil {
		if changed != nil {
			if err := pause(ctx, settleTime); err != nil {
				next.close()
				return false, err
			}
		}
		if err := r.current.drain(ctx, r.print); err != nil {
			next.close()
			return false, err
		}
	}
	if r.former != nil {
		err := r.former.end(r.print)
		r.former.close()
		if err != nil {
			next.close()
			return false, err
		}
	}
	r.former, r.current = r.current, next
	return true, nil
}

// next opens the successor of the current file. It returns nil if the current file is in use, or if the runtime has not
// created a successor yet.
func (r *reader) next() (*source, error) {
	if r.current.isAt(r.log) {
		return nil, nil
	}
	// The file in use is opened before the others are listed, so that the list contains every file that was rotated before
	// it.
	inUse, err := open(r.log, false)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	files, err := List(r.log)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil // the directory was removed with the pod; the open file is still read to its end
	}
	if err != nil {
		if inUse != nil {
			inUse.close()
		}
		return nil, err
	}
	for _, file := range r.later(files.Rotated) {
		if inUse.isAt(file.Path) {
			break
		}
		s, err := openRotated(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if inUse != nil {
			inUse.close()
		}
		return s, err
	}
	if inUse != nil && r.current != nil && os.SameFile(inUse.info, r.current.info) {
		inUse.close() // the rotation was reverted
		return nil, nil
	}
	return inUse, nil
}

// later returns the rotated files that are newer than the current one.
func (r *reader) later(files []Rotated) []Rotated {
	if r.current == nil {
		return nil
	}
	for i, file := range files {
		if r.current.isAt(file.Path) {
			return files[i+1:]
		}
	}
	// It has been compressed or removed since. A compressed file has the modification time of its source, which is that of
	// the last line.
	now, err := r.current.file.Stat()
	if err != nil {
		return nil
	}
	for i, file := range files {
		info, err := os.Stat(file.Path)
		switch {
		case err != nil: // removed
		case info.ModTime().Equal(now.ModTime()):
			return files[i+1:]
		case info.ModTime().After(now.ModTime()):
			return files[i:]
		}
	}
	return nil
}

// watch signals changes in a directory on a channel of capacity one. If the machine's inotify limits are reached, the
// caller polls.
func watch(dir string) (changed <-chan struct{}, stop func()) {
	signal := make(chan struct{}, 1)
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return signal, func() {}
	}
	if err := watcher.Add(dir); err != nil {
		_ = watcher.Close()
		return signal, func() {}
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case _, ok := <-watcher.Events:
				if !ok {
					return
				}
			case _, ok := <-watcher.Errors:
				if !ok {
					return
				}
			}
			select {
			case signal <- struct{}{}:
			default:
			}
		}
	}()
	return signal, func() {
		_ = watcher.Close()
		<-ended
	}
}

// wait returns when something has changed, or with quiet set after a timeout.
func wait(ctx context.Context, changed <-chan struct{}, atMost time.Duration) (quiet bool, err error) {
	timer := time.NewTimer(atMost)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false, ctx.Err()
	case <-changed:
		return false, nil
	case <-timer.C:
		return true, nil
	}
}

// pause waits for a duration or the end of ctx.
func pause(ctx context.Context, d time.Duration) error {
	_, err := wait(ctx, nil, d)
	return err
}
