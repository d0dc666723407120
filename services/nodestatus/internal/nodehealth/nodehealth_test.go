package nodehealth

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/quartet-node/quartet/internal/healthz"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/sockets"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var now = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

func TestAProcessIsBorneWithAsLongAsAReadyNodeBearsWithIt(t *testing.T) {
	for name, test := range map[string]struct {
		trouble string
		good    time.Time
		want    string
	}{
		"well":                           {"", now, ""},
		"never well":                     {"pleg cannot be reached", time.Time{}, "pleg cannot be reached"},
		"away for a moment":              {"pleg cannot be reached", now.Add(-39 * time.Second), ""},
		"away for long":                  {"pleg cannot be reached", now.Add(-40 * time.Second), "pleg cannot be reached (for 40s)"},
		"well again after a long time":   {"", now.Add(-time.Hour), ""},
		"the clock of the machine jumps": {"pleg cannot be reached", now.Add(time.Hour), ""},
	} {
		got := ""
		if err := (Part{Name: "pleg", Trouble: test.trouble, LastGood: test.good}).Failing(now); err != nil {
			got = err.Error()
		}
		if got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

func TestAnswersNameEachProcess(t *testing.T) {
	parts := []Part{
		{Name: "syncloop", LastGood: now},
		{Name: "pleg", Trouble: "pleg hangs", LastGood: now.Add(-time.Minute)},
	}
	self := errors.New("no Node has been computed yet")
	handler := healthz.Handler(Judge{
		Parts: func() []Part { return parts },
		Self:  func() error { return self },
		Log:   func() error { return nil },
		Now:   func() time.Time { return now },
	}.Checks("syncloop", "pleg", "configmux")...)
	for _, test := range []struct {
		path string
		code int
		body string
	}{
		{"/healthz", 500, "[+]ping ok\n[+]log ok\n[+]syncloop ok\n[-]pleg failed: pleg hangs (for 1m0s)\n[-]configmux failed: nothing is known of configmux yet\n" +
			"[-]nodestatus failed: no Node has been computed yet\nhealthz check failed\n"},
		{"/healthz/ping", 200, "ok"},
		{"/healthz/log", 200, "ok"},
		{"/healthz/syncloop", 200, "ok"},
		{"/healthz/pleg", 500, "internal server error: pleg hangs (for 1m0s)\n"},
	} {
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet, test.path, http.NoBody))
		if answer.Code != test.code || answer.Body.String() != test.body {
			t.Errorf("%s: %d %q, want %d %q", test.path, answer.Code, answer.Body, test.code, test.body)
		}
	}
}

// TestAPortThatIsTakenIsTriedAgain, as the kubelet does: the node works without it.
func TestAPortThatIsTakenIsTriedAgain(t *testing.T) {
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := other.Addr().String()
	clock, health := clocktesting.NewFakeClock(now), rpc.NewHealth()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		Serve(
			ctx,
			ServeConfig{
				Socket: sockets.Socket{Name: "healthzPort", Address: address},
				Checks: []healthz.Check{healthz.Ping()},
				Health: health,
				Clock:  clock,
				Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
			},
		)
	}()
	defer func() {
		cancel()
		<-done
	}()
	wait := func(what string, holds func() bool) {
		t.Helper()
		for end := time.Now().Add(60 * time.Second); !holds(); <-time.After(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s: not in time", what)
			}
		}
	}
	wait("it waits", clock.HasWaiters)
	if waiting := strings.Join(
		health.Waiting(),
		"\n",
	); !strings.Contains(waiting, address) ||
		!strings.Contains(waiting, "in use") {
		t.Errorf("its health says %q, want text with %q and with %q", waiting, address, "in use")
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	clock.Step(retryAfter)
	wait("it is served", func() bool {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+"/healthz", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		resp, err := client.Do(req)
		if err != nil {
			return false
		}
		return resp.Body.Close() == nil && resp.StatusCode == http.StatusOK
	})
	if waiting := health.Waiting(); len(waiting) != 0 {
		t.Errorf("its health still says %q", waiting)
	}
}
