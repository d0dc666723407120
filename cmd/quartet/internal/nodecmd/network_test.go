package nodecmd

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/peertls"
	"github.com/quartet-node/quartet/internal/sockets"
	"github.com/quartet-node/quartet/internal/systemd"
	"github.com/quartet-node/quartet/test/authority"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/freeport"
	"github.com/quartet-node/quartet/test/logbuffer"
)

func TestMain(m *testing.M) {
	// The first argument of a program that replaces a service, and of no test.
	if len(os.Args) > 1 && strings.HasPrefix(os.Args[1], "--listen=") {
		if err := bePart(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// bePart is a part of a node: it answers each connection to its --tls-listen with its process ID, and ends when it
// cannot listen any more. Without the flag it waits for SIGTERM.
func bePart(args []string) error {
	given := sockets.Take(systemd.Notifier{})
	socket := sockets.Socket{Name: peertls.FlagListen}
	for _, arg := range args {
		if address, found := strings.CutPrefix(arg, "--"+peertls.FlagListen+"="); found {
			socket.Address = address
		}
	}
	given.Keep([]sockets.Socket{socket}, slog.Default())
	if socket.Address == "" {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		<-ctx.Done()
		return nil
	}
	listener, err := given.Listen(context.Background(), socket, slog.Default())
	if err != nil {
		return err
	}
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		if _, err := fmt.Fprint(conn, os.Getpid()); err != nil {
			return err
		}
		if err := conn.Close(); err != nil {
			return err
		}
	}
}

// parts is a node whose services are this program.
type parts struct {
	t      *testing.T
	layout layout.Layout
	log    logbuffer.Buffer
}

// startParts starts a node and waits until its four parts run. It is stopped at the end of the test.
func startParts(t *testing.T, opts Options) *parts {
	t.Helper()
	l, err := layout.New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	n := &parts{t: t, layout: l}
	opts.ConfigFile = filepath.Join(t.TempDir(), "kubelet.yaml")
	const config = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nhealthzPort: 0\n"
	if err := os.WriteFile(opts.ConfigFile, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	opts.StateDir, opts.Sockets, opts.Programs.Parts = l.StateDir(), &sockets.Set{}, map[string]string{}
	for _, service := range layout.Services() {
		opts.Programs.Parts[string(service)] = os.Args[0]
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Run(ctx, opts, &n.log) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Log(n.log.String())
		}
	})
	for _, service := range layout.Services() {
		eventually.That(t, string(service)+" runs", func() bool { return n.pid(service) != 0 })
	}
	return n
}

// pid returns the process ID of a service; 0 if it does not run.
func (n *parts) pid(service layout.Service) int {
	text, err := os.ReadFile(n.layout.PIDFile(string(service)))
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0
	}
	return pid
}

// kill kills a service and waits until it has ended.
func (n *parts) kill(service layout.Service) {
	n.t.Helper()
	pid := n.pid(service)
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		n.t.Fatal(err)
	}
	eventually.That(n.t, string(service)+" has ended", func() bool { return n.pid(service) != pid })
}

// ask connects to an address and returns the process ID that answers.
func (n *parts) ask(address string) int {
	n.t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		n.t.Errorf("nobody listens: %v", err)
		return 0
	}
	defer conn.Close() //nolint:errcheck // the answer was read
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		n.t.Fatal(err)
	}
	answer, err := io.ReadAll(conn)
	if err != nil {
		n.t.Errorf("%s has not answered: %v", address, err)
	}
	pid, _ := strconv.Atoi(string(answer)) // 0 for no answer
	return pid
}

// TestARestartEndsNoOtherPart: the sockets for other machines have the same name in each part, and are held for each
// part separately, whether it is served or not.
func TestARestartEndsNoOtherPart(t *testing.T) {
	for name, served := range map[string][]layout.Service{
		"two are served":  {layout.PLEG, layout.SyncLoop},
		"all four served": layout.Services(),
	} {
		t.Run(name, func(t *testing.T) {
			listen := map[string]string{}
			for _, service := range served {
				port, err := freeport.Find()
				if err != nil {
					t.Fatal(err)
				}
				listen[string(service)] = fmt.Sprint("127.0.0.1:", port)
			}
			files := authority.New(t, "ca").Issue(t, t.TempDir(), authority.Request{Name: "node-1"})
			n := startParts(t, Options{
				NodeFlags: node1,
				Network:   NetworkFlags{Listen: listen, Files: files, ObserveNames: "laptop"},
			})
			for _, killed := range append([]layout.Service{layout.NodeStatus}, layout.Services()...) {
				before := map[layout.Service]int{}
				for _, service := range layout.Services() {
					before[service] = n.pid(service)
				}
				n.kill(killed)
				for name, address := range listen {
					answered := n.ask(address)
					if service := layout.Service(name); service != killed && answered != before[service] {
						t.Errorf("%s was killed, and %s has changed from %d to %d", killed, name, before[service], answered)
					}
				}
				eventually.That(t, string(killed)+" runs again", func() bool { return n.pid(killed) != 0 })
				for _, service := range layout.Services() {
					if now := n.pid(service); (now == before[service]) == (service == killed) {
						t.Errorf("%s was killed, and %s has the process %d and had %d", killed, service, now, before[service])
					}
				}
			}
			for _, wrong := range []string{"closing a socket", "tries to listen by itself"} {
				if strings.Contains(n.log.String(), wrong) {
					t.Errorf("the log has %q", wrong)
				}
			}
		})
	}
}
