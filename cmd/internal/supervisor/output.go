package supervisor

import (
	"bytes"
	"fmt"
	"io"
	"sync"
)

// maxLine is the maximum length of an unbroken line, so that a process that never ends its line costs bounded memory.
const maxLine = 64 << 10

// Output merges the lines of several processes, with the name of the process before each line.
type Output struct {
	mu    sync.Mutex
	w     io.Writer
	width int
	// whole disables the names.
	whole bool
}

// Whole returns an Output without the names of processes, for lines that contain them.
func Whole(w io.Writer) *Output { return &Output{w: w, whole: true} }

// Prefixed returns the writer for one process. Its writes never fail, so that a closed terminal does not end the
// process.
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
	_, _ = o.w.Write(line) // an error of writing the log cannot be logged
}

// Lines is the writer of one process. It must not be used concurrently.
type Lines struct {
	out    *Output
	prefix []byte
	rest   []byte
	// begin is the prefix of a process's last words, and reason the text from there on.
	begin, reason []byte
}

// Reason returns the last words of a process: its last line that begins with its name, and the indented lines below it.
func (l *Lines) Reason() string { return string(bytes.TrimSpace(l.reason)) }

// Write writes complete lines and keeps the rest.
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

// Flush writes an unfinished line.
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
