package conformance

import (
	"github.com/quartet-node/quartet/test/fakecri"
)

// Runtime is a container runtime whose pods exist only in memory. The checks change them behind the back of the pleg
// under test, and make calls fail and hang.
type Runtime struct{ cri *fakecri.Server }

// ServeRuntime serves a runtime by the CRI on a new unix socket, until Close. Start the pleg with it as its container
// runtime.
func ServeRuntime(socket string) (*Runtime, error) {
	server, err := fakecri.Serve(socket)
	if err != nil {
		return nil, err
	}
	return &Runtime{cri: server}, nil
}

// Endpoint returns the address of the runtime, as in the field containerRuntimeEndpoint.
func (r *Runtime) Endpoint() string { return r.cri.Endpoint() }

// Close stops the runtime.
func (r *Runtime) Close() { r.cri.Stop() }
