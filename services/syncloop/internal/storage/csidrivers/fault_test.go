package csidrivers_test

import (
	"context"
	"math"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/plugins"
	"github.com/quartet-node/quartet/test/csidriver"
	"github.com/quartet-node/quartet/test/eventually"
)

// TestFaultsOfTheDescription lets NodeGetInfo go wrong at the registration of a driver, and at a refresh. Another
// driver is registered meanwhile, and the next attempt finds everything.
func TestFaultsOfTheDescription(t *testing.T) {
	for name, fault := range map[string]csidriver.Fault{
		"error": csidriver.Fails, "hang": csidriver.Hangs, "lost answer": csidriver.Loses, "killed": csidriver.Dies,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, err := os.MkdirTemp("", "csi") // a socket's path must be short
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := os.RemoveAll(dir); err != nil {
					t.Error(err)
				}
			})
			driver := csidriver.New(dir)
			heal := func() {
				driver.Set("NodeGetInfo", csidriver.None)
				driver.Stop()
				if err := driver.Serve(); err != nil {
					t.Fatal(err)
				}
			}
			heal()
			t.Cleanup(driver.Stop)
			r := start(t, clock.RealClock{})
			bad := plugins.Plugin{Name: "bad", Endpoint: driver.Socket(), Versions: []string{"1.0.0"}, Socket: "/r/bad.sock"}
			driver.Set("NodeGetInfo", fault)
			within, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			failed := make(chan error, 1)
			go func() { failed <- r.Register(within, bad) }()
			eventually.That(t, "it is asked", func() bool { return len(driver.Calls("NodeGetInfo")) == 1 })
			if err := r.add(t, plugin("good", "/r/good.sock", serve(t, &served{info: info("n1", 0, nil)}))); err != nil {
				t.Errorf("another driver: %v", err)
			}
			if err := <-failed; err == nil || len(r.Nodes()) != 1 {
				t.Errorf("registered: %v, %v", r.Nodes(), err)
			}
			heal()
			if err := r.add(t, bad); err != nil || len(r.Nodes()) != 2 {
				t.Errorf("registered: %v, %v", r.Nodes(), err)
			}
			calls := len(driver.Calls("NodeGetInfo"))
			driver.Set("NodeGetInfo", fault)
			r.Refresh("bad")
			eventually.That(t, "it is asked again", func() bool { return len(driver.Calls("NodeGetInfo")) > calls })
			if nodes := r.Nodes(); len(nodes) != 2 || nodes[0].ID != "machine-1" {
				t.Errorf("after a refresh that fails: %v", nodes)
			}
			heal()
			calls = len(driver.Calls("NodeGetInfo"))
			eventually.That(t, "it is refreshed", func() bool {
				r.Refresh("bad") // it fails at once while the connection is made anew
				return len(driver.Calls("NodeGetInfo")) > calls
			})
		})
	}
}

// TestAnswersThatAreNonsense has a driver that says too much of the node, and nothing that makes sense.
func TestAnswersThatAreNonsense(t *testing.T) {
	r := start(t, clock.RealClock{})
	driver := serve(t, &served{})
	topology := map[string]string{}
	for i := range 10_000 {
		topology["example.com/zone-"+strconv.Itoa(i)] = "a"
	}
	long := strings.Repeat("x", 1<<20)
	for name, c := range map[string]struct {
		answer *csi.NodeGetInfoResponse
		err    error
		want   string
	}{
		"10,000 keys":     {answer: info("n", 0, topology), want: "the driver's topology has 10000 segments, more than 64"},
		"a long key":      {answer: info("n", 0, map[string]string{long: "a"}), want: "is no label of a Node"},
		"a long value":    {answer: info("n", 0, map[string]string{"a": long}), want: "is no label of a Node"},
		"a long ID":       {answer: info(long, 0, nil), want: "longer than 256 characters"},
		"an ID of no one": {answer: info("\x1b[2J\n", 0, nil), want: "has control characters"},
		"a long error":    {err: status.Error(codes.Internal, "\x1b[2J"+long), want: "code = Internal desc = �[2Jxxx"},
		"no answer":       {answer: &csi.NodeGetInfoResponse{}, want: "driverNodeID must not be empty"},
	} {
		driver.set(c.answer, c.err)
		err := r.add(t, plugin("d", "/r/a.sock", driver))
		if err == nil || !strings.Contains(err.Error(), c.want) || len(err.Error()) > 2000 ||
			strings.Contains(err.Error(), "\x1b") {
			t.Errorf("%s: %.200v, want %q", name, err, c.want)
		}
	}
	for said, want := range map[int64]int64{math.MinInt64: 0, -1: 0, math.MaxInt64: math.MaxInt64} {
		driver.set(info("n", said, nil), nil)
		if err := r.add(t, plugin("d", "/r/a.sock", driver)); err != nil || r.Nodes()[0].Volumes != want {
			t.Errorf("%d volumes: %v, %v, want %d", said, r.Nodes(), err, want)
		}
		r.Deregister(t.Context(), plugin("d", "/r/a.sock", driver))
	}
	if err := r.add(t, plugin(long, "/r/a.sock", driver)); err == nil || len(err.Error()) > 2000 {
		t.Errorf("a long name: %.200v", err)
	}
}
