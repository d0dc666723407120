package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/apiclient"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/reflector"
	"github.com/quartet-node/quartet/test/cluster"
)

// byWatches are nodes with a client, a connection and a watch of the API server each.
type byWatches struct {
	clients []*apiclient.Client
	rig     *siteRig
	cancel  context.CancelFunc
	running sync.WaitGroup
	listed  sync.WaitGroup
}

func newByWatches(r *siteRig, line *meter) (way, error) {
	b := &byWatches{rig: r}
	for i := range r.opts.site {
		path := filepath.Join(r.dir, siteNode(i), "kubeconfig")
		err := r.cluster.SaveKubeconfigFor(path, line.url(), cluster.NodeUser(siteNode(i)), cluster.Nodes)
		if err != nil {
			return nil, err
		}
		client, err := apiclient.New(apiclient.Config{
			Kubeconfig: path, Service: nodeconfig.ConfigMux, QPS: -1, ContentType: runtime.ContentTypeProtobuf,
		})
		if err != nil {
			return nil, err
		}
		b.clients = append(b.clients, client)
	}
	return b, nil
}

func (b *byWatches) start(ctx context.Context) error {
	ctx, b.cancel = context.WithCancel(ctx)
	for i, client := range b.clients {
		b.watch(ctx, &siteWatcher{node: siteNode(i), delays: b.rig.pods, objects: sitePods}, reflector.Config{
			Client: client.Core, Resource: "pods", Fields: fields.OneTermEqualSelector("spec.nodeName", siteNode(i)),
			Empty: &v1.Pod{},
		})
		b.watch(ctx, &siteWatcher{node: siteNode(i), delays: b.rig.configMap, objects: 1}, reflector.Config{
			Client: client.Core, Resource: "configmaps", Namespace: "default",
			Fields: fields.OneTermEqualSelector("metadata.name", siteConfigMap), Empty: &v1.ConfigMap{},
		})
	}
	b.listed.Wait()
	return nil
}

// watch lists and watches until ctx ends.
func (b *byWatches) watch(ctx context.Context, w *siteWatcher, cfg reflector.Config) {
	b.listed.Add(1)
	w.listed = sync.OnceFunc(b.listed.Done)
	cfg.Handler, cfg.Clock, cfg.Timeout = w, clock.RealClock{}, sitePatience
	b.running.Go(func() { _ = reflector.Run(ctx, cfg) }) // it ends with ctx
}

func (*byWatches) restarted(context.Context, *SiteTurn) error { return nil }

func (*byWatches) used() (pss uint64, ticks int, err error) { return 0, 0, nil }

func (b *byWatches) stop() error {
	if b.cancel != nil {
		b.cancel()
	}
	b.running.Wait()
	for _, client := range b.clients {
		client.Close()
	}
	return nil
}

// siteWatcher is a reflector.Handler of the pods of a node, or of its config map.
type siteWatcher struct {
	node   string
	delays *delays
	// objects is the number of objects for which listed is called.
	objects int
	listed  func()
}

// Listed implements reflector.Handler.
func (w *siteWatcher) Listed(objects []runtime.Object, _ time.Time) {
	if len(objects) == w.objects {
		w.listed()
	}
}

// Changed implements reflector.Handler.
func (w *siteWatcher) Changed(object runtime.Object) {
	if o, is := object.(metav1.Object); is {
		w.delays.seen(w.node, o.GetLabels())
	}
}

// Deleted implements reflector.Handler.
func (*siteWatcher) Deleted(runtime.Object) {}

// ListFailed implements reflector.Handler.
func (*siteWatcher) ListFailed(error) {}

// delays measures the time from the request for a change until a node has it.
type delays struct {
	mu   sync.Mutex
	next int
	// begun has the time of the request for each change, and took the time until it was seen.
	begun map[int]time.Time
	took  map[delivery]time.Duration
}

// delivery is a change at a node.
type delivery struct {
	change int
	node   string
}

func newDelays() *delays {
	return &delays{begun: map[int]time.Time{}, took: map[delivery]time.Duration{}}
}

func (d *delays) clear() {
	d.mu.Lock()
	defer d.mu.Unlock()
	clear(d.begun)
	clear(d.took)
}

// begin returns the number of a change that begins now.
func (d *delays) begin() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.next++
	d.begun[d.next] = time.Now()
	return d.next
}

// changePod changes the label of a pod to the number of the change.
func (d *delays) changePod(ctx context.Context, admin kubernetes.Interface, name string) error {
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:"%d"}}}`, siteLabel, d.begin())
	_, err := admin.CoreV1().Pods("default").Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// changeConfigMap changes the label of the config map to the number of the change.
func (d *delays) changeConfigMap(ctx context.Context, admin kubernetes.Interface) error {
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:"%d"}}}`, siteLabel, d.begin())
	_, err := admin.CoreV1().ConfigMaps("default").Patch(
		ctx, siteConfigMap, types.MergePatchType, patch, metav1.PatchOptions{},
	)
	return err
}

// seen records that a node has an object with these labels.
func (d *delays) seen(node string, labels map[string]string) {
	now := time.Now()
	number, err := strconv.Atoi(labels[siteLabel])
	if err != nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	at := delivery{change: number, node: node}
	if begun, known := d.begun[number]; known && d.took[at] == 0 {
		d.took[at] = now.Sub(begun)
	}
}

// all reports whether there were as many deliveries.
func (d *delays) all(n int) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.took) == n
}

func (d *delays) seconds() []float64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := make([]float64, 0, len(d.took))
	for _, t := range d.took {
		all = append(all, t.Seconds())
	}
	slices.Sort(all)
	return all
}

// longRunning returns the number of watches of pods and config maps that are open at the API server, which it counts as
// requests only when they end.
func longRunning(ctx context.Context, admin *kubernetes.Clientset) (float64, error) {
	text, err := admin.RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return 0, fmt.Errorf("ask the API server for its metrics: %w", err)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return 0, fmt.Errorf("read the metrics of the API server: %w", err)
	}
	open := 0.0
	for _, m := range families["apiserver_longrunning_requests"].GetMetric() {
		labels := map[string]string{}
		for _, l := range m.GetLabel() {
			labels[l.GetName()] = l.GetValue()
		}
		if (labels["resource"] == "pods" || labels["resource"] == "configmaps") && labels["verb"] == "WATCH" {
			open += m.GetGauge().GetValue()
		}
	}
	return open, nil
}

// mebibyte is the unit of memory and traffic in the table.
const mebibyte = 1 << 20

func (s *Site) print(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "\n%d nodes of %d pods of %d bytes at one API server\n\n", s.Nodes, s.Pods, s.PodBytes)
	fmt.Fprintln(w, "\tone configmux\ta watch for each\t")
	line := func(name, format string, figure func(SiteTurn) float64) {
		fmt.Fprintf(w, "%s\t"+format+"\t"+format+"\t\n", name, figure(s.Site), figure(s.Watches))
	}
	for _, part := range []struct {
		name string
		of   func(SiteTurn) Traffic
	}{
		{"start", func(t SiteTurn) Traffic { return t.Start }},
		{"at rest", func(t SiteTurn) Traffic { return t.Rest }},
		{fmt.Sprintf("%d changes of pods", siteChanges), func(t SiteTurn) Traffic { return t.Changes }},
		{fmt.Sprintf("%d changes of the config map", siteObjectChanges), func(t SiteTurn) Traffic { return t.ObjectChanges }},
	} {
		line(part.name+": sent", "%.3f MiB", func(t SiteTurn) float64 { return float64(part.of(t).Sent) / mebibyte })
		line(part.name+": received", "%.3f MiB", func(t SiteTurn) float64 { return float64(part.of(t).Received) / mebibyte })
		line(part.name+": lists and watches", "%.0f", func(t SiteTurn) float64 { return part.of(t).Requests })
		line(part.name+": connections", "%.0f", func(t SiteTurn) float64 { return float64(part.of(t).Connections) })
	}
	const milli = 1e3
	line("all served after the start", "%.2f s", func(t SiteTurn) float64 { return t.StartSeconds })
	line("pod at its node, p50", "%.1f ms", func(t SiteTurn) float64 { return milli * t.P50 })
	line("pod at its node, p99", "%.1f ms", func(t SiteTurn) float64 { return milli * t.P99 })
	line("config map at all nodes, p50", "%.1f ms", func(t SiteTurn) float64 { return milli * t.ObjectP50 })
	line("config map at all nodes, p99", "%.1f ms", func(t SiteTurn) float64 { return milli * t.ObjectP99 })
	fmt.Fprintf(w, "all served after a restart of all\t%.2f s\t\t\n", s.Site.RestartSeconds)
	fmt.Fprintf(w, "the same without the API server\t%.2f s\t\t\n", s.Site.CutSeconds)
	fmt.Fprintf(w, "memory of configmux (PSS)\t%.1f MiB\t\t\n", float64(s.Site.PSSBytes)/mebibyte)
	fmt.Fprintf(w, "CPU of a core during the changes\t%.1f %%\t\t\n", s.Site.CPUPercent)
	return w.Flush()
}
