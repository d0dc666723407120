// Package fakesite is a configmux on the network for tests: it serves what a test gives, to the certificates of nodes.
package fakesite

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/nodeprocess/nodeprocesstest"
	"github.com/quartet-node/quartet/internal/peertls"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/test/authority"
	"github.com/quartet-node/quartet/test/freeport"
	"github.com/quartet-node/quartet/test/harness"
)

// Site is a running configmux.
type Site struct {
	Address string
	// Node is the certificate of the node node-1.
	Node peertls.Files
}

// Serve serves until the test ends.
func Serve(t testing.TB, service configv1.ConfigServiceServer) *Site {
	t.Helper()
	port, err := freeport.Find()
	if err != nil {
		t.Fatal(err)
	}
	ca := authority.New(t, "ca")
	s := &Site{Address: fmt.Sprintf("127.0.0.1:%d", port), Node: ca.Issue(t, t.TempDir(), authority.Request{
		Name: "system:node:node-1", Groups: []string{"system:nodes"},
	})}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- rpc.Serve(ctx, rpc.Config{
			Address: "unix://" + filepath.Join(harness.ShortDir(t), "configmux.sock"), Health: rpc.NewHealth(),
			Logger: slog.New(slog.DiscardHandler), Ready: func() { close(ready) },
			Network: peertls.Listen{
				Address: s.Address, Nodes: true,
				Files: ca.Issue(t, t.TempDir(), authority.Request{Hosts: []string{"127.0.0.1", "configmux"}}),
			},
			Register: func(server *grpc.Server) { configv1.RegisterConfigServiceServer(server, service) },
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	select {
	case <-ready:
	case err := <-done:
		done <- err
		t.Fatal(err)
	}
	return s
}

// FollowedBy runs a process in the place of the syncloop of a state directory that follows the site.
func (s *Site) FollowedBy(t testing.TB, stateDir string) {
	t.Helper()
	nodeprocesstest.Start(t, stateDir, layout.SyncLoop, "--configmux-address="+s.Address, "--configmux-objects",
		"--tls-cert="+s.Node.Cert, "--tls-key="+s.Node.Key, "--tls-ca="+s.Node.CA)
}
