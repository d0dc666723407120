// Package clustertrustbundles provides the trust anchors of a cluster to pods: the certificates of ClusterTrustBundle
// objects, which projected volumes contain as files. The rules are the kubelet's.
package clustertrustbundles

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/internal/reflector"
)

// firstAnswer is how long a caller waits for the first answer of the API server.
const firstAnswer = time.Second

// resource is the resource name of bundles.
const resource = "clustertrustbundles"

// Config configures Bundles.
type Config struct {
	// Client is a client of certificates/v1. It lists and watches all bundles once a pod uses one. Required.
	Client rest.Interface
	// Changed is called for each pod that uses a bundle which was changed, created or deleted, or whose answer came late.
	// It must not block. Required.
	Changed func(uid types.UID)
	// Clock is the time. Required.
	Clock clock.Clock
}

// Bundles caches the bundles of a cluster. Use New to create one. Its methods may be called from any goroutine.
type Bundles struct {
	cfg Config
	// wanted has capacity for one signal, that of the first caller.
	wanted chan struct{}
	// answered is closed at the first answer or failure.
	answered chan struct{}
	once     sync.Once

	mu sync.Mutex
	// known is true once the bundles were listed; err is the error of the last list.
	known bool
	err   error
	// bundles maps names to bundles.
	bundles map[string]*bundle
	// users maps pods to the bundles that they requested.
	users map[types.UID][]choice
}

// bundle is the cached part of an object.
type bundle struct {
	name, signer, text string
	labels             labels.Set
}

// choice is the selection of a volume source: a bundle by its name, or, if the name is empty, the bundles of a signer
// by their labels.
type choice struct {
	name, signer string
	labels       labels.Selector
}

func (c choice) has(b *bundle) bool {
	if c.name != "" {
		return b.name == c.name
	}
	return b.signer == c.signer && c.labels.Matches(b.labels)
}

// New returns empty Bundles.
func New(cfg Config) *Bundles {
	return &Bundles{
		cfg: cfg, wanted: make(chan struct{}, 1), answered: make(chan struct{}), bundles: map[string]*bundle{},
		users: map[types.UID][]choice{},
	}
}

// Run watches the bundles of the API server once a pod requests one, until ctx ends. It returns the error of ctx.
func (b *Bundles) Run(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-b.wanted:
	}
	return reflector.Run(ctx, reflector.Config{
		Client: b.cfg.Client, Resource: resource, Empty: &certificatesv1.ClusterTrustBundle{}, Handler: follower{b},
		Clock: b.cfg.Clock,
	})
}

// Get returns the certificates that a volume source of a pod selects, as PEM: each once, without headers and text in
// between, always in the same order. From then on Changed is called for the pod. If there is no such bundle, or the API
// server does not know the pod, apierrors.IsNotFound is true for the error.
func (b *Bundles) Get(ctx context.Context, pod *v1.Pod, p *v1.ClusterTrustBundleProjection) ([]byte, error) {
	if podset.IsStatic(pod) {
		return nil, fmt.Errorf("only pods of the API server have its bundles of roots, and this one is of the source %q: create it in the API server, or leave the source of the volume out", pod.Annotations[podset.AnnotationSource])
	}
	wanted, err := chosen(p)
	if err != nil {
		return nil, err
	}
	b.use(pod.UID, wanted)
	select {
	case b.wanted <- struct{}{}:
	default:
	}
	if err := b.await(ctx); err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case !b.known && b.err != nil:
		return nil, fmt.Errorf("the bundles are not known yet: the API server: %w", b.err)
	case !b.known:
		return nil, errors.New("the bundles are not known yet: the API server has not answered")
	}
	var found []*bundle
	for _, one := range b.bundles {
		if wanted.has(one) {
			found = append(found, one)
		}
	}
	switch {
	case len(found) > 0:
		return roots(found), nil
	case wanted.name != "":
		return nil, apierrors.NewNotFound(certificatesv1.Resource(resource), wanted.name)
	}
	return nil, &noneError{choice: wanted}
}

// noneError is returned if a signer has no bundles with the requested labels. apierrors.IsNotFound is true for it.
type noneError struct{ choice choice }

// Error implements error.
func (e *noneError) Error() string {
	return fmt.Sprintf("no clustertrustbundle of the signer %q matches the labelSelector %q", e.choice.signer, e.choice.labels)
}

// Status implements apierrors.APIStatus.
func (e *noneError) Status() metav1.Status {
	return metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonNotFound, Message: e.Error()}
}

// chosen returns the selection of a volume source. As in a kubelet, a nil selector selects nothing, and an empty
// selector everything.
func chosen(p *v1.ClusterTrustBundleProjection) (choice, error) {
	switch {
	case p.Name != nil && *p.Name != "":
		return choice{name: *p.Name}, nil
	case p.SignerName == nil || *p.SignerName == "":
		return choice{}, errors.New("it has neither name nor signerName; say one of them")
	}
	selector, err := metav1.LabelSelectorAsSelector(p.LabelSelector)
	if err != nil {
		return choice{}, fmt.Errorf("labelSelector: %w", err)
	}
	return choice{signer: *p.SignerName, labels: selector}, nil
}

// use records the selection of a pod.
func (b *Bundles) use(uid types.UID, wanted choice) {
	b.mu.Lock()
	defer b.mu.Unlock()
	same := func(other choice) bool {
		return other.name == wanted.name && other.signer == wanted.signer &&
			fmt.Sprint(other.labels) == fmt.Sprint(wanted.labels)
	}
	if !slices.ContainsFunc(b.users[uid], same) {
		b.users[uid] = append(b.users[uid], wanted)
	}
}

// Forget removes a pod whose volumes are gone.
func (b *Bundles) Forget(uid types.UID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.users, uid)
}

// await waits for the first answer, at most firstAnswer.
func (b *Bundles) await(ctx context.Context) error {
	timer := b.cfg.Clock.NewTimer(firstAnswer)
	defer timer.Stop()
	select {
	case <-b.answered:
	case <-timer.C():
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// follower handles the objects of the watch.
type follower struct{ b *Bundles }

// Listed implements reflector.Handler.
func (f follower) Listed(objects []runtime.Object, _ time.Time) {
	now := make(map[string]*bundle, len(objects))
	for _, object := range objects {
		if one := kept(object); one != nil {
			now[one.name] = one
		}
	}
	f.b.mu.Lock()
	var changed []*bundle
	for name, one := range now {
		changed = append(changed, differing(f.b.bundles[name], one)...)
	}
	for name, one := range f.b.bundles {
		if now[name] == nil {
			changed = append(changed, one)
		}
	}
	first := !f.b.known
	f.b.bundles, f.b.known, f.b.err = now, true, nil
	affected := f.b.usersOf(changed, first)
	f.b.mu.Unlock()
	f.b.answer(affected)
}

// Changed implements reflector.Handler.
func (f follower) Changed(object runtime.Object) {
	one := kept(object)
	if one == nil {
		return
	}
	f.b.mu.Lock()
	changed := differing(f.b.bundles[one.name], one)
	f.b.bundles[one.name] = one
	affected := f.b.usersOf(changed, false)
	f.b.mu.Unlock()
	f.b.answer(affected)
}

// Deleted implements reflector.Handler.
func (f follower) Deleted(object runtime.Object) {
	one := kept(object)
	if one == nil {
		return
	}
	f.b.mu.Lock()
	delete(f.b.bundles, one.name)
	affected := f.b.usersOf([]*bundle{one}, false)
	f.b.mu.Unlock()
	f.b.answer(affected)
}

// ListFailed implements reflector.Handler.
func (f follower) ListFailed(err error) {
	f.b.mu.Lock()
	f.b.err = err
	f.b.mu.Unlock()
	f.b.answer(nil)
}

// answer tells pods, and those who wait for a first answer.
func (b *Bundles) answer(affected []types.UID) {
	b.once.Do(func() { close(b.answered) })
	for _, uid := range affected {
		b.cfg.Changed(uid)
	}
}

// usersOf returns the pods that selected one of some bundles, or all pods with a selection. The caller holds mu.
func (b *Bundles) usersOf(changed []*bundle, all bool) (affected []types.UID) {
	for uid, choices := range b.users {
		touched := func(c choice) bool { return slices.ContainsFunc(changed, c.has) }
		if all || slices.ContainsFunc(choices, touched) {
			affected = append(affected, uid)
		}
	}
	return affected
}

// kept returns the cached part of an object; nil if the object is not a bundle.
func kept(object runtime.Object) *bundle {
	o, ok := object.(*certificatesv1.ClusterTrustBundle)
	if !ok {
		return nil
	}
	return &bundle{name: o.Name, signer: o.Spec.SignerName, text: o.Spec.TrustBundle, labels: o.Labels}
}

// differing returns the old and the current bundle, each unless it is nil, or nothing if they are equal.
func differing(old, current *bundle) []*bundle {
	switch {
	case old == nil:
		return []*bundle{current}
	case old.signer == current.signer && old.text == current.text && maps.Equal(old.labels, current.labels):
		return nil
	}
	return []*bundle{old, current}
}
