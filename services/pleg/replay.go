package pleg

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/quartet-node/quartet/internal/noderecording"
	"github.com/quartet-node/quartet/internal/replayed"
	"github.com/quartet-node/quartet/services/pleg/internal/replay"
)

// Replay runs the decisions of pleg against a recording of a node.
type Replay struct {
	// File is the recording.
	File string
	// Step is called with each step of pleg before it is repeated; nil for none.
	Step func(text string) error
	// JSON prints JSON instead of text to Out.
	JSON bool
	Out  io.Writer
}

// Run replays the recording to its end, prints the differences, and returns their number.
func (r Replay) Run(ctx context.Context) (differences int, err error) {
	file, err := os.Open(r.File)
	if err != nil {
		return 0, err
	}
	entries, err := noderecording.Read(file, r.File)
	if err := errors.Join(err, file.Close()); err != nil {
		return 0, err
	}
	printer := replayed.NewPrinter(r.Out, r.JSON)
	summary, err := replay.Run(ctx, replay.Config{Entries: entries, Step: r.Step, Report: printer.Difference})
	if err != nil {
		return 0, fmt.Errorf("%s: %w", r.File, err)
	}
	return summary.Differences, printer.Summary(summary.String(), summary)
}
