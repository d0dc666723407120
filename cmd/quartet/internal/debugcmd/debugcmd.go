// Package debugcmd implements `quartet debug`, which looks into a running process of a node by its DebugService.
package debugcmd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/cmd/quartet/internal/target"
	debugv1 "github.com/quartet-node/quartet/gen/quartet/debug/v1"
	"github.com/quartet-node/quartet/internal/layout"
)

// callTimeout bounds a call besides the duration of a profile.
const callTimeout = 30 * time.Second

// part is a process of the node that is looked into.
type part struct {
	service layout.Service
	node    target.Node
	clock   clock.PassiveClock
}

// Command returns `quartet debug`.
func Command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "debug configmux|pleg|syncloop|nodestatus COMMAND",
		Short: "Look into a running part of the node: log level, profiles, goroutines, memory",
		Long: "Look into a running process of the node: change how much it logs, take a profile, print its goroutines,\n" +
			"or have it free memory. No pod is affected. It needs the role admin of the process, which root has:\n" +
			"--admin-uids gives it to others.",
		Example: "  quartet debug syncloop log-level 4 --for 10m\n" +
			"  quartet debug syncloop profile cpu --seconds 20\n" +
			"  quartet debug pleg goroutines",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return fmt.Errorf("say which part: %s configmux, pleg, syncloop or nodestatus", cmd.CommandPath())
			}
			return fmt.Errorf("there is no part %q: %s configmux, pleg, syncloop or nodestatus", args[0], cmd.CommandPath())
		},
		// Args refuses a call without arguments. Without RunE, cobra would print its help and succeed.
		RunE: func(*cobra.Command, []string) error { return nil },
	}
	for _, service := range layout.Services() {
		cmd.AddCommand((&part{service: service, clock: clock.RealClock{}}).command())
	}
	return cmd
}

func (p *part) command() *cobra.Command {
	words, actions := "log-level|profile|goroutines|gc", "log-level, profile, goroutines or gc"
	if p.service == layout.PLEG {
		words, actions = words+"|relist", "log-level, profile, goroutines, gc or relist"
	}
	cmd := &cobra.Command{
		Use:   string(p.service) + " " + words,
		Short: "Look into " + string(p.service),
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("say what to do: " + cmd.CommandPath() + " " + actions)
			}
			return fmt.Errorf("there is no %q: %s %s", args[0], cmd.CommandPath(), actions)
		},
		RunE: func(*cobra.Command, []string) error { return nil },
	}
	p.node.AddFlags(cmd.PersistentFlags())
	cmd.AddCommand(p.logLevelCommand(), p.profileCommand(), p.goroutinesCommand(), p.memoryCommand())
	if p.service == layout.PLEG {
		cmd.AddCommand(p.relistCommand())
	}
	return cmd
}

// ask makes one call, within limit.
func (p *part) ask(
	ctx context.Context, limit time.Duration, call func(context.Context, debugv1.DebugServiceClient) error,
) (err error) {
	conn, err := p.node.Connect(ctx, p.service)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if err := call(limited, debugv1.NewDebugServiceClient(conn)); err != nil {
		return p.explain(ctx, err)
	}
	return nil
}

// explain converts the error of a call to one for people. Errors of this process are as they are.
func (p *part) explain(ctx context.Context, err error) error {
	s, remote := status.FromError(err)
	switch {
	case ctx.Err() != nil:
		return errors.New("interrupted")
	case !remote:
		return err
	case s.Code() == codes.Unimplemented:
		return fmt.Errorf("this %s is of a version without this command: upgrade it, or send it SIGQUIT, "+
			"which ends it and has it log its goroutines", p.service)
	case s.Code() == codes.DeadlineExceeded:
		return fmt.Errorf("%s did not answer in time: see its log; SIGQUIT ends it and has it log its goroutines", p.service)
	default:
		return fmt.Errorf("%s: %s", p.service, s.Message())
	}
}

func (p *part) memoryCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "gc",
		Short: "Collect garbage, return unused memory to the kernel, and print what that has freed",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return p.ask(cmd.Context(), callTimeout, func(ctx context.Context, client debugv1.DebugServiceClient) error {
				freed, err := client.FreeMemory(ctx, &debugv1.FreeMemoryRequest{})
				if err != nil {
					return err
				}
				before, after := freed.GetBefore(), freed.GetAfter()
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "heap                  %s, before %s\nheld from the kernel  %s, before %s\n",
					size(after.GetHeapBytes()), size(before.GetHeapBytes()), size(after.GetHeldBytes()), size(before.GetHeldBytes()))
				return err
			})
		},
	}
}

// size returns a number of bytes for people.
func size(bytes uint64) string {
	if bytes < 1<<20 {
		return fmt.Sprintf("%.1f KiB", float64(bytes)/(1<<10))
	}
	return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20))
}
