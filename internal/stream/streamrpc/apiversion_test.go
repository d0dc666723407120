package streamrpc

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	streamv1 "github.com/quartet-node/quartet/gen/quartet/stream/v1"
	"github.com/quartet-node/quartet/internal/metrics/metricstest"
	"github.com/quartet-node/quartet/internal/stream"
)

// TestAnotherVersionOfTheKubernetesAPIIsReported in the log once, however often the stream is opened, and in a metric
// for as long as the last publisher has it.
func TestAnotherVersionOfTheKubernetesAPIIsReported(t *testing.T) {
	const own = "v0.37.1"
	before := kubernetesAPIVersion
	kubernetesAPIVersion = func() string { return own } // a test binary does not know it
	defer func() { kubernetesAPIVersion = before }()
	for want, versions := range map[string][]string{
		"":               {own, "", own},
		"v9.9.9":         {"v9.9.9", "v9.9.9", "v9.9.9"},
		"v8.8.8":         {own, "v8.8.8", own},
		"v0.0.1, v0.0.2": {own, "v0.0.1", "v0.0.1", "v0.0.2"},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		opened := 0
		src := NewSource(func(context.Context, []byte) (Receive[string], error) {
			if opened == len(versions) {
				cancel()
				return nil, status.Error(codes.Unavailable, "the last version was opened")
			}
			version, sent := versions[opened], false
			opened++
			return func() (*streamv1.Frame, string, error) {
				if sent {
					return nil, "", status.Error(codes.Unavailable, "the process is restarted")
				}
				sent = true
				return &streamv1.Frame{
					Kind:    streamv1.Kind_KIND_OPENED,
					Opening: &streamv1.Opening{Start: streamv1.Start_START_SNAPSHOT, KubernetesApiVersion: version},
				}, "", nil
			}, nil
		})
		var log bytes.Buffer
		registry := prometheus.NewRegistry()
		followed := stream.NewFollowedMetrics(registry, stream.NamePods)
		metricstest.Want(t, registry, 0, "quartet_stream_follower_other_kubernetes_api", "stream", "pods", "version", "")
		_ = stream.Follow(ctx, stream.FollowConfig[string]{ // it ends with its context
			Source: src, Name: "pods", Logger: slog.New(slog.NewTextHandler(&log, nil)), Handle: func(stream.Change[string]) {},
			Metrics: followed,
		})
		cancel()
		var got []string
		for line := range strings.Lines(log.String()) {
			if _, version, is := strings.Cut(line, "stream=pods version="); is {
				got = append(got, strings.TrimSpace(version))
			}
		}
		if text := strings.Join(got, ", "); text != want {
			t.Errorf("of %q the log has %q, want %q", versions, text, want)
		}
		last, differs := versions[len(versions)-1], 0.0
		if last != own {
			differs = 1
		}
		// Of all the versions only the last is there: a look for one series with no certain version finds it.
		metricstest.Want(t, registry, differs, "quartet_stream_follower_other_kubernetes_api", "stream", "pods")
		metricstest.Want(t, registry, differs, "quartet_stream_follower_other_kubernetes_api", "version", last)
	}
}
