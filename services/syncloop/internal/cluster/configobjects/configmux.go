package configobjects

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/internal/telemetry"
)

// Entry is a value of configmux's stream of objects: an object, or the state of a source. It must not be changed after
// it is published.
type Entry struct {
	Key Key
	// Object is an object of the type of the key's kind; nil for a source, and for a deleted object.
	Object runtime.Object
	// Missing is true if it is known that the API server has no such object.
	Missing bool
	// Source is the name of a source; empty for an object. Ready is true once all objects of the source have been read at
	// least once.
	Source string
	Ready  bool
}

// ConfigmuxConfig configures a Configmux.
type ConfigmuxConfig struct {
	// Stream is configmux's stream of objects. Required.
	Stream stream.Source[*Entry]
	// Changed is called for each pod with an object that was changed, created or deleted, and for each pod that waits for
	// an object whose state is now known. It must not block. Required.
	Changed func(uid types.UID)
	// ClaimsChanged is called when a claim, a storage class, a CSIDriver or a secret was changed, created or deleted, and
	// when all sources have been read. It must not block; nil if nobody needs to know.
	ClaimsChanged func()
	// SecretChanged is called when a secret was changed, created or deleted. It must not block; nil if nobody needs to
	// know.
	SecretChanged func(namespace, name string)
	// KeyChanged is called when an object was changed, created or deleted, or is known to be missing. It must not block;
	// nil if nobody needs to know.
	KeyChanged func(Key)
	// Explicit is true if the stream says which objects are missing: an object that is not in it is not known yet.
	Explicit bool
	// Clock times retries; the real clock if nil.
	Clock clock.Clock
	// Logger logs each loss and each return of the stream; the default logger if nil.
	Logger *slog.Logger
	// Metrics counts the changes of the stream; nil discards the counts.
	Metrics *stream.FollowedMetrics
}

// Configmux is the Source of a node without an API server, and of a node of a site. It keeps a copy of configmux's
// objects in memory. While configmux is away, and until a restarted configmux has read all its sources, the last known
// objects stay.
type Configmux struct {
	cfg ConfigmuxConfig

	mu      sync.Mutex
	objects map[Key]runtime.Object
	// missing are the objects that the stream says are missing.
	missing map[Key]bool
	sources map[string]bool
	// doubtful are the objects that are missing in a restarted configmux, which may not have read them yet.
	doubtful map[Key]bool
	synced   bool
	// refusal is why configmux provides no objects, empty if it does; none is true if the reason is that it has none.
	refusal string
	none    bool
	users   users
}

// NewConfigmux returns a Source that is empty until Run.
func NewConfigmux(cfg ConfigmuxConfig) *Configmux {
	if cfg.Clock == nil {
		cfg.Clock = clock.RealClock{}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.ClaimsChanged == nil {
		cfg.ClaimsChanged = func() {}
	}
	if cfg.SecretChanged == nil {
		cfg.SecretChanged = func(string, string) {}
	}
	if cfg.KeyChanged == nil {
		cfg.KeyChanged = func(Key) {}
	}
	return &Configmux{
		cfg: cfg, objects: map[Key]runtime.Object{}, missing: map[Key]bool{}, sources: map[string]bool{},
		doubtful: map[Key]bool{}, users: newUsers(),
	}
}

// Run follows configmux until ctx ends. It returns the error of ctx.
func (c *Configmux) Run(ctx context.Context) error {
	return stream.Follow(ctx, stream.FollowConfig[*Entry]{
		Source: patient{inner: c.cfg.Stream, clock: c.cfg.Clock, answered: c.answered},
		Equal:  func(held, fresh *Entry) bool { return equality.Semantic.DeepEqual(held, fresh) },
		Handle: c.handle, Synced: c.caughtUp, Clock: c.cfg.Clock, Logger: c.cfg.Logger, Name: stream.NameObjects,
		Metrics: c.cfg.Metrics,
	})
}

// answered records configmux's answer to a subscription: nil if it provides objects.
func (c *Configmux) answered(err error) {
	c.mu.Lock()
	wasNone := c.none
	switch status.Code(err) { //nolint:exhaustive // of every other failure it is not configmux that speaks
	case codes.OK:
		c.none, c.refusal = false, ""
	case codes.Unimplemented:
		c.none = true
	case codes.PermissionDenied:
		c.none, c.refusal = false, "configmux refuses them: "+status.Convert(err).Message()
	}
	var affected []types.UID
	if c.none != wasNone {
		affected = slices.Collect(maps.Keys(c.users.pods))
	}
	c.mu.Unlock()
	c.notify(affected)
}

func (c *Configmux) handle(change stream.Change[*Entry]) {
	c.mu.Lock()
	entry := change.New
	if change.Op == stream.OpRemove {
		entry = change.Old
	}
	if entry == nil {
		c.mu.Unlock()
		return // a frame that carries nothing
	}
	var affected []types.UID
	switch {
	case entry.Source != "":
		if c.sources[entry.Source] = entry.Ready; change.Op == stream.OpRemove {
			delete(c.sources, entry.Source)
		}
		if !change.FromSnapshot { // else the rest of it comes first
			affected = c.settle()
		}
	case change.Op == stream.OpRemove && change.FromSnapshot:
		c.doubtful[entry.Key] = true
	case change.Op == stream.OpRemove:
		delete(c.objects, entry.Key)
		delete(c.missing, entry.Key)
		affected = c.changed(entry.Key)
	case entry.Missing:
		if delete(c.objects, entry.Key); !c.missing[entry.Key] {
			affected = c.changed(entry.Key)
		}
		c.missing[entry.Key] = true
		delete(c.doubtful, entry.Key)
	default:
		before := c.objects[entry.Key]
		c.objects[entry.Key] = entry.Object
		delete(c.missing, entry.Key)
		delete(c.doubtful, entry.Key)
		if !equality.Semantic.DeepEqual(before, entry.Object) {
			affected = c.changed(entry.Key)
		}
	}
	c.mu.Unlock()
	c.notify(affected)
	if entry.Source == "" {
		c.cfg.KeyChanged(entry.Key)
	}
	if entry.Source != "" || slices.Contains([]Kind{Claim, Class, Driver, Secret}, entry.Key.Kind) {
		c.cfg.ClaimsChanged()
	}
	if entry.Source == "" && entry.Key.Kind == Secret {
		c.cfg.SecretChanged(entry.Key.Namespace, entry.Key.Name)
	}
}

// caughtUp is called when the snapshot of configmux has been handled.
func (c *Configmux) caughtUp() {
	c.mu.Lock()
	first := !c.synced
	c.synced = true
	affected := c.settle()
	if first {
		affected = slices.Collect(maps.Keys(c.users.pods))
	}
	c.mu.Unlock()
	c.notify(affected)
	c.cfg.ClaimsChanged()
}

// settle removes doubtful objects once all sources are read, and returns the affected pods: those of removed objects,
// and those that name a missing object and may wait for it. The caller holds mu.
func (c *Configmux) settle() []types.UID {
	if c.unread() != "" {
		return nil
	}
	var affected []types.UID
	for key := range c.doubtful {
		delete(c.objects, key)
		delete(c.missing, key)
		affected = append(affected, c.changed(key)...)
	}
	clear(c.doubtful)
	for key, uids := range c.users.byKey {
		if c.objects[key] == nil {
			affected = slices.AppendSeq(affected, maps.Keys(uids))
		}
	}
	return affected
}

// changed returns the pods that use an object, and logs the change. The caller holds mu.
func (c *Configmux) changed(key Key) []types.UID {
	uids := slices.Collect(maps.Keys(c.users.byKey[key]))
	if len(uids) > 0 {
		c.cfg.Logger.Info("an object that pods use has changed", telemetry.KeyObject, key.String(), "pods", len(uids))
	}
	return uids
}

// notify calls Changed once for each of some pods. The caller does not hold mu.
func (c *Configmux) notify(uids []types.UID) {
	slices.Sort(uids)
	for _, uid := range slices.Compact(uids) {
		c.cfg.Changed(uid)
	}
}

// unread returns what must be read before missing objects are known to be missing; empty if everything is read. The
// caller holds mu.
func (c *Configmux) unread() string {
	if !c.synced {
		if c.refusal != "" {
			return c.refusal
		}
		return "configmux has not sent its config maps, secrets and claims yet; see quartet doctor if that lasts"
	}
	var names []string
	for name, ready := range c.sources {
		if !ready {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	slices.Sort(names)
	return fmt.Sprintf("it may be in what configmux has not read yet: %s; see quartet get sources", strings.Join(names, ", "))
}

// get returns an object.
func (c *Configmux) get(key Key) (runtime.Object, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if object := c.objects[key]; object != nil {
		return object, nil
	}
	if c.cfg.Explicit {
		return nil, c.explicitly(key)
	}
	if c.none {
		return nil, &NotServedError{Key: key}
	}
	if why := c.unread(); why != "" {
		return nil, &UnknownError{Key: key, Why: why}
	}
	return nil, notFound(key)
}

// explicitly returns the error of a missing object of an explicit stream. The caller holds mu.
func (c *Configmux) explicitly(key Key) error {
	switch {
	case c.missing[key]:
		return notFound(key)
	case c.none:
		return &UnknownError{Key: key, Why: "configmux serves no objects of pods: start it with --nodes, or leave " +
			"--configmux-objects out"}
	case c.refusal != "":
		return &UnknownError{Key: key, Why: c.refusal}
	case key.Kind == Volume:
		return &UnknownError{Key: key, Why: "configmux has not got it from the API server yet, or it is for another claim"}
	default:
		return &UnknownError{Key: key, Why: "configmux has not got it from the API server yet"}
	}
}

// ConfigMap implements Getter.
func (c *Configmux) ConfigMap(_ context.Context, namespace, name string) (*v1.ConfigMap, error) {
	object, err := c.get(Key{Kind: ConfigMap, Namespace: namespace, Name: name})
	if err != nil {
		return nil, err
	}
	return object.(*v1.ConfigMap), nil //nolint:forcetypeassert // Decode has put it under its kind
}

// Secret implements Getter.
func (c *Configmux) Secret(_ context.Context, namespace, name string) (*v1.Secret, error) {
	object, err := c.get(Key{Kind: Secret, Namespace: namespace, Name: name})
	if err != nil {
		return nil, err
	}
	return object.(*v1.Secret), nil //nolint:forcetypeassert // Decode has put it under its kind
}

// Claim returns a claim, with the errors of a Getter.
func (c *Configmux) Claim(namespace, name string) (*v1.PersistentVolumeClaim, error) {
	object, err := c.get(Key{Kind: Claim, Namespace: namespace, Name: name})
	if err != nil {
		return nil, err
	}
	return object.(*v1.PersistentVolumeClaim), nil //nolint:forcetypeassert // Decode has put it under its kind
}

// Volume returns a persistent volume, with the errors of a Getter.
func (c *Configmux) Volume(name string) (*v1.PersistentVolume, error) {
	object, err := c.get(Key{Kind: Volume, Name: name})
	if err != nil {
		return nil, err
	}
	return object.(*v1.PersistentVolume), nil //nolint:forcetypeassert // Decode has put it under its kind
}

// Service returns a service, with the errors of a Getter.
func (c *Configmux) Service(namespace, name string) (*v1.Service, error) {
	object, err := c.get(Key{Kind: Service, Namespace: namespace, Name: name})
	if err != nil {
		return nil, err
	}
	return object.(*v1.Service), nil //nolint:forcetypeassert // Decode has put it under its kind
}

// Services returns the services of a namespace, with the errors of a Getter.
func (c *Configmux) Services(namespace string) ([]v1.Service, error) {
	object, err := c.get(Key{Kind: Services, Namespace: namespace})
	if err != nil {
		return nil, err
	}
	return object.(*v1.ServiceList).Items, nil //nolint:forcetypeassert // Decode has put it under its kind
}

// Claims returns the claims that configmux has, sorted by namespace and name. They must not be changed.
func (c *Configmux) Claims() []*v1.PersistentVolumeClaim {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []*v1.PersistentVolumeClaim
	for _, object := range c.objects {
		if claim, is := object.(*v1.PersistentVolumeClaim); is {
			all = append(all, claim)
		}
	}
	slices.SortFunc(all, func(a, b *v1.PersistentVolumeClaim) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return all
}

// StorageClass returns a storage class, with the errors of a Getter.
func (c *Configmux) StorageClass(name string) (*storagev1.StorageClass, error) {
	object, err := c.get(Key{Kind: Class, Name: name})
	if err != nil {
		return nil, err
	}
	return object.(*storagev1.StorageClass), nil //nolint:forcetypeassert // Decode has put it under its kind
}

// Driver returns the object of a CSI driver; nil without an error if there is none.
func (c *Configmux) Driver(_ context.Context, name string) (*storagev1.CSIDriver, error) {
	object, err := c.get(Key{Kind: Driver, Name: name})
	var none *NotServedError
	if apierrors.IsNotFound(err) || errors.As(err, &none) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return object.(*storagev1.CSIDriver), nil //nolint:forcetypeassert // Decode has put it under its kind
}

// Unread returns why objects may be missing, or may come from another source once everything is read; empty if
// everything is read.
func (c *Configmux) Unread() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.unread()
}

// Use implements Source.
func (c *Configmux) Use(pod *v1.Pod) {
	keys := Used(pod)
	if !c.cfg.Explicit { // else KeyChanged says what has changed
		keys = append(keys, usedByVolumes(pod)...)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.users.use(pod.UID, keys)
}

// Forget implements Source.
func (c *Configmux) Forget(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.users.forget(uid)
}
