// Package podcertificates provides the keys and certificates of projected volumes: it creates a key for each and a
// PodCertificateRequest in the API server, and keeps the issued certificate until it must be replaced. The rules are
// the kubelet's; see [Certificates.Get].
//
// Keys are kept in memory only. No error, event or log line contains a key.
package podcertificates

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/internal/reflector"
	"github.com/quartet-node/quartet/internal/telemetry"
)

// requestTimeout bounds the requests for one certificate. It is how long the other files of a volume may wait for an
// API server that hangs.
const requestTimeout = 10 * time.Second

// API is the part of the API server that Certificates uses.
type API interface {
	// Account returns the current UID of a service account.
	Account(ctx context.Context, namespace, name string) (types.UID, error)
	// Create creates a request and returns it with its name.
	Create(ctx context.Context, r *certificatesv1.PodCertificateRequest) (*certificatesv1.PodCertificateRequest, error)
	// Follow watches the requests of this node until ctx ends.
	Follow(ctx context.Context, to reflector.Handler) error
}

// Events records the results of requests; it is implemented by *podevents.Recorder.
type Events interface {
	// Warning records a warning: a reason in one word, and a sentence. It is about the pod as a whole if container is
	// empty.
	Warning(ctx context.Context, pod *v1.Pod, container, reason, message string)
}

// noopEvents is an Events that discards events.
type noopEvents struct{}

// Warning implements Events.
func (noopEvents) Warning(context.Context, *v1.Pod, string, string, string) {}

// Config configures Certificates.
type Config struct {
	// API sends the requests. Required.
	API API
	// Node returns this node's Node in the API server. Required.
	Node func(context.Context) (*v1.Node, error)
	// Changed is called for each pod that must call Get again: its certificate was issued or refused, or must be replaced.
	// It must not block. Required.
	Changed func(uid types.UID)
	// Events records what users must know; nil discards the events.
	Events Events
	// Clock is the time. Required.
	Clock clock.Clock
	// Jitter returns a random number from 0 to 1; math/rand's if nil.
	Jitter func() float64
	// Logger logs each certificate that was not replaced in time; the default logger if nil.
	Logger *slog.Logger
}

// Certificates manages the certificates of all pods of a node. Use New to create one. Its methods may be called from
// any goroutine.
type Certificates struct {
	cfg Config
	// wake has capacity for one signal, which makes watchTime check everything. wanted has capacity for the signal of the
	// first caller.
	wake, wanted chan struct{}
	// asking ensures that only one goroutine requests each certificate.
	asking singleflight.Group

	mu   sync.Mutex
	held map[key]*held
	// statuses maps requests of this node, by "NAMESPACE/NAME", to their last known status.
	statuses map[string]*certificatesv1.PodCertificateRequestStatus
}

// key identifies a source of a volume of a pod.
type key struct {
	pod    types.UID
	volume string
	source int
}

// String returns a unique text for each key.
func (k key) String() string { return fmt.Sprintf("%q %q %d", k.pod, k.volume, k.source) }

// New returns empty Certificates.
func New(cfg Config) *Certificates {
	if cfg.Jitter == nil {
		cfg.Jitter = rand.Float64
	}
	if cfg.Events == nil {
		cfg.Events = noopEvents{}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	return &Certificates{
		cfg: cfg, wake: make(chan struct{}, 1), wanted: make(chan struct{}, 1), held: map[key]*held{},
		statuses: map[string]*certificatesv1.PodCertificateRequestStatus{},
	}
}

// defaultAccount is the service account of a pod that names none.
const (
	defaultAccount = "default"
)

// Get returns the key and the certificate chain, both PEM, of a source of a pod's volume; source is its index among the
// volume's sources. It does not wait for the signer: it fails until a certificate is issued, and then Changed is called
// for the pod. A request that a signer denies or fails stays refused for as long as the pod exists.
//
// Get returns the same certificate until up to five minutes after the time at which the signer wants it replaced. Then
// it creates another key and another request; the old certificate is used until the new one is issued, even if it
// expires meanwhile. Get fails for a pod that the API server does not know, that is, a static or applied one.
func (c *Certificates) Get(
	ctx context.Context, pod *v1.Pod, volume string, source int, p *v1.PodCertificateProjection,
) (privateKey, chain []byte, err error) {
	if podset.IsStatic(pod) {
		return nil, nil, fmt.Errorf("only pods of the API server have certificates, and this one is of the source %q: create it in the API server, or leave the source of the volume out", pod.Annotations[podset.AnnotationSource])
	}
	select {
	case c.wanted <- struct{}{}:
	default:
	}
	k := key{pod: pod.UID, volume: volume, source: source}
	if c.wants(k, pod, p.SignerName) {
		_, err, _ = c.asking.Do(k.String(), func() (any, error) {
			if !c.wants(k, pod, p.SignerName) {
				return nil, nil // Another goroutine has just asked.
			}
			return nil, c.ask(ctx, pod, k, p)
		})
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.held[k]
	switch {
	case h == nil:
		return nil, nil, cmp.Or(err, ctx.Err(), fmt.Errorf("the pod is gone"))
	case h.refusal != nil:
		return nil, nil, h.refusal
	case h.chain != nil:
		return h.key, h.chain, nil
	case h.pending != nil:
		return nil, nil, fmt.Errorf("the signer %s has not issued the certificate of the request %s yet", p.SignerName, h.pending.name)
	case err != nil:
		return nil, nil, err
	}
	return nil, nil, fmt.Errorf("the signer %s is asked again for a certificate at %s", p.SignerName,
		h.notBefore.UTC().Format(time.RFC3339))
}

// wants reports whether the API server must be asked now.
func (c *Certificates) wants(k key, pod *v1.Pod, signer string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.held[k]
	if h == nil {
		h = &held{signer: signer}
		c.held[k] = h
	}
	h.pod = pod
	return h.mustRequest(c.cfg.Clock.Now())
}

// ask creates a request with a new key.
func (c *Certificates) ask(ctx context.Context, pod *v1.Pod, k key, p *v1.PodCertificateProjection) error {
	privateKey, proof, err := newKey(p.KeyType)
	if err != nil {
		return c.failed(ctx, k, err)
	}
	limited, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	made, err := c.create(limited, pod, p, proof)
	if err != nil {
		return c.failed(ctx, k, fmt.Errorf("the API server was asked for a certificate of the signer %s: %w", p.SignerName, err))
	}
	c.mu.Lock()
	h := c.held[k]
	if h == nil { // The pod was forgotten meanwhile.
		c.mu.Unlock()
		return nil
	}
	h.pending, h.notifyAt = &request{
		name: made.Namespace + "/" + made.Name, key: privateKey, made: c.cfg.Clock.Now(),
	}, time.Time{}
	event := c.receive(h)
	c.mu.Unlock()
	event.record(ctx, c.cfg.Events)
	c.signal()
	return nil
}

// create creates a request with the current UIDs of the pod, its service account and this node, which the API server
// checks.
func (c *Certificates) create(
	ctx context.Context, pod *v1.Pod, p *v1.PodCertificateProjection, proof []byte,
) (*certificatesv1.PodCertificateRequest, error) {
	account := cmp.Or(pod.Spec.ServiceAccountName, defaultAccount)
	accountUID, err := c.cfg.API.Account(ctx, pod.Namespace, account)
	if err != nil {
		return nil, fmt.Errorf("get the service account %s/%s: %w", pod.Namespace, account, err)
	}
	node, err := c.cfg.Node(ctx)
	if err != nil {
		return nil, fmt.Errorf("get the Node: %w", err)
	}
	return c.cfg.API.Create(ctx, &certificatesv1.PodCertificateRequest{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, GenerateName: "req-",
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}},
		},
		Spec: certificatesv1.PodCertificateRequestSpec{
			SignerName: p.SignerName, PodName: pod.Name, PodUID: pod.UID, ServiceAccountName: account,
			ServiceAccountUID: accountUID,
			NodeName:          types.NodeName(node.Name), NodeUID: node.UID, MaxExpirationSeconds: p.MaxExpirationSeconds,
			StubPKCS10Request:         proof,
			UnverifiedUserAnnotations: p.UserAnnotations,
		},
	})
}

// failed delays the next request. It returns err.
func (c *Certificates) failed(ctx context.Context, k key, err error) error {
	if ctx.Err() != nil {
		return err
	}
	c.mu.Lock()
	h, replaces := c.held[k], false
	if h != nil {
		h.putOff(c.cfg.Clock.Now())
		replaces = h.chain != nil
	}
	c.mu.Unlock()
	c.signal()
	if replaces {
		c.cfg.Logger.WarnContext(ctx, "a certificate of a pod cannot be replaced; the old one stays, and it is tried again",
			telemetry.KeyPodUID, string(k.pod), "volume", k.volume, telemetry.KeyError, err)
	}
	return err
}

// Forget removes the certificates of a pod whose volumes are gone. The API server deletes the requests together with
// the pod.
func (c *Certificates) Forget(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k := range c.held {
		if k.pod == uid {
			delete(c.held, k)
		}
	}
}

// Count returns the number of certificates by signer and state.
func (c *Certificates) Count() map[Counted]int {
	now := c.cfg.Clock.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	counts := map[Counted]int{}
	for _, h := range c.held {
		counts[Counted{Signer: h.signer, State: h.state(now)}]++
	}
	return counts
}

// Counted is the key of Count.
type Counted struct {
	Signer string
	State  State
}
