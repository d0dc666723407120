package service_test

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/service"
)

// patience is enough for a server that answers.
const patience = 10 * time.Second

func TestAServerThatAnswersStandsNotStill(t *testing.T) {
	socket, state := filepath.Join(t.TempDir(), "pleg.sock"), rpc.NewHealth()
	check := service.Answers(t.Context(), state, "unix://"+socket, patience)
	if err := check(); err != nil {
		t.Errorf("before it serves: %v", err)
	}
	serve(t, socket, state)
	state.SetStuck([]string{"relist"})
	if err := check(); err != nil {
		t.Errorf("it answers that a loop stands still: %v", err)
	}
}

func TestAServerThatHangsOrIsGoneStandsStill(t *testing.T) {
	state := rpc.NewHealth()
	dir := filepath.Join(t.TempDir(), "pleg")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "pleg.sock")
	serve(t, socket, state)
	// The place that v0.1.0 has for the socket stays, where root has made it.
	if err := os.Link(socket, layout.EarlierSocket(socket)); err != nil && !errors.Is(err, os.ErrExist) {
		t.Fatal(err)
	}
	if err := os.Remove(socket); err != nil {
		t.Fatal(err)
	}
	check := service.Answers(t.Context(), state, "unix://"+socket, 200*time.Millisecond)
	if err := check(); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("its socket was removed: %v", err)
	}
	// The kernel takes the connection, and nobody answers.
	hangs, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := hangs.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := check(); err == nil || !strings.Contains(err.Error(), socket+" does not answer") {
		t.Errorf("nobody answers: %v", err)
	}
}
