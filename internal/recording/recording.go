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
	"github.com/quartet-node/quartet/internal/recordfile"
)

const (
	// Format is the format name in the first line.
	Format = "quartet.pod-updates"
	// Version is the only supported version of the format.
	Version = 1
)

// format is the format of the files.
var format = recordfile.Format{Name: Format, Version: Version, Of: "pod updates", Command: "quartet updates record"}

// line is a line of a recording.
type line struct {
	recordfile.Line

	Update json.RawMessage `json:"update,omitempty"`
}

// Writer writes a recording. Write returns after the message is written.
type Writer struct {
	out *recordfile.Writer
}

// NewWriter writes the first line of a recording that begins at a time.
func NewWriter(out io.Writer, at time.Time) (*Writer, error) {
	lines, err := recordfile.NewWriter(out, format, at, 0)
	return &Writer{out: lines}, err
}

// Write adds a message that was received at a time.
func (w *Writer) Write(at time.Time, update *configv1.WatchPodUpdatesResponse) error {
	data, err := protojson.Marshal(update)
	if err != nil {
		return fmt.Errorf("encode a message of the stream: %w", err)
	}
	return w.out.Put(line{Line: recordfile.At(at), Update: data})
}

// End writes the last line of a complete recording. Nothing may be written after it.
func (w *Writer) End(at time.Time) error { return w.out.End(at) }
