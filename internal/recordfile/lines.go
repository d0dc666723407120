package recordfile

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// MaxLine is the maximum size of a line in bytes: more than the largest message of a stream in JSON.
const MaxLine = 32 << 20

// Format is a format of recordings.
type Format struct {
	// Name is the name in the first line, and Version the only supported version.
	Name    string
	Version int
	// Of is what is recorded, and Command what records it.
	Of, Command string
}

// Line has the fields of a line that all formats have. The line of a format embeds it.
type Line struct {
	Time    time.Time `json:"time"`
	Format  string    `json:"format,omitempty"`
	Version int       `json:"version,omitempty"`
	// End is true in the last line of a complete recording.
	End bool `json:"end,omitempty"`
}

// At returns the fields of a line with a time.
func At(at time.Time) Line { return Line{Time: at.UTC()} }

func (l Line) isLast() bool { return l.End }

// Reader reads a recording line by line, with one line in memory at a time.
type Reader struct {
	format Format
	name   string
	in     *bufio.Reader
	line   int
	ended  bool
}

// NewReader reads the first line of a recording. name is its name in errors.
func NewReader(in io.Reader, name string, format Format) (*Reader, error) {
	r := &Reader{format: format, name: name, in: bufio.NewReader(in)}
	data, err := r.readLine()
	if errors.Is(err, io.EOF) {
		r.line = 1
		return nil, r.Fail("the file is empty: record one with '%s'", format.Command)
	}
	if err != nil {
		return nil, err
	}
	// Other versions may have other fields here, which are ignored until the version is known.
	var head Line
	if err := json.Unmarshal(data, &head); err != nil || head.Format != format.Name {
		return nil, r.Fail(
			"this is no recording of %s: its first line does not say that its format is %s: name a file that '%s' has written",
			format.Of,
			format.Name,
			format.Command,
		)
	}
	if head.Version != format.Version {
		return nil, r.Fail(
			"the recording is of version %d of the format, and this program reads version %d: use the version of Quartet that recorded it",
			head.Version,
			format.Version,
		)
	}
	return r, nil
}

// Line returns the number of the line that was read last, counted from 1.
func (r *Reader) Line() int { return r.line }

// Next decodes the next line, which embeds Line. It returns io.EOF at the end of a complete recording. Every other
// error is final.
func (r *Reader) Next(into interface{ isLast() bool }) error {
	data, err := r.readLine()
	switch {
	case errors.Is(err, io.EOF) && r.ended:
		return io.EOF
	case errors.Is(err, io.EOF):
		r.line++
		return r.Fail(
			`the recording has no last line, so something may be missing: the recorder was killed, or the copy is not complete; to use what is there, add the line {"end":true}`,
		)
	case err != nil:
		return err
	case r.ended:
		return r.Fail("there are more lines after the last line of the recording: remove them")
	}
	if err := strict(data, into); err != nil {
		return r.Fail("the line cannot be read: %v: copy the recording again, or remove the line", err)
	}
	if into.isLast() {
		r.ended = true
		return r.Next(into)
	}
	return nil
}

// Fail returns an *Error of the line that was read last.
func (r *Reader) Fail(format string, args ...any) error {
	return &Error{File: r.name, Line: r.line, Problem: fmt.Sprintf(format, args...)}
}

// readLine returns the next line without its end, and io.EOF if there is none.
func (r *Reader) readLine() ([]byte, error) {
	var data []byte
	for {
		part, err := r.in.ReadSlice('\n')
		if len(data) == 0 {
			if len(part) == 0 && errors.Is(err, io.EOF) {
				return nil, io.EOF
			}
			r.line++
		}
		if len(data)+len(part) > MaxLine {
			return nil, r.Fail(
				"the line has more than %d MiB, and no message of a stream is so large: this is no recording, or it is damaged: "+
					"copy it again",
				MaxLine>>20,
			)
		}
		data = append(data, part...)
		switch {
		case err == nil:
			return bytes.TrimSuffix(data, []byte("\n")), nil
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF) && r.line == 1:
			return data, nil // a short file of another kind is reported as such
		case errors.Is(err, io.EOF):
			return nil, r.Fail(
				`the line is cut off: the recorder was killed, or the copy is not complete; to use what is there, put {"end":true} in its place`,
			)
		default:
			return nil, fmt.Errorf("read %s: %w", r.name, err)
		}
	}
}

// strict decodes the only object of a line, without unknown fields.
func strict(data []byte, into any) error {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return err
	}
	if decoder.More() {
		return errors.New("there is more than one object in it")
	}
	return nil
}

// ErrFull is the error of a line that does not fit any more. The recording can still be ended.
var ErrFull = errors.New("the recording has its maximum size")

// endRoom is left for the last line.
const endRoom = 256

// Writer writes the lines of a recording. Put returns after the line is written.
type Writer struct {
	out io.Writer
	// limited is true if only left bytes may be written.
	limited bool
	left    int64
}

// NewWriter writes the first line of a recording that begins at a time. It has at most limit bytes, unless limit is 0.
func NewWriter(out io.Writer, format Format, at time.Time, limit int64) (*Writer, error) {
	w := &Writer{out: out, limited: limit > 0, left: limit - endRoom}
	head := At(at)
	head.Format, head.Version = format.Name, format.Version
	return w, w.Put(head)
}

// Put writes a line, which is or embeds a Line. It fails with ErrFull.
func (w *Writer) Put(line any) error {
	data, err := json.Marshal(line)
	if err != nil {
		return err
	}
	if w.left -= int64(len(data)) + 1; w.limited && w.left < 0 {
		w.left = 0
		return ErrFull
	}
	_, err = w.out.Write(append(data, '\n'))
	return err
}

// End writes the last line of a complete recording. Nothing may be written after it.
func (w *Writer) End(at time.Time) error {
	w.left += endRoom
	last := At(at)
	last.End = true
	return w.Put(last)
}
