package server

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	nodev1 "github.com/quartet-node/quartet/gen/quartet/node/v1"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/services/nodestatus/internal/eviction"
	"github.com/quartet-node/quartet/services/nodestatus/internal/nodeobject"
)

func TestBeforeTheFirstNode(t *testing.T) {
	health := rpc.NewHealth()
	health.Set("pleg", "pleg is away")
	s := New(
		Config{
			NodeName: "node-1",
			Health:   health,
			Overdue:  func() error { return errors.New("no Node has been computed yet") },
		},
	)
	defer s.Close()
	if _, err := s.GetNode(
		t.Context(),
		nil,
	); status.Code(err) != codes.Unavailable ||
		!strings.Contains(err.Error(), "no Node has been computed yet") {
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
	s := New(Config{NodeName: "node-1", Health: rpc.NewHealth(), Overdue: func() error { return nil }})
	defer s.Close()
	node := &v1.Node{}
	node.Name = "node-1"
	at := time.Unix(1_700_000_000, 0)
	pressing := []eviction.Signal{{Name: "memory.available", Available: 1, Threshold: 2, Hard: true, At: at}}
	if err := s.Publish(nodeobject.State{Node: node, Eviction: eviction.State{Pressing: pressing}}); err != nil {
		t.Fatal(err)
	}
	got, err := s.GetNode(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	want := []*nodev1.EvictionSignal{
		{Signal: "memory.available", Available: 1, Threshold: 2, Hard: true, ReadAt: timestamppb.New(at)},
	}
	if diff := cmp.Diff(want, got.GetNode().GetEvictionSignals(), protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestInAClusterTheNodeIsServedAsTheAPIServerHasIt, with the status of this machine, and marked as existing only while
// it exists.
func TestInAClusterTheNodeIsServedAsTheAPIServerHasIt(t *testing.T) {
	s := New(Config{NodeName: "node-1", Health: rpc.NewHealth(), Overdue: func() error { return nil }})
	defer s.Close()
	is := func(synced bool, uid types.UID, disk, machine string) {
		t.Helper()
		got, err := s.GetNode(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		var node v1.Node
		if err := node.Unmarshal(got.GetNode().GetNode()); err != nil {
			t.Fatal(err)
		}
		if got.GetNode().GetStandalone() || got.GetNode().GetSynced() != synced || node.UID != uid ||
			node.Labels["disk"] != disk ||
			node.Status.NodeInfo.MachineID != machine {
			t.Errorf("standalone %t, synced %t, the Node %+v", got.GetNode().GetStandalone(), got.GetNode().GetSynced(), node)
		}
	}
	computed := func(machine string) nodeobject.State {
		return nodeobject.State{Node: &v1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "node-1", Labels: map[string]string{"disk": "own"}},
			Status:     v1.NodeStatus{NodeInfo: v1.NodeSystemInfo{MachineID: machine}},
		}}
	}
	existing := func(uid types.UID) *v1.Node {
		return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", UID: uid, Labels: map[string]string{"disk": "theirs"}}}
	}
	for _, step := range []struct {
		do                 func() error
		synced             bool
		uid, disk, machine string
	}{
		{func() error { return s.Publish(computed("a")) }, false, "", "own", "a"},
		{func() error { return s.Registered(existing("first")) }, true, "first", "theirs", "a"},
		{func() error { return s.Publish(computed("b")) }, true, "first", "theirs", "b"},
		{func() error { return s.Registered(nil) }, false, "", "own", "b"},
		{func() error { return s.Registered(existing("second")) }, true, "second", "theirs", "b"},
	} {
		if err := step.do(); err != nil {
			t.Fatal(err)
		}
		is(step.synced, types.UID(step.uid), step.disk, step.machine)
	}
}

// TestTheVolumesAreThoseOfTheAPIServer: they are in use or attached only when the API server says so.
func TestTheVolumesAreThoseOfTheAPIServer(t *testing.T) {
	s := New(Config{NodeName: "node-1", Health: rpc.NewHealth(), Overdue: func() error { return nil }})
	defer s.Close()
	if err := s.Publish(nodeobject.State{Node: &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}}}); err != nil {
		t.Fatal(err)
	}
	want := v1.NodeStatus{
		VolumesInUse: []v1.UniqueVolumeName{"v"}, VolumesAttached: []v1.AttachedVolume{{Name: "v", DevicePath: "/dev/x"}},
	}
	if err := s.Registered(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}, Status: want}); err != nil {
		t.Fatal(err)
	}
	got, err := s.GetNode(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var node v1.Node
	if err := node.Unmarshal(got.GetNode().GetNode()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, node.Status); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestTheAPIServerMayHaveTheNodeBeforeItIsComputed(t *testing.T) {
	s := New(Config{NodeName: "node-1", Health: rpc.NewHealth(), Overdue: func() error { return nil }})
	defer s.Close()
	if err := s.Registered(&v1.Node{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.GetNode(t.Context(), nil); status.Code(err) != codes.Unavailable {
		t.Errorf("got %v, want UNAVAILABLE", err)
	}
}

// TestHeartbeatsAreServedWhileSomebodyWatches: nothing is encoded without a subscriber.
func TestHeartbeatsAreServedWhileSomebodyWatches(t *testing.T) {
	s := New(Config{NodeName: "node", Health: rpc.NewHealth(), Overdue: func() error { return nil }})
	defer s.Close()
	input := nodeobject.Input{Settings: nodeobject.Settings{Name: "node"}}
	s.Observed(input, nodeobject.Build(input))
	if _, has := s.heartbeats.Get("node"); has {
		t.Error("there is a heartbeat that nobody has asked for")
	}
	sub, err := s.heartbeats.Subscribe(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	s.Observed(input, nodeobject.Build(input))
	if got, has := s.heartbeats.Get("node"); !has || len(got.GetInput()) == 0 || len(got.GetOutput()) == 0 {
		t.Errorf("the heartbeat is %v, want one with input and result", got)
	}
}
