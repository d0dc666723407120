package harness

import (
	"log/slog"
	"testing"
	"time"

	"github.com/quartet-node/quartet/internal/cri"
)

// criTimeout bounds one call: runtimeRequestTimeout's default.
const criTimeout = 2 * time.Minute

// CRIClient returns a client of a runtime, a real one or a fake, until the test ends.
func CRIClient(t testing.TB, endpoint string) *cri.Client {
	t.Helper()
	client, err := cri.New(cri.Config{Endpoint: endpoint, Timeout: criTimeout, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	})
	return client
}
