package debugcmd

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"
	"k8s.io/utils/ptr"

	debugv1 "github.com/quartet-node/quartet/gen/quartet/debug/v1"
)

// configured is the name of the verbosity of the flag or of the configuration.
const configured = "configured"

func (p *part) logLevelCommand() *cobra.Command {
	var limit time.Duration
	name := string(p.service)
	cmd := &cobra.Command{
		Use:   "log-level [LEVEL]",
		Short: "Print how much " + name + " logs, or change it",
		Long: "Print how much " + name + " logs, or change it without a restart. LEVEL is a number as of the flag -v: 0 is what an\n" +
			"operator needs, 4 and more adds the details of each decision; or '" + configured + "', the level of the flag or of the\n" +
			"configuration file. Without --for the change lasts until " + name + " ends.",
		Example: "  quartet debug " + name + " log-level\n  quartet debug " + name + " log-level 4 --for 10m\n  quartet debug " +
			name + " log-level configured",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			req, err := levelRequest(args, cmd.Flags().Changed("for"), limit)
			if err != nil {
				return err
			}
			return p.ask(cmd.Context(), callTimeout, func(ctx context.Context, client debugv1.DebugServiceClient) error {
				level, err := setOrGet(ctx, client, req)
				if err != nil {
					return err
				}
				_, err = fmt.Fprintln(cmd.OutOrStdout(), p.levelText(level))
				return err
			})
		},
	}
	cmd.Flags().DurationVar(&limit, "for", 0, "`DURATION` from 1s to 24h after which the configured level returns")
	return cmd
}

// levelRequest returns the request of the arguments; nil if they change nothing.
func levelRequest(args []string, limited bool, limit time.Duration) (*debugv1.SetLogLevelRequest, error) {
	if len(args) == 0 {
		if limited {
			return nil, fmt.Errorf("--for needs a level, such as 4")
		}
		return nil, nil //nolint:nilnil // nothing to change
	}
	req := &debugv1.SetLogLevelRequest{}
	if args[0] != configured {
		verbosity, err := strconv.ParseInt(args[0], 10, 32)
		if err != nil || verbosity < 0 {
			return nil, fmt.Errorf("the level %q must be a number from 0, such as 4, or %s", args[0], configured)
		}
		req.Verbosity = ptr.To(int32(verbosity))
	}
	if limited {
		req.Duration = durationpb.New(limit)
	}
	return req, nil
}

// setOrGet returns the level, after a change unless req is nil.
func setOrGet(
	ctx context.Context, client debugv1.DebugServiceClient, req *debugv1.SetLogLevelRequest,
) (*debugv1.LogLevel, error) {
	if req == nil {
		resp, err := client.GetLogLevel(ctx, &debugv1.GetLogLevelRequest{})
		return resp.GetLevel(), err
	}
	resp, err := client.SetLogLevel(ctx, req)
	return resp.GetLevel(), err
}

// levelText describes a level, for example "4 for another 9m59s, configured: 0".
func (p *part) levelText(level *debugv1.LogLevel) string {
	text := strconv.Itoa(int(level.GetVerbosity()))
	switch {
	case level.GetUntil() != nil:
		text += " for another " + level.GetUntil().AsTime().Sub(p.clock.Now()).Round(time.Second).String()
	case level.GetVerbosity() != level.GetConfigured():
		text += " until " + string(p.service) + " ends"
	default:
		return text + ", as configured"
	}
	return fmt.Sprintf("%s; configured: %d", text, level.GetConfigured())
}
