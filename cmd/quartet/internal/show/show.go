// Package show implements the read-only commands for a running node: get, describe, events, updates and logs. They
// query the services over gRPC, each for what it owns: configmux for the sources, pleg for observations, syncloop for
// the pods with their status, nodestatus for the Node.
package show

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/cmd/quartet/internal/target"
	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/internal/stream/streamrpc"
)

// callTimeout bounds the answer of a service. No call needs I/O.
const callTimeout = 5 * time.Second

// Commands returns get, describe, events, updates and logs.
func Commands() []*cobra.Command {
	a := &querier{clock: clock.RealClock{}}
	return []*cobra.Command{
		a.getCommand(), a.describeCommand(), a.eventsCommand(), a.updatesCommand(), a.logsCommand(), a.topCommand(),
	}
}

// querier queries the services of one node.
type querier struct {
	// clock is the clock for ages and polling.
	clock clock.WithTicker
	node  target.Node
}

func (a *querier) getCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "get pods|workers|volumes|sources|configmaps|secrets|pvc|pv|storageclasses|csidrivers|images|node",
		Short: "Show pods, their workers and volumes, sources of pods, config maps, secrets, claims, images, or the node",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("say what to show: " + cmd.CommandPath() + " pods, workers, volumes, sources, configmaps, secrets, pvc, pv, storageclasses, csidrivers, images or node")
			}
			return fmt.Errorf(
				"there is no %q to show: %s shows pods, workers, volumes, sources, configmaps, secrets, pvc, pv, storageclasses, csidrivers, images or node",
				args[0],
				cmd.CommandPath(),
			)
		},
		// Args refuses a call without arguments. Without RunE, cobra would print its help and succeed.
		RunE: func(*cobra.Command, []string) error { return nil },
	}
	cmd.AddCommand(
		a.podsCommand(),
		a.workersCommand(),
		a.volumesCommand(),
		a.sourcesCommand(),
		a.configMapsCommand(),
		a.secretsCommand(),
		a.claimsCommand(),
		a.persistentVolumesCommand(),
		a.classesCommand(),
		a.driversCommand(),
		a.imagesCommand(),
		a.nodeCommand(),
	)
	return cmd
}

// addFlags adds the flags of the node, and -o and -w if they have a destination.
func (a *querier) addFlags(cmd *cobra.Command, output *format, watch *bool) {
	a.node.AddFlags(cmd.Flags())
	if output != nil {
		cmd.Flags().
			VarP(output, "output", "o", "`FORMAT` of the output: wide, json, yaml or name; or with a template, as kubectl has them: jsonpath=TEMPLATE, go-template=TEMPLATE, custom-columns=NAME:PATH,...")
	}
	if watch != nil {
		cmd.Flags().BoolVarP(watch, "watch", "w", false, "continue, and print every change")
	}
}

// connect returns a connection to a reachable service. Its error has a remedy.
func (a *querier) connect(ctx context.Context, service layout.Service) (*grpc.ClientConn, error) {
	return a.node.Connect(ctx, service)
}

// ask makes one call to a service.
func ask[R any](
	ctx context.Context,
	a *querier,
	service layout.Service,
	call func(context.Context, grpc.ClientConnInterface) (R, error),
) (response R, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	conn, err := a.connect(ctx, service)
	if err != nil {
		return response, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	response, err = call(ctx, conn)
	if err != nil {
		return response, explain(service, err)
	}
	return response, nil
}

// explain converts the error of a call to one for people.
func explain(service layout.Service, err error) error {
	message := status.Convert(err).Message()
	switch {
	case status.Code(err) == codes.DeadlineExceeded, errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%s did not answer within %s: see its log", service, callTimeout)
	case status.Code(err) == codes.Unavailable && strings.HasPrefix(message, "connection error"):
		// The error is gRPC's and not the service's: its socket accepts connections, and does not answer.
		return fmt.Errorf(
			"%s does not answer on its socket: it hangs, or is stopping; check its log, and end it with SIGKILL if this persists: no pod stops",
			service,
		)
	default:
		return fmt.Errorf("%s: %s", service, message)
	}
}

// follow follows a stream of a service until ctx ends, which is no error. It reports an unreachable service once on
// standard error, and continues when the service is reachable again.
func follow[V any](
	ctx context.Context,
	a *querier,
	cmd *cobra.Command,
	service layout.Service,
	open func(grpc.ClientConnInterface) stream.Source[V],
	cfg stream.FollowConfig[V],
) error {
	conn, err := a.connect(ctx, service)
	if err != nil {
		return err
	}
	return followOver(ctx, conn, cmd, service, open, cfg)
}

// followPatiently is follow for a service that may be unreachable at first.
func followPatiently[V any](
	ctx context.Context,
	a *querier,
	cmd *cobra.Command,
	service layout.Service,
	open func(grpc.ClientConnInterface) stream.Source[V],
	cfg stream.FollowConfig[V],
) error {
	conn, err := a.node.Dial(service)
	if err != nil {
		return err
	}
	return followOver(ctx, conn, cmd, service, open, cfg)
}

// followOver is follow over a connection that it closes.
func followOver[V any](ctx context.Context, conn *grpc.ClientConn, cmd *cobra.Command, service layout.Service,
	open func(grpc.ClientConnInterface) stream.Source[V], cfg stream.FollowConfig[V],
) (err error) {
	defer func() { err = errors.Join(err, conn.Close()) }()
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	cfg.Source = streamrpc.UntilRefused(open(conn), func(err error) error { return explain(service, err) })
	cfg.Logger = slog.New(slog.DiscardHandler)
	cfg.Connected = func(up bool, _ error) {
		if up {
			return
		}
		if _, err := fmt.Fprintf(
			cmd.ErrOrStderr(),
			"%s is unreachable; waiting until it is reachable again\n",
			service,
		); err != nil {
			fail(err)
		}
	}
	err = stream.Follow(ctx, cfg)
	if cmd.Context().Err() != nil {
		return nil
	}
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// hostname returns the default name of this machine's node, for messages only.
func hostname() string {
	name, err := os.Hostname()
	if err != nil {
		return "NODE"
	}
	return strings.ToLower(name)
}
