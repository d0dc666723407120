package recording

import (
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
	lines  *recordfile.Reader
	opened bool
}

// NewReader reads the first line of a recording. name is its name in errors.
func NewReader(in io.Reader, name string) (*Reader, error) {
	lines, err := recordfile.NewReader(in, name, format)
	if err != nil {
		return nil, err
	}
	return &Reader{lines: lines}, nil
}

// Next returns the next message, and io.EOF at the end of a complete recording. Every other error is final.
func (r *Reader) Next() (Message, error) {
	var l line
	if err := r.lines.Next(&l); err != nil {
		return Message{}, err
	}
	return r.message(l)
}

// message validates a line and returns its message.
func (r *Reader) message(l line) (Message, error) {
	m := Message{Line: r.lines.Line(), Time: l.Time, Update: &configv1.WatchPodUpdatesResponse{}}
	if l.Time.IsZero() || l.Update == nil {
		return Message{}, r.lines.Fail("the line has no time or no update: remove it")
	}
	if err := protojson.Unmarshal(l.Update, m.Update); err != nil {
		return Message{}, r.lines.Fail("the update cannot be read: %v: use the version of Quartet that recorded it", err)
	}
	frame := m.Update.GetFrame()
	kind := frame.GetKind()
	if _, known := streamv1.Kind_name[int32(kind)]; !known || kind == streamv1.Kind_KIND_UNSPECIFIED {
		return Message{}, r.lines.Fail("update.frame.kind: %v is not known: use the version of Quartet that recorded it", kind)
	}
	r.opened = r.opened || kind == streamv1.Kind_KIND_OPENED
	if !r.opened {
		return Message{}, r.lines.Fail(
			"update.frame.kind: %v comes before the stream was opened: lines are missing; copy the recording again",
			kind,
		)
	}
	if m.Update.GetPod() == nil {
		return m, nil
	}
	m.Pod = &v1.Pod{}
	if err := m.Pod.Unmarshal(m.Update.GetPod().GetPod()); err != nil {
		return Message{}, r.lines.Fail("update.pod.pod: the pod cannot be read: %v: remove the line, or record again", err)
	}
	if m.Pod.Name == "" || m.Pod.UID == "" || string(m.Pod.UID) != frame.GetKey() {
		return Message{}, r.lines.Fail(
			"update.pod.pod: the pod %q has the UID %q, and update.frame.key is %q: it must have a name, and both must be the same",
			m.Pod.Name,
			m.Pod.UID,
			frame.GetKey(),
		)
	}
	return m, nil
}
