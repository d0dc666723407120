package nodestatus

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"google.golang.org/grpc"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/test/freeport"
)

// deafSyncLoop does not follow configmux.
type deafSyncLoop struct{ wellSyncLoop }

func (s deafSyncLoop) GetHealth(
	ctx context.Context,
	req *enginev1.GetHealthRequest,
) (*enginev1.GetHealthResponse, error) {
	answer, err := s.wellSyncLoop.GetHealth(ctx, req)
	answer.ConfigmuxAway = "configmux is away"
	return answer, err
}

// TestTheHealthOfTheNodeIsServed on healthzPort: it fails until all processes have worked, and later not at once when
// one of them is down.
func TestTheHealthOfTheNodeIsServed(t *testing.T) {
	cfg := config(t)
	port, err := freeport.Find()
	if err != nil {
		t.Fatal(err)
	}
	*cfg.Kubelet.HealthzPort = int32(port)
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}
	answers := func(when, path string, wantCode int, want string) {
		t.Helper()
		code, body := 0, ""
		for end := time.Now().Add(60 * time.Second); time.Now().Before(end); <-time.After(5 * time.Millisecond) {
			req, err := http.NewRequestWithContext(
				t.Context(),
				http.MethodGet,
				fmt.Sprintf("http://127.0.0.1:%d%s", port, path),
				http.NoBody,
			)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := client.Do(req)
			if err != nil {
				body = err.Error()
				continue
			}
			data, err := io.ReadAll(resp.Body)
			if err := resp.Body.Close(); err != nil {
				t.Fatal(err)
			}
			if code, body = resp.StatusCode, string(data); err == nil && code == wantCode && body == want {
				return
			}
		}
		t.Fatalf("%s %s answers %d %q, want %d %q", when, path, code, body, wantCode, want)
	}
	away := func(name, address string) string {
		return name + " is unreachable on " + address + ": start it; if it runs, check its log"
	}
	background(t, func(ctx context.Context) error { return run(ctx, cfg, quiet, telemetry.Off()) })
	answers(
		"alone",
		"/healthz",
		500,
		"[+]ping ok\n[+]log ok\n[-]syncloop failed: "+away(
			"syncloop",
			cfg.Peers.SyncLoop,
		)+"\n[-]pleg failed: "+away(
			"pleg",
			cfg.Peers.PLEG,
		)+
			"\n[-]configmux failed: nothing is known of configmux yet\n[+]nodestatus ok\nhealthz check failed\n",
	)
	stopPLEG := servePLEG(t, cfg)
	stop := servePeer(
		t,
		cfg.Peers.SyncLoop,
		func(s *grpc.Server) { enginev1.RegisterEngineServiceServer(s, deafSyncLoop{}) },
	)
	answers(
		"without configmux",
		"/healthz",
		500,
		"[+]ping ok\n[+]log ok\n[+]syncloop ok\n[+]pleg ok\n[-]configmux failed: configmux is away\n[+]nodestatus ok\nhealthz check failed\n",
	)
	if err := stop(); err != nil {
		t.Error(err)
	}
	stopSyncLoop := serveSyncLoop(t, cfg)
	answers("with all", "/healthz", 200, "ok")
	answers("with all", "/healthz/syncloop", 200, "ok")
	for _, stop := range []func() error{stopPLEG, stopSyncLoop} {
		if err := stop(); err != nil {
			t.Error(err)
		}
	}
	// nodestatus knows that they are down before the health of the node fails because of it.
	lacking(t, cfg)("without both", "pleg", "syncloop")
	answers("with two away for a moment", "/healthz", 200, "ok")
}
