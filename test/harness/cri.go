package harness

import (
	"context"
	"log/slog"
	"testing"
	"time"

	internalapi "k8s.io/cri-api/pkg/apis"

	"github.com/quartet-node/quartet/internal/cri"
)

// criTimeout bounds one call. It is the default of runtimeRequestTimeout.
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

// CRI has the CRI services of a runtime.
type CRI struct {
	Client  *cri.Client
	Runtime internalapi.RuntimeService
	Images  internalapi.ImageManagerService
}

// ConnectCRI returns the services of a runtime, a real one or a fake, until the test ends.
func ConnectCRI(ctx context.Context, t testing.TB, endpoint string) CRI {
	t.Helper()
	c := CRI{Client: CRIClient(t, endpoint)}
	var err error
	if c.Runtime, err = c.Client.Runtime(ctx); err != nil {
		t.Fatal(err)
	}
	if c.Images, err = c.Client.Images(ctx); err != nil {
		t.Fatal(err)
	}
	return c
}
