package heartbeat

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/utils/clock"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/services/nodestatus/internal/eviction"
	"github.com/quartet-node/quartet/services/nodestatus/internal/nodehealth"
	"github.com/quartet-node/quartet/services/nodestatus/internal/nodeobject"
)

const (
	// askInterval is the pause between polls of a peer, so it bounds the delay until the Node reflects a peer's state. A
	// kubelet looks at the state of its runtime every 5 s.
	askInterval = 2 * time.Second
	// firstAskInterval is that pause until a peer is healthy for the first time, because a starting node waits for it.
	firstAskInterval = 250 * time.Millisecond
	// DefaultAskTimeout bounds the answer of a peer, which needs no I/O.
	DefaultAskTimeout = 2 * time.Second
)

// Ask polls the state of a peer. It never fails: a peer that does not answer has the state away.
type Ask func(ctx context.Context) Answer

// Answer is the result of a poll.
type Answer struct {
	nodeobject.Peer
	// Troubles maps each process whose state follows from the answer, or from its absence, to its problem; empty if it
	// works. A problem of the Peer need not be one of the process: an unreachable runtime is no problem of pleg.
	Troubles map[string]string
}

// AskPLEG returns the poll of pleg.
func AskPLEG(conn grpc.ClientConnInterface, address string) Ask {
	client := lifecyclev1.NewLifecycleServiceClient(conn)
	return func(ctx context.Context) Answer {
		response, err := client.GetHealth(ctx, &lifecyclev1.GetHealthRequest{})
		if err != nil {
			return away(peerPLEG, address, err)
		}
		begun := response.GetLastRelistAt() != nil
		peer := answered(peerPLEG, response.GetHealthy(), begun, response.GetReasons())
		trouble := ""
		if !begun || response.GetRelistOverdue() {
			trouble = strings.Join(peer.Reasons, "; ")
		}
		if r := response.GetRuntime(); r != nil {
			peer.Runtime = &nodeobject.Runtime{
				Name:                     r.GetName(),
				Version:                  r.GetVersion(),
				Ready:                    r.GetReady(),
				Handlers:                 handlersOf(r),
				SupplementalGroupsPolicy: r.SupplementalGroupsPolicy,
			}
			if r.GetReady() && !r.GetNetworkReady() {
				// pleg works, but pods outside of the host's network cannot run.
				peer.State = nodeobject.PeerUnhealthy
				peer.Reasons = append(
					peer.Reasons,
					"the network of the container runtime is not ready: "+r.GetNetworkReadyMessage(),
				)
			}
		}
		return Answer{Peer: peer, Troubles: map[string]string{peerPLEG: trouble}}
	}
}

func handlersOf(r *lifecyclev1.Runtime) []nodeobject.Handler {
	var all []nodeobject.Handler
	for _, h := range r.GetRuntimeHandlers() {
		all = append(
			all,
			nodeobject.Handler{
				Name:                    h.GetName(),
				RecursiveReadOnlyMounts: h.GetRecursiveReadOnlyMounts(),
				UserNamespaces:          h.GetUserNamespaces(),
			},
		)
	}
	return all
}

// AskSyncLoop returns the poll of syncloop.
func AskSyncLoop(conn grpc.ClientConnInterface, address string) Ask {
	client := enginev1.NewEngineServiceClient(conn)
	return func(ctx context.Context) Answer {
		response, err := client.GetHealth(ctx, &enginev1.GetHealthRequest{})
		if err != nil {
			return away(peerSyncLoop, address, err)
		}
		peer := answered(peerSyncLoop, response.GetHealthy(), response.GetLastTurnAt() != nil, response.GetReasons())
		for _, r := range response.GetReadings() {
			if peer.Readings == nil {
				peer.Readings = map[string]eviction.Reading{}
			}
			peer.Readings[r.GetSignal()] = eviction.Reading{
				Available: r.GetAvailable(),
				Capacity:  r.GetCapacity(),
				At:        r.GetReadAt().AsTime(),
			}
		}
		return Answer{Peer: peer, Troubles: map[string]string{
			peerSyncLoop: strings.Join(peer.Reasons, "; "), partConfigMux: response.GetConfigmuxAway(),
		}}
	}
}

func answered(name string, healthy, begun bool, reasons []string) nodeobject.Peer {
	peer := nodeobject.Peer{Reasons: reasons}
	switch {
	case healthy:
		return nodeobject.Peer{State: nodeobject.PeerHealthy}
	case !begun:
		peer.State = nodeobject.PeerStarting
	default:
		peer.State = nodeobject.PeerUnhealthy
	}
	if len(reasons) == 0 {
		peer.Reasons = []string{name + " says that it is not healthy and not why: see its log"}
	}
	return peer
}

func away(name, address string, err error) Answer {
	var reason string
	switch status.Code(err) { //nolint:exhaustive // every other code says the same: see the text
	case codes.DeadlineExceeded:
		reason = fmt.Sprintf(
			"%s does not answer in time on %s: it hangs; check its log and restart it, which stops no pod",
			name,
			address,
		)
	case codes.Unavailable:
		reason = fmt.Sprintf("%s is unreachable on %s: start it; if it runs, check its log", name, address)
	default:
		reason = fmt.Sprintf("%s cannot be asked on %s (%s): see its log", name, address, status.Convert(err).Message())
	}
	return Answer{
		Peer:     nodeobject.Peer{State: nodeobject.PeerAway, Reasons: []string{reason}},
		Troubles: map[string]string{name: reason},
	}
}

// watcher polls one peer, and keeps the last answer.
type watcher struct {
	ask     Ask
	timeout time.Duration
	clock   clock.Clock
	// changed is signaled when an answer differs from the previous one; its capacity is one.
	changed chan<- struct{}

	mu     sync.Mutex
	last   nodeobject.Peer
	polled bool
	parts  map[string]nodehealth.Part
}

// run polls until ctx ends. It calls first after the first answer.
func (w *watcher) run(ctx context.Context, first func()) {
	for {
		w.once(ctx)
		if first != nil {
			first()
			first = nil
		}
		interval := askInterval
		if w.peer().LastGood.IsZero() {
			interval = firstAskInterval
		}
		select {
		case <-ctx.Done():
			return
		case <-w.clock.After(interval):
		}
	}
}

func (w *watcher) once(ctx context.Context) {
	askCtx, cancel := context.WithTimeout(ctx, w.timeout)
	defer cancel()
	answer := w.ask(askCtx)
	peer := answer.Peer
	if ctx.Err() != nil {
		return
	}
	w.mu.Lock()
	before, polled := w.last, w.polled
	peer.LastGood = before.LastGood
	if peer.State == nodeobject.PeerHealthy {
		peer.LastGood = w.clock.Now()
	}
	w.last, w.polled = peer, true
	w.note(answer.Troubles)
	w.mu.Unlock()
	// these change all the time, and are read when they are needed
	before.LastGood, before.Readings = peer.LastGood, peer.Readings
	if !polled || !reflect.DeepEqual(before, peer) {
		select {
		case w.changed <- struct{}{}:
		default: // the loop has not received the previous signal yet, and will cover this change too
		}
	}
}

// note records the troubles of an answer. Processes that it does not cover stay unchanged. The caller holds mu.
func (w *watcher) note(troubles map[string]string) {
	if w.parts == nil {
		w.parts = map[string]nodehealth.Part{}
	}
	for name, trouble := range troubles {
		part := nodehealth.Part{Name: name, Trouble: trouble, LastGood: w.parts[name].LastGood}
		if trouble == "" {
			part.LastGood = w.clock.Now()
		}
		w.parts[name] = part
	}
}

// known returns the known state of processes.
func (w *watcher) known() []nodehealth.Part {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Collect(maps.Values(w.parts))
}

func (w *watcher) peer() nodeobject.Peer {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.last
}
