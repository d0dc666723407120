package cri_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/quartet-node/quartet/internal/cri"
	"github.com/quartet-node/quartet/test/fakecri"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newClient(t *testing.T, cfg cri.Config) *cri.Client {
	t.Helper()
	cfg.Timeout = time.Minute
	client, err := cri.New(cfg)
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

// unusable connects clients to an unusable runtime, with increasing timeouts, until the error of one has the reason. It
// returns the log and the error of that client.
func unusable(t *testing.T, endpoint, reason string) (logged string, failure error) {
	t.Helper()
	for limit := time.Second; ; limit *= 4 {
		var log bytes.Buffer
		client := newClient(t, cri.Config{Endpoint: endpoint, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		_, err := client.Runtime(ctx)
		cancel()
		if err == nil {
			t.Fatal("it is taken for a runtime")
		}
		if strings.Contains(err.Error(), reason) || limit > time.Minute {
			return log.String(), err
		}
	}
}

func TestARuntimeThatIsAwayIsNamedAndNotWaitedForForever(t *testing.T) {
	endpoint := "unix://" + filepath.Join(t.TempDir(), "none.sock")
	_, err := unusable(t, endpoint, "no such file")
	var away *cri.NotConnectedError
	if !errors.As(err, &away) || !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got %v, want a NotConnectedError after the deadline", err)
	}
	for _, want := range []string{endpoint, "no such file", "containerRuntimeEndpoint", "--container-runtime-endpoint"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q: %v", want, err)
		}
	}
}

func TestARuntimeThatComesLaterIsFound(t *testing.T) {
	fake := fakecri.New(t)
	fake.Stop()
	client := newClient(t, cri.Config{Endpoint: fake.Endpoint()})
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	connected := make(chan error, 2)
	go func() { _, err := client.Runtime(ctx); connected <- err }()
	go func() { _, err := client.Runtime(ctx); connected <- err }()
	if err := fake.Start(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := <-connected; err != nil {
			t.Error(err)
		}
	}
}

// A runtime that is still loading its CRI plugin accepts connections and answers Unimplemented.
func TestARuntimeThatStillLoadsIsWaitedFor(t *testing.T) {
	fake := fakecri.New(t)
	fake.Fail("Version", "", 3, status.Error(codes.Unimplemented, "unknown service runtime.v1.RuntimeService"))
	client := newClient(t, cri.Config{Endpoint: fake.Endpoint()})
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	if _, err := client.Runtime(ctx); err != nil {
		t.Error(err)
	}
}

func TestImagesMayComeFromAnotherSocket(t *testing.T) {
	runtime, images := fakecri.New(t), fakecri.New(t)
	images.AddImage("example/app", 7)
	client := newClient(t, cri.Config{Endpoint: runtime.Endpoint(), ImageEndpoint: images.Endpoint()})
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	service, err := client.Images(ctx)
	if err != nil {
		t.Fatal(err)
	}
	list, err := service.ListImages(ctx, nil)
	if err != nil || len(list) != 1 {
		t.Errorf("got images %v and error %v, want the one image of the image socket", list, err)
	}
	if runtime.Count("ListImages", "") != 0 {
		t.Error("the runtime's socket was asked for images")
	}
}

func TestABadEndpointIsRefusedWithItsField(t *testing.T) {
	for endpoint, want := range map[string]string{"": "containerRuntimeEndpoint", "http://x": "containerRuntimeEndpoint"} {
		if _, err := cri.New(cri.Config{Endpoint: endpoint, Timeout: time.Second}); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("endpoint %q: got %v, want an error that names %s", endpoint, err, want)
		}
	}
	if _, err := cri.New(cri.Config{Endpoint: "unix:///x", Timeout: 0}); err == nil ||
		!strings.Contains(err.Error(), "runtimeRequestTimeout") {
		t.Errorf("no timeout: got %v, want an error that names runtimeRequestTimeout", err)
	}
}
