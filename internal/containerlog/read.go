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

// Options selects the part and the form of a log.
type Options struct {
	// Tail is the number of last lines to read; negative for all.
	Tail int64
	// Follow waits for new lines until the container has ended.
	Follow bool
	// Running reports whether the container runs. It is called while following, after a second without new lines.
	Running func(ctx context.Context) (bool, error)
	// Since skips lines that were written before it; zero skips none. It applies to the last Tail lines.
	Since time.Time
	// Timestamps puts the time of each line, as the runtime wrote it, and a space before the line.
	Timestamps bool
	// Limit ends the log after this number of bytes, also in the middle of a line; 0 means no limit.
	Limit int64
}

// Read writes the output of a container to out, the oldest first, without the prefix of the runtime. It reads all
// remaining files of the log as one. Following continues across rotations and loses no line, unless a file is removed
// before it was read.
//
// It fails if there is no file, or if a file cannot be read or is no log. It also returns errors of Running, of out and
// of ctx.
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

// read reads what the options select.
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
	// print writes a line in the requested form.
	print func(line []byte) error
	// current is the newest file that was read; nil if there is none.
	current *source
	// former is the previous file, to which the runtime may still write a line after its rotation.
	former *source
}

func (r *reader) close() {
	for _, s := range []*source{r.current, r.former} {
		if s != nil {
			s.close()
		}
	}
}

// readAll reads the existing lines, and leaves the file in use as current.
func (r *reader) readAll(ctx context.Context, tail int64) error {
	// The file in use is opened first. If it is rotated in the meantime, the open file is the rotated one.
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
	older := slices.DeleteFunc(files.Rotated, func(file Rotated) bool { return current.isAt(file.Path) })
	if last := len(older) - 1; current == nil && !older[last].Compressed {
		// The file is being rotated: the runtime writes to it until it has created the next one.
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
			continue // removed in the meantime, because it was the oldest
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

// end prints unfinished lines at the end of the log, for example those that a full disk has cut.
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

// after skips a number of lines and prints the others.
func (r *reader) after(skip *int64) func([]byte) error {
	return func(line []byte) error {
		if *skip > 0 {
			*skip--
			return nil
		}
		return r.print(line)
	}
}

// seekTail positions the reader at the last tail lines. It seeks in the file in use, and returns the older files that
// are needed and the number of lines to skip in the first of them.
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
	// begun is the beginning of a line whose end has not been read.
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

// openRotated opens a rotated file, even if it has been compressed since it was listed.
func openRotated(file Rotated) (*source, error) {
	s, err := open(file.Path, file.Compressed)
	if errors.Is(err, fs.ErrNotExist) && !file.Compressed {
		return open(CompressedPath(file.Path), true)
	}
	return s, err
}

// close closes the file. Its error is ignored because the file was only read.
func (s *source) close() { _ = s.file.Close() }

// isAt reports whether the source is the file at path.
func (s *source) isAt(path string) bool {
	if s == nil {
		return false
	}
	info, err := os.Stat(path)
	return err == nil && os.SameFile(s.info, info)
}

// drain calls do for every complete line up to the present end of the file.
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
			s.begun = bytes.Clone(s.begun) // release the buffer of the lines before
			return nil
		case err != nil:
			return fmt.Errorf("read %s: %w", s.file.Name(), err)
		}
	}
}

// end calls do for an unfinished line.
func (s *source) end(do func(line []byte) error) error {
	if len(s.begun) == 0 {
		return nil
	}
	line := append(s.begun, '\n')
	s.begun = nil
	return do(line)
}

// countLines counts the lines up to the end.
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

// seekLast seeks to the beginning of the last wanted lines of a file, and returns their number, which is smaller if the
// file is shorter. It reads no more of the file than these lines.
func seekLast(f *os.File, wanted int64) (found int64, err error) {
	at, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return 0, err
	}
	chunk := make([]byte, 64<<10)
	ends := int64(0) // newlines, counted from the end of the file
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
