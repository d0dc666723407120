package heartbeats_test

import (
	"bytes"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	"pgregory.net/rapid"

	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/services/nodestatus/internal/eviction"
	"github.com/quartet-node/quartet/services/nodestatus/internal/facts"
	"github.com/quartet-node/quartet/services/nodestatus/internal/heartbeats"
	"github.com/quartet-node/quartet/services/nodestatus/internal/nodeobject"
)

const secret = "hunter2"

// TestARecordedHeartbeatComputesTheSameNode computes Nodes one from the other, as a process does, while the memory
// comes and goes and the peers do, and computes each again from its recording, which has no text of the peers, no image
// and no ID of the machine.
func TestARecordedHeartbeatComputesTheSameNode(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		input := nodeobject.Input{
			Settings: nodeobject.Settings{
				Name: "node", MaxPods: 110, MaxImages: 50, PressureTransition: time.Minute,
				Thresholds: []eviction.Threshold{
					{Signal: eviction.Memory, Value: nodeconfig.Threshold{Quantity: resource.MustParse("100")}},
					{
						Signal: eviction.Memory, Grace: 15 * time.Second, Value: nodeconfig.Threshold{Fraction: 0.5},
						MinReclaim: nodeconfig.Threshold{Quantity: resource.MustParse("50")},
					},
				},
			},
			Machine: facts.Machine{CPUs: 2, MemoryBytes: 1000, MachineID: secret, SystemUUID: secret, BootID: secret},
			Now:     time.Date(2026, 5, 1, 12, 0, 0, 123456789, time.UTC),
		}
		input.StartedAt = input.Now
		for range rapid.IntRange(1, 8).Draw(t, "heartbeats") {
			input.Now = input.Now.Add(time.Duration(rapid.IntRange(1, 40).Draw(t, "seconds")) * time.Second)
			input.Readings.MemoryAvailableBytes = int64(rapid.IntRange(1, 700).Draw(t, "available"))
			input.PLEG, input.SyncLoop = peer(t, input.Now), peer(t, input.Now)
			input.Images = []nodeobject.Image{{Names: []string{secret}, Bytes: 5}}
			output := nodeobject.Build(input)
			recorded, err := heartbeats.Encode(input, output)
			if err != nil {
				t.Fatal(err)
			}
			if bytes.Contains(recorded.GetInput(), []byte(secret)) || bytes.Contains(recorded.GetOutput(), []byte(secret)) {
				t.Fatalf("the heartbeat has the secret: %s %s", recorded.GetInput(), recorded.GetOutput())
			}
			again, was, err := heartbeats.Replay(recorded, func(*nodeobject.Input) {})
			if err != nil || !bytes.Equal(again, was) {
				t.Fatalf("it is computed again as\n%s, error %v, and was\n%s", again, err, was)
			}
			input.Previous = output
		}
	})
}

func peer(t *rapid.T, now time.Time) nodeobject.Peer {
	state := nodeobject.PeerState(rapid.IntRange(0, 3).Draw(t, "state"))
	p := nodeobject.Peer{State: state, LastGood: now.Add(-time.Minute)}
	if p.State != nodeobject.PeerHealthy {
		p.Reasons = []string{secret}
	}
	if rapid.Bool().Draw(t, "runtime") {
		p.Runtime = &nodeobject.Runtime{Name: "containerd", Version: "v2.4.2", Ready: rapid.Bool().Draw(t, "ready")}
	}
	return p
}
