package claims

import (
	"context"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/quartet-node/quartet/services/syncloop/internal/pod/csimigration"
)

// ask requests an object from the API server, or from Shared if that has objects of the kind.
func (c *Cluster) ask(ctx context.Context, k key) (runtime.Object, error) {
	if c.isShared(k.kind) {
		return c.askShared(ctx, k)
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	object := k.kind.empty()
	err := c.client(k.kind).Get().NamespaceIfScoped(k.namespace, k.namespace != "").Resource(string(k.kind) + "s").
		Name(k.name).Do(ctx).Into(object)
	if err != nil {
		return nil, err
	}
	return object, nil
}

func (c *Cluster) client(k kind) rest.Interface {
	if k == attachmentKind {
		return c.cfg.Storage
	}
	return c.cfg.Core
}

// settle requests a held object and records the answer.
func (c *Cluster) settle(ctx context.Context, k key) {
	c.mu.Lock()
	h := c.held[k]
	if h == nil {
		c.mu.Unlock()
		return
	}
	h.requestedAt = c.cfg.Clock.Now()
	h.polls++
	answered := h.answered
	c.mu.Unlock()
	object, err := c.ask(ctx, k)
	if ctx.Err() != nil {
		return
	}
	c.mu.Lock()
	if c.held[k] != h {
		c.mu.Unlock()
		return
	}
	affected := c.note(k, h, object, err)
	if h.answered == answered && isAnswer(k, err) && !isClosed(answered) {
		close(answered)
	}
	if len(h.waiters) > 0 || !h.known {
		c.pollLater(k, h)
	}
	c.mu.Unlock()
	c.notify(affected)
}

// note records the answer of the API server for an object, and returns the pods to notify. The caller holds mu.
func (c *Cluster) note(k key, h *held, object runtime.Object, err error) []types.UID {
	missing := apierrors.IsNotFound(err)
	h.err = err
	if err != nil && !missing {
		if k.kind == attachmentKind && apierrors.IsForbidden(err) && h.known { // there is none any more
			h.known, h.object, h.version, h.late = false, nil, "", true
			return c.usersOf(k)
		}
		return nil
	}
	h.confirmedAt = h.requestedAt
	version := versionOf(object)
	same := h.known && h.version == version
	var affected []types.UID
	if h.late || h.known && !same {
		affected = c.usersOf(k)
	}
	h.late = false
	if same {
		return affected
	}
	if pv, ok := object.(*v1.PersistentVolume); ok {
		if migrated, err := csimigration.PersistentVolume(pv); err == nil { // otherwise it fails when it is mounted
			object = migrated
		}
	}
	h.known, h.version, h.object, h.err, h.polls = true, version, object, nil, 0
	switch k.kind {
	case claimKind:
		if claim, ok := object.(*v1.PersistentVolumeClaim); ok && claim.Spec.VolumeName != "" {
			if bound := (key{kind: volumeKind, name: claim.Spec.VolumeName}); c.held[bound] == nil {
				c.hold(bound)
			}
		}
		c.dropUnused() // it may not be bound to an earlier volume any more
	case volumeKind:
		c.dropUnused()
	case secretKind: // its content is not kept
		if h.object = nil; !missing {
			c.succeed(h)
			delete(c.held, k)
		}
	case attachmentKind:
	}
	return affected
}

// versionOf identifies a state of an object; empty for none.
func versionOf(object runtime.Object) string {
	if object == nil {
		return ""
	}
	accessor, err := meta.Accessor(object)
	if err != nil {
		return ""
	}
	return string(accessor.GetUID()) + " " + accessor.GetResourceVersion()
}

// isAnswer reports whether a result of a request is worth waking callers for. The API server may assign a pod to the
// node before its authorizer knows that the node may read what the pod names, so "forbidden" is not. It is for an
// attachment, because the authorizer answers so until there is one. Shared's error for an unknown object is no answer.
func isAnswer(k key, err error) bool {
	return k.kind == attachmentKind || !apierrors.IsForbidden(err) && !isUnknown(err)
}

func isClosed(channel <-chan struct{}) bool {
	select {
	case <-channel:
		return true
	default:
		return false
	}
}

// notFound returns the error of the API server for a missing object.
func notFound(k key) error {
	group := v1.GroupName
	if k.kind == attachmentKind {
		group = storagev1.GroupName
	}
	return apierrors.NewNotFound(schema.GroupResource{Group: group, Resource: string(k.kind) + "s"}, k.name)
}

func (c *Cluster) notify(pods []types.UID) {
	for _, uid := range pods {
		c.cfg.Changed(uid)
	}
}

// get returns an object, or the error of the API server. It waits for the first answer, see await, and requests
// an object itself that no registered pod depends on. If there is no answer, both are nil. A pod that was registered
// after the last answer does not get an object that the node may not read any more; a pod that may run already does,
// because a new API server forbids everything for a moment.
func (c *Cluster) get(ctx context.Context, k key, pod types.UID) (runtime.Object, error) {
	c.mu.Lock()
	h := c.held[k]
	if h == nil && len(c.usersOf(k)) > 0 {
		h = c.hold(k)
	}
	if h == nil {
		c.mu.Unlock()
		return c.ask(ctx, k)
	}
	answered := h.answered
	c.mu.Unlock()
	if err := c.await(ctx, h, answered); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case h.known && apierrors.IsForbidden(h.err) && h.confirmedAt.Before(c.pods[pod].since):
	case h.object != nil:
		return h.object, nil
	case h.known:
		return nil, notFound(k)
	}
	h.late = true
	return nil, h.err
}

// await waits for the next answer for an object: up to slowAnswer if nothing is known of it, and up to firstAnswer if
// an earlier answer is known, or a request has failed.
func (c *Cluster) await(ctx context.Context, h *held, answered <-chan struct{}) error {
	for _, length := range []time.Duration{firstAnswer, slowAnswer - firstAnswer} {
		timer := c.cfg.Clock.NewTimer(length)
		select {
		case <-answered:
			timer.Stop()
			return nil
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-timer.C():
		}
		c.mu.Lock()
		enough := h.known || h.err != nil
		c.mu.Unlock()
		if enough {
			return nil
		}
	}
	return nil
}

// getNow requests an object, and records the answer if a registered pod depends on the object.
func (c *Cluster) getNow(ctx context.Context, k key) (runtime.Object, error) {
	at := c.cfg.Clock.Now()
	object, err := c.ask(ctx, k)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	c.mu.Lock()
	var affected []types.UID
	if h := c.held[k]; h != nil && !at.Before(h.requestedAt) { // otherwise a newer answer may be known
		h.requestedAt = at
		affected = c.note(k, h, object, err)
	}
	c.mu.Unlock()
	c.notify(affected)
	return object, err
}

// failed returns an error because of an object. The pods are notified when the object has changed; no pod means all
// that depend on it.
func (c *Cluster) failed(k key, failure *Error, pods ...types.UID) *Error {
	failure.Object = k.String()
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(pods) == 0 {
		pods = c.usersOf(k)
	}
	h := c.held[k]
	if h == nil && (k.kind == secretKind || k.kind == attachmentKind) && len(pods) > 0 {
		h = c.hold(k)
		h.late = true // its caller has not got it
	}
	if h != nil {
		c.wait(k, h, pods...)
	}
	return failure
}

// succeeded records that pods do not wait for an object any more; no pod means none does.
func (c *Cluster) succeeded(k key, pods ...types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.held[k]
	if h == nil {
		return
	}
	c.succeed(h, pods...)
}

// succeed does what succeeded does. The caller holds mu.
func (c *Cluster) succeed(h *held, pods ...types.UID) {
	if len(pods) == 0 {
		pods = slices.Collect(maps.Keys(h.waiters))
	}
	for _, uid := range pods {
		c.unwait(h, uid)
	}
}
