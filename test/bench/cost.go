package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	dto "github.com/prometheus/client_model/go"

	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/metrics"
)

// costSettle is the time after the last change of a pod in which the processes finish their work on it.
const costSettle = 5 * time.Second

// least is the smallest cost that is printed. Less is what a process does by time, and not for a pod.
const least = 0.5

// costAim is what a pod among many may cost at most, in costs of a pod among few.
const costAim = 1.1

// Costs compares what each pod costs the processes of a node, by the number of pods that start, and end, at once. The
// node has an API server, and a runtime without containers.
type Costs struct {
	Nodes []NodeCost `json:"nodes"`
}

// NodeCost is what each of a number of pods has cost on one node.
type NodeCost struct {
	Pods int `json:"pods"`
	// Start is from their creation until all are Ready at the API server, and End from their deletion until they are gone
	// there. Both have the processes of the node by name.
	Start map[layout.Service]Used `json:"start"`
	End   map[layout.Service]Used `json:"end"`
}

// Used is what a process has used.
type Used struct {
	// Calls are those of the container runtime, Requests those to the API server.
	Calls    float64 `json:"calls"`
	Requests float64 `json:"requests"`
	// Allocations and Bytes are the objects that it has allocated, and their size.
	Allocations float64 `json:"allocations"`
	Bytes       float64 `json:"bytes"`
}

// each returns what one of a number of pods has cost, by what a process had used before and after.
func each(before, after Used, pods int) Used {
	n := float64(pods)
	return Used{
		Calls:       (after.Calls - before.Calls) / n,
		Requests:    (after.Requests - before.Requests) / n,
		Allocations: (after.Allocations - before.Allocations) / n,
		Bytes:       (after.Bytes - before.Bytes) / n,
	}
}

// measureCosts starts a node for each number of pods, one after another.
func measureCosts(ctx context.Context, opts options) (result Costs, err error) {
	api, err := startAPI(ctx, opts.bin, "quartet-cost-")
	if err != nil {
		return result, err
	}
	defer func() { err = api.close(err) }()
	for _, pods := range opts.costs {
		fmt.Printf("a node with %d pods…\n", pods)
		node, err := measureCost(ctx, api, opts.bin, pods)
		if err != nil {
			return result, err
		}
		result.Nodes = append(result.Nodes, node)
	}
	return result, nil
}

func measureCost(ctx context.Context, api *apiServer, bin string, pods int) (cost NodeCost, err error) {
	cost.Pods = pods
	n, err := startHollow(api.cluster, bin, api.dir, fmt.Sprintf("cost-%04d", pods))
	if err != nil {
		return cost, err
	}
	defer func() { err = errors.Join(err, n.stop(), api.forget(context.WithoutCancel(ctx), n.name)) }()
	what := func(state string) string { return state + "; the node's log is in " + api.dir }
	if err := await(ctx, what("the node is Ready"), func(ctx context.Context) (bool, error) {
		return nodesReady(ctx, api.admin, 1)
	}); err != nil {
		return cost, err
	}
	// A process that has just started has caches to fill, so the first pod does not count.
	if err := startHollowPods(ctx, api.admin, []*hollowNode{n}, 1); err != nil {
		return cost, err
	}
	if err := await(ctx, what("the first pod is Ready"), func(ctx context.Context) (bool, error) {
		return podsReady(ctx, api.admin, 1)
	}); err != nil {
		return cost, err
	}
	if err := removePods(ctx, api.admin, what); err != nil {
		return cost, err
	}
	if cost.Start, err = n.costOf(ctx, pods, func() error {
		if err := startHollowPods(ctx, api.admin, []*hollowNode{n}, pods); err != nil {
			return err
		}
		return await(ctx, what("all pods are Ready"), func(ctx context.Context) (bool, error) {
			return podsReady(ctx, api.admin, pods)
		})
	}); err != nil {
		return cost, err
	}
	cost.End, err = n.costOf(ctx, pods, func() error { return removePods(ctx, api.admin, what) })
	return cost, err
}

// forget deletes the Node of a node that has ended.
func (a *apiServer) forget(ctx context.Context, name string) error {
	return a.admin.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{})
}

// removePods deletes all pods as a user does, and returns when they are gone.
func removePods(ctx context.Context, admin kubernetes.Interface, what func(string) string) error {
	pods := admin.CoreV1().Pods(metav1.NamespaceDefault)
	if err := pods.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		return err
	}
	return await(ctx, what("all pods are gone"), func(ctx context.Context) (bool, error) {
		list, err := pods.List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		return len(list.Items) == 0, fmt.Errorf("%d are left", len(list.Items))
	})
}

// costOf returns by process what each of a number of pods costs while work is done for all of them.
func (n *hollowNode) costOf(ctx context.Context, pods int, work func() error) (map[layout.Service]Used, error) {
	if err := rest(ctx, costSettle); err != nil {
		return nil, err
	}
	before, err := n.usedSoFar(ctx)
	if err != nil {
		return nil, err
	}
	if err := work(); err != nil {
		return nil, err
	}
	if err := rest(ctx, costSettle); err != nil {
		return nil, err
	}
	after, err := n.usedSoFar(ctx)
	if err != nil {
		return nil, err
	}
	costs := map[layout.Service]Used{}
	for service, used := range after {
		costs[service] = each(before[service], used, pods)
	}
	return costs, nil
}

// usedSoFar returns what each process has used since its start, by its metrics.
func (n *hollowNode) usedSoFar(ctx context.Context) (map[layout.Service]Used, error) {
	all := map[layout.Service]Used{}
	for _, service := range layout.Services() {
		families, err := metrics.Scrape(ctx, "unix://"+n.layout.MetricsSocket(service), "/metrics")
		if err != nil {
			return nil, fmt.Errorf("the metrics of %s: %w", service, err)
		}
		all[service] = Used{
			Calls:       sum(families, "kubelet_runtime_operations_total"),
			Requests:    sum(families, "rest_client_requests_total"),
			Allocations: sum(families, "go_memstats_mallocs_total"),
			Bytes:       sum(families, "go_memstats_alloc_bytes_total"),
		}
	}
	return all, nil
}

// sum returns the sum of all samples of a counter; 0 if the process does not have it.
func sum(families []*dto.MetricFamily, name string) float64 {
	total := 0.0
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, metric := range family.GetMetric() {
			total += metric.GetCounter().GetValue()
		}
	}
	return total
}

// print prints the cost of a pod among the fewest and the most pods, and their ratio.
func (c *Costs) print(out io.Writer) error {
	few, many := c.Nodes[0], c.Nodes[len(c.Nodes)-1]
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "\nOF EACH POD\tPROCESS\tWHAT\tOF %d\tOF %d\tRATIO\tAT MOST\t\n", few.Pods, many.Pods)
	for _, phase := range []struct {
		name      string
		few, many map[layout.Service]Used
	}{{"start", few.Start, many.Start}, {"end", few.End, many.End}} {
		for _, service := range layout.Services() {
			a, b := phase.few[service], phase.many[service]
			for _, row := range []struct {
				what      string
				few, many float64
			}{
				{"runtime calls", a.Calls, b.Calls},
				{"API requests", a.Requests, b.Requests},
				{"allocations", a.Allocations, b.Allocations},
				{"KiB allocated", a.Bytes / kibi, b.Bytes / kibi},
			} {
				if row.few < least && row.many < least {
					continue
				}
				fmt.Fprintf(w, "%s\t%s\t%s\t%.1f\t%.1f\t%.2f\t%.1f\t\n",
					phase.name, service, row.what, row.few, row.many, row.many/row.few, costAim)
			}
		}
	}
	return w.Flush()
}

const kibi = 1 << 10
