package plugins_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	registrationv1 "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/metrics/metricstest"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/plugins"
	"github.com/quartet-node/quartet/test/eventually"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// served is a plugin with a real socket.
type served struct {
	registrationv1.UnimplementedRegistrationServer

	socket string
	stop   func()

	mu   sync.Mutex
	info *registrationv1.PluginInfo
	// hang delays GetInfo until it is closed.
	hang     chan struct{}
	calls    int
	notified []*registrationv1.RegistrationStatus
}

func (s *served) GetInfo(ctx context.Context, _ *registrationv1.InfoRequest) (*registrationv1.PluginInfo, error) {
	s.mu.Lock()
	s.calls++
	hang, info := s.hang, s.info
	s.mu.Unlock()
	if hang != nil {
		select {
		case <-hang:
		case <-ctx.Done():
		}
	}
	return info, nil
}

func (s *served) NotifyRegistrationStatus(
	_ context.Context, status *registrationv1.RegistrationStatus,
) (*registrationv1.RegistrationStatusResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notified = append(s.notified, status)
	return &registrationv1.RegistrationStatusResponse{}, nil
}

func (s *served) registered() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.notified) > 0 && s.notified[len(s.notified)-1].GetPluginRegistered()
}

// refusal returns the last reason why the plugin was not registered.
func (s *served) refusal() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.notified) == 0 {
		return ""
	}
	return s.notified[len(s.notified)-1].GetError()
}

// serve serves a plugin on a socket until the test ends or stop is called, which removes the socket.
func serve(t *testing.T, socket string, s *served) *served {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(socket), 0o750); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s.socket = socket
	server := grpc.NewServer()
	registrationv1.RegisterRegistrationServer(server, s)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()
	s.stop = sync.OnceFunc(func() {
		server.Stop()
		<-done
	})
	t.Cleanup(s.stop)
	return s
}

func csi(name string) *served {
	return &served{info: &registrationv1.PluginInfo{
		Type: registrationv1.CSIPlugin, Name: name, SupportedVersions: []string{"1.0.0"},
	}}
}

// handler records its calls, and refuses names with a fault.
type handler struct {
	mu     sync.Mutex
	calls  []string
	faults map[string]error
	now    map[string]plugins.Plugin
}

func (h *handler) call(format string, args ...any) {
	h.calls = append(h.calls, fmt.Sprintf(format, args...))
}

func (h *handler) Validate(_ context.Context, p plugins.Plugin) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.faults["validate "+p.Name]
}

func (h *handler) Register(_ context.Context, p plugins.Plugin) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.call("register %s", p.Name)
	if err := h.faults["register "+p.Name]; err != nil {
		return err
	}
	if h.now == nil {
		h.now = map[string]plugins.Plugin{}
	}
	h.now[p.Name] = p
	return nil
}

func (h *handler) Deregister(_ context.Context, p plugins.Plugin) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.call("deregister %s", p.Name)
	delete(h.now, p.Name)
}

func (h *handler) mend() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.faults = nil
}

func (h *handler) has(name string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, ok := h.now[name]
	return ok
}

func (h *handler) made() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.calls)
}

// log is a log that is read while it is written.
type log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *log) has(words ...string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.text.String()) {
		if !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(line, word) }) {
			return true
		}
	}
	return false
}

func (l *log) count(words string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), words)
}

// rig is a manager on a temporary folder.
type rig struct {
	dir      string
	handler  *handler
	log      *log
	registry *prometheus.Registry
	stop     func()
}

func start(t *testing.T, dir string, h *handler) *rig {
	t.Helper()
	r := &rig{dir: dir, handler: h, log: &log{}, registry: prometheus.NewRegistry()}
	manager := plugins.New(plugins.Config{
		Dir: dir, Handlers: map[string]plugins.Handler{registrationv1.CSIPlugin: h}, Clock: clock.RealClock{},
		Metrics: plugins.NewMetrics(r.registry), Logger: slog.New(slog.NewTextHandler(r.log, nil)),
	})
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- manager.Run(ctx) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("it ended with %v, want %v", err, context.Canceled)
		}
	})
	t.Cleanup(r.stop)
	return r
}

// folder returns a folder whose path is short enough for sockets.
func folder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "plugins")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return filepath.Join(dir, "plugins_registry")
}

func TestPluginsComeAndGo(t *testing.T) {
	dir, h := folder(t), &handler{}
	before := serve(t, filepath.Join(dir, "before.sock"), csi("before"))
	r := start(t, dir, h)
	eventually.That(t, "the plugin that was there is registered", before.registered)
	after := csi("after")
	after.info.Endpoint = "/somewhere/csi.sock"
	serve(t, filepath.Join(dir, "deeper", "still", "after.sock"), after)
	eventually.That(t, "a plugin in a new sub-folder is registered", after.registered)
	h.mu.Lock()
	if got := h.now["before"].Endpoint; got != before.socket {
		t.Errorf("the endpoint is %s, want the socket", got)
	}
	if got := h.now["after"].Endpoint; got != "/somewhere/csi.sock" {
		t.Errorf("the endpoint is %s, want the plugin's", got)
	}
	h.mu.Unlock()
	labels := []string{"socket_path", before.socket, "state"}
	metricstest.Want(t, r.registry, 1, "plugin_manager_total_plugins", append(labels, plugins.StateActual)...)
	metricstest.Want(t, r.registry, 1, "plugin_manager_total_plugins", append(labels, plugins.StateDesired)...)
	before.stop()
	eventually.That(t, "it is deregistered", func() bool { return !h.has("before") })
	if !h.has("after") {
		t.Error("the other one is deregistered, too")
	}
	r.stop()
	if want := []string{"register before", "register after", "deregister before"}; !slices.Equal(h.made(), want) {
		t.Errorf("calls %v, want %v: the end of the process deregisters nothing", h.made(), want)
	}
}

func TestARestartRegistersTheSameSocketsAgain(t *testing.T) {
	dir := folder(t)
	plugin := serve(t, filepath.Join(dir, "a.sock"), csi("a"))
	for range 2 {
		h := &handler{}
		r := start(t, dir, h)
		eventually.That(t, "it is registered", func() bool { return h.has("a") })
		r.stop()
	}
	_ = plugin
}

func TestAReplacedSocketIsRegisteredAgain(t *testing.T) {
	dir, h := folder(t), &handler{}
	socket := filepath.Join(dir, "a.sock")
	old := serve(t, socket, csi("a"))
	start(t, dir, h)
	eventually.That(t, "the old one is registered", old.registered)
	aside := filepath.Join(filepath.Dir(dir), "aside.sock")
	fresh := serve(t, aside, csi("a"))
	if err := os.Rename(aside, socket); err != nil { // in one step, so that the path always exists
		t.Fatal(err)
	}
	eventually.That(t, "the new one is registered", fresh.registered)
	if want := []string{"register a", "deregister a", "register a"}; !slices.Equal(h.made(), want) {
		t.Errorf("calls %v, want %v", h.made(), want)
	}
}

func TestAHangingPluginDelaysNoOtherAndIsLeftWhenItGoes(t *testing.T) {
	dir, h := folder(t), &handler{}
	hanging := csi("hanging")
	hanging.hang = make(chan struct{})
	serve(t, filepath.Join(dir, "a.sock"), hanging)
	defer close(hanging.hang)
	deaf, err := net.Listen("unix", filepath.Join(dir, "b.sock")) // accepts and never answers
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = deaf.Close() }()
	other := serve(t, filepath.Join(dir, "c.sock"), csi("c"))
	start(t, dir, h)
	eventually.That(t, "the other one is registered", other.registered)
	eventually.That(t, "the hanging one is asked", func() bool {
		hanging.mu.Lock()
		defer hanging.mu.Unlock()
		return hanging.calls > 0
	})
	// A plugin that takes the path of the hanging one does not wait for it.
	aside := filepath.Join(filepath.Dir(dir), "aside.sock")
	fresh := serve(t, aside, csi("fresh"))
	if err := os.Rename(aside, filepath.Join(dir, "a.sock")); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	eventually.That(t, "its successor is registered", fresh.registered)
	if took := time.Since(began); took > 8*time.Second {
		t.Errorf("the successor waited %v for the deadline of the hanging one", took)
	}
}

func TestARefusedPluginIsNotifiedLoggedAndRetried(t *testing.T) {
	dir := folder(t)
	h := &handler{faults: map[string]error{
		"validate old":  errors.New("version 0.3 is too old"),
		"register lazy": errors.New("it has no node ID"),
	}}
	strange := csi("strange")
	strange.info.Type = "TeaPot"
	refused := map[string]*served{"strange": strange, "old": csi("old"), "lazy": csi("lazy")}
	for name, plugin := range refused {
		serve(t, filepath.Join(dir, name+".sock"), plugin)
	}
	words := map[string]string{
		"strange": "RegisterPlugin error -- no handler registered for plugin type: TeaPot at socket ",
		"old":     "RegisterPlugin error -- plugin validation failed with err: version 0.3 is too old",
		"lazy":    "RegisterPlugin error -- plugin registration failed with err: it has no node ID",
	}
	good := serve(t, filepath.Join(dir, "good.sock"), csi("good"))
	r := start(t, dir, h)
	eventually.That(t, "the good one is registered", good.registered)
	for name, plugin := range refused {
		eventually.That(t, name+" is told why", func() bool { return strings.HasPrefix(plugin.refusal(), words[name]) })
		eventually.That(t, name+" is logged", func() bool {
			return r.log.has("a plugin is not registered; retrying", filepath.Join(dir, name+".sock"), "retry_after=500ms")
		})
	}
	h.mend()
	eventually.That(t, "they are tried again", func() bool { return h.has("old") && h.has("lazy") })
	if n := r.log.count("version 0.3 is too old"); n != 1 {
		t.Errorf("the log has the same error %d times, want 1", n)
	}
}

func TestADeadSocketIsNamedAndReplaced(t *testing.T) {
	dir, h := folder(t), &handler{}
	socket := filepath.Join(dir, "dead.sock")
	if err := os.MkdirAll(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket})
	if err != nil {
		t.Fatal(err)
	}
	listener.SetUnlinkOnClose(false)
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	r := start(t, dir, h)
	eventually.That(t, "the dead socket is named", func() bool {
		return r.log.has("a plugin is not registered", "dead.sock", "connection refused")
	})
	if err := os.Remove(socket); err != nil {
		t.Fatal(err)
	}
	alive := serve(t, socket, csi("alive"))
	eventually.That(t, "its successor is registered", alive.registered)
}

func TestOtherFilesAreIgnored(t *testing.T) {
	dir, h := folder(t), &handler{}
	hidden := serve(t, filepath.Join(dir, ".hidden.sock"), csi("hidden"))
	within := serve(t, filepath.Join(dir, ".folder", "a.sock"), csi("within"))
	elsewhere := serve(t, filepath.Join(filepath.Dir(dir), "elsewhere", "b.sock"), csi("elsewhere"))
	if err := os.Symlink(filepath.Dir(elsewhere.socket), filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{"loop": ".", "gone": "nowhere", "itself": "itself"} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "a-file.sock"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	linked := serve(t, filepath.Join(filepath.Dir(dir), "linked.sock"), csi("linked"))
	if err := os.Symlink(linked.socket, filepath.Join(dir, "linked.sock")); err != nil {
		t.Fatal(err)
	}
	good := serve(t, filepath.Join(dir, "good.sock"), csi("good"))
	r := start(t, dir, h)
	eventually.That(t, "the good one is registered", good.registered)
	eventually.That(t, "the linked one is registered", linked.registered)
	for _, other := range []*served{hidden, within, elsewhere} {
		other.mu.Lock()
		if other.calls > 0 {
			t.Errorf("%s is asked", other.socket)
		}
		other.mu.Unlock()
	}
	if r.log.has("WARN") {
		t.Error("the log has a warning")
	}
}

func TestAPluginThatSaysTooMuchIsNotHeard(t *testing.T) {
	dir, h := folder(t), &handler{}
	talkative := csi(strings.Repeat("a", 100_000))
	serve(t, filepath.Join(dir, "a.sock"), talkative)
	r := start(t, dir, h)
	eventually.That(t, "it is logged", func() bool { return r.log.has("a plugin is not registered", "larger than max") })
	if n := len(h.made()); n > 0 {
		t.Errorf("%d calls", n)
	}
}

func TestAFolderThatIsReplacedIsFollowed(t *testing.T) {
	dir, h := folder(t), &handler{}
	serve(t, filepath.Join(dir, "a.sock"), csi("a"))
	start(t, dir, h)
	eventually.That(t, "a is registered", func() bool { return h.has("a") })
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	eventually.That(t, "a is deregistered", func() bool { return !h.has("a") })
	serve(t, filepath.Join(dir, "b.sock"), csi("b"))
	eventually.That(t, "b is registered", func() bool { return h.has("b") })
}

func TestAPluginThatCannotBeNotifiedIsNotRegistered(t *testing.T) {
	dir, h := folder(t), &handler{}
	plugin := &mute{served: csi("a")}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", filepath.Join(dir, "a.sock"))
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	registrationv1.RegisterRegistrationServer(server, plugin)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	defer serving.Wait()
	defer server.Stop()
	r := start(t, dir, h)
	eventually.That(t, "it is logged", func() bool { return r.log.has("notify the plugin that it is registered", "out of tea") })
	r.stop()
	made := h.made()
	if len(made) < 2 || made[0] != "register a" || made[1] != "deregister a" {
		t.Errorf("calls %v", made)
	}
}

// mute cannot be notified.
type mute struct{ *served }

func (*mute) NotifyRegistrationStatus(
	context.Context, *registrationv1.RegistrationStatus,
) (*registrationv1.RegistrationStatusResponse, error) {
	return nil, errors.New("out of tea")
}
