package persistentvolumes_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/persistentvolumes"
	"github.com/quartet-node/quartet/test/nfsserver"
	"github.com/quartet-node/quartet/test/vm"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// export is the directory that the server of the machine exports as its root.
const export = "/tmp/export"

// proxy forwards connections to the server, and can stop to do so.
type proxy struct {
	port int

	mu sync.Mutex
	// flowing is closed while data are forwarded.
	flowing chan struct{}
}

// newProxy starts a proxy, which ends with the test.
func newProxy(t *testing.T) *proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	p := &proxy{port: listener.Addr().(*net.TCPAddr).Port, flowing: make(chan struct{})}
	close(p.flowing)
	var running sync.WaitGroup
	running.Go(func() { p.serve(t, listener, &running) })
	t.Cleanup(func() {
		_ = listener.Close()
		running.Wait()
	})
	return p
}

// serve forwards connections until the listener is closed.
func (p *proxy) serve(t *testing.T, listener net.Listener, running *sync.WaitGroup) {
	for {
		from, err := listener.Accept()
		if err != nil {
			return
		}
		to, err := net.Dial("tcp", fmt.Sprint("127.0.0.1:", nfsserver.Port))
		if err != nil {
			t.Error(err)
			_ = from.Close()
			continue
		}
		running.Go(func() { p.forward(from, to) })
		running.Go(func() { p.forward(to, from) })
	}
}

// forward copies until one of both ends closes the connection.
func (p *proxy) forward(from, to net.Conn) {
	defer func() { _, _ = to.Close(), from.Close() }()
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		p.mu.Lock()
		flowing := p.flowing
		p.mu.Unlock()
		<-flowing
		if n > 0 && err == nil {
			_, err = to.Write(buffer[:n])
		}
		if err != nil {
			return
		}
	}
}

// hang stops forwarding: the server is silent, and its connections stay. goOn continues.
func (p *proxy) hang() (goOn func()) {
	flowing := make(chan struct{})
	p.mu.Lock()
	defer p.mu.Unlock()
	p.flowing = flowing
	return func() { close(flowing) }
}

// realRequest is a volume of the server.
func realRequest(t *testing.T, port int, options ...string) persistentvolumes.Request {
	t.Helper()
	return persistentvolumes.Request{
		Volume: &v1.Volume{Name: "v"}, Dir: filepath.Join(t.TempDir(), "pv-1"),
		PV: &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-1"}, Spec: v1.PersistentVolumeSpec{
			PersistentVolumeSource: v1.PersistentVolumeSource{NFS: &v1.NFSVolumeSource{Server: "127.0.0.1", Path: "/"}},
			MountOptions:           append([]string{fmt.Sprint("port=", port)}, options...),
		}},
	}
}

func TestARealServer(t *testing.T) {
	if !vm.Inside(t, vm.Machine{Modules: nfsserver.Modules(), Programs: nfsserver.Programs()}) {
		return
	}
	_, err := nfsserver.Start(export)
	must(t, err)
	kind := persistentvolumes.NewNFS()
	t.Run("volumes", func(t *testing.T) { checkVolumes(t, kind) })
	t.Run("hang", func(t *testing.T) { checkHang(t, kind) })
}

func checkVolumes(t *testing.T, kind *persistentvolumes.NFS) {
	request := realRequest(t, nfsserver.Port)
	for range 2 {
		path, err := kind.Mount(t.Context(), request)
		must(t, err)
		must(t, os.WriteFile(filepath.Join(path, "file"), []byte("content"), 0o600))
	}
	if content, err := os.ReadFile(filepath.Join(export, "file")); err != nil || string(content) != "content" {
		t.Errorf("the server has %q, %v", content, err)
	}
	reader := realRequest(t, nfsserver.Port)
	reader.ReadOnly = true
	path, err := kind.Mount(t.Context(), reader)
	must(t, err)
	if content, err := os.ReadFile(filepath.Join(path, "file")); err != nil || string(content) != "content" {
		t.Errorf("the reader has %q, %v", content, err)
	}
	if err := os.WriteFile(filepath.Join(path, "file"), nil, 0o600); !errors.Is(err, unix.EROFS) {
		t.Errorf("the reader writes: %v", err)
	}
	for _, dir := range []string{reader.Dir, request.Dir} {
		must(t, kind.Unmount(t.Context(), dir))
		if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left: %v", dir, err)
		}
	}
	missing := realRequest(t, nfsserver.Port)
	missing.PV.Spec.NFS.Path = "/missing"
	_, err = kind.Mount(t.Context(), missing)
	if err == nil || !strings.Contains(err.Error(), "No such file or directory") {
		t.Errorf("an export that does not exist: %v", err)
	}
}

// checkHang unmounts a volume while its server is silent. Nothing else uses the server, so the kernel wants to say
// goodbye to it.
func checkHang(t *testing.T, kind *persistentvolumes.NFS) {
	server := newProxy(t)
	request := realRequest(t, server.port)
	_, err := kind.Mount(t.Context(), request)
	must(t, err)
	goOn := server.hang()
	defer goOn() // then the kernel ends the connection
	if path, err := kind.Mount(t.Context(), request); err != nil || path != request.Dir {
		t.Errorf("a volume that is mounted: %q, %v", path, err)
	}
	isUnmounted(t, kind, request.Dir)
}

// hangTimeout is used instead of the product's minute.
const hangTimeout = 5 * time.Second

// isUnmounted unmounts a volume of a server that hangs.
func isUnmounted(t *testing.T, kind *persistentvolumes.NFS, dir string) {
	t.Helper()
	begin := time.Now()
	ended := make(chan error, 1)
	go func() { ended <- kind.Mounter.UnmountWithForce(dir, hangTimeout) }()
	select {
	case err := <-ended:
		must(t, err)
		t.Log("unmounted after", time.Since(begin))
	case <-time.After(10 * hangTimeout):
		t.Fatal("the unmount hangs")
	}
	must(t, kind.Unmount(t.Context(), dir))
	if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is left: %v", dir, err)
	}
}
