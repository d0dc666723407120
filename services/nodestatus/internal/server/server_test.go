package server

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	v1 "k8s.io/api/core/v1"

	nodev1 "github.com/quartet-node/quartet/gen/quartet/node/v1"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/services/nodestatus/internal/nodeobject"
)

func TestBeforeTheFirstNode(t *testing.T) {
	health := rpc.NewHealth()
	health.Set("pleg", "pleg is away")
	s := New("node-1", health, func() error { return errors.New("no Node has been computed yet") }, nil)
	defer s.Close()
	if _, err := s.GetNode(t.Context(), nil); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "no Node has been computed yet") {
		t.Errorf("got %v, want UNAVAILABLE with the reason", err)
	}
	got, err := s.GetHealth(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	want := &nodev1.GetHealthResponse{Reasons: []string{"no Node has been computed yet", "pleg is away"}}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestSignalsAreServedWithTheNode(t *testing.T) {
	s := New("node-1", rpc.NewHealth(), func() error { return nil }, nil)
	defer s.Close()
	node := &v1.Node{}
	node.Name = "node-1"
	if err := s.Publish(nodeobject.State{Node: node, Signals: []nodeobject.Signal{{Name: "memory.available", Available: 1, Threshold: 2}}}); err != nil {
		t.Fatal(err)
	}
	got, err := s.GetNode(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	want := []*nodev1.EvictionSignal{{Signal: "memory.available", Available: 1, Threshold: 2, Hard: true}}
	if diff := cmp.Diff(want, got.GetNode().GetEvictionSignals(), protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
