// Package logging writes the log lines of a process. It needs no other library, so that a small program can use it;
// package telemetry adds the traces.
package logging

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"
)

// Keys of log lines. Package telemetry has these and the others.
const (
	KeyError  = "error"
	KeyReason = "reason"
)

// debugVerbosity is the verbosity from which details are logged.
const debugVerbosity = 4

// Config is the format and the verbosity of log lines.
type Config struct {
	// JSON writes each line as a JSON object instead of KEY=VALUE.
	JSON bool
	// Verbosity follows klog: 0 to 2 logs what an operator needs, 4 and more adds the details of each decision.
	Verbosity int
	// Parts override the verbosity with a higher one; the first match counts.
	Parts []Part
}

// Part is the verbosity of a part of the program.
type Part struct {
	// Pattern matches the name of a package, or of a file without .go, as path.Match does.
	Pattern   string
	Verbosity int
}

// levelOf returns the lowest level that is logged at a verbosity.
func levelOf(verbosity int) slog.Level {
	if verbosity >= debugVerbosity {
		return slog.LevelDebug
	}
	return slog.LevelInfo
}

// Handler writes log lines to w.
func (c Config) Handler(w io.Writer) slog.Handler { return c.HandlerWith(w, NewVerbosity(c.Verbosity)) }

// HandlerWith is Handler with a verbosity that can change, instead of that of c.
func (c Config) HandlerWith(w io.Writer, verbosity *Verbosity) slog.Handler {
	level := lowest{verbosity: verbosity, parts: slog.LevelInfo}
	for _, part := range c.Parts {
		level.parts = min(level.parts, levelOf(part.Verbosity))
	}
	options := &slog.HandlerOptions{Level: level}
	var handler slog.Handler = slog.NewTextHandler(w, options)
	if c.JSON {
		options.AddSource, options.ReplaceAttr = true, kubernetesKeys
		handler = slog.NewJSONHandler(w, options)
	}
	if len(c.Parts) == 0 {
		return handler
	}
	return byPart{
		Handler: handler,
		levels:  &partLevels{verbosity: verbosity, parts: c.Parts, known: map[uintptr]slog.Level{}},
	}
}

// kubernetesKeys converts time and source to the keys and the form of Kubernetes' JSON logs: "ts", the milliseconds
// since 1970, and "caller", "DIRECTORY/FILE:LINE".
func kubernetesKeys(groups []string, attr slog.Attr) slog.Attr {
	if len(groups) > 0 {
		return attr
	}
	switch value := attr.Value.Any().(type) {
	case time.Time:
		if attr.Key == slog.TimeKey {
			return slog.Float64("ts", float64(value.UnixMicro())/float64(time.Millisecond/time.Microsecond))
		}
	case *slog.Source:
		return slog.String("caller", fmt.Sprintf("%s/%s:%d", packageOf(value.File), filepath.Base(value.File), value.Line))
	}
	return attr
}

// packageOf returns the name of the directory of a file.
func packageOf(file string) string { return filepath.Base(filepath.Dir(file)) }

// byPart drops lines below the level of the part that has logged them.
type byPart struct {
	slog.Handler
	levels *partLevels
}

// Handle implements slog.Handler.
func (h byPart) Handle(ctx context.Context, r slog.Record) error {
	if r.Level < h.levels.levelAt(r.PC) {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h byPart) WithAttrs(attrs []slog.Attr) slog.Handler {
	return byPart{Handler: h.Handler.WithAttrs(attrs), levels: h.levels}
}

// WithGroup implements slog.Handler.
func (h byPart) WithGroup(name string) slog.Handler {
	return byPart{Handler: h.Handler.WithGroup(name), levels: h.levels}
}

// partLevels holds the levels of the parts of a program.
type partLevels struct {
	verbosity *Verbosity
	parts     []Part

	mu sync.Mutex
	// known caches the levels of the parts of the call sites that have logged. Its size is bounded by their number in the
	// source.
	known map[uintptr]slog.Level
}

// levelAt returns the lowest level that the code at a program counter logs.
func (l *partLevels) levelAt(pc uintptr) slog.Level {
	l.mu.Lock()
	defer l.mu.Unlock()
	level, known := l.known[pc]
	if !known {
		frame, _ := runtime.CallersFrames([]uintptr{pc}).Next()
		level = l.ofFile(frame.File)
		l.known[pc] = level
	}
	return min(level, l.verbosity.Level())
}

// ofFile returns the level of the part that has a file, or the highest one if no part has it.
func (l *partLevels) ofFile(file string) slog.Level {
	for _, part := range l.parts {
		for _, name := range []string{packageOf(file), strings.TrimSuffix(filepath.Base(file), ".go")} {
			if matches, err := path.Match(part.Pattern, name); err == nil && matches {
				return levelOf(part.Verbosity)
			}
		}
	}
	return slog.LevelInfo
}
