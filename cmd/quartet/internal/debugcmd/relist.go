package debugcmd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
)

// relistCommand is for pleg alone.
func (p *part) relistCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "relist",
		Short: "List the whole runtime now, and wait for the end of that",
		Long: "List all sandboxes and containers of the runtime now, instead of at the next regular time, and print when it was\n" +
			"done. pleg reports every difference to what it knew. It fails if the runtime does not answer.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			conn, err := p.node.Connect(cmd.Context(), p.service)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, conn.Close()) }()
			ctx, cancel := context.WithTimeout(cmd.Context(), callTimeout)
			defer cancel()
			begun := p.clock.Now()
			answer, err := lifecyclev1.NewLifecycleServiceClient(conn).RequestRelist(ctx, &lifecyclev1.RequestRelistRequest{})
			if status.Code(err) == codes.DeadlineExceeded {
				return fmt.Errorf("the runtime was not listed within %v: 'quartet get node' says whether it answers", callTimeout)
			}
			if err != nil {
				return p.explain(cmd.Context(), err)
			}
			at := answer.GetRelistedAt().AsTime()
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "The runtime was listed at %s, %v after the request.\n",
				at.Local().Format("15:04:05.000"), at.Sub(begun).Round(time.Millisecond))
			return err
		},
	}
}
