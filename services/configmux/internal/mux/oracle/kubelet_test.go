package oracle

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/record"
	"k8s.io/kubernetes/pkg/kubelet/config"
	kubetypes "k8s.io/kubernetes/pkg/kubelet/types"

	"github.com/quartet-node/quartet/internal/podset"
)

// sourceNames are the sources of both.
func sourceNames() []string {
	return []string{kubetypes.FileSource, kubetypes.HTTPSource, kubetypes.ApiserverSource}
}

// kubelet is the kubelet's merge and who listens to it.
type kubelet struct {
	merge  *config.PodConfig
	to     map[string]chan<- any
	cancel context.CancelFunc
}

// unobserved is the kubelet's measure of start-up times, which is not measured here.
type unobserved struct{}

func (unobserved) ObservedPodOnWatch(*v1.Pod, time.Time) {}

func newKubelet(mode config.PodConfigNotificationMode) *kubelet {
	ctx, cancel := context.WithCancel(context.Background())
	k := &kubelet{
		merge:  config.NewPodConfig(mode, &record.FakeRecorder{}, unobserved{}),
		to:     map[string]chan<- any{},
		cancel: cancel,
	}
	for _, source := range sourceNames() {
		k.to[source] = k.merge.Channel(ctx, source)
	}
	return k
}

// close ends the goroutines of the kubelet's merge, each of which listens until its channel is closed.
func (k *kubelet) close() {
	k.cancel()
	for _, channel := range k.to {
		close(channel)
	}
}

// take gives a step to the kubelet, which keeps and changes the pods. It returns what the kubelet says, and whether it
// has seen all sources.
func (k *kubelet) take(s step) (said []message, seen bool) {
	k.to[s.source] <- kubetypes.PodUpdate{Op: kubetypes.PodOperation(kubeletOp(s.op)), Source: s.source, Pods: s.pods}
	// The channel has no buffer: when this is taken, which says nothing, all that the step makes is in the buffer of the
	// updates.
	k.to[s.source] <- kubetypes.PodUpdate{Op: kubetypes.ADD, Source: s.source}
	for {
		select {
		case u := <-k.merge.Updates():
			said = append(said, message{op: operation(u.Op).String(), source: u.Source, pods: u.Pods})
		default:
			return said, k.merge.SeenAllSources(sets.New(sourceNames()...))
		}
	}
}

// operation is an operation of the kubelet's, with its name.
type operation kubetypes.PodOperation

func (o operation) String() string {
	switch kubetypes.PodOperation(o) {
	case kubetypes.SET:
		return "SET"
	case kubetypes.ADD:
		return "ADD"
	case kubetypes.DELETE:
		return "DELETE"
	case kubetypes.REMOVE:
		return "REMOVE"
	case kubetypes.UPDATE:
		return "UPDATE"
	case kubetypes.RECONCILE:
		return "RECONCILE"
	default:
		return "UNKNOWN"
	}
}

// kubeletOp says what a source gives in the kubelet's words.
func kubeletOp(op podset.Op) operation {
	switch op {
	case podset.Add:
		return operation(kubetypes.ADD)
	case podset.Update:
		return operation(kubetypes.UPDATE)
	case podset.Delete:
		return operation(kubetypes.DELETE)
	case podset.Remove:
		return operation(kubetypes.REMOVE)
	case podset.None:
		return operation(kubetypes.SET)
	case podset.Restore, podset.Reconcile:
		panic("no source gives " + op.String() + " to this kubelet")
	default:
		panic("no source gives " + op.String())
	}
}
