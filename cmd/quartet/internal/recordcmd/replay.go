package recordcmd

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/quartet-node/quartet/cmd/quartet/internal/doctor"
	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/services/nodestatus"
	"github.com/quartet-node/quartet/services/pleg"
	"github.com/quartet-node/quartet/services/syncloop"
)

const (
	// defaultSpeed is the default of --speed.
	defaultSpeed = 10
	// maxSpeed keeps the parts fast enough for the time that passes.
	maxSpeed = 100
	// exitDiffers is the exit code for a replay that differs from its recording.
	exitDiffers = 3
)

// ReplayCommand is `quartet replay`.
func ReplayCommand() *cobra.Command {
	var part, config, output string
	var speed float64
	var step bool
	cmd := &cobra.Command{
		Use:   "replay FILE",
		Short: "Run a part against a recording of the others, and report where it decides differently",
		Long: "Run the loop, the workers and the decisions of syncloop against a recording of 'quartet record', and report where\n" +
			"they differ from what the recorded syncloop did; or with --part pleg the decisions of pleg against the recorded\n" +
			"calls of the runtime, or with --part nodestatus each heartbeat of nodestatus against its recorded input. Nothing is\n" +
			"changed on this machine: it need not be a node. The exit code is 0 without differences and 3 with some.",
		Example: "  quartet replay node.jsonl\n  quartet replay node.jsonl --config new.yaml --step\n" +
			"  quartet replay node.jsonl --part pleg",
		Args: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) != 1:
				return errors.New("name a recording: " + cmd.CommandPath() + " FILE")
			case part == string(layout.ConfigMux):
				return errors.New("--part configmux: record with 'quartet updates record', and replay with 'configmux --replay'")
			case !slices.Contains([]string{string(layout.SyncLoop), string(layout.PLEG), string(layout.NodeStatus)}, part):
				return fmt.Errorf("--part: %q must be syncloop, pleg or nodestatus", part)
			case part != string(layout.SyncLoop) && cmd.Flags().Changed("speed"):
				return fmt.Errorf("--speed: it is for --part syncloop: %s decides in no time", part)
			case part == string(layout.PLEG) && cmd.Flags().Changed("config"):
				return errors.New("--config: pleg decides by no configuration")
			case !(speed > 0 && speed <= maxSpeed):
				return fmt.Errorf("--speed: %v: must be more than 0 and at most %d", speed, maxSpeed)
			case output != "text" && output != "json":
				return fmt.Errorf("-o: %q must be text or json", output)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			var stepping func(text string) error
			if step {
				stepping = stepper(cmd.InOrStdin(), cmd.ErrOrStderr())
			}
			run := syncloop.Replay{
				File: args[0], Config: config, Speed: speed, JSON: output == "json", Step: stepping,
				Out: cmd.OutOrStdout(), Log: cmd.ErrOrStderr(),
			}.Run
			switch part {
			case string(layout.PLEG):
				run = pleg.Replay{File: args[0], JSON: output == "json", Step: stepping, Out: cmd.OutOrStdout()}.Run
			case string(layout.NodeStatus):
				run = nodestatus.Replay{
					File: args[0], Config: config, JSON: output == "json", Step: stepping, Out: cmd.OutOrStdout(),
				}.Run
			}
			differences, err := run(cmd.Context())
			if err == nil && differences > 0 {
				return &doctor.ExitError{Code: exitDiffers, Err: fmt.Errorf("%d differences from the recording", differences)}
			}
			return err
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&part, "part", string(layout.SyncLoop), "`PART` to run: syncloop, pleg or nodestatus")
	flags.StringVar(&config, "config", "", "`FILE` with the KubeletConfiguration to decide by; without it the defaults, for nodestatus the recorded one")
	flags.Float64Var(&speed, "speed", defaultSpeed, "how many `TIMES` faster than recorded, at most 100")
	flags.BoolVar(&step, "step", false, "show each change of the recording, for another part each step, and wait for Enter before it is given")
	flags.StringVarP(&output, "output", "o", "text", "`FORMAT` of the output: text or json")
	return cmd
}

// stepper returns a function that shows a change and waits for a line.
func stepper(in io.Reader, out io.Writer) func(text string) error {
	lines := bufio.NewReader(in)
	return func(text string) error {
		if _, err := fmt.Fprintf(out, "%s  [Enter]", text); err != nil {
			return err
		}
		_, err := lines.ReadString('\n')
		if errors.Is(err, io.EOF) {
			return os.ErrClosed
		}
		return err
	}
}
