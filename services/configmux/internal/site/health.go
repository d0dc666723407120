package site

import (
	"fmt"
	"sync"

	"k8s.io/client-go/rest"

	"github.com/quartet-node/quartet/services/configmux/internal/apisource"
	"github.com/quartet-node/quartet/services/configmux/internal/mux"
)

// health reports in one sentence how many nodes wait for the first list of their pods.
type health struct {
	process apisource.Health
	server  string
	// settled is called when the pods of all nodes are known.
	settled func()

	mu sync.Mutex
	// whole is true when all nodes are known.
	whole bool
	nodes map[string]bool
	wait  int
}

func newHealth(process apisource.Health, client rest.Interface, settled func()) *health {
	h := &health{process: process, nodes: map[string]bool{}, server: client.Get().URL().Host, settled: settled}
	h.report()
	return h
}

// complete records that all nodes are known.
func (h *health) complete() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.whole = true
	h.report()
}

// set records whether a node has the first list of its pods.
func (h *health) set(node string, ready bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	before, known := h.nodes[node]
	if known && before == ready {
		return
	}
	h.nodes[node] = ready
	if ready && known {
		h.wait--
	} else if !ready {
		h.wait++
	}
	h.report()
}

// forget removes a node.
func (h *health) forget(node string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if ready, known := h.nodes[node]; known && !ready {
		h.wait--
	}
	delete(h.nodes, node)
	h.report()
}

// report sets the health of the process. The caller holds mu.
func (h *health) report() {
	text := ""
	switch {
	case h.wait > 0:
		text = fmt.Sprintf("waiting for the first list of the pods of %d of %d nodes from %s", h.wait, len(h.nodes), h.server)
	case !h.whole:
		text = "waiting for the first list of the nodes of the site from " + h.server
	}
	if text == "" {
		h.settled()
	}
	h.process.Set(mux.SourceKey(apisource.Name), text)
}

// nodeHealth is the health of the sources of one node, of which there is one.
type nodeHealth struct {
	health *health
	node   string
}

// Set implements mux.Health.
func (n nodeHealth) Set(_, reason string) { n.health.set(n.node, reason == "") }

// noHealth is for a source that does not wait for nodestatus.
type noHealth struct{}

// Set implements apisource.Health.
func (noHealth) Set(string, string) {}
