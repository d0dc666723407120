// Package recording keeps a stream of PodUpdates in a file: every message as it came, with the time at which it came.
// `quartet updates record` writes one, and configmux --replay gives it back, so that what a node was told can be looked at
// elsewhere.
//
// A recording is lines of JSON, each an object:
//
//	{"time":TIME,"format":"quartet.pod-updates","version":1}   the first line
//	{"time":TIME,"update":UPDATE}                              one for each message, in their order
//	{"time":TIME,"end":true}                                   the last line: nothing is missing
//
// TIME is RFC 3339 with nanoseconds. UPDATE is a quartet.config.v1.WatchPodUpdatesResponse in the JSON of protobuf, frame
// and all. A stream that had to begin anew has another OPENED in the middle, with what became of its token.
//
// What would change the meaning of a line changes the version. A reader refuses every other version, and everything that
// it does not know.
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
	// Format is what the first line calls the file.
	Format = "quartet.pod-updates"
	// Version is the one version of the format that is written and read.
	Version = 1
	// MaxLine is how many bytes a line may have: more than the largest message that the processes exchange has in JSON.
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

// Writer writes a recording. Each message is with the file when Write returns.
type Writer struct {
	out io.Writer
}

// NewWriter begins a recording at a time.
func NewWriter(out io.Writer, at time.Time) (*Writer, error) {
	w := &Writer{out: out}
	return w, w.put(line{Time: at, Format: Format, Version: Version})
}

// Write adds a message that came at a time.
func (w *Writer) Write(at time.Time, update *configv1.WatchPodUpdatesResponse) error {
	data, err := protojson.Marshal(update)
	if err != nil {
		return fmt.Errorf("encode a message of the stream: %w", err)
	}
	return w.put(line{Time: at, Update: data})
}

// End says that the recording is whole. Nothing may be written after it.
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
