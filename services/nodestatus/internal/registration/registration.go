// Package registration sees to it that the API server has this machine's Node: it creates the Node when there is none,
// and then watches it, so that it is known within moments when somebody changes or deletes it.
//
// It runs beside the heart, which never waits for it: an API server that is away costs nothing but the word that the Node
// is there. What the Node's status is then is not its business.
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
	// firstRetry and lastRetry are the kubelet's: the first wait after a failure, which doubles, and the longest.
	firstRetry = 100 * time.Millisecond
	lastRetry  = 7 * time.Second
	// requestTimeout bounds what is asked between two waits. It is well above what a busy API server needs.
	requestTimeout = 10 * time.Second
	// watchTimeout is after what time the API server ends a watch, in the middle of what client-go's reflectors ask for.
	watchTimeout = 7 * time.Minute
	// healthName is under what the health says how it stands with the API server.
	healthName = "apiserver"
)

// Config says whose Node to keep, where, and whom to tell.
type Config struct {
	// Client reaches the API server's core/v1.
	Client rest.Interface
	// Name is the name of the node.
	Name string
	// Register says to create a Node that the API server does not have. Otherwise somebody else must.
	Register bool
	// Kubeconfig is the file that leads to the API server. Reasons name it.
	Kubeconfig string
	// Changed gets the Node as the API server has it, whenever its metadata, its spec or its capacity are others than before, and nil
	// when the API server has it no longer; one after the other. It must not change what it gets.
	Changed func(*v1.Node)
	// Seen gets the Node whenever it is heard of, with its status and also when nothing is new, and nil when the API server has it
	// no longer; one after the other, each before Changed. It must not change what it gets. Nil is for nobody.
	Seen func(*v1.Node)
	// Attempted is told before the Node is made, and Created when it was; each may be nil.
	Attempted, Created func()
	// Health is told what is missing for the API server to have the Node.
	Health *rpc.Health
	Clock  clock.Clock
	Logger *slog.Logger
	// Tracer makes a span "node.register" of each look for the Node, with the requests of it below.
	Tracer trace.Tracer
}

// Registrar keeps the Node in the API server. Make it with New.
type Registrar struct {
	cfg   Config
	nodes nodes

	mu       sync.Mutex
	computed *v1.Node
	// offered is closed once there is a computed Node.
	offered chan struct{}

	// Of Run alone: what Changed was told last, and what the log was.
	told      *v1.Node
	complaint string
}

// New returns a registrar that asks for nothing yet, and says in the health that nothing is known.
func New(cfg Config) *Registrar {
	cfg.Health.Set(healthName, "the API server has not been asked for the Node yet")
	return &Registrar{cfg: cfg, nodes: nodes{cfg.Client}, offered: make(chan struct{})}
}

// Offer gives the Node as it was last computed, which is what would be registered. It never blocks, and the Node must not
// be changed afterwards.
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

// Run keeps the Node registered until ctx ends. It begins with the first Node that is offered.
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

// once finds or creates the Node, and watches it for as long as that works. It returns how long it did, and an error when
// it is not known whether the API server has the Node.
func (r *Registrar) once(ctx context.Context) (watched time.Duration, err error) {
	node, err := r.ensure(ctx)
	if err != nil {
		return 0, err
	}
	r.recovered()
	r.tell(node)
	began := r.cfg.Clock.Now()
	err = r.follow(ctx, node.ResourceVersion)
	return r.cfg.Clock.Since(began), err
}

// ensure returns the Node that the API server has or got now.
func (r *Registrar) ensure(ctx context.Context) (node *v1.Node, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	ctx, span := telemetry.Start(ctx, r.cfg.Tracer, "node.register", telemetry.Subject{})
	defer func() { telemetry.End(span, err) }()
	node, err = r.nodes.get(ctx, r.cfg.Name)
	if apierrors.IsNotFound(err) {
		r.tell(nil)
		if !r.cfg.Register {
			return nil, fmt.Errorf("the API server has no Node %s, and registerNode is false: create it, or set registerNode to true", r.cfg.Name)
		}
		if r.cfg.Attempted != nil {
			r.cfg.Attempted()
		}
		if node, err = r.nodes.create(ctx, toRegister(r.latest())); err == nil {
			if r.cfg.Created != nil {
				r.cfg.Created()
			}
			r.cfg.Logger.Info("the Node is registered", "node", r.cfg.Name, "node.uid", node.UID)
			return node, nil
		}
	}
	if err != nil {
		return nil, r.explain(err)
	}
	return r.mend(ctx, node), nil
}

// follow watches the Node. It returns when the Node is deleted or the watch has ended, as each does after some minutes,
// and fails when there cannot be one.
func (r *Registrar) follow(ctx context.Context, since string) error {
	ctx, cancel := context.WithTimeout(ctx, watchTimeout+requestTimeout)
	defer cancel()
	events, err := r.nodes.watch(ctx, r.cfg.Name, since)
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
					r.tell(node)
				}
			case watch.Deleted:
				r.cfg.Logger.Warn("the Node was deleted in the API server", "node", r.cfg.Name)
				r.tell(nil)
				return nil
			case watch.Error:
				// Most often the history since then is gone. Whatever it is, asking for the Node will tell.
				return nil
			case watch.Bookmark:
			}
		}
	}
}

// tell says what the API server has, when that differs from what was said before in what others may rely on.
func (r *Registrar) tell(node *v1.Node) {
	if r.cfg.Seen != nil {
		r.cfg.Seen(node)
	}
	if node != nil {
		// Who wrote which field when changes with every status, and is of interest to nobody here.
		node = &v1.Node{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: *node.ObjectMeta.DeepCopy(), Spec: *node.Spec.DeepCopy(),
			Status: v1.NodeStatus{Capacity: node.Status.Capacity.DeepCopy(), Addresses: slices.Clone(node.Status.Addresses)},
		}
		node.ManagedFields, node.ResourceVersion = nil, ""
	}
	if equality.Semantic.DeepEqual(r.told, node) {
		return
	}
	r.told = node
	r.cfg.Changed(node)
}

// complain says in the health, and in the log when it is news, why the API server does not have the Node for sure.
func (r *Registrar) complain(err error, delay time.Duration) {
	r.cfg.Health.Set(healthName, err.Error())
	if text := err.Error(); text != r.complaint {
		r.complaint = text
		r.cfg.Logger.Warn("it is not known whether the API server has the Node; trying again", telemetry.KeyError, err, telemetry.KeyRetryAfter, delay)
	}
}

// recovered is the end of a complaint.
func (r *Registrar) recovered() {
	r.cfg.Health.Set(healthName, "")
	if r.complaint != "" {
		r.complaint = ""
		r.cfg.Logger.Info("the API server has the Node", "node", r.cfg.Name)
	}
}

// explain adds to what the API server or the way to it said what to do about it.
func (r *Registrar) explain(err error) error {
	switch {
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("the API server does not take the credentials of %s: see its users: %w", r.cfg.Kubeconfig, err)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("the user of %s may not keep the Node: a node's is system:node:%s in the group system:nodes: %w", r.cfg.Kubeconfig, r.cfg.Name, err)
	case apierrors.IsInvalid(err):
		return fmt.Errorf("the API server does not take the Node: see --node-labels and registerWithTaints: %w", err)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("the API server of %s does not answer within %v: see that it runs: %w", r.cfg.Kubeconfig, requestTimeout, err)
	default:
		return fmt.Errorf("asking the API server of %s for the Node: see that it runs and that the file names its address: %w", r.cfg.Kubeconfig, err)
	}
}
