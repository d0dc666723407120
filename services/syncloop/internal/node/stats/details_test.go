package stats

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/clock"
	testclock "k8s.io/utils/clock/testing"

	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/podcgroups"
	"github.com/quartet-node/quartet/test/require"
)

func TestPacketsOfInterfaces(t *testing.T) {
	const content = `Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:     100       1    0    0    0     0          0         0      100       1    0    0    0     0       0          0
  eth0:12345678     200    1    2    0     0          0         0  7654321     300    3    4    0     0       0          0
`
	proc := t.TempDir()
	for _, dir := range []string{"net", "7/net"} {
		require.NoError(t, os.MkdirAll(filepath.Join(proc, dir), 0o755))
	}
	require.NoError(t, os.WriteFile(filepath.Join(proc, "net/dev"), []byte(content), 0o600))
	other := strings.ReplaceAll(content, "eth0", "eth7")
	require.NoError(t, os.WriteFile(filepath.Join(proc, "7/net/dev"), []byte(other), 0o600))
	for name, tc := range map[string]struct {
		cgroup string
		pid    int
		want   string
	}{
		"the machine": {wholeMachine, 0, "eth0"}, "a pod": {"/kubepods/a", 7, "eth7"},
		"a pod without a process": {"/kubepods/a", 0, ""}, "a process that has ended": {"/kubepods/a", 8, ""},
	} {
		var want []Packets
		if tc.want != "" {
			want = []Packets{
				{Interface: tc.want, Received: 200, ReceivedDropped: 2, Sent: 300, SentDropped: 4},
				{Interface: "lo", Received: 1, Sent: 1},
			}
		}
		if diff := cmp.Diff(want, packetsOf(proc, tc.cgroup, tc.pid)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestDetailsOfThisMachine reads the details of the root cgroup, with either version of cgroups.
func TestDetailsOfThisMachine(t *testing.T) {
	_, err := os.Stat("/sys/fs/cgroup")
	require.NoError(t, err)
	machine := podcgroups.NewMachine("cgroupfs", clock.RealClock{})
	_, err = machine.Usage(wholeMachine)
	require.NoError(t, err)
	read := DetailsOf(machine, testclock.NewFakeClock(time.Now())) // waits as long as the reading takes
	if details := read(t.Context(), wholeMachine, true); details.At.IsZero() || len(details.Packets) == 0 ||
		details.CFS != nil || len(details.Processes) == 0 || *details.UserTime == 0 {
		t.Errorf("the machine has %+v", details)
	}
	if details := read(t.Context(), wholeMachine, false); len(details.Packets) != 0 {
		t.Errorf("packets that were not requested: %+v", details.Packets)
	}
	if _, err := machine.Details("/there/is/none"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing cgroup: %v", err)
	}
	if diff := cmp.Diff(Details{}, read(t.Context(), "/there/is/none", true)); diff != "" {
		t.Errorf("the details of a missing cgroup:\n%s", diff)
	}
}

// TestACgroupThatHangsCostsOnlyItsOwnDetails has a cgroup whose files hang: only the first caller waits for it.
func TestACgroupThatHangsCostsOnlyItsOwnDetails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		released := make(chan struct{}, 1)
		var readings atomic.Int64
		at := time.Now()
		book := detailsBook{
			clock: clock.RealClock{}, running: map[detailsKey]*detailsReading{},
			read: func(k detailsKey) Details {
				if k.cgroup == "/hangs" {
					readings.Add(1)
					<-released
				}
				return Details{At: at}
			},
		}
		hangs, works := detailsKey{cgroup: "/hangs"}, detailsKey{cgroup: "/works"}
		if details := book.get(t.Context(), hangs); !details.At.IsZero() {
			t.Errorf("book.get(hangs) = %+v, want nothing", details)
		}
		waited := time.Since(at)
		if details := book.get(t.Context(), works); !details.At.Equal(at) {
			t.Errorf("book.get(works) = %+v, want that of %v", details, at)
		}
		if details := book.get(t.Context(), hangs); !details.At.IsZero() || readings.Load() != 1 || time.Since(at) != waited {
			t.Errorf("book.get(hangs) = %+v after %d readings and %v, want nothing, at once, of one reading",
				details, readings.Load(), time.Since(at)-waited)
		}
		released <- struct{}{}
		synctest.Wait()
		released <- struct{}{}
		if details := book.get(t.Context(), hangs); !details.At.Equal(at) || readings.Load() != 2 {
			t.Errorf("book.get(hangs) = %+v after %d readings, want that of a new reading", details, readings.Load())
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if details := book.get(ended, hangs); !details.At.IsZero() {
			t.Errorf("book.get(hangs) = %+v after the end of its context, want nothing", details)
		}
		released <- struct{}{}
	})
}
