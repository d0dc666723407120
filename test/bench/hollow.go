package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/quartet-node/quartet/test/cluster"
)

const (
	// hollowPatience is the time limit until all nodes are Ready, and then until all pods are.
	hollowPatience = 10 * time.Minute
	pollHollow     = 500 * time.Millisecond
	// hollowPods is the number of pods of each node.
	hollowPods = 10
)

// Hollow has the load of idle nodes on an API server, and the resources that they use themselves.
type Hollow struct {
	Nodes   int     `json:"nodes"`
	Pods    int     `json:"podsPerNode"`
	Seconds float64 `json:"seconds"`
	// NodesReady and PodsReady are the seconds until all of them were Ready.
	NodesReady float64 `json:"nodesReadySeconds"`
	PodsReady  float64 `json:"podsReadySeconds"`
	// Calls has the calls of one node in a minute, by verb and resource. Open watches do not count.
	Calls map[string]float64 `json:"callsPerNodeAndMinute"`
	// PSSBytes and CPUPercent are of a node's four processes together. 100 percent are one core.
	PSSBytes   int64   `json:"pssBytesPerNode"`
	CPUPercent float64 `json:"cpuPercentPerNode"`
}

// measureHollow runs a number of hollow nodes against one API server.
func measureHollow(ctx context.Context, opts options) (result Hollow, err error) {
	result = Hollow{Nodes: opts.hollow, Pods: hollowPods}
	api, err := startAPI(ctx, opts.bin, "quartet-hollow-")
	if err != nil {
		return result, err
	}
	defer func() { err = api.close(err) }()
	c, dir, admin := api.cluster, api.dir, api.admin
	var nodes []*hollowNode
	defer func() {
		for _, n := range nodes {
			err = errors.Join(err, n.stop())
		}
	}()
	fmt.Printf("starting %d hollow nodes…\n", opts.hollow)
	begin := time.Now()
	for i := range opts.hollow {
		n, err := startHollow(c, opts.bin, dir, fmt.Sprintf("hollow-%03d", i))
		if err != nil {
			return result, err
		}
		nodes = append(nodes, n)
	}
	if err := await(ctx, "all nodes are Ready; their logs are in "+dir, func(ctx context.Context) (bool, error) { return nodesReady(ctx, admin, opts.hollow) }); err != nil {
		return result, err
	}
	result.NodesReady = time.Since(begin).Seconds()
	fmt.Printf("starting %d pods on each…\n", hollowPods)
	begin = time.Now()
	if err := startHollowPods(ctx, admin, nodes, hollowPods); err != nil {
		return result, err
	}
	if err := await(ctx, "all pods are Ready; the nodes' logs are in "+dir, func(ctx context.Context) (bool, error) { return podsReady(ctx, admin, opts.hollow*hollowPods) }); err != nil {
		return result, err
	}
	result.PodsReady = time.Since(begin).Seconds()
	fmt.Printf("watching them for %v…\n", opts.idle)
	return result, result.observe(ctx, admin, nodes, opts.idle)
}

// apiServer is a cluster without nodes, and the directory of a benchmark.
type apiServer struct {
	cluster *cluster.Cluster
	dir     string
	admin   *kubernetes.Clientset
}

// startAPI starts it. The name of the directory begins with prefix.
func startAPI(ctx context.Context, bin, prefix string) (*apiServer, error) {
	c, err := cluster.New(ctx, bin)
	if err != nil {
		return nil, err
	}
	a := &apiServer{cluster: c}
	if a.dir, err = os.MkdirTemp("", prefix); err != nil {
		return nil, a.close(err)
	}
	if a.admin, err = administrator(c, filepath.Join(a.dir, "admin")); err != nil {
		return nil, a.close(err)
	}
	return a, nil
}

// close stops the API server and returns the error of the benchmark with its own. The directory is removed if there is
// none, because it has the logs.
func (a *apiServer) close(err error) error {
	if err == nil {
		err = os.RemoveAll(a.dir)
	}
	return errors.Join(err, a.cluster.Close())
}

// administrator returns a client with all rights.
func administrator(c *cluster.Cluster, kubeconfig string) (*kubernetes.Clientset, error) {
	if err := c.SaveKubeconfig(kubeconfig, "quartet-bench", cluster.Masters); err != nil {
		return nil, err
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	config.QPS, config.Burst = 200, 400
	return kubernetes.NewForConfig(config)
}

func nodesReady(ctx context.Context, admin kubernetes.Interface, want int) (bool, error) {
	list, err := admin.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return false, err
	}
	ready := 0
	for _, n := range list.Items {
		if slices.ContainsFunc(n.Status.Conditions, func(c v1.NodeCondition) bool {
			return c.Type == v1.NodeReady && c.Status == v1.ConditionTrue
		}) {
			ready++
		}
	}
	return ready == want, fmt.Errorf("%d of %d are", ready, want)
}

func podsReady(ctx context.Context, admin kubernetes.Interface, want int) (bool, error) {
	list, err := admin.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
	if err != nil {
		return false, err
	}
	ready := 0
	for _, pod := range list.Items {
		if slices.ContainsFunc(pod.Status.Conditions, func(c v1.PodCondition) bool {
			return c.Type == v1.PodReady && c.Status == v1.ConditionTrue
		}) {
			ready++
		}
	}
	return ready == want, fmt.Errorf("%d of %d are", ready, want)
}

// startHollowPods creates a number of pods for each node, bound to it as a scheduler does it.
func startHollowPods(ctx context.Context, admin kubernetes.Interface, nodes []*hollowNode, pods int) error {
	for _, n := range nodes {
		for i := range pods {
			pod := &v1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", n.name, i), Namespace: "default"},
				Spec:       v1.PodSpec{NodeName: n.name, HostNetwork: true, Containers: []v1.Container{{Name: "main", Image: hollowImage, ImagePullPolicy: v1.PullIfNotPresent}}},
			}
			if _, err := admin.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{}); err != nil {
				return err
			}
		}
	}
	return nil
}

// observe measures over a while the calls and the resources of the idle nodes.
func (h *Hollow) observe(
	ctx context.Context, admin *kubernetes.Clientset, nodes []*hollowNode, length time.Duration,
) error {
	if err := rest(ctx, length/2); err != nil {
		return err
	}
	calls, err := callsOf(ctx, admin)
	if err != nil {
		return err
	}
	_, ticks, err := usedByAll(nodes)
	if err != nil {
		return err
	}
	begin := time.Now()
	if err := rest(ctx, length); err != nil {
		return err
	}
	after, err := callsOf(ctx, admin)
	if err != nil {
		return err
	}
	pss, ticksAfter, err := usedByAll(nodes)
	if err != nil {
		return err
	}
	h.Seconds = time.Since(begin).Seconds()
	count := float64(len(nodes))
	h.PSSBytes, h.CPUPercent = pss/int64(len(nodes)), 100*float64(ticksAfter-ticks)/clockTicks/h.Seconds/count
	h.Calls = map[string]float64{}
	for what, n := range after {
		if d := n - calls[what]; d > 0 {
			h.Calls[what] = d / count / h.Seconds * 60
		}
	}
	return nil
}

// callsOf returns the number of calls that the API server has answered for the resources of nodes, by verb and
// resource. The API server renews a lease of its own six times a minute, which is counted too.
func callsOf(ctx context.Context, admin *kubernetes.Clientset) (map[string]float64, error) {
	text, err := admin.RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("ask the API server for its metrics: %w", err)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("read the metrics of the API server: %w", err)
	}
	calls := map[string]float64{}
	for _, m := range families["apiserver_request_total"].GetMetric() {
		labels := map[string]string{}
		for _, l := range m.GetLabel() {
			labels[l.GetName()] = l.GetValue()
		}
		switch labels["resource"] {
		case "nodes", "pods", "leases", "events", "configmaps":
			name := labels["verb"] + " " + labels["resource"]
			if s := labels["subresource"]; s != "" {
				name += "/" + s
			}
			calls[name] += m.GetCounter().GetValue()
		}
	}
	return calls, nil
}

func (h *Hollow) print(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "\n%d hollow nodes of %d pods against one API server: all nodes Ready after %.1f s, all pods %.1f s later; at rest, over %.0f s\n\n",
		h.Nodes, h.Pods, h.NodesReady, h.PodsReady, h.Seconds)
	fmt.Fprintln(w, "OF A NODE'S FOUR PROCESSES\t\t")
	fmt.Fprintf(w, "memory (PSS)\t%.1f MiB\t\n", float64(h.PSSBytes)/(1<<20))
	fmt.Fprintf(w, "CPU of a core\t%.2f %%\t\n", h.CPUPercent)
	names := make([]string, 0, len(h.Calls))
	for name := range h.Calls {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		fmt.Fprintf(w, "%s\t%.1f /min\t\n", name, h.Calls[name])
	}
	return w.Flush()
}
