package main

import (
	"bytes"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/creack/pty"

	"github.com/quartet-node/quartet/test/eventually"
)

// loud prints more than a terminal and a pipe hold, leaves a file, and ends on SIGTERM.
const loud = `#!/bin/sh
name=$(basename "$0"); dir=$(dirname "$0")
trap 'exit 0' TERM
echo "up with $*"
until test -e "$dir/stopped"; do sleep 0.02; done
yes "a line of $name" | head -n 100000
touch "$dir/$name.printed"
while :; do sleep 0.02; done
`

// TestANodeWhoseTerminalIsStopped stops the terminal of a node as Ctrl-S does: the four go on, and the node is stopped
// by a signal.
func TestANodeWhoseTerminalIsStopped(t *testing.T) {
	dir := install(t, loud)
	cmd := quartet(t, dir, "node", "--state-dir", filepath.Join(dir, "state"))
	cmd.Stdout, cmd.Stderr = nil, nil
	terminal, err := pty.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = terminal.Close() }()
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	var seen []byte
	for bytes.Count(seen, []byte("up with")) < len(services) {
		buffer := make([]byte, 4096)
		n, err := terminal.Read(buffer)
		if err != nil {
			t.Fatalf("%v after\n%s", err, seen)
		}
		seen = append(seen, buffer[:n]...)
	}
	const ctrlS = "\x13"
	if _, err := terminal.WriteString(ctrlS); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "stopped"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	eventually.That(t, "all four have printed everything", func() bool {
		printed, err := filepath.Glob(filepath.Join(dir, "*.printed"))
		return err == nil && len(printed) == len(services)
	})
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("it did not end well: %v", err)
	}
}
