// Package conformancecmd implements `quartet conformance`: it checks whether a process keeps the contract of one of the
// four parts, by the rules of package conformance, and prints a line for each rule.
package conformancecmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/quartet-node/quartet/cmd/quartet/internal/target"
	"github.com/quartet-node/quartet/conformance"
	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/peertls"
	"github.com/quartet-node/quartet/internal/rpc"
)

// connectTimeout bounds the wait for a part that was just started.
const connectTimeout = 30 * time.Second

// callTimeout bounds each try on the network.
const callTimeout = 5 * time.Second

type options struct {
	suite                   conformance.Suite
	node                    target.Node
	serveRuntime            string
	rules                   []string
	allowChanges, listRules bool
	output                  format
}

// Command is `quartet conformance`.
func Command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "conformance",
		Short: "Check whether a process keeps the contract of one of the four parts",
		Long: `Check whether a process keeps the contract of one of the four parts, for example one that replaces a part of the
node. The contracts are the comments of the files in proto/. Each line of the output is a rule: whether the part
keeps it, where the comment is, and its words. The exit code is 1 if a rule is broken.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	for _, suite := range conformance.Suites() {
		cmd.AddCommand(suiteCommand(suite))
	}
	return cmd
}

func suiteCommand(suite conformance.Suite) *cobra.Command {
	opts := options{suite: suite, output: formatText}
	cmd := &cobra.Command{
		Use:   suite.Service + " [ADDRESS] [flags] [-- COMMAND ARG...]",
		Short: "Check a " + suite.Service,
		Long:  long(suite.Service),
		RunE: func(cmd *cobra.Command, args []string) error {
			address, command, err := split(args, cmd.ArgsLenAtDash())
			if err != nil {
				return err
			}
			if opts.listRules {
				return (&report{out: cmd.OutOrStdout(), format: opts.output}).list(suite.Rules())
			}
			return run(cmd.Context(), opts, address, command, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	switch layout.Service(suite.Service) {
	case layout.PLEG:
		flags.StringVar(&opts.serveRuntime, "serve-runtime", "",
			"serve a container runtime for the pleg on a new socket at this `PATH`: its pods exist only in memory")
	case layout.ConfigMux:
		flags.BoolVar(&opts.allowChanges, "allow-changes", false,
			"check the rules about changes, too: they apply and delete pods of their own, named conformance-RULE")
	case layout.SyncLoop, layout.NodeStatus:
	}
	flags.StringSliceVar(&opts.rules, "rule", nil, "check only the rules with these `NAMES`")
	flags.BoolVar(&opts.listRules, "list", false, "print the rules and check nothing")
	flags.VarP(&opts.output, "output", "o", "`FORMAT` of the output: text or json")
	opts.node.AddFlagsOf(flags)
	return cmd
}

// long returns the description of a subcommand.
func long(service string) string {
	text := fmt.Sprintf(`Check whether the process that serves ADDRESS (unix:///ABSOLUTE/PATH, or HOST:PORT with TLS) keeps the contract of
%s. Without ADDRESS it is that of the node of --state-dir.

A COMMAND after -- is started first. The rules about restarts kill it and start it again; without it they are
skipped. Its output goes to standard error.`, service)
	switch layout.Service(service) {
	case layout.PLEG:
		text += `

Most rules need a container runtime that the command changes. It is not a real one: start the pleg with the
socket of --serve-runtime as its runtime. Without it, these rules are skipped.`
	case layout.ConfigMux:
		text += `

Rules that change what the node runs need --allow-changes; without it they are skipped.`
	case layout.SyncLoop, layout.NodeStatus:
	}
	return text
}

// split separates the address and the command. dash is the number of arguments before --, negative without it.
func split(args []string, dash int) (address string, command []string, err error) {
	if dash >= 0 {
		args, command = args[:dash], args[dash:]
		if len(command) == 0 {
			return "", nil, errors.New("name the command of the part after --")
		}
	}
	if len(args) > 1 {
		return "", nil, fmt.Errorf("%q is one too many: name one address, and the command of the part after --", args[1])
	}
	if len(args) == 1 {
		address = args[0]
	}
	return address, command, nil
}

func run(ctx context.Context, opts options, address string, command []string, out, log io.Writer) (err error) {
	service := layout.Service(opts.suite.Service)
	if address == "" {
		if address, err = opts.node.Address(service); err != nil {
			return err
		}
	}
	opts.node.At(service, address)
	part := conformance.Part{Rules: opts.rules, AllowChanges: opts.allowChanges}
	if opts.serveRuntime != "" {
		if part.Runtime, err = conformance.ServeRuntime(opts.serveRuntime); err != nil {
			return fmt.Errorf("--serve-runtime: %w", err)
		}
		defer part.Runtime.Close()
	}
	if len(command) > 0 {
		process := &process{command: command, log: log}
		if err := process.start(); err != nil {
			return err
		}
		defer process.stop()
		part.Restart = process.restart
	}
	conn, err := opts.node.Dial(service)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	connect := func(ctx context.Context) error { return served(ctx, address, conn) }
	if err := await(ctx, address, connect); err != nil {
		return err
	}
	part.Conn = conn
	printed := &report{out: out, format: opts.output}
	if err := opts.suite.Check(ctx, part, printed.add); err != nil {
		return err
	}
	return printed.end(opts.suite.Service)
}

// served returns nil if somebody serves an address. On the network that needs a call: only then both ends have shown
// their certificates.
func served(ctx context.Context, address string, conn grpc.ClientConnInterface) error {
	if peertls.OnNetwork(address) {
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		_, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
		return err
	}
	probe, err := rpc.Connect(ctx, address)
	if err != nil {
		return err
	}
	return probe.Close()
}

// await waits until somebody serves an address.
func await(ctx context.Context, address string, connect func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := connect(ctx)
		if err == nil {
			return nil
		}
		var impostor *rpc.ImpostorError
		if errors.As(err, &impostor) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("cannot reach the part at %s: %w: start it, or name its command after --", address, err)
		case <-tick.C:
		}
	}
}
