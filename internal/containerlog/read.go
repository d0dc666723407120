package containerlog

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// Options say what is read of a log.
type Options struct {
	// Tail is how many lines are read, the last ones; all when it is negative.
	Tail int64
	// Follow goes on with what is written, until the container has ended.
	Follow bool
	// Running tells whether the container runs. It is asked while following, when nothing was written for a second.
	Running func(ctx context.Context) (bool, error)
	// Since leaves out what was written before; the zero time leaves out nothing. Of the last Tail lines, not the last Tail since.
	Since time.Time
	// Timestamps puts before each line when it was written, as the runtime says it, and a space.
	Timestamps bool
	// Limit ends the log after so many bytes, in the middle of a line; 0 is no limit.
	Limit int64
}

// Read writes to out what a container has written, oldest first, without what the runtime puts before each line: of all
// files of the log that are left, as if it had never been put aside. Following goes on from a file that is put aside to the next
// one and loses no line, unless so much was written meanwhile that a file is removed before it was read.
//
// It fails when there is no file, or one cannot be read or is no log, with an error of Running or of out, and with that of ctx.
func Read(ctx context.Context, log string, o Options, out io.Writer) error {
	r := &reader{log: log, out: bufio.NewWriter(out)}
	r.print = (&printer{out: r.out, since: o.Since, timestamps: o.Timestamps, limited: o.Limit > 0, left: o.Limit}).line()
	defer r.close()
	err := r.read(ctx, o)
	if errors.Is(err, errLimit) {
		return r.out.Flush()
	}
	return err
}

// read reads all that is asked for.
func (r *reader) read(ctx context.Context, o Options) error {
	if err := r.readAll(ctx, o.Tail); err != nil {
		return err
	}
	if o.Follow {
		if err := r.follow(ctx, o.Running); err != nil {
			return err
		}
	}
	return r.end()
}

// reader reads a log.
type reader struct {
	log string
	out *bufio.Writer
	// print writes what is shown of a line.
	print func(line []byte) error
	// current is the newest file that was read from; nil when there is none.
	current *source
	// former is the one before, to which the runtime may still have had a line to write when it was put aside.
	former *source
}

func (r *reader) close() {
	for _, s := range []*source{r.current, r.former} {
		if s != nil {
			s.close()
		}
	}
}

// readAll reads what is there, and leaves the file in use as current.
func (r *reader) readAll(ctx context.Context, tail int64) error {
	// The file in use is opened first: one that is put aside meanwhile then is that same one.
	current, err := open(r.log, false)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	r.current = current
	files, listErr := List(r.log)
	if listErr != nil {
		return errors.Join(err, listErr)
	}
	if current == nil && len(files.Rotated) == 0 {
		return err
	}
	older := slices.DeleteFunc(files.Rotated, func(file Rotated) bool { return current.is(file.Path) })
	if last := len(older) - 1; current == nil && !older[last].Compressed {
		// It is just being put aside: the runtime writes to it until it has made the next one.
		if r.current, err = openRotated(older[last]); err != nil {
			return err
		}
		older = older[:last]
	}
	skip := int64(0)
	if tail >= 0 {
		if older, skip, err = r.seekTail(older, tail); err != nil {
			return err
		}
	}
	for _, file := range older {
		s, err := openRotated(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed meanwhile, as the oldest one is
		}
		if err != nil {
			return err
		}
		do := r.after(&skip)
		if err = s.drain(ctx, do); err == nil {
			err = s.end(do)
		}
		s.close()
		if err != nil {
			return err
		}
	}
	if r.current == nil {
		return nil
	}
	return r.current.drain(ctx, r.print)
}

// end prints what there is of lines that were begun, when nothing more is read: those that a full disk has cut, for one.
func (r *reader) end() error {
	for _, s := range []*source{r.former, r.current} {
		if s == nil {
			continue
		}
		if err := s.end(r.print); err != nil {
			return err
		}
	}
	return r.out.Flush()
}

// after prints what comes after so many lines.
func (r *reader) after(skip *int64) func([]byte) error {
	return func(line []byte) error {
		if *skip > 0 {
			*skip--
			return nil
		}
		return r.print(line)
	}
}

// seekTail leaves the last so many lines to be read: it moves on in the file in use, and returns which of the older files are
// needed too, and how many lines of the first of them are not.
func (r *reader) seekTail(older []Rotated, tail int64) (needed []Rotated, skip int64, err error) {
	if r.current != nil {
		found, err := seekLast(r.current.file, tail)
		if err != nil {
			return nil, 0, fmt.Errorf("find the last %d lines of %s: %w", tail, r.log, err)
		}
		tail -= found
	}
	first := len(older)
	for ; first > 0 && tail > 0; first-- {
		s, err := openRotated(older[first-1])
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, 0, err
		}
		lines, err := countLines(s.from)
		s.close()
		if err != nil {
			return nil, 0, fmt.Errorf("count the lines of %s: %w", older[first-1].Path, err)
		}
		skip = max(lines-tail, 0)
		tail -= lines
	}
	return older[first:], skip, nil
}

// source is a file that is read line by line.
type source struct {
	file *os.File
	info fs.FileInfo
	from io.Reader
	// begun is a line whose end has not been read.
	begun []byte
}

func open(path string, compressed bool) (*source, error) {
	file, err := os.Open(filepath.Clean(path))
	if err != nil {
		return nil, err
	}
	s := &source{file: file, from: file}
	if s.info, err = file.Stat(); err == nil && compressed {
		s.from, err = gzip.NewReader(bufio.NewReader(file))
	}
	if err != nil {
		s.close()
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return s, nil
}

// openRotated opens a file that was put aside, also when it has been compressed since it was listed.
func openRotated(file Rotated) (*source, error) {
	s, err := open(file.Path, file.Compressed)
	if errors.Is(err, fs.ErrNotExist) && !file.Compressed {
		return open(CompressedPath(file.Path), true)
	}
	return s, err
}

// close closes the file; it was only read from, so no error of it matters.
func (s *source) close() { _ = s.file.Close() }

// is tells whether the source is the file that is at a path now.
func (s *source) is(path string) bool {
	if s == nil {
		return false
	}
	info, err := os.Stat(path)
	return err == nil && os.SameFile(s.info, info)
}

// drain gives every whole line to do, up to the end of the file as it is.
func (s *source) drain(ctx context.Context, do func(line []byte) error) error {
	chunk := make([]byte, 64<<10)
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := s.from.Read(chunk)
		s.begun = append(s.begun, chunk[:n]...)
		for {
			end := bytes.IndexByte(s.begun, '\n')
			if end < 0 {
				break
			}
			if err := do(s.begun[:end+1]); err != nil {
				return err
			}
			s.begun = s.begun[end+1:]
		}
		switch {
		case errors.Is(err, io.EOF):
			s.begun = bytes.Clone(s.begun) // lets go of what was read before
			return nil
		case err != nil:
			return fmt.Errorf("read %s: %w", s.file.Name(), err)
		}
	}
}

// end gives the line to do that was begun and not ended, as one that was.
func (s *source) end(do func(line []byte) error) error {
	if len(s.begun) == 0 {
		return nil
	}
	line := append(s.begun, '\n')
	s.begun = nil
	return do(line)
}

// countLines counts the lines to the end.
func countLines(r io.Reader) (lines int64, err error) {
	chunk := make([]byte, 64<<10)
	for {
		n, err := r.Read(chunk)
		lines += int64(bytes.Count(chunk[:n], []byte("\n")))
		if errors.Is(err, io.EOF) {
			return lines, nil
		}
		if err != nil {
			return lines, err
		}
	}
}

// seekLast moves to the beginning of the last so many lines of a file, and returns how many there are, at most as many. It reads no
// more of the file than that.
func seekLast(f *os.File, wanted int64) (found int64, err error) {
	at, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return 0, err
	}
	chunk := make([]byte, 64<<10)
	ends := int64(0) // of lines, seen from the end of the file
	for at > 0 {
		size := min(at, int64(len(chunk)))
		at -= size
		if _, err := f.ReadAt(chunk[:size], at); err != nil {
			return 0, err
		}
		for i := size - 1; i >= 0; i-- {
			if chunk[i] != '\n' {
				continue
			}
			if ends == wanted {
				_, err := f.Seek(at+i+1, io.SeekStart)
				return wanted, err
			}
			ends++
		}
	}
	_, err = f.Seek(0, io.SeekStart)
	return ends, err
}
