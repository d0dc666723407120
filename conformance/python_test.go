package conformance_test

import (
	"path/filepath"
	"testing"

	"github.com/quartet-node/quartet/conformance"
	"github.com/quartet-node/quartet/test/harness"
	"github.com/quartet-node/quartet/test/pythonpleg"
)

// TestThePLEGInPythonKeepsTheContract checks the pleg of examples/pleg-python.
func TestThePLEGInPythonKeepsTheContract(t *testing.T) {
	t.Parallel()
	program, dir := pythonpleg.Program(t), harness.ShortDir(t)
	runtime := serveRuntime(t, dir)
	address := "unix://" + filepath.Join(dir, "pleg.sock")
	p := startProgram(t, program, "--listen="+address, "--container-runtime-endpoint="+runtime.Endpoint())
	conformance.PLEG().Test(t, conformance.Part{Conn: connect(t, address), Runtime: runtime, Restart: p.restart})
}
