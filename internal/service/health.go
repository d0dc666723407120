package service

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/standby"
)

const (
	// healthCommand is the sub-command that queries the health of a running process of this service.
	healthCommand = "health"
	// healthTimeout bounds the answer, which needs no I/O.
	healthTimeout = 2 * time.Second
)

// health queries the health of the process that was started with the same flags, prints it in a line, and returns 0 if
// it serves. Missing dependencies are in the line and do not change the result.
func health(ctx context.Context, name nodeconfig.Service, args []string, stdout, stderr io.Writer) int {
	cfg, err := nodeconfig.Parse(name, args, stdout)
	switch {
	case errors.Is(err, pflag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintf(stderr, "%s: %v\n", name, err)
		return 1
	}
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	answer, err := askHealth(ctx, name, cfg)
	if err != nil {
		fmt.Fprintf(stdout, "%s: %v\n", name, err)
		return 1
	}
	fmt.Fprintf(stdout, "%s: %s\n", name, answer)
	return 0
}

// askHealth returns the health of the process, or an error if it does not serve.
func askHealth(ctx context.Context, name nodeconfig.Service, cfg nodeconfig.Config) (string, error) {
	owner, err := rpc.ServerOf(cfg.Listen)
	if err != nil || owner.PID == 0 {
		// No process of this container serves the address. A standby may run in this container while another container
		// serves.
		holder, standing, askErr := standby.Ask(ctx, cfg.StateDir, name)
		if askErr != nil {
			return "", askErr
		}
		if standing {
			return fmt.Sprintf("standby of %v", holder), nil
		}
	}
	if err != nil {
		return "", fmt.Errorf("not reachable: %w: see that it runs; --listen names its address if that is another", err)
	}
	if err := rpc.CheckServer(ctx, cfg.Listen); err != nil {
		return "", err
	}
	return askServer(ctx, cfg.Listen, owner)
}

// askServer queries grpc.health.v1 at an address.
func askServer(ctx context.Context, address string, owner rpc.Owner) (answer string, err error) {
	conn, err := rpc.Dial(address)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	all, err := grpc_health_v1.NewHealthClient(conn).
		List(ctx, &grpc_health_v1.HealthListRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return "", fmt.Errorf(
			"%v takes connections on %s and does not answer within %v: it hangs, or its log says that it refuses user %d: %w",
			owner,
			address,
			healthTimeout,
			os.Geteuid(),
			err,
		)
	}
	var waits []string
	for part, health := range all.GetStatuses() {
		if part != "" && part != rpc.Loops && health.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
			waits = append(waits, part)
		}
	}
	slices.Sort(waits)
	if all.GetStatuses()[""].GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
		return "", errors.New("not serving: it is stopping")
	}
	if loops, ok := all.GetStatuses()[rpc.Loops]; ok && loops.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
		return "", errors.New("a loop of it stands still: its log says which; restart it, which stops no pod")
	}
	if len(waits) == 0 {
		return "serving", nil
	}
	return "serving; waits for: " + strings.Join(waits, ", "), nil
}
