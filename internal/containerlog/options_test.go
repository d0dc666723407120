package containerlog_test

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/quartet-node/quartet/internal/containerlog"
)

// TestWhatIsShownOfALog: timestamps once for each line, a start time, and a limit of bytes.
func TestWhatIsShownOfALog(t *testing.T) {
	f := folder{t, t.TempDir()}
	const content = `2026-05-01T11:59:01Z stdout F one
2026-05-01T11:59:02.5Z stderr P tw
2026-05-01T11:59:02.6Z stderr F o
2026-05-01T11:59:03Z stdout F three
`
	if err := os.WriteFile(f.log(), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	at := func(text string) time.Time {
		parsed, err := time.Parse(time.RFC3339Nano, text)
		if err != nil {
			t.Fatal(err)
		}
		return parsed
	}
	for name, c := range map[string]struct {
		options containerlog.Options
		want    string
	}{
		"all":                                   {containerlog.Options{Tail: -1}, "one|two|three|"},
		"timestamps":                            {containerlog.Options{Tail: -1, Timestamps: true}, "2026-05-01T11:59:01Z one|2026-05-01T11:59:02.5Z two|2026-05-01T11:59:03Z three|"},
		"since":                                 {containerlog.Options{Tail: -1, Since: at("2026-05-01T11:59:03Z")}, "three|"},
		"since later":                           {containerlog.Options{Tail: -1, Since: at("2026-05-01T12:00:00Z")}, ""},
		"since and tail, which is of all lines": {containerlog.Options{Tail: 1, Since: at("2026-05-01T11:59:01Z")}, "three|"},
		"limit":                                 {containerlog.Options{Tail: -1, Limit: 6}, "one|tw"},
		"limit between lines":                   {containerlog.Options{Tail: -1, Limit: 4}, "one|"},
		"limit with timestamps":                 {containerlog.Options{Tail: -1, Limit: 10, Timestamps: true}, "2026-05-01"},
		"limit that is not needed":              {containerlog.Options{Tail: -1, Limit: 1000}, "one|two|three|"},
	} {
		var out bytes.Buffer
		if err := containerlog.Read(t.Context(), f.log(), c.options, &out); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got := strings.ReplaceAll(out.String(), "\n", "|"); got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

func TestFollowingEndsWithTheLimit(t *testing.T) {
	f := folder{t, t.TempDir()}
	f.write("0.log", "one")
	var out bytes.Buffer
	err := containerlog.Read(t.Context(), f.log(), containerlog.Options{
		Tail: -1, Follow: true, Limit: 2, Running: func(context.Context) (bool, error) { return true, nil },
	}, &out)
	if err != nil || out.String() != "on" {
		t.Errorf("out = %q, %v, want %q", out.String(), err, "on")
	}
}
