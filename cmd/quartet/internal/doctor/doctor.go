// Package doctor implements `quartet doctor`: it checks the machine, the container runtime, the four processes and, on
// request, the compose stack, and prints the remedy for each problem. It changes nothing.
//
// The checks of the machine are in package machine, because `quartet up` runs some of them too. The checks here query
// the runtime over CRI, the services over their sockets, and the container engine over HTTP. Each of them gathers facts
// first and evaluates them in a pure function.
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
	// exitFault is the exit code if there is a fault, and exitCannotRun if the command itself failed.
	exitFault, exitCannotRun = 1, 2
	// defaultStack is the path of the compose file in a checkout.
	defaultStack = "deploy/compose/compose.yaml"
)

// ExitError ends the command line with a specific exit code.
type ExitError struct {
	// Code is the exit code.
	Code int
	// Err is the error to print.
	Err error
}

// Error is the text of Err.
func (e *ExitError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *ExitError) Unwrap() error { return e.Err }

type options struct {
	stateDir, configFile string
	// stateDirGiven is true if the flag or the environment sets the state directory.
	stateDirGiven bool
	// stackFile is the compose file; empty without --compose.
	stackFile string
	output    format
}

// Command is `quartet doctor`.
func Command() *cobra.Command {
	opts := options{output: formatText}
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check this machine and the four processes, and show how to fix problems",
		Long: `Check whether this machine can run a node, and whether its node is healthy: the kernel, control groups,
capabilities, disks, limits, clock and network; the container runtime; the four services. Each problem has its fix in
the line below. The command changes nothing. It looks at the machine on which it runs: run it on the node. A configmux
on another machine, which the node's syncloop follows, is asked as syncloop asks it.

Exit code:
  0  no fault, possibly warnings: the node runs, possibly with limitations
  1  at least one fault: the node cannot run, or harms another program
  2  the command itself could not run, for example because of a flag that does not exist`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return cannotRun(
				fmt.Errorf(
					"%q is not a flag: '%s --help' lists them; a compose file is named with --compose=FILE",
					args[0],
					cmd.CommandPath(),
				),
			)
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
	flags.StringVar(
		&opts.configFile,
		"config",
		"",
		"`FILE` with the node's KubeletConfiguration: its runtime and limits are checked (default: what quartet up or the stack uses)",
	)
	flags.StringVar(
		&opts.stackFile,
		"compose",
		"",
		"check for the compose stack too: the container engine, the images, the ports; --compose=`FILE` names another compose file",
	)
	flags.Lookup("compose").NoOptDefVal = defaultStack
	flags.VarP(&opts.output, "output", "o", "`FORMAT` of the output: text or json")
	return cmd
}

// cannotRun adds the exit code of a failed command to an error; nil stays nil.
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
