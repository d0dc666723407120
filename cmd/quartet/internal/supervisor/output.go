package supervisor

import (
	"bytes"
	"fmt"
	"io"
	"sync"
)

// maxLine is the longest line that is kept whole; a longer one is broken, so that a process that never ends its line
// costs bounded memory.
const maxLine = 64 << 10

// Output joins the lines of several processes: each whole, with the process's name before it.
type Output struct {
	mu    sync.Mutex
	w     io.Writer
	width int
	// whole puts nothing before a line.
	whole bool
}

// Whole returns what joins the lines with nothing before them: each is whole in itself, and says whose it is.
func Whole(w io.Writer) *Output { return &Output{w: w, whole: true} }

// Prefixed returns a writer for one process. Its writes never fail, so that a closed terminal does not end the process
// that logs to it.
func (o *Output) Prefixed(name string) *Lines {
	lines := &Lines{out: o, begin: []byte(name + ": ")}
	if !o.whole {
		lines.prefix = fmt.Appendf(nil, "%-*s | ", o.width, name)
	}
	return lines
}

func (o *Output) write(line []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	_, _ = o.w.Write(line) // there is nowhere left to say that the log cannot be written
}

// Lines is one process's end of an Output. It is for one goroutine at a time.
type Lines struct {
	out    *Output
	prefix []byte
	rest   []byte
	// begin is what the reason begins with that a process gives for its end, and reason has what came from there on.
	begin, reason []byte
}

// Reason is what the process has said last, if it looks like the reason of its end: a line that begins with the name of the process,
// and the lines below it that are indented.
func (l *Lines) Reason() string { return string(bytes.TrimSpace(l.reason)) }

// Write passes on the lines that are complete and keeps the rest.
func (l *Lines) Write(p []byte) (int, error) {
	l.rest = append(l.rest, p...)
	for {
		end := bytes.IndexByte(l.rest, '\n')
		if end < 0 && len(l.rest) < maxLine {
			return len(p), nil
		}
		if end < 0 || end > maxLine {
			l.emit(l.rest[:maxLine])
			l.rest = l.rest[maxLine:]
			continue
		}
		l.emit(l.rest[:end])
		l.rest = l.rest[end+1:]
	}
}

// Flush passes on what is left of a line that was never ended.
func (l *Lines) Flush() {
	if len(l.rest) > 0 {
		l.emit(l.rest)
		l.rest = nil
	}
}

func (l *Lines) emit(line []byte) {
	switch text, begins := bytes.CutPrefix(line, l.begin); {
	case begins:
		l.reason = append(bytes.Clone(text), '\n')
	case len(l.reason) > 0 && len(l.reason) < maxLine && bytes.HasPrefix(line, []byte("  ")):
		l.reason = append(append(l.reason, line...), '\n')
	default:
		l.reason = nil
	}
	whole := make([]byte, 0, len(l.prefix)+len(line)+1)
	whole = append(whole, l.prefix...)
	whole = append(whole, line...)
	l.out.write(append(whole, '\n'))
}
