package noderecording

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/quartet-node/quartet/internal/recordfile"
)

// Read reads a whole recording. name is its name in errors.
func Read(in io.Reader, name string) ([]Entry, error) {
	r := &reader{name: name, lines: bufio.NewScanner(in)}
	r.lines.Buffer(nil, MaxLine)
	if err := r.head(); err != nil {
		return nil, err
	}
	var entries []Entry
	for {
		data, err := r.next()
		if err != nil {
			return nil, err
		}
		var l line
		if err := recordfile.Strict(data, &l); err != nil {
			return nil, r.fail("the line cannot be read: %v: copy the recording again, or remove the line", err)
		}
		if l.End {
			if r.lines.Scan() {
				r.line++
				return nil, r.fail("there are more lines after the last line of the recording: remove them")
			}
			return entries, nil
		}
		e, err := r.entry(l)
		if err != nil {
			return nil, err
		}
		if len(entries) > 0 && e.Time.Before(entries[len(entries)-1].Time) {
			e.Time = entries[len(entries)-1].Time // the clock of the recorder was set back
		}
		entries = append(entries, e)
	}
}

type reader struct {
	name  string
	lines *bufio.Scanner
	line  int
}

// head checks the first line.
func (r *reader) head() error {
	if !r.lines.Scan() {
		r.line = 1
		return r.fail("the file is empty: record one with 'quartet record'")
	}
	r.line++
	var head line
	// Other versions may have other fields here, which are ignored until the version is known.
	if err := json.Unmarshal(r.lines.Bytes(), &head); err != nil || head.Format != Format {
		return r.fail("this is no recording of a node: name a file that 'quartet record' has written")
	}
	if head.Version != Version {
		return r.fail("the recording is of version %d, and this program reads version %d: use the version of Quartet that recorded it",
			head.Version, Version)
	}
	return nil
}

// next returns the next line.
func (r *reader) next() ([]byte, error) {
	r.line++
	if r.lines.Scan() {
		return r.lines.Bytes(), nil
	}
	err := r.lines.Err()
	switch {
	case errors.Is(err, bufio.ErrTooLong):
		return nil, r.fail("the line has more than %d MiB: copy the recording again", MaxLine>>20)
	case err != nil:
		return nil, fmt.Errorf("read %s: %w", r.name, err)
	}
	return nil, r.fail(`the recording has no last line, so something may be missing: the recorder was killed, or the copy ` +
		`is not complete; to use what is there, add the line {"end":true}`)
}

// entry validates a line and returns its entry.
func (r *reader) entry(l line) (Entry, error) {
	e := Entry{Line: r.line, Time: l.Time, Part: l.Part, Op: l.Op, Key: l.Key}
	value := newValue(l.Part)
	switch {
	case l.Time.IsZero():
		return Entry{}, r.fail("the line has no time: remove it")
	case value == nil:
		return Entry{}, r.fail("part: %q is not known: use the version of Quartet that recorded it", l.Part)
	case l.Op == Put && l.Value == nil:
		return Entry{}, r.fail("value: it is missing: remove the line")
	}
	switch l.Op {
	case Put, Remove:
	case Synced, Down:
		return e, nil
	default:
		return Entry{}, r.fail("op: %q is not known: use the version of Quartet that recorded it", l.Op)
	}
	if l.Value == nil {
		return e, nil
	}
	if err := protojson.Unmarshal(l.Value, value); err != nil {
		return Entry{}, r.fail("value: it cannot be read: %v: use the version of Quartet that recorded it", err)
	}
	e.Value = value
	return e, nil
}

func (r *reader) fail(format string, args ...any) error {
	return &recordfile.Error{File: r.name, Line: r.line, Problem: fmt.Sprintf(format, args...)}
}
