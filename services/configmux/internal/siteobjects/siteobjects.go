// Package siteobjects has the config maps and secrets that the pods of a site's nodes name, for a configmux that serves
// the site. Each is watched once at the API server, however many nodes need it, and its content is in memory once. Each
// node has a stream of those that its own pods name, and of no others:
//
//	pods of a node ──► Node.Use ──► one watch for each object ──► stream of every node that uses it
//	                                        └──► checkpoint, with sealed secrets
//
// An object that the API server does not have is in the stream as missing, so that an object that is not in it is not
// known yet. Nothing here is logged or returned with a value of a secret.
package siteobjects

import (
	"bytes"
	"context"
	"log/slog"
	"sync"

	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	"github.com/quartet-node/quartet/internal/reflector"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/services/configmux/internal/apiobject"
	"github.com/quartet-node/quartet/services/configmux/internal/apisource"
	"github.com/quartet-node/quartet/services/configmux/internal/mux"
	"github.com/quartet-node/quartet/services/configmux/internal/sealing"
)

// Config holds the parameters of Objects. All fields are required.
type Config struct {
	// Client is the client for core/v1.
	Client rest.Interface
	// Checkpoint is the path of the checkpoint. Its directory must exist when Run begins.
	Checkpoint string
	// Seals encrypts secrets in the checkpoint.
	Seals *sealing.Keyring
	// Requested receives the result of each request; err is nil if it succeeded.
	Requested func(object string, verb reflector.Verb, err error)
	// Served are the metrics of the streams of all nodes together.
	Served *stream.ServedMetrics
	Clock  clock.WithTicker
	Logger *slog.Logger
}

// Objects has the objects of all nodes. Its methods may be called from any goroutine.
type Objects struct {
	cfg Config
	// changed has a value when the checkpoint is old. Its capacity is one, because one write has all changes.
	changed chan struct{}

	mu    sync.Mutex
	nodes map[*Node]bool
	held  map[apiobject.Key]*held
	// saved are the objects of the checkpoint that no node has used yet.
	saved map[apiobject.Key]*configv1.Object
	// ctx is that of Run; nil before. No watch begins without it, or when closed is true.
	ctx     context.Context //nolint:containedctx // watches come and go while Run runs
	closed  bool
	running sync.WaitGroup
}

// held is an object that nodes use.
type held struct {
	// object is what the nodes get; nil if nothing is known. It is immutable.
	object *configv1.Object
	// confirmed is true once the API server has answered in the life of this process.
	confirmed bool
	users     map[*Node]bool
	// stop ends the watch; nil if there is none.
	stop context.CancelFunc
}

// New returns Objects without objects. Call Load before the first node uses one.
func New(cfg Config) *Objects {
	return &Objects{
		cfg: cfg, changed: make(chan struct{}, 1), nodes: map[*Node]bool{},
		held: map[apiobject.Key]*held{}, saved: map[apiobject.Key]*configv1.Object{},
	}
}

// Run watches the objects and writes the checkpoint until ctx ends.
func (o *Objects) Run(ctx context.Context) {
	o.mu.Lock()
	o.ctx = ctx
	for key, h := range o.held {
		o.watch(key, h)
	}
	o.mu.Unlock()
	o.keep(ctx)
	o.mu.Lock()
	o.closed = true
	o.mu.Unlock()
	o.running.Wait()
}

// use adds a node to the users of an object. The caller holds mu.
func (o *Objects) use(n *Node, key apiobject.Key) {
	h := o.held[key]
	if h == nil {
		h = &held{users: map[*Node]bool{}, object: o.saved[key]}
		o.held[key] = h
		o.watch(key, h)
	}
	h.users[n] = true
	if h.object != nil {
		n.level.Put(key.Path(), mux.ObjectEntry{Object: h.object})
	}
}

// leave removes a node from the users of an object. The caller holds mu.
func (o *Objects) leave(n *Node, key apiobject.Key) {
	n.level.DeleteWith(key.Path(), mux.ObjectEntry{Object: bare(key)})
	h := o.held[key]
	if delete(h.users, n); len(h.users) > 0 {
		return
	}
	if h.stop != nil {
		h.stop()
	}
	delete(o.held, key)
	delete(o.saved, key)
	o.dirty()
}

// saw records the API server's answer for an object; nil data means that there is none. An immutable object needs no
// watch any more.
func (o *Objects) saw(key apiobject.Key, h *held, data []byte, immutable bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.held[key] != h {
		return
	}
	if immutable && h.stop != nil {
		h.stop()
	}
	h.confirmed = true
	if old := h.object; old == nil || old.GetMissing() != (data == nil) || !bytes.Equal(old.GetObject(), data) {
		h.object = bare(key)
		h.object.Object, h.object.Missing = data, data == nil
		for n := range h.users {
			n.level.Put(key.Path(), mux.ObjectEntry{Object: h.object})
		}
		o.dirty()
	}
	for n := range h.users {
		n.announce()
	}
}

// bare returns an object without its content.
func bare(key apiobject.Key) *configv1.Object {
	return &configv1.Object{Kind: string(key.Kind), Namespace: key.Namespace, Name: key.Name, Source: apisource.Name}
}
