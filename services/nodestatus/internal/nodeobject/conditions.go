package nodeobject

import (
	"fmt"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/quartet-node/quartet/services/nodestatus/internal/eviction"
)

// How long a ready node stays ready while a part of it is unavailable. A restarting process or runtime does not affect
// running pods.
const (
	// AwayPatience applies to a peer that does not answer or has just started: the duration of a node lease, for which a
	// control plane tolerates a silent kubelet.
	AwayPatience = 40 * time.Second
	// runtimePatience applies to a runtime that does not answer, as in the kubelet.
	runtimePatience = 30 * time.Second
)

// shuttingDown is the kubelet's message in the condition Ready during a shutdown of the machine.
const shuttingDown = "node is shutting down"

// PeerState is the state of a peer.
type PeerState int

// The states of a peer.
const (
	// PeerAway: it does not answer.
	PeerAway PeerState = iota
	// PeerStarting: it answers, but has not completed its work for the first time.
	PeerStarting
	// PeerUnhealthy: it reports a problem.
	PeerUnhealthy
	// PeerHealthy: it reports that it is healthy.
	PeerHealthy
)

// Peer is the known state of pleg or syncloop.
type Peer struct {
	// State is the state of the peer.
	State PeerState
	// Reasons are the problems with their remedies, one sentence each.
	Reasons []string
	// LastGood is the last time at which it was healthy; zero if it never was.
	LastGood time.Time
	// Runtime is the state of the runtime from pleg; nil if unknown, and for syncloop.
	Runtime *Runtime
	// Readings are the readings of signals that only syncloop can read, by signal; nil for pleg.
	Readings map[string]eviction.Reading
}

// patience returns how long a ready node stays ready with a peer in this state.
func (p Peer) patience() time.Duration {
	switch p.State {
	case PeerAway, PeerStarting:
		return AwayPatience
	case PeerUnhealthy:
		if p.Runtime == nil || !p.Runtime.Ready {
			return runtimePatience
		}
		return 0
	case PeerHealthy:
		return 0
	default:
		return 0
	}
}

// conditions returns the four conditions in the kubelet's order.
func conditions(in Input, short eviction.State) []v1.NodeCondition {
	all := []v1.NodeCondition{
		pressure(in, short, memoryPressure), pressure(in, short, diskPressure), pressure(in, short, pidPressure),
		ready(in),
	}
	for i := range all {
		all[i].LastHeartbeatTime = metav1.NewTime(in.Now).Rfc3339Copy()
		all[i].LastTransitionTime = all[i].LastHeartbeatTime
		if before := previous(in, all[i].Type); before != nil && before.Status == all[i].Status {
			all[i].LastTransitionTime = before.LastTransitionTime
		}
	}
	return all
}

func previous(in Input, kind v1.NodeConditionType) *v1.NodeCondition {
	if in.Previous.Node == nil {
		return nil
	}
	for i, condition := range in.Previous.Node.Status.Conditions {
		if condition.Type == kind {
			return &in.Previous.Node.Status.Conditions[i]
		}
	}
	return nil
}

// ready returns the condition Ready: true if every peer is healthy, or was recently and the node was ready.
func ready(in Input) v1.NodeCondition {
	before := previous(in, v1.NodeReady)
	wasReady := before != nil && before.Status == v1.ConditionTrue
	var reasons []string
	bear := wasReady && !in.ShuttingDown
	if in.ShuttingDown {
		reasons = append(reasons, shuttingDown)
	}
	for _, peer := range []Peer{in.PLEG, in.SyncLoop} {
		if peer.State == PeerHealthy {
			continue
		}
		reasons = append(reasons, peer.Reasons...)
		good := peer.LastGood
		if good.IsZero() {
			// This process was restarted, and the previous Node was ready.
			good = in.StartedAt
		}
		bear = bear && in.Now.Sub(good) < peer.patience()
	}
	text := strings.Join(reasons, "; ")
	switch {
	case len(reasons) == 0 && in.PLEG.State == PeerHealthy && in.SyncLoop.State == PeerHealthy:
		return v1.NodeCondition{
			Type:    v1.NodeReady,
			Status:  v1.ConditionTrue,
			Reason:  "KubeletReady",
			Message: "kubelet is posting ready status",
		}
	case bear:
		return v1.NodeCondition{
			Type:    v1.NodeReady,
			Status:  v1.ConditionTrue,
			Reason:  "KubeletReady",
			Message: "tolerating temporarily: " + text,
		}
	default:
		return v1.NodeCondition{Type: v1.NodeReady, Status: v1.ConditionFalse, Reason: "KubeletNotReady", Message: text}
	}
}

// Delay makes a status not ready, in the kubelet's words, because of something that the node needs in the API server. A
// status that is not ready for another reason gets this one, too.
func Delay(status *v1.NodeStatus, why string) {
	for i := range status.Conditions {
		condition := &status.Conditions[i]
		if condition.Type != v1.NodeReady {
			continue
		}
		if condition.Status == v1.ConditionTrue {
			condition.Message = ""
		}
		condition.Status, condition.Reason = v1.ConditionFalse, "KubeletNotReady"
		condition.Message = strings.TrimPrefix(condition.Message+"; "+why, "; ")
	}
}

// pressureKind is a condition of pressure, with the kubelet's reasons and messages.
type pressureKind struct {
	kind                    v1.NodeConditionType
	reason, message         string
	goodReason, goodMessage string
}

var (
	memoryPressure = pressureKind{
		v1.NodeMemoryPressure, "KubeletHasInsufficientMemory", "kubelet has insufficient memory available",
		"KubeletHasSufficientMemory", "kubelet has sufficient memory available",
	}
	diskPressure = pressureKind{
		v1.NodeDiskPressure, "KubeletHasDiskPressure", "kubelet has disk pressure",
		"KubeletHasNoDiskPressure", "kubelet has no disk pressure",
	}
	pidPressure = pressureKind{
		v1.NodePIDPressure, "KubeletHasInsufficientPID", "kubelet has insufficient PID available",
		"KubeletHasSufficientPID", "kubelet has sufficient PID available",
	}
)

// pressure is true while a threshold is crossed, be its grace period over or not, and for the transition period after
// that. The message begins as the kubelet's, and goes on with what is short.
func pressure(in Input, short eviction.State, p pressureKind) v1.NodeCondition {
	var lines []string
	for _, signal := range short.Crossed {
		if eviction.ConditionOf(signal.Name) == p.kind {
			lines = append(
				lines,
				fmt.Sprintf(
					"%s is %s, %s must be left",
					signal.Name,
					amount(signal.Name, signal.Available),
					amount(signal.Name, signal.Threshold),
				),
			)
		}
	}
	if len(lines) > 0 {
		return v1.NodeCondition{
			Type:    p.kind,
			Status:  v1.ConditionTrue,
			Reason:  p.reason,
			Message: p.message + ": " + strings.Join(lines, "; "),
		}
	}
	seen, ever := short.Seen[p.kind]
	// A time in the future is from before the clock was set back, and says nothing.
	ever = ever && !seen.After(in.Now)
	if before := previous(
		in,
		p.kind,
	); ever && before != nil && before.Status == v1.ConditionTrue &&
		in.Now.Sub(seen) < in.Settings.PressureTransition {
		return v1.NodeCondition{
			Type:   p.kind,
			Status: v1.ConditionTrue,
			Reason: p.reason,
			Message: fmt.Sprintf(
				"%s: over since %s, reported until it has been over for %s",
				p.message,
				seen.UTC().Format(time.RFC3339),
				in.Settings.PressureTransition,
			),
		}
	}
	text := p.goodMessage
	for _, signal := range short.Unread {
		switch {
		case eviction.ConditionOf(signal) != p.kind:
		case isOwn(signal):
			return v1.NodeCondition{
				Type:    p.kind,
				Status:  v1.ConditionUnknown,
				Reason:  "ReadingFailed",
				Message: signal + " could not be read: see the log of nodestatus",
			}
		default:
			text += ", as far as is known: syncloop does not say " + signal
		}
	}
	return v1.NodeCondition{Type: p.kind, Status: v1.ConditionFalse, Reason: p.goodReason, Message: text}
}

// amount formats bytes for people, and counts as numbers.
func amount(signal string, n int64) string {
	if eviction.Counts(signal) {
		return fmt.Sprint(n)
	}
	const mebi = 1 << 20
	return resource.NewQuantity(n/mebi*mebi, resource.BinarySI).String()
}
