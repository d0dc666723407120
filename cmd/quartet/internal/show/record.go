package show

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/recordfile"
	"github.com/quartet-node/quartet/internal/recording"
)

func (a *querier) recordCommand() *cobra.Command {
	var force bool
	var length time.Duration
	mode := recordedMode{modeIncremental}
	cmd := &cobra.Command{
		Use:   "record FILE",
		Short: "Write configmux's stream of pod updates into a file",
		Long: "Write configmux's stream of pod updates into a file, every message with its time, until Ctrl-C or for the time that\n" +
			"--for says; 'configmux --replay FILE' gives it back. The file has whole pods, with what their environment holds: only\n" +
			"its owner may read it. The stream is the incremental one.",
		Example: "  quartet updates record /tmp/updates.jsonl --for 10m",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return errors.New("say where to: " + cmd.CommandPath() + " FILE")
			}
			if cmd.Flags().Changed("for") && length <= 0 {
				return fmt.Errorf("--for: %s: must be more than 0, for example 10m", length)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return a.record(cmd, args[0], force, length) },
	}
	a.addFlags(cmd, nil, nil)
	cmd.Flags().BoolVar(&force, "force", false, "replace the file if there is one")
	cmd.Flags().DurationVar(&length, "for", 0, "`DURATION` after which to end, for example 10m; without it, until Ctrl-C")
	// It exists because quartet updates has it, and explains that there is no other mode.
	cmd.Flags().VarPF(&mode, "mode", "", "`MODE` of the stream: incremental").Hidden = true
	return cmd
}

// record writes the stream until the command is interrupted or length is over; 0 means no limit.
func (a *querier) record(cmd *cobra.Command, path string, force bool, length time.Duration) (err error) {
	// The file is not replaced if the node is unreachable.
	conn, err := a.connect(cmd.Context(), layout.ConfigMux)
	if err != nil {
		return err
	}
	if err := conn.Close(); err != nil {
		return err
	}
	file, err := recordfile.Create(path, force)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	w, err := recording.NewWriter(file, a.clock.Now())
	if err != nil {
		return err
	}
	ctx := cmd.Context()
	if length > 0 {
		limited, cancel := context.WithTimeout(ctx, length)
		defer cancel()
		ctx = limited
	}
	messages, failed := 0, error(nil)
	err = a.tap(ctx, cmd, modeIncremental, func(m podUpdates) error {
		if failed = w.Write(a.clock.Now(), m); failed == nil {
			messages++
		}
		return failed
	})
	if err == nil || errors.Is(err, context.DeadlineExceeded) {
		err = failed // it also ends the stream if Ctrl-C arrives at the same time
	}
	if err != nil {
		return fmt.Errorf("%w: the recording is cut off after %d messages", err, messages)
	}
	if err := w.End(a.clock.Now()); err != nil {
		return err
	}
	if err := file.Sync(); err != nil {
		return fmt.Errorf("writing the recording to the disk: %w", err)
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "Recorded %d messages in %s\n", messages, path)
	return err
}
