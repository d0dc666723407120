package nodecmd

import (
	"bytes"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/sockets"
	"github.com/quartet-node/quartet/test/freeport"
)

// TestSocketsAreThoseOfTheFileAsItIs at each start of a process: a former port is closed, and a port in use does not
// prevent the start.
func TestSocketsAreThoseOfTheFileAsItIs(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "kubelet.yaml")
	write := func(port int, rest string) {
		t.Helper()
		text := fmt.Sprintf(
			"apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nreadOnlyPort: %d\n%s",
			port,
			rest,
		)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var log bytes.Buffer
	l, err := layout.New(dir)
	if err != nil {
		t.Fatal(err)
	}
	opts := Options{ConfigFile: file, NodeFlags: node1, StateDir: dir, Sockets: &sockets.Set{}, known: &knownSockets{}}
	defer func() {
		if err := opts.Sockets.Close(); err != nil {
			t.Error(err)
		}
	}()
	hold := opts.holdSockets(l, layout.SyncLoop, slog.New(slog.NewTextHandler(&log, nil)))
	held := func() (names []string) {
		t.Helper()
		for _, one := range hold(t.Context()) {
			names = append(names, one.Name)
		}
		return names
	}
	const anybody = "authorization: {mode: AlwaysAllow}\nauthentication: {anonymous: {enabled: true}}\nport: "
	first, second, third := freePort(t), freePort(t), freePort(t)

	write(first, "")
	for range 2 {
		if got := fmt.Sprint(held()); got != "[readOnlyPort]" || !listens(first) {
			t.Errorf("syncloop is given %s", got)
		}
	}
	write(second, fmt.Sprint(anybody, third))
	if got := fmt.Sprint(held()); got != "[port readOnlyPort]" || listens(first) || !listens(second) || !listens(third) {
		t.Errorf("with other ports syncloop is given %s", got)
	}
	write(second, "it is wrong")
	if got := held(); len(got) > 0 || !listens(third) {
		t.Errorf("with a wrong file, of which it says what is wrong, syncloop is given %s", got)
	}
	if strings.Contains(log.String(), "WARN") {
		t.Errorf("the log has %s, want text without %q", &log, "WARN")
	}
	taken, err := net.Listen("tcp", fmt.Sprint("127.0.0.1:", first))
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close() //nolint:errcheck // nothing was written
	write(second, fmt.Sprint(anybody, first))
	if got := fmt.Sprint(held()); got != "[readOnlyPort]" || listens(third) {
		t.Errorf("with a port that is taken syncloop is given %s", got)
	}
	for _, want := range []string{"WARN", "socket=port", fmt.Sprint("127.0.0.1:", first), "address already in use", "tries to listen by itself"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log has %s, and not %s", &log, want)
		}
	}
	// No process listens there, as after a change of the file while this command was not running.
	write(0, "")
	opts.keepSockets(l, slog.New(slog.DiscardHandler))
	if listens(second) {
		t.Error("a port is kept that is not in the file")
	}
}

func freePort(t *testing.T) int {
	t.Helper()
	port, err := freeport.Find()
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// listens reports whether a port accepts connections.
func listens(port int) bool {
	conn, err := net.Dial("tcp", fmt.Sprint("127.0.0.1:", port))
	if err != nil {
		return false
	}
	return conn.Close() == nil
}
