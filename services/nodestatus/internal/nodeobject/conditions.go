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

// How long a node that was ready stays so while a part of it is away. A process that is killed and started again, or a
// runtime that is, is not a node that cannot run pods: its pods go on running meanwhile.
const (
	// AwayPatience is for a peer that does not answer or has just begun: the time of a node lease, for which a control
	// plane bears with a kubelet that is silent.
	AwayPatience = 40 * time.Second
	// runtimePatience is for a runtime that does not answer: for so long the kubelet bears with it.
	runtimePatience = 30 * time.Second
)

// shuttingDown is what the condition Ready says while the machine is being shut down: the kubelet's words.
const shuttingDown = "node is shutting down"

// PeerState is what is known of a peer.
type PeerState int

// The states of a peer.
const (
	// PeerAway does not answer.
	PeerAway PeerState = iota
	// PeerStarting answers, and has not yet done its work for a first time.
	PeerStarting
	// PeerUnhealthy answers that something is wrong.
	PeerUnhealthy
	// PeerHealthy answers that all is well.
	PeerHealthy
)

// Peer is what is known of pleg or syncloop.
type Peer struct {
	// State is how it is.
	State PeerState
	// Reasons say why it is not healthy, a sentence each, with what to do.
	Reasons []string
	// LastGood is when it last answered that all is well; zero when it never did.
	LastGood time.Time
	// Runtime is what pleg says of the runtime; nil when it says nothing, and for syncloop.
	Runtime *Runtime
	// Readings are what syncloop says is left of what only it can read, by the names of the signals; nil for pleg.
	Readings map[string]eviction.Reading
}

// patience is how long a node that was ready bears with a peer as it is.
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

// conditions makes the four conditions in the kubelet's order.
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

// ready is true when every peer is well, or was so lately enough and the node was ready.
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
			// This process has been restarted, and the Node that it left was ready.
			good = in.StartedAt
		}
		bear = bear && in.Now.Sub(good) < peer.patience()
	}
	text := strings.Join(reasons, "; ")
	switch {
	case len(reasons) == 0 && in.PLEG.State == PeerHealthy && in.SyncLoop.State == PeerHealthy:
		return v1.NodeCondition{Type: v1.NodeReady, Status: v1.ConditionTrue, Reason: "KubeletReady", Message: "kubelet is posting ready status"}
	case bear:
		return v1.NodeCondition{Type: v1.NodeReady, Status: v1.ConditionTrue, Reason: "KubeletReady", Message: "bearing for a while with: " + text}
	default:
		return v1.NodeCondition{Type: v1.NodeReady, Status: v1.ConditionFalse, Reason: "KubeletNotReady", Message: text}
	}
}

// pressed is a condition of pressure, with the kubelet's reasons and messages.
type pressed struct {
	kind                    v1.NodeConditionType
	reason, message         string
	goodReason, goodMessage string
}

var (
	memoryPressure = pressed{
		v1.NodeMemoryPressure, "KubeletHasInsufficientMemory", "kubelet has insufficient memory available",
		"KubeletHasSufficientMemory", "kubelet has sufficient memory available",
	}
	diskPressure = pressed{
		v1.NodeDiskPressure, "KubeletHasDiskPressure", "kubelet has disk pressure",
		"KubeletHasNoDiskPressure", "kubelet has no disk pressure",
	}
	pidPressure = pressed{
		v1.NodePIDPressure, "KubeletHasInsufficientPID", "kubelet has insufficient PID available",
		"KubeletHasSufficientPID", "kubelet has sufficient PID available",
	}
)

// pressure is true while a threshold is crossed, be its grace period over or not, and for the transition period after that. The
// message begins as the kubelet's, and goes on with what is short.
func pressure(in Input, short eviction.State, of pressed) v1.NodeCondition {
	var lines []string
	for _, signal := range short.Crossed {
		if eviction.ConditionOf(signal.Name) == of.kind {
			lines = append(lines, fmt.Sprintf("%s is %s, %s must be left", signal.Name, amount(signal.Name, signal.Available), amount(signal.Name, signal.Threshold)))
		}
	}
	if len(lines) > 0 {
		return v1.NodeCondition{Type: of.kind, Status: v1.ConditionTrue, Reason: of.reason, Message: of.message + ": " + strings.Join(lines, "; ")}
	}
	seen, ever := short.Seen[of.kind]
	if before := previous(in, of.kind); ever && before != nil && before.Status == v1.ConditionTrue && in.Now.Sub(seen) < in.Settings.PressureTransition {
		return v1.NodeCondition{
			Type: of.kind, Status: v1.ConditionTrue, Reason: of.reason,
			Message: fmt.Sprintf("%s: over since %s, reported until it has been over for %s", of.message, seen.UTC().Format(time.RFC3339), in.Settings.PressureTransition),
		}
	}
	text := of.goodMessage
	for _, signal := range short.Unread {
		switch {
		case eviction.ConditionOf(signal) != of.kind:
		case isOwn(signal):
			return v1.NodeCondition{Type: of.kind, Status: v1.ConditionUnknown, Reason: "ReadingFailed", Message: signal + " could not be read: see the log of nodestatus"}
		default:
			text += ", as far as is known: syncloop does not say " + signal
		}
	}
	return v1.NodeCondition{Type: of.kind, Status: v1.ConditionFalse, Reason: of.goodReason, Message: text}
}

// amount writes bytes as people do, and counts as they are.
func amount(signal string, n int64) string {
	if eviction.Counts(signal) {
		return fmt.Sprint(n)
	}
	const mebi = 1 << 20
	return resource.NewQuantity(n/mebi*mebi, resource.BinarySI).String()
}
