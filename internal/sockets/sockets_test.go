package sockets

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/quartet-node/quartet/internal/systemd"
)

// child is the first argument of this program as a process that inherits sockets.
const child = "child"

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == child {
		beChild()
		return
	}
	goleak.VerifyTestMain(m)
}

// beChild prints the inherited sockets, and those that its own child inherits.
func beChild() {
	given := Take(systemd.Notifier{})
	for name, file := range given.held {
		fmt.Println(name, addressOf(file))
	}
	out, err := exec.Command("/bin/sh", "-c", `env | grep LISTEN; for fd in /proc/$$/fd/*; do readlink "$fd" | grep socket; done; echo end`).
		CombinedOutput()
	fmt.Printf("%v %s", err, out)
}

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// hold returns a socket at any port of the loopback address, which is held until the test ends.
func hold(t *testing.T, s *Set, name string) Held {
	t.Helper()
	held, opened, err := s.Hold(t.Context(), Socket{Name: name, Address: freeAddress(t)}, quiet)
	if err != nil || !opened {
		t.Fatal(opened, err)
	}
	return held
}

// set returns an empty set.
func set(t *testing.T) *Set {
	t.Helper()
	s := &Set{}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// freeAddress returns an address on which nothing listens.
func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	return listener.Addr().String()
}

func TestAProcessHasTheSocketsThatItWasGivenAndWhatItStartsHasNone(t *testing.T) {
	s := set(t)
	one, two := hold(t, s, "one"), hold(t, s, "two")
	cmd := exec.Command(os.Args[0], child)
	Give(cmd, []Held{one, two})
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("the child failed: %v\n%s", err, out)
	}
	for _, want := range []string{"one " + addressOf(one.File) + "\n", "two " + addressOf(two.File) + "\n", "<nil> end\n"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("it says %q, which has not %q", out, want)
		}
	}
	// Another process inherits none of them.
	if out, err = exec.Command(os.Args[0], child).CombinedOutput(); err != nil || string(out) != "<nil> end\n" {
		t.Errorf("one that was given none says %q, %v", out, err)
	}
}

// TestSocketsOfAnotherProcessAreNotTaken: neither those for another process, nor descriptors that are not sockets.
func TestSocketsOfAnotherProcessAreNotTaken(t *testing.T) {
	one := hold(t, set(t), "one")
	for what, change := range map[string]func(*exec.Cmd){
		"another process": func(cmd *exec.Cmd) { cmd.Env = append(cmd.Env, "LISTEN_PID=1") },
		"no socket":       func(cmd *exec.Cmd) { cmd.ExtraFiles[0] = os.Stdin },
		"not there":       func(cmd *exec.Cmd) { cmd.ExtraFiles = nil },
	} {
		cmd := exec.Command(os.Args[0], child)
		Give(cmd, []Held{one})
		change(cmd)
		out, err := cmd.CombinedOutput()
		if err != nil || strings.Contains(string(out), "one ") || strings.Contains(string(out), "LISTEN") {
			t.Errorf("%s: it says %q, %v, want text without %q and without %q", what, out, err, "one ", "LISTEN")
		}
	}
}

func TestASocketIsTakenForItsAddressAlone(t *testing.T) {
	listener := func(network, address string) net.Listener {
		l, err := net.Listen(network, address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := l.Close(); err != nil {
				t.Error(err)
			}
		})
		return l
	}
	loopback, all, only4, only6 := listener(
		"tcp",
		"127.0.0.1:0",
	), listener(
		"tcp",
		":0",
	), listener(
		"tcp4",
		"0.0.0.0:0",
	), listener(
		"tcp6",
		"[::]:0",
	)
	for _, c := range []struct {
		listener net.Listener
		host     string
		want     bool
	}{
		{loopback, "127.0.0.1", true},
		{loopback, "localhost", true},
		{loopback, "0.0.0.0", false},
		{loopback, "127.0.0.2", false},
		{loopback, "::1", false},
		{all, "0.0.0.0", true},
		{all, "::", true},
		{all, "", true},
		{all, "127.0.0.1", false},
		{only4, "0.0.0.0", true},
		{only4, "::", false},
		{only6, "0.0.0.0", false},
		{only6, "::", false},
	} {
		_, port, err := net.SplitHostPort(c.listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if why := fits(c.listener, net.JoinHostPort(c.host, port)); (why == nil) != c.want {
			t.Errorf("a socket at %s for the address %s: %v", c.listener.Addr(), c.host, why)
		}
		if fits(c.listener, net.JoinHostPort(c.host, "1")) == nil || fits(c.listener, net.JoinHostPort(c.host, "0")) == nil {
			t.Errorf("a socket at %s is taken for another port", c.listener.Addr())
		}
	}
	unixSocket := listener("unix", filepath.Join(t.TempDir(), "s"))
	if fits(unixSocket, "127.0.0.1:1") == nil {
		t.Error("a unix socket is taken for a TCP socket")
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	bound := os.NewFile(uintptr(fd), "bound")
	defer bound.Close() //nolint:errcheck // nothing was written
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if has(bound, addressOf(bound)) {
		t.Error("a socket that does not listen is taken")
	}
}

func TestAConnectionWaitsForAListener(t *testing.T) {
	s := set(t)
	held := hold(t, s, "one")
	socket := Socket{Name: "one", Address: addressOf(held.File)}
	for range 2 { // the listener of a restarted process
		client, err := net.Dial("tcp", socket.Address)
		if err != nil {
			t.Fatal(err)
		}
		listener, err := s.Listen(t.Context(), socket, quiet)
		if err != nil {
			t.Fatal(err)
		}
		server, err := listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []io.Closer{client, server, listener} {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestAnOldAddressIsNotServedAfterAChange, whether the holder or the process with the socket learns of it
// first.
func TestAnOldAddressIsNotServedAfterAChange(t *testing.T) {
	refused := func(what, address string) {
		t.Helper()
		if conn, err := net.Dial("tcp", address); err == nil {
			t.Errorf("%s: %s takes connections", what, address)
			if err := conn.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	s := set(t)
	old := addressOf(hold(t, s, "one").File)
	changed := hold(t, s, "one")
	refused("the holder has another address", old)
	again, opened, err := s.Hold(t.Context(), Socket{Name: "one", Address: addressOf(changed.File)}, quiet)
	if err != nil || !opened || again != changed {
		t.Errorf("the address is as it was, and it is given %v and not %v, %v", again, changed, err)
	}
	if _, opened, err := s.Hold(t.Context(), Socket{Name: "one"}, quiet); opened || err != nil {
		t.Errorf("it is turned off, and there is a socket, %v", err)
	}
	refused("the holder has none", addressOf(changed.File))

	given := set(t)
	one, two, three := hold(t, given, "one"), hold(t, given, "two"), hold(t, given, "three")
	// The parent of the process holds a copy, and would keep the port open.
	copied, err := unix.FcntlInt(two.File.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(copied) //nolint:errcheck // nothing was written
	addresses := []string{addressOf(one.File), addressOf(two.File), addressOf(three.File)}
	given.Keep([]Socket{{Name: "one", Address: addresses[0]}, {Name: "two", Address: freeAddress(t)}}, quiet)
	refused("the process has another address", addresses[1])
	if again, err := net.Listen("tcp", addresses[1]); err != nil {
		t.Errorf("the address is not free: %v", err)
	} else if err := again.Close(); err != nil {
		t.Error(err)
	}
	refused("the process knows no such socket", addresses[2])
	listener, err := given.Listen(t.Context(), Socket{Name: "one", Address: addresses[0]}, quiet)
	if err != nil {
		t.Fatal(err)
	}
	if err := listener.Close(); err != nil {
		t.Error(err)
	}
}

func TestAPortThatIsTakenIsNotHeld(t *testing.T) {
	taken := addressOf(hold(t, set(t), "one").File)
	if _, opened, err := set(t).Hold(t.Context(), Socket{Name: "one", Address: taken}, quiet); opened || err == nil ||
		!strings.Contains(err.Error(), "address already in use") {
		t.Errorf("Hold() = %v, %v, want false and an error with %q", opened, err, "address already in use")
	}
}

// TestSystemdKeepsSockets checks that systemd gets the sockets that a process has opened, and none with a former
// address.
func TestSystemdKeepsSockets(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer manager.Close() //nolint:errcheck // nothing was written
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	await := func(want string) (file *os.File) {
		t.Helper()
		message, rights := make([]byte, 200), make([]byte, 100)
		if err := manager.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
			t.Fatal(err)
		}
		n, m, _, _, err := manager.ReadMsgUnix(message, rights)
		if err != nil || string(message[:n]) != want {
			t.Fatalf("systemd is told %q, %v; want %q: %s", message[:max(n, 0)], err, want, &log)
		}
		parsed, err := syscall.ParseSocketControlMessage(rights[:m])
		if err != nil || len(parsed) == 0 {
			return nil
		}
		fds, err := syscall.ParseUnixRights(&parsed[0])
		if err != nil || len(fds) != 1 {
			t.Fatal(fds, err)
		}
		return os.NewFile(uintptr(fds[0]), "stored")
	}
	s := &Set{systemd: systemd.Notifier{Socket: path}}
	socket := Socket{Name: "port", Address: freeAddress(t)}
	listener, err := s.Listen(t.Context(), socket, logger)
	if err != nil {
		t.Fatal(err)
	}
	stored := await("FDSTORE=1\nFDNAME=port")
	if err := listener.Close(); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if !has(stored, socket.Address) {
		t.Errorf("systemd keeps %s, want %s", addressOf(stored), socket.Address)
	}

	// The next start with the same address gets the socket, and sends nothing to systemd.
	next := &Set{systemd: systemd.Notifier{Socket: path}, held: map[string]*os.File{"port": stored}}
	if listener, err = next.Listen(t.Context(), socket, logger); err != nil {
		t.Fatal(err)
	}
	if err := listener.Close(); err != nil {
		t.Error(err)
	}
	next.Keep([]Socket{{Name: "port", Address: freeAddress(t)}}, logger)
	await("FDSTOREREMOVE=1\nFDNAME=port")
	if strings.Contains(log.String(), "WARN") {
		t.Errorf("log\n%s\nwant no warning", log.String())
	}
}
