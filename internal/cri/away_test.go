package cri_test

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
)

// TestARuntimeThatCannotBeUsedIsOneLineThatSaysWhatToDo checks the error and the log, which has it once.
func TestARuntimeThatCannotBeUsedIsOneLineThatSaysWhatToDo(t *testing.T) {
	dir, err := os.MkdirTemp("", "cri")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	listen := func(name string) net.Listener {
		listener, err := net.Listen("unix", filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			// An error means that the server has closed it already.
			_ = listener.Close()
		})
		return listener
	}
	stale := listen("stale.sock")
	stale.(*net.UnixListener).SetUnlinkOnClose(false) //nolint:forcetypeassert // net.Listen makes one
	if err := stale.Close(); err != nil {
		t.Fatal(err)
	}
	// containerd without its CRI plugin: gRPC, but no service of that name.
	server, served := grpc.NewServer(), make(chan error, 1)
	without := listen("without.sock")
	go func() { served <- server.Serve(without) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	for socket, want := range map[string][]string{
		"none.sock":    {"no such file or directory: start it, or name its socket with containerRuntimeEndpoint or --container-runtime-endpoint", "in a container, see that the directory"},
		"stale.sock":   {"connection refused: nothing serves on that socket any more: start the runtime"},
		"without.sock": {"unknown service runtime.v1.RuntimeService: it does not serve CRI v1, which containerd does from 1.6 on", "disabled_plugins in /etc/containerd/config.toml"},
	} {
		t.Run(socket, func(t *testing.T) {
			endpoint := "unix://" + filepath.Join(dir, socket)
			log, err := unusable(t, endpoint, want[0])
			logged := strings.ReplaceAll(log, `\"`, `"`)
			for _, part := range append(want, "the container runtime at "+endpoint+" does not answer: ") {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("the error lacks %q: %v", part, err)
				}
				if !strings.Contains(logged, part) {
					t.Errorf("the log lacks %q: %s", part, logged)
				}
			}
			if strings.Count(log, "\n") != 1 || strings.Contains(err.Error(), "\n") {
				t.Errorf("more than a line: %s\n%v", log, err)
			}
		})
	}
}
