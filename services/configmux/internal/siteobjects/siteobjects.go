// Package siteobjects has the config maps, secrets, claims and services that the pods of a site's nodes name, for a
// configmux that serves the site. Each is watched once at the API server, however many nodes need it, and its content
// is in memory once. Each node has a stream of those that its own pods name, and of no others:
//
//	pods of a node ──► Node.Use ──► one watch for each object ──► stream of every node that uses it
//	                                        └──► checkpoint, with sealed secrets
//
// A claim leads to the persistent volume that it is bound to, and this to the secrets that it names, as long as the
// volume names the claim, too. The services of a namespace are one object.
//
// An object that the API server does not have is in the stream as missing, so that an object that is not in it is not
// known yet. Nothing here is logged or returned with a value of a secret.
package siteobjects

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"

	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	"github.com/quartet-node/quartet/internal/reflector"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/services/configmux/internal/apiobject"
	"github.com/quartet-node/quartet/services/configmux/internal/apisource"
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
	saved map[apiobject.Key]*content
	// ctx is that of Run; nil before. No watch begins without it, or when closed is true.
	ctx     context.Context //nolint:containedctx // watches come and go while Run runs
	closed  bool
	running sync.WaitGroup
}

// Stands waits until no change of the objects is under way; nil. It is a watchdog.Loop's Check.
func (o *Objects) Stands() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return nil
}

// held is an object that nodes use.
type held struct {
	// content is what the nodes get; nil if nothing is known.
	content *content
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
		held: map[apiobject.Key]*held{}, saved: map[apiobject.Key]*content{},
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

// content returns what is known of an object; nil if nothing is. The caller holds mu.
func (o *Objects) content(key apiobject.Key) *content {
	if h := o.held[key]; h != nil {
		return h.content
	}
	return o.saved[key]
}

// use adds a node to the users of an object. The caller holds mu.
func (o *Objects) use(n *Node, key apiobject.Key) {
	h := o.held[key]
	if h == nil {
		h = &held{users: map[*Node]bool{}, content: o.saved[key]}
		o.held[key] = h
		delete(o.saved, key)
		o.watch(key, h)
	}
	h.users[n] = true
}

// leave removes a node from the users of an object. The caller holds mu.
func (o *Objects) leave(n *Node, key apiobject.Key) {
	h := o.held[key]
	if delete(h.users, n); len(h.users) > 0 {
		return
	}
	if h.stop != nil {
		h.stop()
	}
	delete(o.held, key)
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
	o.learn(key, h, data)
	if key == apiServices {
		o.learnAPIService()
	}
}

// learn records the content of an object that is used. The caller holds mu.
func (o *Objects) learn(key apiobject.Key, h *held, data []byte) {
	h.confirmed = true
	users := slices.Collect(maps.Keys(h.users))
	if !h.content.is(data) {
		fresh, err := newContent(key, data)
		if err != nil {
			return // what was encoded here can be decoded
		}
		h.content = fresh
		for _, n := range users {
			if leads(key.Kind) {
				n.update()
			} else {
				n.show(key)
			}
		}
		o.dirty()
	}
	for _, n := range users {
		n.announce()
	}
}

// learnAPIService takes the service of the API server, if it is used, out of the services of its namespace, which are
// watched for it. The caller holds mu.
func (o *Objects) learnAPIService() {
	one, all := o.held[apiService], o.held[apiServices]
	if one != nil && all != nil && all.confirmed {
		o.learn(apiService, one, all.content.service(apiService.Name))
	}
}

// bare returns an object without its content.
func bare(key apiobject.Key) *configv1.Object {
	return &configv1.Object{Kind: string(key.Kind), Namespace: key.Namespace, Name: key.Name, Source: apisource.Name}
}
