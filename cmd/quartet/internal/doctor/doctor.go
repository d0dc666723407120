// Package doctor is `quartet doctor`: it looks at the machine, the container runtime, the four processes and, when asked,
// the compose stack, and says of each thing that is not as it has to be what to do about it. It changes nothing.
//
// The checks of the machine itself are in package machine, since `quartet up` makes some of them too. Here is what
// asks somebody: the runtime over CRI, the services over their sockets, the container engine over HTTP. Each of these
// gathers facts first and judges them in a function of the facts alone.
package doctor

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/quartet-node/quartet/cmd/quartet/internal/target"
	"github.com/quartet-node/quartet/internal/layout"
)

const (
	// exitFault is the exit code when there is a fault, exitCannotRun when the command itself could not run.
	exitFault, exitCannotRun = 1, 2
	// defaultStack is where the compose file is in a checkout.
	defaultStack = "deploy/compose/compose.yaml"
)

// ExitError ends the command line with an exit code of its own.
type ExitError struct {
	// Code is the exit code.
	Code int
	// Err is what to print.
	Err error
}

// Error is the text of Err.
func (e *ExitError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *ExitError) Unwrap() error { return e.Err }

type options struct {
	stateDir, configFile string
	// stateDirGiven is true when the flag or the environment names the state directory.
	stateDirGiven bool
	// stackFile is the compose file; empty unless --compose is given.
	stackFile string
	output    format
}

// Command is `quartet doctor`.
func Command() *cobra.Command {
	opts := options{output: formatText}
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check this machine and the four processes, and say what to do about what is wrong",
		Long: `Check whether this machine can run a node, and whether the node that it has is well: the kernel, control groups,
capabilities, disks, limits, clock and network; the container runtime; the four services. What is not ok has its fix in the
line below. Nothing is changed.

Exit code:
  0  all is well, or there are warnings only: the node runs, with less than it could have
  1  at least one fault: the node cannot run, or harms what it runs beside
  2  the command itself could not run, for example because of a flag that does not exist`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return cannotRun(fmt.Errorf("%q is not a flag: '%s --help' lists them; a compose file is named with --compose=FILE", args[0], cmd.CommandPath()))
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			opts.stateDirGiven = cmd.Flags().Changed("state-dir") || os.Getenv(target.EnvStateDir) != ""
			return run(cmd.Context(), opts, cmd.OutOrStdout())
		},
	}
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return cannotRun(cmd.Parent().FlagErrorFunc()(cmd, err))
	})
	flags := cmd.Flags()
	flags.SortFlags = false
	target.AddFlag(flags, &opts.stateDir)
	flags.StringVar(&opts.configFile, "config", "", "`FILE` with the node's KubeletConfiguration: its runtime and limits are checked (default: what quartet up or the stack uses)")
	flags.StringVar(&opts.stackFile, "compose", "", "check for the compose stack too: the container engine, the images, the ports; --compose=`FILE` names another compose file")
	flags.Lookup("compose").NoOptDefVal = defaultStack
	flags.VarP(&opts.output, "output", "o", "`FORMAT` of the output: text or json")
	return cmd
}

// cannotRun gives an error the exit code of a command that could not do its work; nil stays nil.
func cannotRun(err error) error {
	if err == nil {
		return nil
	}
	return &ExitError{Code: exitCannotRun, Err: err}
}

func run(ctx context.Context, opts options, out io.Writer) error {
	l, err := layout.New(opts.stateDir)
	if err != nil {
		return cannotRun(err)
	}
	if opts.configFile != "" {
		if _, err := os.Stat(opts.configFile); err != nil {
			return cannotRun(fmt.Errorf("--config: %w: name a file that exists and may be read", err))
		}
	}
	p := newPatient(ctx, thisMachine(), l, opts)
	r := &report{out: out, format: opts.output}
	if err := r.begin(); err != nil {
		return cannotRun(err)
	}
	if err := (runner{timeout: checkTimeout, atOnce: atOnce}).run(ctx, p.checks(), r.show); err != nil {
		return cannotRun(err)
	}
	return r.end()
}
