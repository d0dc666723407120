package logging

import (
	"log/slog"
	"sync/atomic"
)

// Verbosity is how much a process logs. It can change while the process runs, and is safe for concurrent use.
type Verbosity struct {
	configured int
	present    atomic.Int64
}

// NewVerbosity returns a verbosity with the configured value.
func NewVerbosity(configured int) *Verbosity {
	v := &Verbosity{configured: configured}
	v.Set(configured)
	return v
}

// Configured returns the value at the start of the process.
func (v *Verbosity) Configured() int { return v.configured }

// Get returns the present value.
func (v *Verbosity) Get() int { return int(v.present.Load()) }

// Set changes the present value. Lines are logged by it from now on.
func (v *Verbosity) Set(verbosity int) { v.present.Store(int64(verbosity)) }

// Level implements slog.Leveler: it returns the lowest level that is logged.
func (v *Verbosity) Level() slog.Level { return levelOf(v.Get()) }

// lowest is the lowest level that the program or one of its parts logs. It implements slog.Leveler.
type lowest struct {
	verbosity *Verbosity
	parts     slog.Level
}

// Level implements slog.Leveler.
func (l lowest) Level() slog.Level { return min(l.verbosity.Level(), l.parts) }
