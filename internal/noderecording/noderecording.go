// Package noderecording stores the streams of a node in a file: every change with its time, without secrets. `quartet
// record` writes a recording, and `quartet replay` runs a part against it.
//
// A recording is lines of JSON, each an object:
//
//	{"time":TIME,"format":"quartet.node","version":1}                        the first line
//	{"time":TIME,"part":PART,"op":"put","key":KEY,"value":VALUE}             a key has a new value
//	{"time":TIME,"part":PART,"op":"remove","key":KEY,"value":VALUE}          a key is gone; VALUE may be missing
//	{"time":TIME,"part":PART,"op":"synced"}                                  all of the part's state is known
//	{"time":TIME,"part":PART,"op":"down"}                                    the part is away; its state stays until "synced"
//	{"time":TIME,"end":true}                                                 the last line of a complete recording
//
// TIME is RFC 3339 with nanoseconds, VALUE a message in the JSON of protobuf. A change of a line's meaning requires a
// new version. A reader refuses every other version, and unknown fields.
package noderecording

import (
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	debugv1 "github.com/quartet-node/quartet/gen/quartet/debug/v1"
	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	nodev1 "github.com/quartet-node/quartet/gen/quartet/node/v1"
	"github.com/quartet-node/quartet/internal/recordfile"
)

const (
	// Format is the format name in the first line.
	Format = "quartet.node"
	// Version is the only supported version of the format.
	Version = 1
)

// Part is a stream of a node.
type Part string

// The parts, with the messages of their values.
const (
	// Desired is configmux's stream: configv1.WatchPodUpdatesResponse without frames.
	Desired Part = "configmux"
	// Events is pleg's stream: lifecyclev1.Event.
	Events Part = "pleg"
	// Health is the health of pleg, under the empty key: lifecyclev1.GetHealthResponse.
	Health Part = "health"
	// Node is nodestatus's stream: nodev1.Node.
	Node Part = "nodestatus"
	// Pods is syncloop's stream of pods: enginev1.Pod.
	Pods Part = "syncloop"
	// PodEvents is syncloop's stream of events: enginev1.PodEvent.
	PodEvents Part = "events"
	// PLEGCalls and SyncLoopCalls are the calls of the runtime by pleg and syncloop, each when it has ended:
	// debugv1.RuntimeCall, under the name of its method. Synced says that all calls from then on are there until Down.
	PLEGCalls     Part = "pleg-calls"
	SyncLoopCalls Part = "syncloop-calls"
	// PLEGRecord is what pleg knows as its calls begin, before Synced of PLEGCalls, and that its first relist has
	// finished: debugv1.PLEGRecord, under the UID of a pod.
	PLEGRecord Part = "pleg-record"
	// Heartbeats is nodestatus's stream of heartbeats: nodev1.Heartbeat.
	Heartbeats Part = "heartbeats"
)

// Op is the kind of an entry.
type Op string

// The kinds.
const (
	Put    Op = "put"
	Remove Op = "remove"
	Synced Op = "synced"
	Down   Op = "down"
)

// newValue returns an empty message of a part; nil for an unknown one.
func newValue(part Part) proto.Message {
	switch part {
	case Desired:
		return &configv1.WatchPodUpdatesResponse{}
	case Events:
		return &lifecyclev1.Event{}
	case Health:
		return &lifecyclev1.GetHealthResponse{}
	case Node:
		return &nodev1.Node{}
	case Pods:
		return &enginev1.Pod{}
	case PodEvents:
		return &enginev1.PodEvent{}
	case PLEGCalls, SyncLoopCalls:
		return &debugv1.RuntimeCall{}
	case PLEGRecord:
		return &debugv1.PLEGRecord{}
	case Heartbeats:
		return &nodev1.Heartbeat{}
	}
	return nil
}

// Entry is one change.
type Entry struct {
	// Line is its line number, counted from 1; 0 for one that is to be written.
	Line int
	Time time.Time
	Part Part
	Op   Op
	Key  string
	// Value is the message of the part; nil if there is none.
	Value proto.Message
}

// format is the format of the files.
var format = recordfile.Format{Name: Format, Version: Version, Of: "a node", Command: "quartet record"}

// line is a line of a recording.
type line struct {
	recordfile.Line

	Part  Part            `json:"part,omitempty"`
	Op    Op              `json:"op,omitempty"`
	Key   string          `json:"key,omitempty"`
	Value json.RawMessage `json:"value,omitempty"`
}

// Writer writes a recording. Its methods may be called concurrently.
type Writer struct {
	mu      sync.Mutex
	out     *recordfile.Writer
	entries int
}

// NewWriter writes the first line of a recording of at most limit bytes that begins at a time.
func NewWriter(out io.Writer, at time.Time, limit int64) (*Writer, error) {
	lines, err := recordfile.NewWriter(out, format, at, limit)
	return &Writer{out: lines}, err
}

// Write adds an entry. It fails with recordfile.ErrFull.
func (w *Writer) Write(e Entry) error {
	l := line{Line: recordfile.At(e.Time), Part: e.Part, Op: e.Op, Key: e.Key}
	if e.Value != nil {
		data, err := protojson.Marshal(e.Value)
		if err != nil {
			return fmt.Errorf("encode a message of %s: %w", e.Part, err)
		}
		l.Value = data
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.out.Put(l); err != nil {
		return err
	}
	w.entries++
	return nil
}

// Entries returns the number of written entries.
func (w *Writer) Entries() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.entries
}

// End writes the last line of a complete recording. Nothing may be written after it.
func (w *Writer) End(at time.Time) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.out.End(at)
}
