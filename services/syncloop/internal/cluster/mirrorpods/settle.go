package mirrorpods

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/internal/telemetry"
)

const (
	// firstRetry doubles with each failure up to lastRetry, so that mirror pods are correct soon after an API server is
	// back.
	firstRetry = 250 * time.Millisecond
	lastRetry  = 10 * time.Second
	// maxDoublings keeps a delay from overflowing.
	maxDoublings = 10
	// retryJitter spreads the retries of pods that failed together.
	retryJitter = 0.2
	// reasonFailed is the reason of the event of a static pod whose mirror pod cannot be created.
	reasonFailed = "FailedMirrorPod"
)

// API sends the requests.
type API interface {
	// Create creates a pod and returns the created object.
	Create(ctx context.Context, pod *v1.Pod) (*v1.Pod, error)
	// Get returns a pod.
	Get(ctx context.Context, name types.NamespacedName) (*v1.Pod, error)
	// Delete deletes a pod at once if it has this UID.
	Delete(ctx context.Context, name types.NamespacedName, uid types.UID) error
}

// FromAPIServer returns an API that uses a client of core/v1. The API server allows a node these requests for its own
// mirror pods.
func FromAPIServer(core rest.Interface) API { return apiServer{core} }

type apiServer struct{ core rest.Interface }

// Create implements API.
func (a apiServer) Create(ctx context.Context, pod *v1.Pod) (*v1.Pod, error) {
	answer := &v1.Pod{}
	if err := a.core.Post().Namespace(pod.Namespace).Resource("pods").Body(pod).MaxRetries(0).Do(ctx).Into(answer); err != nil {
		return nil, err
	}
	return answer, nil
}

// Get implements API.
func (a apiServer) Get(ctx context.Context, name types.NamespacedName) (*v1.Pod, error) {
	answer := &v1.Pod{}
	if err := a.core.Get().Namespace(name.Namespace).Resource("pods").Name(name.Name).MaxRetries(0).Do(ctx).Into(answer); err != nil {
		return nil, err
	}
	return answer, nil
}

// Delete implements API.
func (a apiServer) Delete(ctx context.Context, name types.NamespacedName, uid types.UID) error {
	options := &metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0), Preconditions: &metav1.Preconditions{UID: &uid}}
	return a.core.Delete().Namespace(name.Namespace).Resource("pods").Name(name.Name).Body(options).MaxRetries(0).Do(ctx).Error()
}

// settle executes the action for a name, and sets the mirror pod of its static pod.
func (m *Manager) settle(ctx context.Context, name types.NamespacedName) {
	ending := m.cfg.Ending(name, m.staticOf(name))
	todo, f := m.next(name, ending)
	if todo == keep {
		return
	}
	asking, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if todo == create {
		made, err := m.cfg.API.Create(asking, mirrorOf(f.static, m.cfg.NodeName, f.node))
		if apierrors.IsAlreadyExists(err) { // It may be the mirror pod, which the watch has not delivered yet.
			if existing, failure := m.cfg.API.Get(asking, name); failure == nil && mirrors(existing, f.static) {
				made, err = existing, nil
			}
		}
		m.created(ctx, name, f, made, err)
		return
	}
	m.removed(ctx, name, f, m.cfg.API.Delete(asking, name, f.mirror.UID))
}

// staticOf returns the UID of the static pod of a name; empty for none.
func (m *Manager) staticOf(name types.NamespacedName) types.UID {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r := m.names[name]; r != nil && len(r.pods) > 0 {
		return r.pods[0].UID
	}
	return ""
}

// next returns the action for a name.
func (m *Manager) next(name types.NamespacedName, ending bool) (action, facts) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.names[name]
	if r == nil {
		return keep, facts{}
	}
	now := m.cfg.Clock.Now()
	if !r.made.IsZero() && now.Sub(r.made) > unseenFor { // It was deleted before the watch delivered it.
		delete(m.mirror, r.mirror.UID)
		r.mirror, r.made = nil, time.Time{}
	}
	f := facts{mirror: r.mirror, node: m.node, known: m.known, complete: m.complete, ending: ending}
	if len(r.pods) > 0 {
		f.static = r.pods[0]
	}
	m.setMirror(r, f)
	todo := decide(f)
	switch {
	case todo != keep && now.Before(r.until):
		m.queue.AddAfter(name, r.until.Sub(now))
		return keep, f
	case len(r.pods) == 0 && r.mirror == nil:
		delete(m.names, name)
	}
	return todo, f
}

// setMirror sets the mirror pod of the static pod of a name. The caller holds mu.
func (m *Manager) setMirror(r *record, f facts) {
	uid := types.UID("")
	if f.static != nil && f.mirror != nil && mirrors(f.mirror, f.static) {
		uid = f.static.UID
	}
	if r.notified != uid && r.notified != "" {
		m.cfg.Statuses.SetMirror(r.notified, nil)
	}
	if r.notified = uid; uid != "" {
		m.cfg.Statuses.SetMirror(uid, f.mirror)
	}
}

// created handles the result of creating a mirror pod.
func (m *Manager) created(ctx context.Context, name types.NamespacedName, f facts, made *v1.Pod, failure error) {
	m.cfg.Metrics.requested(create, failure)
	if failure != nil {
		if ctx.Err() != nil {
			return
		}
		if apierrors.IsAlreadyExists(failure) {
			failure = fmt.Errorf("a pod of this name exists; delete it unless it is the mirror pod: %w", failure)
		}
		m.failed(ctx, name, f, failure)
		return
	}
	m.mu.Lock()
	if r := m.recordOf(name); r.mirror == nil {
		r.mirror, r.made = made, m.cfg.Clock.Now()
		r.failures, r.until, r.complaint = 0, time.Time{}, ""
		m.mirror[made.UID] = name
	}
	m.look(name)
	m.mu.Unlock()
	m.cfg.Logger.InfoContext(ctx, "the API server has a mirror pod of a static pod", telemetry.KeyPod, name.String(),
		telemetry.KeyPodUID, string(f.static.UID))
}

// removed handles the result of deleting a mirror pod. A conflict means that another pod has the name, so this one is
// gone. After "not found" the deletion is retried until the watch confirms it, because an API server that has just
// started may answer that for existing pods.
func (m *Manager) removed(ctx context.Context, name types.NamespacedName, f facts, failure error) {
	if apierrors.IsConflict(failure) {
		failure = nil
	}
	m.cfg.Metrics.requested(remove, failure)
	if failure != nil {
		if ctx.Err() == nil {
			m.failed(ctx, name, f, failure)
		}
		return
	}
	m.mu.Lock()
	m.deleted[f.mirror.UID] = true
	m.forget(f.mirror.UID)
	r := m.recordOf(name)
	r.failures, r.until, r.complaint = 0, time.Time{}, ""
	m.look(name)
	m.mu.Unlock()
	m.cfg.Logger.InfoContext(ctx, "a mirror pod was deleted", telemetry.KeyPod, name.String(), telemetry.KeyReason, why(f))
}

// why returns the reason for deleting a mirror pod, in a few words.
func why(f facts) string {
	switch {
	case f.static == nil:
		return "its pod is gone"
	case f.mirror.DeletionTimestamp != nil:
		return "somebody has deleted it"
	case !mirrors(f.mirror, f.static):
		return "it belongs to the previous version of the pod"
	}
	return "it belongs to an earlier Node of this name"
}

// failed schedules the retry of a failed request, and reports the failure once.
func (m *Manager) failed(ctx context.Context, name types.NamespacedName, f facts, failure error) {
	m.mu.Lock()
	r := m.recordOf(name)
	delay := wait.Jitter(min(firstRetry<<min(r.failures, maxDoublings), lastRetry), retryJitter)
	if seconds, suggested := apierrors.SuggestsClientDelay(failure); suggested {
		delay = max(delay, time.Duration(seconds)*time.Second)
	}
	r.failures++
	r.until = m.cfg.Clock.Now().Add(delay)
	text := failure.Error()
	logged := r.complaint == text || apierrors.IsNotFound(failure) && f.static == nil
	r.complaint = text
	m.queue.AddAfter(name, delay)
	m.mu.Unlock()
	if logged {
		return
	}
	op := create
	if f.mirror != nil {
		op = remove
	}
	m.cfg.Logger.WarnContext(ctx, "the mirror pod of a static pod could not be created or deleted; it is retried",
		telemetry.KeyPod, name.String(), telemetry.KeyOp, string(op),
		telemetry.KeyRetryAfter, delay, telemetry.KeyError, failure)
	if status := apierrors.APIStatus(nil); f.static != nil && op == create && errors.As(failure, &status) {
		m.cfg.Events.Warning(ctx, f.static, "", reasonFailed, "the API server rejects the mirror pod: "+text)
	}
}
