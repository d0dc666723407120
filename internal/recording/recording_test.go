package recording

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	streamv1 "github.com/quartet-node/quartet/gen/quartet/stream/v1"
	"github.com/quartet-node/quartet/internal/recordfile"
)

var began = time.Date(2026, 5, 1, 12, 0, 0, 123456789, time.UTC)

func updates(t *testing.T) []*configv1.WatchPodUpdatesResponse {
	t.Helper()
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "default", UID: "u1"}}
	data, err := pod.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	frame := func(kind streamv1.Kind, key string) *streamv1.Frame { return &streamv1.Frame{Kind: kind, Key: key} }
	return []*configv1.WatchPodUpdatesResponse{
		{
			Frame: &streamv1.Frame{
				Kind:    streamv1.Kind_KIND_OPENED,
				Opening: &streamv1.Opening{Start: streamv1.Start_START_SNAPSHOT},
			},
		},
		{Frame: frame(streamv1.Kind_KIND_SNAPSHOT, "source/file"), Payload: &configv1.WatchPodUpdatesResponse_Source{
			Source: &configv1.SourceState{Name: "file", Ready: true},
		}},
		{Frame: &streamv1.Frame{Kind: streamv1.Kind_KIND_SYNCED, ResumeToken: []byte{1, 2}}},
		{Frame: frame(streamv1.Kind_KIND_DELTA, "u1"), Payload: &configv1.WatchPodUpdatesResponse_Pod{
			Pod: &configv1.PodUpdate{Op: configv1.Op_OP_ADD, Source: "file", Pod: data, Traceparent: "00-1-2-01"},
		}},
	}
}

func record(t *testing.T, all []*configv1.WatchPodUpdatesResponse) string {
	t.Helper()
	var out bytes.Buffer
	w, err := NewWriter(&out, began)
	if err != nil {
		t.Fatal(err)
	}
	for i, u := range all {
		if err := w.Write(began.Add(time.Duration(i)*time.Second), u); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.End(began.Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func read(text io.Reader) ([]Message, error) {
	r, err := NewReader(text, "f")
	if err != nil {
		return nil, err
	}
	var all []Message
	for {
		m, err := r.Next()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return all, err
		}
		all = append(all, m)
	}
}

func TestWhatIsReadIsWhatWasWritten(t *testing.T) {
	want := updates(t)
	text := record(t, want)
	if first, _, _ := strings.Cut(
		text,
		"\n",
	); first != `{"time":"2026-05-01T12:00:00.123456789Z","format":"quartet.pod-updates","version":1}` {
		t.Errorf("the first line is %s, want %q",
			first, `{"time":"2026-05-01T12:00:00.123456789Z","format":"quartet.pod-updates","version":1}`)
	}
	got, err := read(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != len(want) {
		t.Fatalf("%d messages, want %d", len(got), len(want))
	}
	for i, m := range got {
		if !proto.Equal(m.Update, want[i]) {
			t.Errorf("message %d is %v, want %v", i, m.Update, want[i])
		}
		if at := began.Add(time.Duration(i) * time.Second); !m.Time.Equal(at) || m.Line != i+2 {
			t.Errorf("message %d came at %v in line %d, want %v in line %d", i, m.Time, m.Line, at, i+2)
		}
	}
	if last := got[3].Pod; last == nil || last.Name != "a" {
		t.Errorf("the pod is %v", last)
	}
}

func TestWhatIsNoRecordingSaysWhere(t *testing.T) {
	good := record(t, updates(t))
	lines := strings.SplitAfter(good, "\n")
	for name, test := range map[string]struct{ text, want string }{
		"empty":           {"", "f:1: the file is empty"},
		"binary":          {"\x7fELF\x02\x01\x00\xff", "f:1: this is no recording"},
		"binary inside":   {lines[0] + "\x00\xff\n" + lines[1], "f:2: the line cannot be read"},
		"another format":  {`{"kind":"Pod"}` + "\n", "f:1: this is no recording"},
		"another version": {`{"format":"quartet.pod-updates","version":2,"more":1}` + "\n", "f:1: the recording is of version 2 of the format, and this program reads version 1"},
		"half a line":     {good[:len(good)-len(lines[5])-4], "f:5: the line is cut off"},
		"no last line":    {strings.Join(lines[:5], ""), "f:6: the recording has no last line"},
		"more":            {good + lines[1], "f:7: there are more lines after the last line"},
		"no opening":      {lines[0] + lines[2] + lines[5], "f:2: update.frame.kind: KIND_SNAPSHOT comes before the stream was opened"},
		"no time":         {lines[0] + `{"update":{}}` + "\n", "f:2: the line has no time or no update"},
		"a field":         {lines[0] + `{"time":"2026-05-01T12:00:00Z","updates":{}}` + "\n", `unknown field "updates"`},
		"a kind":          {lines[0] + `{"time":"2026-05-01T12:00:00Z","update":{"frame":{"kind":99}}}` + "\n", "f:2: update.frame.kind: 99 is not known"},
		"a pod":           {lines[0] + lines[1] + `{"time":"2026-05-01T12:00:00Z","update":{"frame":{"kind":"KIND_DELTA","key":"x"},"pod":{"pod":"/w=="}}}` + "\n", "f:3: update.pod.pod: the pod cannot be read"},
		"another pod":     {lines[0] + lines[1] + strings.Replace(lines[4], `"key":"u1"`, `"key":"u2"`, 1), `f:3: update.pod.pod: the pod "a" has the UID "u1"`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := read(strings.NewReader(test.text))
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

// zeros is a file without lines.
type zeros struct{ given int }

func (z *zeros) Read(p []byte) (int, error) {
	clear(p)
	z.given += len(p)
	return len(p), nil
}

func TestALineWithoutEndIsNotHeld(t *testing.T) {
	z := &zeros{}
	_, err := read(io.MultiReader(strings.NewReader(strings.SplitAfter(record(t, nil), "\n")[0]), z))
	if err == nil || !strings.Contains(err.Error(), "f:2: the line has more than 32 MiB") {
		t.Errorf("read() error = %v, want an error with %q", err, "f:2: the line has more than 32 MiB")
	}
	if z.given > recordfile.MaxLine+1<<20 {
		t.Errorf("%d bytes were read", z.given)
	}
}

func FuzzReader(f *testing.F) {
	f.Add(
		[]byte(
			`{"format":"quartet.pod-updates","version":1}` + "\n" + `{"time":"2026-05-01T12:00:00Z","update":{"frame":{"kind":"KIND_OPENED"}}}` + "\n" + `{"end":true}` + "\n",
		),
	)
	f.Fuzz(func(t *testing.T, data []byte) {
		all, err := read(bytes.NewReader(data))
		var wrong *recordfile.Error
		if err != nil && (!errors.As(err, &wrong) || wrong.Line < 1) {
			t.Errorf("%v has no line", err)
		}
		for _, m := range all {
			if m.Update.GetFrame() == nil {
				t.Errorf("line %d has no frame", m.Line)
			}
		}
	})
}
