package recording

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	v1 "k8s.io/api/core/v1"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	streamv1 "github.com/quartet-node/quartet/gen/quartet/stream/v1"
	"github.com/quartet-node/quartet/internal/recordfile"
)

// Message is one message of the recorded stream.
type Message struct {
	// Line is its line number, counted from 1.
	Line int
	// Time is the time at which it was received.
	Time time.Time
	// Update is the message. The kind of its frame is known to this version.
	Update *configv1.WatchPodUpdatesResponse
	// Pod is the pod of the message; nil if it has none. Its UID is the key of the frame.
	Pod *v1.Pod
}

// Reader reads a recording line by line, with one line in memory at a time.
type Reader struct {
	name   string
	in     *bufio.Reader
	line   int
	opened bool
	ended  bool
}

// NewReader reads the first line of a recording. name is its name in errors.
func NewReader(in io.Reader, name string) (*Reader, error) {
	r := &Reader{name: name, in: bufio.NewReader(in)}
	data, err := r.readLine()
	if errors.Is(err, io.EOF) {
		r.line = 1
		return nil, r.fail("the file is empty: record one with 'quartet updates record'")
	}
	if err != nil {
		return nil, err
	}
	// Other versions may have other fields here, which are ignored until the version is known.
	var head line
	if err := json.Unmarshal(data, &head); err != nil || head.Format != Format {
		return nil, r.fail(
			"this is no recording: its first line does not say that its format is %s: name a file that 'quartet updates record' has written",
			Format,
		)
	}
	if head.Version != Version {
		return nil, r.fail(
			"the recording is of version %d of the format, and this program reads version %d: use the version of Quartet that recorded it",
			head.Version,
			Version,
		)
	}
	return r, nil
}

// Next returns the next message, and io.EOF at the end of a complete recording. Every other error is final.
func (r *Reader) Next() (Message, error) {
	data, err := r.readLine()
	switch {
	case errors.Is(err, io.EOF) && r.ended:
		return Message{}, io.EOF
	case errors.Is(err, io.EOF):
		r.line++
		return Message{}, r.fail(
			`the recording has no last line, so something may be missing: the recorder was killed, or the copy is not complete; to use what is there, add the line {"end":true}`,
		)
	case err != nil:
		return Message{}, err
	case r.ended:
		return Message{}, r.fail("there are more lines after the last line of the recording: remove them")
	}
	var l line
	if err := recordfile.Strict(data, &l); err != nil {
		return Message{}, r.fail("the line cannot be read: %v: copy the recording again, or remove the line", err)
	}
	if l.End {
		r.ended = true
		return r.Next()
	}
	return r.message(l)
}

// message validates a line and returns its message.
func (r *Reader) message(l line) (Message, error) {
	m := Message{Line: r.line, Time: l.Time, Update: &configv1.WatchPodUpdatesResponse{}}
	if l.Time.IsZero() || l.Update == nil {
		return Message{}, r.fail("the line has no time or no update: remove it")
	}
	if err := protojson.Unmarshal(l.Update, m.Update); err != nil {
		return Message{}, r.fail("the update cannot be read: %v: use the version of Quartet that recorded it", err)
	}
	frame := m.Update.GetFrame()
	kind := frame.GetKind()
	if _, known := streamv1.Kind_name[int32(kind)]; !known || kind == streamv1.Kind_KIND_UNSPECIFIED {
		return Message{}, r.fail("update.frame.kind: %v is not known: use the version of Quartet that recorded it", kind)
	}
	r.opened = r.opened || kind == streamv1.Kind_KIND_OPENED
	if !r.opened {
		return Message{}, r.fail(
			"update.frame.kind: %v comes before the stream was opened: lines are missing; copy the recording again",
			kind,
		)
	}
	if m.Update.GetPod() == nil {
		return m, nil
	}
	m.Pod = &v1.Pod{}
	if err := m.Pod.Unmarshal(m.Update.GetPod().GetPod()); err != nil {
		return Message{}, r.fail("update.pod.pod: the pod cannot be read: %v: remove the line, or record again", err)
	}
	if m.Pod.Name == "" || m.Pod.UID == "" || string(m.Pod.UID) != frame.GetKey() {
		return Message{}, r.fail(
			"update.pod.pod: the pod %q has the UID %q, and update.frame.key is %q: it must have a name, and both must be the same",
			m.Pod.Name,
			m.Pod.UID,
			frame.GetKey(),
		)
	}
	return m, nil
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
			return nil, r.fail(
				"the line has more than %d MiB, and no message of the stream is so large: this is no recording, or it is damaged",
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
			return nil, r.fail(
				`the line is cut off: the recorder was killed, or the copy is not complete; to use what is there, put {"end":true} in its place`,
			)
		default:
			return nil, fmt.Errorf("read %s: %w", r.name, err)
		}
	}
}

func (r *Reader) fail(format string, args ...any) error {
	return &recordfile.Error{File: r.name, Line: r.line, Problem: fmt.Sprintf(format, args...)}
}
