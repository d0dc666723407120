package trace

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// format is the value of -o; empty for the waterfall.
type format string

const formatJSON format = "json"

// String implements pflag.Value.
func (f *format) String() string { return string(*f) }

// Type implements pflag.Value.
func (f *format) Type() string { return "format" }

// Set implements pflag.Value.
func (f *format) Set(text string) error {
	if text != string(formatJSON) {
		return errors.New("must be json")
	}
	*f = formatJSON
	return nil
}

// The JSON of a start. Times are in milliseconds, and offsets count from the first span.
type (
	jsonStart struct {
		Namespace string    `json:"namespace"`
		Pod       string    `json:"pod"`
		UID       string    `json:"uid,omitempty"`
		TraceID   string    `json:"traceID"`
		Link      string    `json:"link"`
		Began     time.Time `json:"began"`
		// ReadyAfter is omitted while the pod is not Ready.
		ReadyAfter *float64 `json:"readyAfterMs,omitempty"`
		// Slowest is the ID of the slowest span.
		Slowest string     `json:"slowestSpanID,omitempty"`
		Hidden  int        `json:"hiddenSpans"`
		Spans   []jsonSpan `json:"spans"`
	}
	jsonSpan struct {
		ID       string  `json:"spanID"`
		Parent   string  `json:"parentID,omitempty"`
		Service  string  `json:"service"`
		Name     string  `json:"name"`
		Offset   float64 `json:"offsetMs"`
		Duration float64 `json:"durationMs"`
		// Self is the duration within the start minus the time of its children.
		Self   float64  `json:"selfMs"`
		Orphan bool     `json:"orphan,omitempty"`
		Failed bool     `json:"failed,omitempty"`
		Error  string   `json:"error,omitempty"`
		Links  []string `json:"linkedTraceIDs,omitempty"`
	}
)

// printJSON writes a start as JSON, with the spans in the order of the waterfall.
func (s start) printJSON(out io.Writer) error {
	result := jsonStart{
		Namespace: s.pod.namespace,
		Pod:       s.pod.name,
		UID:       s.pod.uid,
		TraceID:   s.traceID,
		Link:      s.link,
		Began:     s.window.from.UTC(),
		Hidden:    s.hidden,
		Spans:     []jsonSpan{},
	}
	if s.window.ready != nil {
		after := milliseconds(s.window.length())
		result.ReadyAfter = &after
	}
	if s.slow != nil {
		result.Slowest = s.slow.id
	}
	orphans := len(s.lines(s.tree.orphans))
	lines := s.lines(s.tree.tops())
	for i, l := range lines {
		result.Spans = append(result.Spans, jsonSpan{
			ID:       l.id,
			Parent:   l.parent,
			Service:  l.service,
			Name:     l.name,
			Offset:   milliseconds(l.offset),
			Duration: milliseconds(l.duration()),
			Self:     milliseconds(selfTime(l.node, s.window)),
			Orphan:   i >= len(lines)-orphans,
			Failed:   l.failed,
			Error:    l.message,
			Links:    l.links,
		})
	}
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(result)
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// plainWidth is the line width in a file, unless COLUMNS is set.
const plainWidth = 120

// styleOf returns the capabilities of a stream.
func styleOf(out io.Writer) style {
	st := chooseStyle(os.Getenv)
	file, ok := out.(*os.File)
	if !ok {
		st.color = false
		return st
	}
	size, err := unix.IoctlGetWinsize(int(file.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		// It is not a terminal.
		st.color = false
		return st
	}
	if size.Col > 0 {
		st.width = int(size.Col)
	}
	return st
}

// chooseStyle returns the style of a terminal from the environment: COLUMNS, NO_COLOR, TERM, and the locale for
// non-ASCII characters.
func chooseStyle(getenv func(string) string) style {
	st := style{width: plainWidth, color: getenv("NO_COLOR") == "" && getenv("TERM") != "dumb" && getenv("TERM") != ""}
	if n, err := strconv.Atoi(getenv("COLUMNS")); err == nil && n > 0 {
		st.width = n
	}
	locale := getenv("LC_ALL")
	for _, name := range []string{"LC_CTYPE", "LANG"} {
		if locale == "" {
			locale = getenv(name)
		}
	}
	locale = strings.ToLower(locale)
	st.ascii = !strings.Contains(locale, "utf-8") && !strings.Contains(locale, "utf8")
	return st
}
