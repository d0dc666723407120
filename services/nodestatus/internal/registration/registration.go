// Package registration keeps this machine's Node in the API server: it creates a missing Node, and then watches it, so
// that changes and a deletion are noticed at once.
//
// It runs beside the heart, which never waits for it: without the API server, only the information that the Node exists
// is missing. Package report handles the Node's status.
package registration

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/telemetry"
)

const (
	// firstRetry and lastRetry are the kubelet's: the first delay after a failure, which doubles, and the longest.
	firstRetry = 100 * time.Millisecond
	lastRetry  = 7 * time.Second
	// requestTimeout bounds the requests between two waits. A busy API server needs much less.
	requestTimeout = 10 * time.Second
	// watchTimeout is the duration of a watch, in the middle of the range of client-go's reflectors.
	watchTimeout = 7 * time.Minute
	// healthName is the name in the health.
	healthName = "apiserver"
)

// Config holds the parameters of a Registrar.
type Config struct {
	// Client is the client for core/v1.
	Client rest.Interface
	// Name is the name of the node.
	Name string
	// Register permits creating a missing Node. Otherwise another program must create it.
	Register bool
	// Kubeconfig is the path of the kubeconfig, for messages.
	Kubeconfig string
	// Changed receives the Node in the API server when its metadata, spec, capacity, addresses or volumes have changed,
	// and nil when it does not exist any more; one call at a time. It must not change the Node.
	Changed func(*v1.Node)
	// Seen receives the Node whenever it is read, including its status and unchanged ones, and nil when it does not exist
	// any more; one call at a time, each before Changed. It must not change the Node. It may be nil.
	Seen func(*v1.Node)
	// Delayed returns why a created Node must not be ready yet; empty if it may be.
	Delayed func() string
	// Recreated is true if the machine was set up anew. The extended resources of an existing Node are then set to 0 once,
	// because their devices are not known to be there: device plugins report them again.
	Recreated bool
	// Attempted is called before the Node is created, and Created afterwards; each may be nil.
	Attempted, Created func()
	// Health reports why the API server does not have the Node.
	Health *rpc.Health
	Clock  clock.Clock
	Logger *slog.Logger
	// Tracer creates a span "node.register" for each look for the Node, with its requests as children.
	Tracer trace.Tracer
}

// Registrar keeps the Node in the API server. Create it with New.
type Registrar struct {
	cfg   Config
	nodes nodes

	mu       sync.Mutex
	computed *v1.Node
	// offered is closed when there is a computed Node.
	offered chan struct{}

	// Only Run uses the following fields: whether extended resources have been reset, the last argument of Changed, and
	// the last logged problem.
	reset        bool
	lastReported *v1.Node
	complaint    string
}

// New returns a registrar, and reports in the health that nothing is known yet.
func New(cfg Config) *Registrar {
	cfg.Health.Set(healthName, "the API server has not been asked for the Node yet")
	return &Registrar{cfg: cfg, nodes: nodes{cfg.Client}, offered: make(chan struct{})}
}

// Offer sets the last computed Node, which would be registered. It never blocks, and the Node must not be changed
// afterwards.
func (r *Registrar) Offer(node *v1.Node) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.computed == nil {
		close(r.offered)
	}
	r.computed = node
}

func (r *Registrar) latest() *v1.Node {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.computed
}

// Run keeps the Node registered until ctx ends. It starts with the first offered Node.
func (r *Registrar) Run(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-r.offered:
	}
	delay := firstRetry
	for ctx.Err() == nil {
		watched, err := r.once(ctx)
		if ctx.Err() != nil {
			return
		}
		if watched >= lastRetry {
			delay = firstRetry
		}
		if err != nil {
			r.complain(err, delay)
		}
		select {
		case <-ctx.Done():
		case <-r.cfg.Clock.After(delay):
		}
		delay = min(2*delay, lastRetry)
	}
}

// once finds or creates the Node, and watches it as long as possible. It returns the duration of the watch, and an
// error if it is unknown whether the API server has the Node.
func (r *Registrar) once(ctx context.Context) (watched time.Duration, err error) {
	node, err := r.ensure(ctx)
	if err != nil {
		return 0, err
	}
	r.recovered()
	r.report(node)
	began := r.cfg.Clock.Now()
	err = r.follow(ctx, node.ResourceVersion)
	return r.cfg.Clock.Since(began), err
}

// ensure returns the present or created Node of the API server.
func (r *Registrar) ensure(ctx context.Context) (node *v1.Node, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	ctx, span := telemetry.Start(ctx, r.cfg.Tracer, "node.register", telemetry.Subject{})
	defer func() { telemetry.End(span, err) }()
	node, err = r.nodes.get(ctx, r.cfg.Name)
	if apierrors.IsNotFound(err) {
		r.report(nil)
		if !r.cfg.Register {
			return nil, fmt.Errorf(
				"the API server has no Node %s, and registerNode is false: create it, or set registerNode to true",
				r.cfg.Name,
			)
		}
		if r.cfg.Attempted != nil {
			r.cfg.Attempted()
		}
		if node, err = r.nodes.create(ctx, toRegister(r.latest(), r.cfg.Delayed())); err == nil {
			r.reset = true
			if r.cfg.Created != nil {
				r.cfg.Created()
			}
			r.cfg.Logger.Info("the Node is registered", "node", r.cfg.Name, "node.uid", node.UID)
			return node, nil
		}
	}
	if err == nil {
		node, err = r.resetResources(ctx, node)
	}
	if err != nil {
		return nil, r.explain(err)
	}
	return r.correct(ctx, node), nil
}

// follow watches the Node. It returns when the Node is deleted or the watch has ended, as each does after some minutes,
// and fails if the watch cannot start.
func (r *Registrar) follow(ctx context.Context, resourceVersion string) error {
	ctx, cancel := context.WithTimeout(ctx, watchTimeout+requestTimeout)
	defer cancel()
	events, err := r.nodes.watch(ctx, r.cfg.Name, resourceVersion)
	if err != nil {
		return r.explain(err)
	}
	defer events.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case event, ok := <-events.ResultChan():
			if !ok {
				return nil
			}
			switch event.Type {
			case watch.Added, watch.Modified:
				if node, ok := event.Object.(*v1.Node); ok {
					r.report(node)
				}
			case watch.Deleted:
				r.cfg.Logger.Warn("the Node was deleted in the API server", "node", r.cfg.Name)
				r.report(nil)
				return nil
			case watch.Error:
				// Usually the resource version has expired. In any case, the next read of the Node resolves it.
				return nil
			case watch.Bookmark:
			}
		}
	}
}

// report passes the Node in the API server to Changed, if a relevant part has changed.
func (r *Registrar) report(node *v1.Node) {
	if r.cfg.Seen != nil {
		r.cfg.Seen(node)
	}
	if node != nil {
		// managedFields change with every status, and are not needed.
		node = &v1.Node{
			TypeMeta: metav1.TypeMeta{
				APIVersion: "v1",
				Kind:       "Node",
			},
			ObjectMeta: *node.ObjectMeta.DeepCopy(),
			Spec:       *node.Spec.DeepCopy(),
			Status: v1.NodeStatus{
				Capacity: node.Status.Capacity.DeepCopy(), Addresses: slices.Clone(node.Status.Addresses),
				VolumesInUse:    slices.Clone(node.Status.VolumesInUse),
				VolumesAttached: slices.Clone(node.Status.VolumesAttached),
			},
		}
		node.ManagedFields, node.ResourceVersion = nil, ""
	}
	if equality.Semantic.DeepEqual(r.lastReported, node) {
		return
	}
	r.lastReported = node
	r.cfg.Changed(node)
}

// complain reports in the health, and logs if it is new, why it is unknown whether the API server has the Node.
func (r *Registrar) complain(err error, delay time.Duration) {
	r.cfg.Health.Set(healthName, err.Error())
	if text := err.Error(); text != r.complaint {
		r.complaint = text
		r.cfg.Logger.Warn("it is not known whether the API server has the Node; trying again", telemetry.KeyError, err,
			telemetry.KeyRetryAfter, delay)
	}
}

// recovered ends a complaint.
func (r *Registrar) recovered() {
	r.cfg.Health.Set(healthName, "")
	if r.complaint != "" {
		r.complaint = ""
		r.cfg.Logger.Info("the API server has the Node", "node", r.cfg.Name)
	}
}

// explain adds the remedy to an error of the API server or of the connection.
func (r *Registrar) explain(err error) error {
	switch {
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("the API server does not accept the credentials of %s: check its users: %w", r.cfg.Kubeconfig, err)
	case apierrors.IsForbidden(err):
		return fmt.Errorf(
			"the user of %s may not keep the Node: a node's is system:node:%s in the group system:nodes: %w",
			r.cfg.Kubeconfig,
			r.cfg.Name,
			err,
		)
	case apierrors.IsInvalid(err):
		return fmt.Errorf("the API server does not accept the Node: check --node-labels and registerWithTaints: %w", err)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf(
			"the API server of %s does not answer within %v: check that it runs: %w",
			r.cfg.Kubeconfig,
			requestTimeout,
			err,
		)
	default:
		return fmt.Errorf(
			"reading the Node from the API server of %s: check that it runs and that the file names its address: %w",
			r.cfg.Kubeconfig,
			err,
		)
	}
}
