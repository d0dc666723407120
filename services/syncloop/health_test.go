package syncloop

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/quartet-node/quartet/internal/rpc"
)

// TestHealthNamesWhatIsAway checks that the health service reports each unreachable peer under its name within seconds,
// and its return too.
func TestHealthNamesWhatIsAway(t *testing.T) {
	m := newMachine(t)
	conn, err := rpc.Dial(m.cfg.Listen)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
	missing := func() (names []string, ok bool) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		got, err := grpc_health_v1.NewHealthClient(conn).List(ctx, &grpc_health_v1.HealthListRequest{})
		if err != nil {
			return nil, false
		}
		for name, health := range got.GetStatuses() {
			if health.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
				names = append(names, name)
			}
		}
		slices.Sort(names)
		return names, len(got.GetStatuses()) == 8 // the process, its loops, the four peers and two records
	}
	becomes := func(when string, want ...string) {
		t.Helper()
		begin := time.Now()
		m.eventually(when+" it waits for "+strings.Join(want, ", "), func() bool {
			names, ok := missing()
			return ok && slices.Equal(names, want)
		})
		t.Logf("%s: after %v", when, time.Since(begin))
	}
	m.start()
	becomes("before configmux has read anything", "sources")
	m.configmux.speak()
	becomes("with everything there")
	m.stopConfigmux()
	becomes("without configmux", "configmux")
	m.serveConfigmux()
	becomes("with configmux")
	m.stopPLEG()
	becomes("without pleg", "pleg")
	m.servePLEG()
	becomes("with pleg")
	m.cri.Stop()
	becomes("without the runtime", "runtime")
	if err := m.cri.Start(); err != nil {
		t.Fatal(err)
	}
	becomes("with the runtime")
}
