// Package sitenodes has the nodes of a site for tests and benchmarks: each follows the configmux of the site as a
// syncloop does, with the certificate of its kubelet, and remembers which pods run as a container runtime does. It runs
// no processes, so a machine holds hundreds.
package sitenodes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	streamv1 "github.com/quartet-node/quartet/gen/quartet/stream/v1"
	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/peertls"
	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/internal/stream/streamrpc"
	"github.com/quartet-node/quartet/test/cluster"
)

// Files are the certificate, the key and the authority of one end, in a directory.
func Files(c *cluster.Cluster, dir string) peertls.Files {
	return peertls.Files{Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key"), CA: c.CAFile()}
}

// Node is a node of a site.
type Node struct {
	Name string
	// ConfigMapChanged is called for each config map that comes or changes. If it is nil at the start, the node follows no
	// objects.
	ConfigMapChanged func(node string, configMap *v1.ConfigMap)

	files   peertls.Files
	address string
	// changed is called for each pod that comes or changes.
	changed func(node string, pod *v1.Pod)

	mu sync.Mutex
	// running has the pods of the runtime, which survive a restart. Stops counts pods that were stopped.
	running map[string]*v1.Pod
	stops   int
	life    *life
}

// life is the node between a start and a stop.
type life struct {
	cancel context.CancelFunc
	done   chan error
	conn   *grpc.ClientConn

	// desired are the pods that configmux has sent; doubtful those that were missing in a snapshot, which count as removed
	// when the source is ready.
	desired  map[string]*v1.Pod
	doubtful map[string]bool
	ready    bool
	synced   bool
	// configMaps are those that configmux has sent.
	configMaps map[string]bool
}

// New returns a node that is not started. Dir is a directory of its own. The function is called for each pod that comes
// or changes, and may be nil.
func New(c *cluster.Cluster, dir, name, address string, changed func(node string, pod *v1.Pod)) (*Node, error) {
	n := &Node{Name: name, files: Files(c, dir), address: address, changed: changed, running: map[string]*v1.Pod{}}
	return n, c.SaveNode(n.files.Cert, n.files.Key, name)
}

// Start starts the node: it runs what it finds running, and follows configmux.
func (n *Node) Start() error {
	conn, err := rpc.DialService(layout.ConfigMux, n.address, n.files)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	l := &life{
		cancel: cancel, done: make(chan error, 1), conn: conn, desired: map[string]*v1.Pod{}, doubtful: map[string]bool{},
		configMaps: map[string]bool{},
	}
	n.mu.Lock()
	n.life = l
	n.mu.Unlock()
	client := configv1.NewConfigServiceClient(conn)
	group, ctx := errgroup.WithContext(ctx)
	if n.ConfigMapChanged != nil {
		group.Go(func() error { return n.followObjects(ctx, l, client) })
	}
	group.Go(func() error {
		return stream.Follow(ctx, stream.FollowConfig[*entry]{
			Source: source(client), Equal: equal, Name: stream.NamePodUpdates, Logger: slog.New(slog.DiscardHandler),
			Handle: func(c stream.Change[*entry]) { n.handle(l, c) },
			Synced: func() { n.settle(l, func() { l.synced = true }) },
		})
	})
	go func() { l.done <- group.Wait() }()
	return nil
}

// followObjects follows the objects that the pods name.
func (n *Node) followObjects(ctx context.Context, l *life, client configv1.ConfigServiceClient) error {
	return stream.Follow(ctx, stream.FollowConfig[*configv1.Object]{
		Source: objects(client), Name: stream.NameObjects, Logger: slog.New(slog.DiscardHandler),
		Handle: func(c stream.Change[*configv1.Object]) {
			if c.Op == stream.OpRemove || c.New.GetKind() != "ConfigMap" {
				return
			}
			configMap := &v1.ConfigMap{}
			if err := configMap.Unmarshal(c.New.GetObject()); err != nil || configMap.Name == "" {
				return // the API server has none of that name
			}
			n.mu.Lock()
			l.configMaps[configMap.Namespace+"/"+configMap.Name] = true
			n.mu.Unlock()
			n.ConfigMapChanged(n.Name, configMap)
		},
	})
}

// ConfigMaps returns how many config maps configmux has sent since the start.
func (n *Node) ConfigMaps() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.life == nil {
		return 0
	}
	return len(n.life.configMaps)
}

// objects is the stream of objects.
func objects(client configv1.ConfigServiceClient) stream.Source[*configv1.Object] {
	return streamrpc.NewSource(func(ctx context.Context, token []byte) (streamrpc.Receive[*configv1.Object], error) {
		out, err := client.WatchObjects(ctx, &configv1.WatchObjectsRequest{ResumeToken: token}, grpc.WaitForReady(true))
		if err != nil {
			return nil, err
		}
		return func() (*streamv1.Frame, *configv1.Object, error) {
			m, err := out.Recv()
			if err != nil {
				return nil, nil, err
			}
			return m.GetFrame(), m.GetObject(), nil
		}, nil
	})
}

// Stop stops the node, as a kill does: the pods run on.
func (n *Node) Stop() error {
	n.mu.Lock()
	l := n.life
	n.life = nil
	n.mu.Unlock()
	if l == nil {
		return nil
	}
	l.cancel()
	err := <-l.done
	if errors.Is(err, context.Canceled) {
		err = nil
	}
	return errors.Join(err, l.conn.Close())
}

// Running returns the names of the pods that run, sorted.
func (n *Node) Running() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	names := make([]string, 0, len(n.running))
	for _, pod := range n.running {
		names = append(names, pod.Name)
	}
	slices.Sort(names)
	return names
}

// Stops returns how many pods were stopped since the node was made.
func (n *Node) Stops() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.stops
}

// Served returns how many pods configmux has sent since the start, and whether the snapshot is complete and the source
// is ready.
func (n *Node) Served() (pods int, synced, ready bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.life == nil {
		return 0, false, false
	}
	return len(n.life.desired), n.life.synced, n.life.ready
}

// entry is a pod, or the state of a source.
type entry struct {
	pod    *v1.Pod
	source *configv1.SourceState
}

func equal(held, fresh *entry) bool {
	return held.pod == nil || fresh.pod == nil || podset.Equal(held.pod, fresh.pod)
}

func source(client configv1.ConfigServiceClient) stream.Source[*entry] {
	return streamrpc.NewSource(func(ctx context.Context, token []byte) (streamrpc.Receive[*entry], error) {
		out, err := client.WatchPodUpdates(
			ctx, &configv1.WatchPodUpdatesRequest{ResumeToken: token, WithoutOperations: true}, grpc.WaitForReady(true),
		)
		if err != nil {
			return nil, err
		}
		return func() (*streamv1.Frame, *entry, error) {
			m, err := out.Recv()
			if err != nil {
				return nil, nil, err
			}
			e := &entry{source: m.GetSource()}
			if update := m.GetPod(); update != nil {
				e.pod = &v1.Pod{}
				if err := e.pod.Unmarshal(update.GetPod()); err != nil {
					return nil, nil, fmt.Errorf("decode a pod: %w", err)
				}
			}
			return m.GetFrame(), e, nil
		}, nil
	})
}

// handle takes one change. A pod that is missing in a snapshot is removed when the source is ready, as syncloop does.
func (n *Node) handle(l *life, c stream.Change[*entry]) {
	n.settle(l, func() {
		switch {
		case c.Op == stream.OpRemove && c.FromSnapshot:
			l.doubtful[c.Key] = true
		case c.Op == stream.OpRemove:
			delete(l.desired, c.Key)
		case c.New.source != nil:
			l.ready = c.New.source.GetReady()
		case c.New.pod != nil:
			l.desired[c.Key] = c.New.pod
			delete(l.doubtful, c.Key)
		}
	})
	if n.changed != nil && c.Op != stream.OpRemove && c.New.pod != nil {
		n.changed(n.Name, c.New.pod)
	}
}

// settle makes a change, and then the runtime match: it runs what is desired, and stops other pods when the source is
// ready and the snapshot complete.
func (n *Node) settle(l *life, change func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if change(); n.life != l {
		return
	}
	maps.Copy(n.running, l.desired)
	if !l.ready || !l.synced {
		return
	}
	for key := range l.doubtful {
		delete(l.desired, key)
	}
	clear(l.doubtful)
	for key := range n.running {
		if l.desired[key] == nil {
			delete(n.running, key)
			n.stops++
		}
	}
}

// Await waits until a condition holds for all nodes, and fails with the number of those for which it does not.
func Await(ctx context.Context, what string, nodes []*Node, met func(*Node) bool) error {
	const poll = 2 * time.Millisecond
	ticker := time.NewTicker(poll)
	defer ticker.Stop()
	for {
		missing := 0
		for _, n := range nodes {
			if !met(n) {
				missing++
			}
		}
		if missing == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting until %s: %d of %d nodes are missing: %w", what, missing, len(nodes), ctx.Err())
		case <-ticker.C:
		}
	}
}
