package cluster_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/quartet-node/quartet/test/cluster"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/leftovers"
)

// hold is the environment variable that makes this test binary hold a cluster until it is killed.
const hold = "QUARTET_TEST_HOLD_CLUSTER"

// processesWith returns the servers' processes with a text in their command line.
func processesWith(t *testing.T, text string) []string {
	t.Helper()
	now, err := leftovers.Take()
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, line := range now.Since(leftovers.Snapshot{}) {
		if strings.HasPrefix(line, "process ") && strings.Contains(line, text) {
			all = append(all, line)
		}
	}
	return all
}

func TestNothingIsLeftBehind(t *testing.T) {
	cluster.Require(t)
	temporary := t.TempDir()
	t.Setenv("TMPDIR", temporary)
	var address string
	t.Run("cluster", func(t *testing.T) {
		c := cluster.Start(t, cluster.ServiceAccounts(), cluster.Flags("--event-ttl=1m"))
		_, err := c.Client(t).CoreV1().Pods("default").Create(t.Context(), pod("alone", "node-alone"), metav1.CreateOptions{})
		if err == nil || !strings.Contains(err.Error(), "service account") {
			t.Errorf("a pod needs no service account: %v", err)
		}
		if running := processesWith(t, temporary); len(running) != 2 {
			t.Errorf("these are its processes: %q, want 2 entries", running)
		}
		address = strings.TrimPrefix(c.URL(), "https://")
	})
	if left := processesWith(t, temporary); len(left) != 0 {
		t.Errorf("processes are left: %q", left)
	}
	if left, err := filepath.Glob(filepath.Join(temporary, "quartet-*")); len(left) != 0 || err != nil {
		t.Errorf("files are left: %q %v", left, err)
	}
	if conn, err := net.Dial("tcp", address); err == nil {
		_ = conn.Close()
		t.Errorf("a process listens at %s", address)
	}
}

func TestAClusterEndsWithATestThatIsKilled(t *testing.T) {
	if os.Getenv(hold) != "" {
		cluster.Start(t)
		fmt.Println("ready")
		select {}
	}
	cluster.Require(t)
	temporary := t.TempDir()
	held := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	held.Env = append(os.Environ(), hold+"=1", "TMPDIR="+temporary)
	out, err := held.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := held.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if line != "ready\n" || len(processesWith(t, temporary)) != 2 {
		t.Errorf("it says %q, %v; these are its processes: %q, want %q and 2 entries",
			line, err, processesWith(t, temporary), "ready\n")
	}
	if err := held.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = held.Wait() // it was killed
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	eventually.In(ctx, t, "its servers are gone", func() bool { return len(processesWith(t, temporary)) == 0 })
}
