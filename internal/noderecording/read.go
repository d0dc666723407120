package noderecording

import (
	"errors"
	"io"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/quartet-node/quartet/internal/recordfile"
)

// Read reads a whole recording. name is its name in errors.
func Read(in io.Reader, name string) ([]Entry, error) {
	lines, err := recordfile.NewReader(in, name, format)
	if err != nil {
		return nil, err
	}
	var entries []Entry
	for {
		var l line
		if err := lines.Next(&l); errors.Is(err, io.EOF) {
			return entries, nil
		} else if err != nil {
			return nil, err
		}
		e, err := entry(lines, l)
		if err != nil {
			return nil, err
		}
		if len(entries) > 0 && e.Time.Before(entries[len(entries)-1].Time) {
			e.Time = entries[len(entries)-1].Time // the clock of the recorder was set back
		}
		entries = append(entries, e)
	}
}

// entry validates a line and returns its entry.
func entry(r *recordfile.Reader, l line) (Entry, error) {
	e := Entry{Line: r.Line(), Time: l.Time, Part: l.Part, Op: l.Op, Key: l.Key}
	value := newValue(l.Part)
	switch {
	case l.Time.IsZero():
		return Entry{}, r.Fail("the line has no time: remove it")
	case value == nil:
		return Entry{}, r.Fail("part: %q is not known: use the version of Quartet that recorded it", l.Part)
	case l.Op == Put && l.Value == nil:
		return Entry{}, r.Fail("value: it is missing: remove the line")
	}
	switch l.Op {
	case Put, Remove:
	case Synced, Down:
		return e, nil
	default:
		return Entry{}, r.Fail("op: %q is not known: use the version of Quartet that recorded it", l.Op)
	}
	if l.Value == nil {
		return e, nil
	}
	if err := protojson.Unmarshal(l.Value, value); err != nil {
		return Entry{}, r.Fail("value: it cannot be read: %v: use the version of Quartet that recorded it", err)
	}
	e.Value = value
	return e, nil
}
