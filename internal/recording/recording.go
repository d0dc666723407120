// Package recording stores a stream of PodUpdates in a file: every message with the time at which it was received.
// `quartet updates record` writes a recording, and configmux --replay replays it, so that the input of a node can be
// examined elsewhere.
//
// A recording is lines of JSON, each an object:
//
//	{"time":TIME,"format":"quartet.pod-updates","version":1}   the first line
//	{"time":TIME,"update":UPDATE}                              one for each message, in their order
//	{"time":TIME,"end":true}                                   the last line of a complete recording
//
// TIME is RFC 3339 with nanoseconds. UPDATE is a quartet.config.v1.WatchPodUpdatesResponse in the JSON of protobuf,
// including its frame. A stream that restarted has another OPENED in the middle, with the reason.
//
// A change of a line's meaning requires a new version. A reader refuses every other version, and unknown fields.
package recording

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
)

const (
	// Format is the format name in the first line.
	Format = "quartet.pod-updates"
	// Version is the only supported version of the format.
	Version = 1
	// MaxLine is the maximum size of a line in bytes: more than the largest message of the stream in JSON.
	MaxLine = 32 << 20
)

// line is a line of a recording.
type line struct {
	Time    time.Time       `json:"time"`
	Format  string          `json:"format,omitempty"`
	Version int             `json:"version,omitempty"`
	Update  json.RawMessage `json:"update,omitempty"`
	End     bool            `json:"end,omitempty"`
}

// Writer writes a recording. Write returns after the message is written.
type Writer struct {
	out io.Writer
}

// NewWriter writes the first line of a recording that begins at a time.
func NewWriter(out io.Writer, at time.Time) (*Writer, error) {
	w := &Writer{out: out}
	return w, w.put(line{Time: at, Format: Format, Version: Version})
}

// Write adds a message that was received at a time.
func (w *Writer) Write(at time.Time, update *configv1.WatchPodUpdatesResponse) error {
	data, err := protojson.Marshal(update)
	if err != nil {
		return fmt.Errorf("encode a message of the stream: %w", err)
	}
	return w.put(line{Time: at, Update: data})
}

// End writes the last line of a complete recording. Nothing may be written after it.
func (w *Writer) End(at time.Time) error { return w.put(line{Time: at, End: true}) }

func (w *Writer) put(l line) error {
	l.Time = l.Time.UTC()
	data, err := json.Marshal(l)
	if err != nil {
		return err
	}
	_, err = w.out.Write(append(data, '\n'))
	return err
}
