// Command quartet runs a node of four processes, optionally with its own container runtime, and queries a running node.
// By the name of one of the four it is that service: what a program has in memory is there once for all that run it.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/quartet-node/quartet/cmd/quartet/internal/applycmd"
	"github.com/quartet-node/quartet/cmd/quartet/internal/conformancecmd"
	"github.com/quartet-node/quartet/cmd/quartet/internal/debugcmd"
	"github.com/quartet-node/quartet/cmd/quartet/internal/doctor"
	"github.com/quartet-node/quartet/cmd/quartet/internal/evictcmd"
	"github.com/quartet-node/quartet/cmd/quartet/internal/kubeletcmd"
	"github.com/quartet-node/quartet/cmd/quartet/internal/metrics"
	"github.com/quartet-node/quartet/cmd/quartet/internal/nodecmd"
	"github.com/quartet-node/quartet/cmd/quartet/internal/preparecmd"
	"github.com/quartet-node/quartet/cmd/quartet/internal/recordcmd"
	"github.com/quartet-node/quartet/cmd/quartet/internal/runtimecmd"
	"github.com/quartet-node/quartet/cmd/quartet/internal/show"
	"github.com/quartet-node/quartet/cmd/quartet/internal/supportcmd"
	"github.com/quartet-node/quartet/cmd/quartet/internal/trace"
	"github.com/quartet-node/quartet/cmd/quartet/internal/updown"
	"github.com/quartet-node/quartet/cmd/quartet/internal/version"
	"github.com/quartet-node/quartet/internal/gosettings"
	"github.com/quartet-node/quartet/services/configmux"
	"github.com/quartet-node/quartet/services/nodestatus"
	"github.com/quartet-node/quartet/services/pleg"
	"github.com/quartet-node/quartet/services/syncloop"
)

// mains has the main functions of the four by the names of this program.
func mains() map[string]func() {
	return map[string]func(){
		"configmux":  configmux.Main,
		"nodestatus": nodestatus.Main,
		"pleg":       pleg.Main,
		"syncloop":   syncloop.Main,
	}
}

func main() {
	if service, found := mains()[filepath.Base(os.Args[0])]; found {
		service()
		return
	}
	gosettings.Begin()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	cmd := root()
	if kubeletcmd.Called(os.Args[0]) {
		cmd = kubeletcmd.Command()
	}
	err := cmd.ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", cmd.Name(), err)
		code := 1
		if special := (*doctor.ExitError)(nil); errors.As(err, &special) {
			code = special.Code
		}
		os.Exit(code)
	}
}

func root() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "quartet",
		Short: "A Kubernetes node agent in four processes",
		Long: "Quartet runs pods on this machine: configmux determines the desired pods, pleg observes the runtime, syncloop\n" +
			"makes the runtime match, and nodestatus reports the node.",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	// An error in the flags prints a hint to --help.
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return fmt.Errorf("%w: '%s --help' lists the flags", err, cmd.CommandPath())
	})
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		return fmt.Errorf(
			"there is no command %q: '%s --help' lists them%s",
			args[0],
			cmd.CommandPath(),
			didYouMean(cmd, args[0]),
		)
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	cmd.AddCommand(
		nodecmd.Command(),
		kubeletcmd.Command(),
		updown.UpCommand(),
		updown.DownCommand(),
		runtimecmd.Command(),
		preparecmd.Command(),
		version.Command(),
	)
	cmd.AddCommand(show.Commands()...)
	cmd.AddCommand(applycmd.Commands()...)
	cmd.AddCommand(trace.Command())
	cmd.AddCommand(metrics.Command())
	cmd.AddCommand(doctor.Command())
	cmd.AddCommand(debugcmd.Command())
	cmd.AddCommand(conformancecmd.Command())
	cmd.AddCommand(evictcmd.Command())
	cmd.AddCommand(recordcmd.RecordCommand(), recordcmd.ReplayCommand())
	cmd.AddCommand(supportcmd.Command(root))
	return cmd
}

// didYouMean suggests commands with a similar name; empty if there are none.
func didYouMean(cmd *cobra.Command, word string) string {
	cmd.SuggestionsMinimumDistance = 2
	names := cmd.SuggestionsFor(word)
	if len(names) == 0 {
		return ""
	}
	return "; did you mean " + strings.Join(names, " or ") + "?"
}
