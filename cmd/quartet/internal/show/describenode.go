package show

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/api/core/v1"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	nodev1 "github.com/quartet-node/quartet/gen/quartet/node/v1"
	"github.com/quartet-node/quartet/internal/layout"
)

// nodeDescription is what nodestatus and syncloop know about the node.
type nodeDescription struct {
	node *v1.Node
	// cluster is whether the API server has the Node, in words.
	cluster string
	// pods are the pods of the sources that have not ended.
	pods []podView
	// held are the resources that containers have for themselves.
	held *podresourcesv1.ListPodResourcesResponse
	// events are the node's events, the latest last.
	events []podEvent
}

func (a *querier) describeNodeCommand() *cobra.Command {
	var output describeFormat
	cmd := &cobra.Command{
		Use:     "node",
		Aliases: []string{"nodes", "no"},
		Short:   "Show everything that is known about the node, and what its pods have of it",
		Long: "Show everything that is known about the node: the Node with its conditions, what its pods request, which\n" +
			"container has which devices, CPUs, memory and resource claims for itself, and the node's events. It asks\n" +
			"nodestatus and syncloop.\n\n" +
			"Percentages are of the allocatable amounts.",
		Example: "  quartet describe node\n  quartet describe node -o json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			d, err := a.describeNode(cmd.Context())
			if err != nil {
				return err
			}
			if !output.isTable() {
				return d.printObject(cmd.OutOrStdout(), output.format)
			}
			p := newPage()
			d.print(p, a.clock.Now())
			return p.writeTo(cmd.OutOrStdout())
		},
	}
	a.addFlags(cmd, nil, nil)
	cmd.Flags().VarP(&output, "output", "o", "`FORMAT` of the output: json or yaml")
	return cmd
}

func (a *querier) describeNode(ctx context.Context) (d nodeDescription, err error) {
	response, err := ask(ctx, a, layout.NodeStatus,
		func(ctx context.Context, conn grpc.ClientConnInterface) (*nodev1.GetNodeResponse, error) {
			return nodev1.NewNodeServiceClient(conn).GetNode(ctx, &nodev1.GetNodeRequest{})
		})
	if err != nil {
		return d, err
	}
	if d.node, err = viewNode(response.GetNode()); err != nil {
		return d, err
	}
	d.cluster = membership(response.GetNode())
	views, err := a.listPods(ctx)
	if err != nil {
		return d, err
	}
	d.pods = slices.DeleteFunc(views, func(v podView) bool {
		return v.source == "" || v.pod.Status.Phase == v1.PodSucceeded || v.pod.Status.Phase == v1.PodFailed
	})
	if d.held, err = a.listPodResources(ctx); err != nil {
		return d, err
	}
	d.events, err = a.listNodeEvents(ctx)
	return d, err
}

func (a *querier) listPodResources(ctx context.Context) (*podresourcesv1.ListPodResourcesResponse, error) {
	response, err := ask(ctx, a, layout.SyncLoop,
		func(ctx context.Context, conn grpc.ClientConnInterface) (*enginev1.ListPodResourcesResponse, error) {
			return enginev1.NewEngineServiceClient(conn).ListPodResources(ctx, &enginev1.ListPodResourcesRequest{})
		})
	if err != nil {
		return nil, err
	}
	held := &podresourcesv1.ListPodResourcesResponse{}
	if err := proto.Unmarshal(response.GetResources(), held); err != nil {
		return nil, fmt.Errorf(
			"syncloop sent resources that cannot be read: %w: do quartet and syncloop have the same version?", err)
	}
	return held, nil
}

// listNodeEvents returns the events of both services about the node.
func (a *querier) listNodeEvents(ctx context.Context) ([]podEvent, error) {
	all, err := a.listRecorded(ctx, layout.NodeStatus, nodeEventSource)
	if err != nil {
		return nil, err
	}
	more, err := a.listPodEvents(ctx)
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(append(all, more...), func(e podEvent) bool { return e.InvolvedObject.Kind != kindNode })
	slices.SortStableFunc(all, func(x, y podEvent) int {
		return x.received.GetLastSeenAt().AsTime().Compare(y.received.GetLastSeenAt().AsTime())
	})
	return all, nil
}

// printedNode is a description in JSON and YAML.
type printedNode struct {
	Node    *v1.Node `json:"node"`
	Cluster string   `json:"cluster"`
	// Resources is a ListPodResourcesResponse of the pod-resources API.
	Resources json.RawMessage `json:"resources"`
	Events    []*v1.Event     `json:"events"`
}

func (d nodeDescription) printObject(out io.Writer, output format) error {
	printed := printedNode{Node: d.node, Cluster: d.cluster, Events: []*v1.Event{}}
	var err error
	if printed.Resources, err = protojson.Marshal(d.held); err != nil {
		return err
	}
	for _, e := range d.events {
		printed.Events = append(printed.Events, e.Event)
	}
	return printDocument(out, output, printed)
}
