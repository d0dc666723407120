package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"golang.org/x/sync/errgroup"

	"github.com/quartet-node/quartet/test/figures"
	"github.com/quartet-node/quartet/test/sitenodes"
)

const (
	// sitePods is the number of pods of each node, and siteChanges that of changes whose delay is measured.
	sitePods, siteChanges = 20, 1000
	// siteObjectChanges is the number of changes of the config map, each after the one before is at all nodes.
	siteObjectChanges = 20
	// siteRate is the number of changes in a second.
	siteRate = 50
	// sitePatience is the time limit until all nodes are served.
	sitePatience = 5 * time.Minute
	// siteCreators create pods at once.
	siteCreators = 8
	// siteLabel is the label that changes.
	siteLabel = "bench/change"
	// siteConfigMap is the config map that all pods name, and siteConfigBytes the size of its content.
	siteConfigMap, siteConfigBytes = "settings", 4096
)

// Site compares one configmux for many nodes with a watch for each node, at one API server.
type Site struct {
	Nodes int `json:"nodes"`
	Pods  int `json:"podsPerNode"`
	// PodBytes is the size of a pod in protobuf, as the API server sends it.
	PodBytes int `json:"podBytes"`
	// Site is one configmux for all nodes, Watches a watch for each.
	Site    SiteTurn `json:"site"`
	Watches SiteTurn `json:"watchForEachNode"`
}

// SiteTurn has the figures of one way.
type SiteTurn struct {
	// Start and Changes are the traffic of the API server until all nodes have their pods, and of the changes.
	Start   Traffic `json:"start"`
	Changes Traffic `json:"changes"`
	Rest    Traffic `json:"rest"`
	// ObjectChanges is the traffic of the changes of the config map.
	ObjectChanges Traffic `json:"objectChanges"`
	// StartSeconds is the time until all nodes have their pods, and RestartSeconds that after a kill of configmux.
	StartSeconds   float64 `json:"startSeconds"`
	RestartSeconds float64 `json:"restartSeconds"`
	// CutSeconds is the time after a kill of configmux without the API server.
	CutSeconds float64 `json:"restartWithoutAPIServerSeconds"`
	// P50 and P99 are the seconds from the request for a change until the node of the pod has it.
	P50 float64 `json:"p50Seconds"`
	P99 float64 `json:"p99Seconds"`
	// ObjectP50 and ObjectP99 are those from the request for a change of the config map until a node has it.
	ObjectP50 float64 `json:"objectP50Seconds"`
	ObjectP99 float64 `json:"objectP99Seconds"`
	// PSSBytes is the memory of configmux, and CPUPercent its processor time during the changes.
	PSSBytes   uint64  `json:"pssBytes"`
	CPUPercent float64 `json:"cpuPercent"`
}

// Traffic is what the API server has sent and received.
type Traffic struct {
	Sent        int64   `json:"sentBytes"`
	Received    int64   `json:"receivedBytes"`
	Connections int64   `json:"connections"`
	Requests    float64 `json:"requests"`
}

// siteRig is the API server with the pods, and the directory of the benchmark.
type siteRig struct {
	*apiServer

	opts options
	// pods and configMap are the delays of changes.
	pods, configMap *delays
}

// measureSite measures both ways with the same pods.
func measureSite(ctx context.Context, opts options) (result Site, err error) {
	result = Site{Nodes: opts.site, Pods: sitePods}
	api, err := startAPI(ctx, opts.bin, "quartet-site-")
	if err != nil {
		return result, err
	}
	defer func() { err = api.close(err) }()
	r := &siteRig{apiServer: api, opts: opts, pods: newDelays(), configMap: newDelays()}
	fmt.Printf("creating %d pods on each of %d nodes…\n", sitePods, opts.site)
	if result.PodBytes, err = r.createPods(ctx); err != nil {
		return result, err
	}
	fmt.Println("one configmux for all nodes…")
	if result.Site, err = r.turn(ctx, newByConfigmux); err != nil {
		return result, err
	}
	fmt.Println("a watch for each node…")
	result.Watches, err = r.turn(ctx, newByWatches)
	return result, err
}

func siteNode(i int) string { return fmt.Sprintf("site-%04d", i) }

func sitePodName(node, pod int) string { return fmt.Sprintf("%s-%02d", siteNode(node), pod) }

// createPods creates the config map and the pods that name it, and returns the size of one.
func (r *siteRig) createPods(ctx context.Context) (size int, err error) {
	settings := &v1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: siteConfigMap, Labels: map[string]string{siteLabel: "0"}},
		Data:       map[string]string{"settings.yaml": strings.Repeat("0123456789abcde\n", siteConfigBytes/16)}, //nolint:mnd // a line
	}
	if _, err := r.admin.CoreV1().ConfigMaps("default").Create(ctx, settings, metav1.CreateOptions{}); err != nil {
		return 0, err
	}
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(siteCreators)
	for i := range r.opts.site {
		for p := range sitePods {
			group.Go(func() error {
				_, err := r.admin.CoreV1().Pods("default").Create(groupCtx, sitePod(i, p), metav1.CreateOptions{})
				return err
			})
		}
	}
	if err := group.Wait(); err != nil {
		return 0, err
	}
	pod, err := r.admin.CoreV1().Pods("default").Get(ctx, sitePodName(0, 0), metav1.GetOptions{})
	if err != nil {
		return 0, err
	}
	return pod.Size(), nil
}

// sitePod is a pod of a usual size.
func sitePod(node, pod int) *v1.Pod {
	main := v1.Container{Name: "main", Image: "registry.example/shop/server:1.2.3", Command: []string{"/bin/server", "--port=8080"}}
	for i := range 10 {
		main.Env = append(main.Env, v1.EnvVar{Name: fmt.Sprintf("SETTING_%d", i), Value: "of a usual length"})
	}
	main.EnvFrom = []v1.EnvFromSource{{
		ConfigMapRef: &v1.ConfigMapEnvSource{LocalObjectReference: v1.LocalObjectReference{Name: siteConfigMap}},
	}}
	side := *main.DeepCopy()
	side.Name = "side"
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: sitePodName(node, pod), Labels: map[string]string{"app": "shop", siteLabel: "0"}},
		Spec:       v1.PodSpec{NodeName: siteNode(node), Containers: []v1.Container{main, side}},
	}
}

// way is a way in which nodes get their pods.
type way interface {
	// start starts it, and returns when all nodes have their pods and the config map.
	start(ctx context.Context) error
	// restarted measures restarts.
	restarted(ctx context.Context, turn *SiteTurn) error
	// used returns the memory and the processor time in clockTicks of its process; 0 for none.
	used() (pss uint64, ticks int, err error)
	stop() error
}

// turn measures one way.
func (r *siteRig) turn(
	ctx context.Context, newWay func(*siteRig, *meter) (way, error),
) (turn SiteTurn, err error) {
	line, err := newMeter(r.cluster.URL())
	if err != nil {
		return turn, err
	}
	defer func() { err = errors.Join(err, line.close()) }()
	nodes, err := newWay(r, line)
	if err != nil {
		return turn, err
	}
	defer func() { err = errors.Join(err, nodes.stop()) }()
	begin := time.Now()
	if turn.Start, err = r.traffic(ctx, line, func() error { return nodes.start(ctx) }); err != nil {
		return turn, err
	}
	turn.StartSeconds = time.Since(begin).Seconds()
	if turn.Rest, err = r.traffic(ctx, line, func() error { return rest(ctx, r.opts.idle) }); err != nil {
		return turn, err
	}
	_, before, err := nodes.used()
	if err != nil {
		return turn, err
	}
	begin = time.Now()
	if turn.Changes, err = r.traffic(ctx, line, func() error { return r.change(ctx, &turn) }); err != nil {
		return turn, err
	}
	pss, after, err := nodes.used()
	if err != nil {
		return turn, err
	}
	turn.CPUPercent = 100 * float64(after-before) / clockTicks / time.Since(begin).Seconds()
	if turn.ObjectChanges, err = r.traffic(ctx, line, func() error { return r.changeConfigMap(ctx, &turn) }); err != nil {
		return turn, err
	}
	turn.PSSBytes = pss
	return turn, nodes.restarted(ctx, &turn)
}

// traffic returns the traffic during do.
func (r *siteRig) traffic(ctx context.Context, line *meter, do func() error) (t Traffic, err error) {
	before, err := r.requests(ctx)
	if err != nil {
		return t, err
	}
	t = Traffic{Sent: -line.sent.Load(), Received: -line.received.Load(), Connections: -line.connections.Load()}
	if err := do(); err != nil {
		return t, err
	}
	t.Sent += line.sent.Load()
	t.Received += line.received.Load()
	t.Connections += line.connections.Load()
	after, err := r.requests(ctx)
	t.Requests = after - before
	return t, err
}

// requests returns the number of lists and watches of pods and config maps that the API server has begun.
func (r *siteRig) requests(ctx context.Context) (float64, error) {
	calls, err := callsOf(ctx, r.admin)
	if err != nil {
		return 0, err
	}
	open, err := longRunning(ctx, r.admin)
	return calls["LIST pods"] + calls["LIST configmaps"] + open, err
}

// change changes labels of pods, and waits until the nodes have the changes.
func (r *siteRig) change(ctx context.Context, turn *SiteTurn) error {
	r.pods.clear()
	ticker := time.NewTicker(time.Second / siteRate)
	defer ticker.Stop()
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(siteCreators)
	for i := range siteChanges {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
		group.Go(func() error {
			name := sitePodName(i%r.opts.site, i/r.opts.site%sitePods)
			return r.pods.changePod(groupCtx, r.admin, name)
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	if err := await(ctx, "all changes are at their nodes", func(context.Context) (bool, error) {
		return r.pods.all(siteChanges), nil
	}); err != nil {
		return err
	}
	seconds := r.pods.seconds()
	turn.P50, turn.P99 = figures.Percentile(seconds, 50), figures.Percentile(seconds, 99)
	return nil
}

// changeConfigMap changes the config map, and waits each time until all nodes have the change.
func (r *siteRig) changeConfigMap(ctx context.Context, turn *SiteTurn) error {
	r.configMap.clear()
	for i := range siteObjectChanges {
		if err := r.configMap.changeConfigMap(ctx, r.admin); err != nil {
			return err
		}
		if err := await(ctx, "the config map is at all nodes", func(context.Context) (bool, error) {
			return r.configMap.all((i + 1) * r.opts.site), nil
		}); err != nil {
			return err
		}
	}
	seconds := r.configMap.seconds()
	turn.ObjectP50, turn.ObjectP99 = figures.Percentile(seconds, 50), figures.Percentile(seconds, 99)
	return nil
}

// byConfigmux are nodes that follow one configmux.
type byConfigmux struct {
	rig       *siteRig
	line      *meter
	configmux *sitenodes.Configmux
	nodes     []*sitenodes.Node
}

func newByConfigmux(r *siteRig, line *meter) (way, error) {
	b := &byConfigmux{rig: r, line: line}
	var err error
	if b.configmux, err = sitenodes.NewConfigmux(r.cluster, r.opts.bin, r.dir, line.url()); err != nil {
		return nil, err
	}
	for i := range r.opts.site {
		dir := filepath.Join(r.dir, siteNode(i))
		if err := os.Mkdir(dir, 0o700); err != nil {
			return nil, err
		}
		n, err := sitenodes.New(r.cluster, dir, siteNode(i), b.configmux.Address, func(node string, pod *v1.Pod) {
			r.pods.seen(node, pod.Labels)
		})
		if err != nil {
			return nil, err
		}
		n.ConfigMapChanged = func(node string, m *v1.ConfigMap) { r.configMap.seen(node, m.Labels) }
		b.nodes = append(b.nodes, n)
	}
	return b, nil
}

func (b *byConfigmux) start(ctx context.Context) error {
	if err := b.configmux.Start(); err != nil {
		return err
	}
	for _, n := range b.nodes {
		if err := n.Start(); err != nil {
			return err
		}
	}
	return b.served(ctx, true)
}

// served waits until all nodes have their pods: from the API server, or else from the checkpoint.
func (b *byConfigmux) served(ctx context.Context, ready bool) error {
	ctx, cancel := context.WithTimeout(ctx, sitePatience)
	defer cancel()
	return sitenodes.Await(ctx, "all nodes have their pods and the config map", b.nodes, func(n *sitenodes.Node) bool {
		pods, synced, isReady := n.Served()
		return pods == sitePods && n.ConfigMaps() == 1 && synced && (isReady || !ready)
	})
}

// restarted implements way: all nodes and configmux restart, with the API server and without it.
func (b *byConfigmux) restarted(ctx context.Context, turn *SiteTurn) error {
	restart := func(ready bool) (float64, error) {
		err := b.configmux.Kill()
		for _, n := range b.nodes {
			err = errors.Join(err, n.Stop())
		}
		begin := time.Now()
		err = errors.Join(err, b.configmux.Start())
		for _, n := range b.nodes {
			err = errors.Join(err, n.Start())
		}
		if err == nil {
			err = b.served(ctx, ready)
		}
		return time.Since(begin).Seconds(), err
	}
	var err error
	if turn.RestartSeconds, err = restart(true); err != nil {
		return err
	}
	b.line.refuse()
	turn.CutSeconds, err = restart(false)
	return err
}

func (b *byConfigmux) used() (pss uint64, ticks int, err error) {
	m, err := memoryOf(b.configmux.PID())
	if err != nil {
		return 0, 0, err
	}
	ticks, err = processorTicks(b.configmux.PID())
	return m.PSS, ticks, err
}

func (b *byConfigmux) stop() error {
	var errs []error
	for _, n := range b.nodes {
		errs = append(errs, n.Stop())
	}
	return errors.Join(append(errs, b.configmux.Close())...)
}
