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
	// askInterval is the time from an answer of a peer to the next question, so it bounds how late the Node is to say
	// what a peer knows.
	askInterval = time.Second
	// firstAskInterval is the same until a peer has been well for a first time: a node that starts waits for this.
	firstAskInterval = 250 * time.Millisecond
	// DefaultAskTimeout is how long a peer has to answer. Its answer needs no I/O.
	DefaultAskTimeout = 2 * time.Second
)

// Ask asks a peer how it is. It never fails: a peer that does not answer is away.
type Ask func(ctx context.Context) Answer

// Answer is what comes of asking a peer.
type Answer struct {
	nodeobject.Peer
	// Troubles says, of each process of which the peer's answer or silence tells something, why that process does not do its work;
	// empty when it does. It is less than the Peer: a runtime that is away is no trouble of pleg's.
	Troubles map[string]string
}

// AskPLEG returns the question to pleg.
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
				Name: r.GetName(), Version: r.GetVersion(), Ready: r.GetReady(), Handlers: handlersOf(r), SupplementalGroupsPolicy: r.SupplementalGroupsPolicy,
			}
			if r.GetReady() && !r.GetNetworkReady() {
				// pleg does all that it should, but pods that are not on the host's network cannot run.
				peer.State = nodeobject.PeerUnhealthy
				peer.Reasons = append(peer.Reasons, "the network of the container runtime is not ready: "+r.GetNetworkReadyMessage())
			}
		}
		return Answer{Peer: peer, Troubles: map[string]string{peerPLEG: trouble}}
	}
}

func handlersOf(r *lifecyclev1.Runtime) []nodeobject.Handler {
	var all []nodeobject.Handler
	for _, h := range r.GetRuntimeHandlers() {
		all = append(all, nodeobject.Handler{Name: h.GetName(), RecursiveReadOnlyMounts: h.GetRecursiveReadOnlyMounts(), UserNamespaces: h.GetUserNamespaces()})
	}
	return all
}

// AskSyncLoop returns the question to syncloop.
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
			peer.Readings[r.GetSignal()] = eviction.Reading{Available: r.GetAvailable(), Capacity: r.GetCapacity(), At: r.GetReadAt().AsTime()}
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
		reason = fmt.Sprintf("%s does not answer in time on %s: it hangs; see its log and start it again, which stops no pod", name, address)
	case codes.Unavailable:
		reason = fmt.Sprintf("%s cannot be reached on %s: start it; if it runs, see its log", name, address)
	default:
		reason = fmt.Sprintf("%s cannot be asked on %s (%s): see its log", name, address, status.Convert(err).Message())
	}
	return Answer{Peer: nodeobject.Peer{State: nodeobject.PeerAway, Reasons: []string{reason}}, Troubles: map[string]string{name: reason}}
}

// watcher asks one peer again and again, and keeps the last answer.
type watcher struct {
	ask     Ask
	timeout time.Duration
	clock   clock.Clock
	// changed is told when an answer differs from the one before; it has room for one.
	changed chan<- struct{}

	mu    sync.Mutex
	last  nodeobject.Peer
	asked bool
	parts map[string]nodehealth.Part
}

// run asks until ctx ends. First is called after the first answer.
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
	before, asked := w.last, w.asked
	peer.LastGood = before.LastGood
	if peer.State == nodeobject.PeerHealthy {
		peer.LastGood = w.clock.Now()
	}
	w.last, w.asked = peer, true
	w.note(answer.Troubles)
	w.mu.Unlock()
	before.LastGood, before.Readings = peer.LastGood, peer.Readings // these change all the time, and are looked at when it is time
	if !asked || !reflect.DeepEqual(before, peer) {
		select {
		case w.changed <- struct{}{}:
		default: // the loop has not taken the last one yet, and will see this one too
		}
	}
}

// note keeps what an answer says of processes. What it says nothing of stays as it was. The caller holds mu.
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

// known returns what is known of processes.
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
