package volumes

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// waitTimeout bounds a wait for volumes, as in the kubelet: long enough for the longest delay between two attempts.
const waitTimeout = 2*time.Minute + 3*time.Second

// NotReadyError names the volumes of a pod that are not in the desired state, with the reasons.
type NotReadyError struct {
	// Message names each volume and its cause, for the pod's status.
	Message string
	// RetryAfter is the time until the first retry; 0 if unknown.
	RetryAfter time.Duration
}

// Error implements error.
func (e *NotReadyError) Error() string { return e.Message }

// NotRemovedError names the volumes of a pod that cannot be removed yet, with the reasons.
type NotRemovedError struct{ Message string }

// Error implements error.
func (e *NotRemovedError) Error() string { return e.Message }

// Wait returns nil when the wanted volumes of a pod are set up. It fails with a *NotReadyError if one has failed since
// the call of Want, which has to come before, or after two minutes, and with the error of ctx.
func (m *Manager) Wait(ctx context.Context, p *v1.Pod) error {
	m.mu.Lock()
	var before map[key]int
	if known := m.pods[p.UID]; known != nil {
		before = known.before
	}
	m.mu.Unlock()
	return m.until(ctx, p.UID, before, func(known *pod, before map[key]int) (bool, error) {
		return readiness(known, before, m.cfg.Clock.Now())
	}, func(names []string) error {
		message := fmt.Sprintf("Unable to attach or mount volumes: unmounted volumes=[%s], unattached volumes=[], failed to process volumes=[]: timed out waiting for the condition",
			strings.Join(names, " "))
		m.cfg.Events.Warning(ctx, p, "", eventFailedMount, message)
		return &NotReadyError{Message: message}
	})
}

// Ready reports whether the wanted volumes of a pod are set up.
func (m *Manager) Ready(uid types.UID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	ready, _ := readiness(m.pods[uid], nil, time.Time{})
	return ready
}

// readiness reports whether all wanted volumes of a pod are set up. It fails if one has failed since before, and then
// names all missing ones with a cause, including those that are being retried.
func readiness(known *pod, before map[key]int, now time.Time) (ready bool, err error) {
	ready = true
	retried := false
	var failed []string
	var after time.Duration
	for _, k := range ordered(known) {
		s := known.volumes[k]
		if !s.inSpec || s.ready {
			continue
		}
		ready = false
		if s.err == nil || s.did != settingUp {
			continue
		}
		failed = append(failed, setUpFailed(k.name, s.block, s.err))
		if s.running == none && s.ended > before[k] {
			retried = true
			if wait := s.notBefore.Sub(now); after == 0 || wait < after {
				after = max(wait, time.Millisecond)
			}
		}
	}
	if !retried {
		return ready, nil
	}
	return false, &NotReadyError{Message: strings.Join(failed, "; "), RetryAfter: after}
}

// Release removes all volumes of a pod that has ended, including those of an earlier process, and returns when none is
// left. It fails with a *NotRemovedError if one cannot be removed, and names it; the rest is retried, and Release may
// be repeated. It never removes anything below a mount point.
func (m *Manager) Release(ctx context.Context, uid types.UID) error {
	found, err := m.onDisk(uid)
	if err != nil {
		return err
	}
	m.mu.Lock()
	m.add(uid, found)
	if known := m.pods[uid]; known != nil {
		known.intent = released
		m.specs[uid] = spec{pod: m.specs[uid].pod, startedBy: trace.SpanContextFromContext(ctx)}
	}
	m.forget(uid)
	before := endings(m.pods[uid]) // only removals that end from here on count
	m.signal()
	m.mu.Unlock()
	return m.until(ctx, uid, before, removed, func(names []string) error {
		return &NotRemovedError{Message: fmt.Sprintf(
			"volumes %s: the removal takes too long: something on this machine hangs", strings.Join(names, ", "))}
	})
}

// removed reports whether no volume of a pod is left, and which removals have failed since before.
func removed(known *pod, before map[key]int) (done bool, err error) {
	if known == nil {
		return true, nil
	}
	var failed []string
	for _, k := range ordered(known) {
		if s := known.volumes[k]; s.err != nil && s.did == tearingDown && s.running == none && s.ended > before[k] {
			failed = append(failed, fmt.Sprintf("volume %q: %v", k.name, s.err))
		}
	}
	if len(failed) > 0 {
		return false, &NotRemovedError{Message: "remove " + strings.Join(failed, "; ")}
	}
	return known.intent != released, nil // it is wanted again
}

// until waits until a condition on a pod holds or fails; late returns the error for a timeout. The condition is called
// with mu held, with the number of completed operations at the start.
func (m *Manager) until(
	ctx context.Context, uid types.UID, before map[key]int, holds func(*pod, map[key]int) (bool, error),
	late func([]string) error,
) error {
	timer := m.cfg.Clock.NewTimer(waitTimeout)
	defer timer.Stop()
	for {
		m.mu.Lock()
		known := m.pods[uid]
		done, err := holds(known, before)
		changed := m.changed
		var left []string
		for _, k := range ordered(known) {
			if s := known.volumes[k]; s.running != none || !s.ready {
				left = append(left, k.name)
			}
		}
		m.mu.Unlock()
		if done || err != nil {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C():
			return late(left)
		}
	}
}

// endings returns the number of completed operations of each volume of a pod.
func endings(known *pod) map[key]int {
	counts := map[key]int{}
	for _, k := range ordered(known) {
		counts[k] = known.volumes[k].ended
	}
	return counts
}

// ordered returns the volumes of a pod sorted by name; none for an unknown pod.
func ordered(known *pod) []key {
	if known == nil {
		return nil
	}
	keys := make([]key, 0, len(known.volumes))
	for k := range known.volumes {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b key) int {
		return cmp.Or(cmp.Compare(a.name, b.name), cmp.Compare(a.plugin, b.plugin))
	})
	return keys
}
