package watchdog_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"

	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/watchdog"
)

func TestOnlyAProcessThatServesAndStandsIsAsked(t *testing.T) {
	dir := t.TempDir()
	serving, stuck := rpc.NewHealth(), rpc.NewHealth()
	stuck.SetStuck([]string{"relist"})
	serving.Set("runtime", "it is away")
	for name, health := range map[string]*rpc.Health{"serving": serving, "stuck": stuck} {
		ready := make(chan struct{})
		started(t, func(ctx context.Context) {
			if err := rpc.Serve(ctx, rpc.Config{
				Address: "unix://" + filepath.Join(dir, name), Health: health, Register: func(*grpc.Server) {},
				Ready: func() { close(ready) },
			}); err != nil {
				t.Error(err)
			}
		})
		<-ready
	}
	hangs, err := net.Listen("unix", filepath.Join(dir, "hangs"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := hangs.Close(); err != nil {
			t.Error(err)
		}
	}()
	for name, test := range map[string]struct {
		pid  int
		want string
	}{
		"serving": {os.Getpid(), ""},
		"stuck":   {os.Getpid(), "a loop of it stands still"},
		"hangs":   {os.Getpid(), "hangs: rpc error: code ="},
		"none":    {os.Getpid(), ""},
	} {
		for pid, want := range map[int]string{test.pid: test.want, test.pid + 1: ""} { // the other one is another process
			asker, err := watchdog.NewAsker("unix://" + filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			if err := asker.Ask(t.Context(), pid); err != nil {
				got = err.Error()
			}
			if !strings.Contains(got, want) || want == "" && got != "" {
				t.Errorf("%s: %q, want %q", name, got, want)
			}
			if err := asker.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}
