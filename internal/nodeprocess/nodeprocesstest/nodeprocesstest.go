// Package nodeprocesstest has processes of a node for tests.
package nodeprocesstest

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/statedir"
)

// Start runs a process with the name and the command line of a service until the test ends. It does nothing, and its
// PID is in the lock of the state directory. Its working directory is the state directory.
func Start(t testing.TB, stateDir string, service layout.Service, args ...string) (pid int) {
	t.Helper()
	cmd := exec.Command("/bin/sh")
	cmd.Args = append([]string{string(service), "-c", "echo; read _"}, args...)
	cmd.Dir = stateDir
	stdin, err := cmd.StdinPipe() // the process ends with it
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = stdin.Close() // it is a pipe
		_ = cmd.Wait()    // read fails at the end of the input
	})
	// Before its first line the kernel may not show its command line.
	if _, err := stdout.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(statedir.Holder{Service: string(service), PID: cmd.Process.Pid})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(stateDir, string(service)+".lock"), data, 0o600); err != nil {
		t.Fatal(err)
	}
	return cmd.Process.Pid
}
