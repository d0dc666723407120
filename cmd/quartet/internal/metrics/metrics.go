// Package metrics implements the command for the metrics of a node: those of the four services as one exposition, each
// sample with the label service. It scrapes the services' metrics sockets on this machine, and prints the result or
// serves it for Prometheus, so that one target corresponds to a kubelet's /metrics.
package metrics

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/spf13/cobra"

	"github.com/quartet-node/quartet/cmd/quartet/internal/target"
	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/metrics"
)

// Command returns the command.
func Command() *cobra.Command {
	var stateDir, socketDir, listen string
	var probes bool
	cmd := &cobra.Command{
		Use:   "metrics [SERVICE]",
		Short: "Print the node's Prometheus metrics, or serve them",
		Long: "Prints the metrics of configmux, pleg, syncloop and nodestatus, or of a single service, in Prometheus' text\n" +
			"format. Each sample has the label service; quartet_up reports whether each service answered.\n\n" +
			"With --probes it prints syncloop's metrics of probe calls, which name pods.\n\n" +
			"With --listen it serves the metrics at http://ADDRESS/metrics, and those of probes at\n" +
			"http://ADDRESS/metrics/probes, read for each request.\n\n" +
			"It reads sockets of this machine: for a node elsewhere, run it there. A configmux on another machine, which the\n" +
			"node's syncloop follows, is left out.",
		Example: "  quartet metrics | grep quartet_pod_start\n  quartet metrics pleg\n  quartet metrics --probes\n  quartet metrics --listen 127.0.0.1:10256",
		Args:    checkArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			dir, err := socketDirOf(stateDir, socketDir)
			if err != nil {
				return err
			}
			n := &node{socketDir: dir}
			if socketDir == "" {
				n.stateDir = stateDir
			}
			switch {
			case listen != "" && probes:
				return errors.New("--listen serves those of probes too: leave out --probes")
			case listen != "" && len(args) > 0:
				return errors.New("--listen serves all services: name none with it")
			case listen != "":
				return serve(cmd.Context(), n, listen, cmd.ErrOrStderr())
			case probes && len(args) > 0 && layout.Service(args[0]) != layout.SyncLoop:
				return fmt.Errorf("%s has no probes: syncloop does", args[0])
			case probes:
				return printMetrics(cmd, n, metrics.ProbesPath, []layout.Service{layout.SyncLoop})
			case len(args) == 1:
				return printMetrics(cmd, n, nodePath, []layout.Service{layout.Service(args[0])})
			default:
				return printMetrics(cmd, n, nodePath, n.services())
			}
		},
	}
	target.AddFlag(cmd.Flags(), &stateDir)
	cmd.Flags().
		StringVar(&socketDir, "socket-dir", "", "`DIR` with the sockets NAME/NAME-metrics.sock, when it is not that of the state directory")
	cmd.Flags().
		StringVar(&listen, "listen", "", "serve at this `ADDRESS` of the loopback interface, for example 127.0.0.1:10256")
	cmd.Flags().
		BoolVar(&probes, "probes", false, "print the metrics of probe calls, by pod and container, instead of the others")
	return cmd
}

// nodePath is the path of a service's metrics.
const nodePath = "/metrics"

func checkArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if len(args) > 1 || !slices.Contains(layout.Services(), layout.Service(args[0])) {
		return fmt.Errorf(
			"there is no service %q: %s takes configmux, pleg, syncloop, nodestatus, or nothing for all of them",
			strings.Join(args, " "),
			cmd.CommandPath(),
		)
	}
	return nil
}

func socketDirOf(stateDir, socketDir string) (string, error) {
	if socketDir != "" {
		return filepath.Abs(socketDir)
	}
	l, err := layout.New(stateDir)
	if err != nil {
		return "", err
	}
	return l.SocketDir(), nil
}

// printMetrics prints the metrics of the services that answer, and names the others. It fails if none answers.
func printMetrics(cmd *cobra.Command, n *node, path string, services []layout.Service) error {
	answers := n.ask(cmd.Context(), path, services)
	families, problems := ofService.Merge(nil, answers)
	var missing []error
	for _, a := range answers {
		if a.Err != nil {
			missing = append(missing, a.Err)
		}
	}
	if len(missing) == len(answers) && len(missing) > 1 {
		return fmt.Errorf(
			"no service has metrics in %s: is the node running? start it, or name its state directory with --state-dir or %s",
			n.socketDir,
			target.EnvStateDir,
		)
	}
	if len(missing) == len(answers) {
		return missing[0]
	}
	for _, err := range slices.Concat(missing, problems) {
		fmt.Fprintln(cmd.ErrOrStderr(), err)
	}
	return write(cmd.OutOrStdout(), families)
}

func write(out io.Writer, families []*dto.MetricFamily) error {
	encoder := expfmt.NewEncoder(out, expfmt.NewFormat(expfmt.TypeTextPlain))
	for _, family := range families {
		if err := encoder.Encode(family); err != nil {
			return fmt.Errorf("print the metrics: %w", err)
		}
	}
	return nil
}
