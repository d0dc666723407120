package supervisor

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/quartet-node/quartet/internal/sockets"
	"github.com/quartet-node/quartet/internal/systemd"
	"github.com/quartet-node/quartet/test/freeport"
)

// shared returns the socket of a part at a port; 0 is none.
func shared(part, name string, port int) sockets.Shared {
	one := sockets.Shared{Socket: sockets.Socket{Name: name}, Key: part + "-" + name}
	if port != 0 {
		one.Address = fmt.Sprint("127.0.0.1:", port)
	}
	return one
}

// TestSocketsAreThoseOfTheFileAsItIs at each start of a process: a former port is closed, and a port in use does not
// prevent the start.
func TestSocketsAreThoseOfTheFileAsItIs(t *testing.T) {
	dir := t.TempDir()
	file, answer := filepath.Join(dir, "kubelet.yaml"), filepath.Join(dir, "answer")
	// write changes the configuration file, and what the part answers about its sockets then.
	write := func(config string, all ...sockets.Shared) {
		t.Helper()
		text, err := json.Marshal(all)
		if err != nil {
			t.Fatal(err)
		}
		for path, content := range map[string][]byte{file: []byte(config), answer: text} {
			if err := os.WriteFile(path, content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	first, second, third := freePort(t), freePort(t), freePort(t)
	write("first")
	sum, err := ConfigSum(file)
	if err != nil {
		t.Fatal(err)
	}
	const ask = `grep -q wrong "$0" && { echo "the file is wrong" >&2; exit 3; }; echo >> "$1.asked"; cat "$1"`
	part := Part{
		Name: "syncloop", Sockets: []sockets.Shared{shared("syncloop", "readOnlyPort", first), shared("syncloop", "port", 0)},
		AskSockets: []string{"/bin/sh", "-c", ask, file, answer},
	}
	var log bytes.Buffer
	n := &node{
		plan: Plan{Config: file, ConfigSum: sum, Parts: []Part{part}}, host: Host{Sockets: &sockets.Set{}},
		logger: slog.New(slog.NewTextHandler(&log, nil)),
	}
	defer func() {
		if err := n.host.Sockets.Close(); err != nil {
			t.Error(err)
		}
	}()
	held := func() string {
		t.Helper()
		names := []string{}
		for _, one := range n.hold(t.Context(), part) {
			names = append(names, one.Name)
		}
		return fmt.Sprint(names)
	}
	asked := func() int {
		text, _ := os.ReadFile(answer + ".asked") // it is missing before the first question
		return len(text)
	}

	for range 2 {
		if got := held(); got != "[readOnlyPort]" || !listens(first) || asked() != 0 {
			t.Errorf("syncloop is given %s, and was asked %d times", got, asked())
		}
	}
	both := func(port int) []sockets.Shared {
		return []sockets.Shared{shared("syncloop", "port", port), shared("syncloop", "readOnlyPort", second)}
	}
	write("second", both(third)...)
	for range 2 {
		if got := held(); got != "[port readOnlyPort]" || listens(first) || !listens(second) || !listens(third) || asked() != 1 {
			t.Errorf("with other ports syncloop is given %s, and was asked %d times", got, asked())
		}
	}
	write("it is wrong")
	if got := held(); got != "[]" || !listens(third) {
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
	write("third", both(first)...)
	if got := held(); got != "[readOnlyPort]" || listens(third) {
		t.Errorf("with a port that is taken syncloop is given %s", got)
	}
	for _, want := range []string{
		"WARN", "socket=port", fmt.Sprint("127.0.0.1:", first), "address already in use", "tries to listen by itself",
	} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log has %s, and not %s", &log, want)
		}
	}
	// No process listens there, as after a change of the file while this command was not running.
	n.plan.Parts[0].Sockets = nil
	n.keepSockets()
	if listens(second) {
		t.Error("a port is kept that is not in the file")
	}
}

// TestSystemdStoresTheSocketsOfEachPart under a name for each, so that the next start of this command keeps them all.
func TestSystemdStoresTheSocketsOfEachPart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer manager.Close() //nolint:errcheck // nothing was written
	given := sockets.Take(systemd.Notifier{Socket: path})
	defer given.Close() //nolint:errcheck // nothing was written
	first, second := freePort(t), freePort(t)
	sum, err := ConfigSum("")
	if err != nil {
		t.Fatal(err)
	}
	n := &node{
		plan: Plan{ConfigSum: sum, Parts: []Part{
			{Name: "pleg", Sockets: []sockets.Shared{shared("pleg", "tls-listen", first)}},
			{Name: "configmux", Sockets: []sockets.Shared{shared("configmux", "tls-listen", second)}},
		}},
		host: Host{Sockets: given}, logger: slog.New(slog.DiscardHandler),
	}
	for _, part := range n.plan.Parts {
		held := n.hold(t.Context(), part)
		if len(held) != 1 || held[0].Name != "tls-listen" {
			t.Errorf("%s is given %v, want tls-listen", part.Name, held)
		}
		message := make([]byte, 200)
		if err := manager.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		read, err := manager.Read(message)
		if want := "FDSTORE=1\nFDNAME=" + part.Name + "-tls-listen"; err != nil || string(message[:read]) != want {
			t.Errorf("systemd is told %q, %v; want %q", message[:read], err, want)
		}
	}
	n.keepSockets()
	if !listens(first) || !listens(second) {
		t.Error("the next start of the command has closed a socket that its configuration has")
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
