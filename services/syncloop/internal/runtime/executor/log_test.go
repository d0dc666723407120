package executor_test

import (
	"log/slog"
	"strings"

	"github.com/quartet-node/quartet/test/logbuffer"
)

// logLines records the log.
type logLines struct{ logbuffer.Buffer }

func (l *logLines) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

func (l *logLines) count(message string) int { return strings.Count(l.String(), message) }
