package show

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/printers"

	nodev1 "github.com/quartet-node/quartet/gen/quartet/node/v1"
	streamv1 "github.com/quartet-node/quartet/gen/quartet/stream/v1"
	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/internal/stream/streamrpc"
)

var nodeColumns = []column{
	{
		name: "Name",
	},
	{name: "Status", watched: len("NotReady")},
	{name: "Pods"},
	{name: "CPU"},
	{name: "Memory"},
	{name: "Age"},
	{name: "Version"},
	{name: "Internal-IP", wide: true},
	{name: "OS-Image", wide: true},
	{name: "Kernel-Version", wide: true},
	{name: "Container-Runtime", wide: true},
	{name: "Cluster", wide: true},
}

const nodeAgeCell = 5

func (a *querier) nodeCommand() *cobra.Command {
	var output format
	var watch bool
	cmd := &cobra.Command{
		Use:     "node",
		Aliases: []string{"nodes", "no"},
		Short:   "Show the node: its capacity, whether it can run pods, and why not",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if watch {
				return a.watchNode(cmd, output)
			}
			response, err := ask(
				cmd.Context(),
				a,
				layout.NodeStatus,
				func(ctx context.Context, conn grpc.ClientConnInterface) (*nodev1.GetNodeResponse, error) {
					return nodev1.NewNodeServiceClient(conn).GetNode(ctx, &nodev1.GetNodeRequest{})
				},
			)
			if err != nil {
				return err
			}
			node, err := viewNode(response.GetNode())
			if err != nil {
				return err
			}
			if !output.isTable() {
				return printObject(cmd.OutOrStdout(), output, node)
			}
			if err := newTable(
				cmd.OutOrStdout(),
				output,
				nodeColumns,
				false,
			).print(nodeRow(response.GetNode(), node, a.clock.Now())); err != nil {
				return err
			}
			if err := printConditions(cmd.OutOrStdout(), node); err != nil {
				return err
			}
			return printMembership(cmd.OutOrStdout(), response.GetNode())
		},
	}
	a.addFlags(cmd, &output, &watch)
	return cmd
}

func viewNode(n *nodev1.Node) (*v1.Node, error) {
	node := &v1.Node{}
	if err := node.Unmarshal(n.GetNode()); err != nil {
		return nil, fmt.Errorf(
			"nodestatus sent a Node that cannot be read: %w: do quartet and nodestatus have the same version?",
			err,
		)
	}
	node.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}
	return node, nil
}

func nodeRow(n *nodev1.Node, node *v1.Node, now time.Time) []any {
	address := noValue
	for _, a := range node.Status.Addresses {
		if a.Type == v1.NodeInternalIP {
			address = a.Address
			break
		}
	}
	info, capacity := node.Status.NodeInfo, node.Status.Capacity
	return []any{
		node.Name, nodeStatus(node), capacity.Pods().String(), capacity.Cpu().String(), mebibytes(capacity.Memory().Value()),
		age(node.CreationTimestamp.Time, now), orNone(info.KubeletVersion),
		address, orNone(info.OSImage), orNone(info.KernelVersion), orNone(info.ContainerRuntimeVersion), membership(n),
	}
}

// membership returns whether the API server has the Node, in words.
func membership(n *nodev1.Node) string {
	switch {
	case n.GetStandalone():
		return "standalone"
	case n.GetSynced():
		return "registered"
	default:
		return "not registered"
	}
}

// printMembership prints a warning if the API server does not have the Node of a cluster's node.
func printMembership(out io.Writer, n *nodev1.Node) error {
	if n.GetStandalone() || n.GetSynced() {
		return nil
	}
	_, err := fmt.Fprint(
		out,
		"\nThe API server of the cluster does not have this Node, as far as is known:\n    quartet doctor says why\n",
	)
	return err
}

func mebibytes(bytes int64) string { return fmt.Sprintf("%dMi", bytes>>20) }

func nodeStatus(node *v1.Node) string {
	status := "Unknown"
	pressed := ""
	for _, c := range node.Status.Conditions {
		switch {
		case c.Type == v1.NodeReady && c.Status == v1.ConditionTrue:
			status = "Ready"
		case c.Type == v1.NodeReady && c.Status == v1.ConditionFalse:
			status = "NotReady"
		case c.Type != v1.NodeReady && c.Status == v1.ConditionTrue:
			pressed += "," + string(c.Type)
		}
	}
	return status + pressed
}

// printConditions prints why a node is not ready or under pressure, and tolerated problems.
func printConditions(out io.Writer, node *v1.Node) error {
	for _, c := range node.Status.Conditions {
		healthy := v1.ConditionFalse
		if c.Type == v1.NodeReady {
			healthy = v1.ConditionTrue
		}
		if c.Status == healthy {
			continue
		}
		if _, err := fmt.Fprintf(
			out,
			"\n%s is %s (%s):\n    %s\n",
			c.Type,
			c.Status,
			c.Reason,
			oneLine(c.Message),
		); err != nil {
			return err
		}
	}
	return nil
}

func (a *querier) watchNode(cmd *cobra.Command, output format) error {
	ctx, fail := context.WithCancelCause(cmd.Context())
	defer fail(nil)
	out := cmd.OutOrStdout()
	table := newTable(out, output, nodeColumns, true)
	shown := ""
	var objects printers.ResourcePrinter
	if !output.isTable() {
		var err error
		if objects, err = objectPrinter(output); err != nil {
			return err
		}
	}
	handle := func(change stream.Change[*nodev1.Node]) {
		if change.Op == stream.OpRemove {
			return
		}
		node, err := viewNode(change.New)
		if err != nil {
			fail(err)
			return
		}
		if !output.isTable() {
			if err := objects.PrintObj(node, out); err != nil {
				fail(err)
			}
			return
		}
		// Every heartbeat is a change; a line is printed if it has new content.
		row := nodeRow(change.New, node, a.clock.Now())
		timeless := fmt.Sprint(row[:nodeAgeCell]...) + fmt.Sprint(row[nodeAgeCell+1:]...)
		if timeless == shown {
			return
		}
		shown = timeless
		if err := table.print(row); err != nil {
			fail(err)
		}
	}
	return follow(ctx, a, cmd, layout.NodeStatus, nodeSource, stream.FollowConfig[*nodev1.Node]{Handle: handle})
}

func nodeSource(conn grpc.ClientConnInterface) stream.Source[*nodev1.Node] {
	client := nodev1.NewNodeServiceClient(conn)
	return streamrpc.NewSource(func(ctx context.Context, token []byte) (streamrpc.Receive[*nodev1.Node], error) {
		watch, err := client.WatchNode(ctx, &nodev1.WatchNodeRequest{ResumeToken: token})
		if err != nil {
			return nil, err
		}
		return func() (*streamv1.Frame, *nodev1.Node, error) {
			m, err := watch.Recv()
			return m.GetFrame(), m.GetNode(), err
		}, nil
	})
}
