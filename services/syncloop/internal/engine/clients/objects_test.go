package clients

import (
	"context"
	"testing"

	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	streamv1 "github.com/quartet-node/quartet/gen/quartet/stream/v1"
	"github.com/quartet-node/quartet/internal/stream"
)

// laterConfigMux is a configmux of a later version: between objects that this version knows there are others.
type laterConfigMux struct {
	configv1.ConfigServiceClient
	sent []*configv1.WatchObjectsResponse
	pods []*configv1.WatchPodUpdatesResponse
}

func (c *laterConfigMux) WatchPodUpdates(
	context.Context, *configv1.WatchPodUpdatesRequest, ...grpc.CallOption,
) (grpc.ServerStreamingClient[configv1.WatchPodUpdatesResponse], error) {
	return &laterUpdates{sent: c.pods}, nil
}

type laterUpdates struct {
	grpc.ClientStream
	sent []*configv1.WatchPodUpdatesResponse
}

func (w *laterUpdates) Recv() (*configv1.WatchPodUpdatesResponse, error) {
	next := w.sent[0]
	w.sent = w.sent[1:]
	return next, nil
}

func (c *laterConfigMux) WatchObjects(
	context.Context, *configv1.WatchObjectsRequest, ...grpc.CallOption,
) (grpc.ServerStreamingClient[configv1.WatchObjectsResponse], error) {
	return &laterWatch{sent: c.sent}, nil
}

type laterWatch struct {
	grpc.ClientStream
	sent []*configv1.WatchObjectsResponse
}

func (w *laterWatch) Recv() (*configv1.WatchObjectsResponse, error) {
	next := w.sent[0]
	w.sent = w.sent[1:]
	return next, nil
}

// TestAnObjectOfALaterVersionIsSkipped: a newer configmux may have kinds of objects that this syncloop does not know.
// They are counted as unknown, and the objects around them count.
func TestAnObjectOfALaterVersionIsSkipped(t *testing.T) {
	data, err := (&v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "prices"}}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	message := func(kind streamv1.Kind, key, object string, content []byte) *configv1.WatchObjectsResponse {
		return &configv1.WatchObjectsResponse{
			Frame:  &streamv1.Frame{Kind: kind, Key: key, ResumeToken: []byte(key)},
			Object: &configv1.Object{Kind: object, Namespace: "shop", Name: "prices", Object: content},
		}
	}
	removed := message(streamv1.Kind_KIND_DELTA, "d", "LaterKind", nil)
	removed.Frame.Removed = true
	later := &laterConfigMux{sent: []*configv1.WatchObjectsResponse{
		message(streamv1.Kind_KIND_SNAPSHOT, "a", "LaterKind", []byte("whatever")),
		message(streamv1.Kind_KIND_SNAPSHOT, "b", "ConfigMap", data),
		message(streamv1.Kind_KIND_DELTA, "c", "LaterKind", nil),
		removed,
		message(streamv1.Kind_KIND_DELTA, "e", "ConfigMap", data),
	}}
	sub, err := Objects(later).Subscribe(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	for _, want := range []struct {
		kind  stream.Kind
		token string
	}{
		{stream.KindUnknown, "a"}, {stream.KindSnapshot, "b"}, {stream.KindUnknown, "c"}, {stream.KindDelta, "d"},
		{stream.KindDelta, "e"},
	} {
		m, err := sub.Next(t.Context())
		if err != nil || m.Kind != want.kind || string(m.Token) != want.token {
			t.Fatalf("Next() = %v, %v, want kind %v with the token %s", m, err, want.kind, want.token)
		}
	}
}

// TestAnUpdateOfALaterVersionIsSkipped: a newer configmux may send something that is neither a pod nor a source.
func TestAnUpdateOfALaterVersionIsSkipped(t *testing.T) {
	frame := func(kind streamv1.Kind, key string) *streamv1.Frame {
		return &streamv1.Frame{Kind: kind, Key: key, ResumeToken: []byte(key)}
	}
	removed := frame(streamv1.Kind_KIND_DELTA, "d")
	removed.Removed = true
	later := &laterConfigMux{pods: []*configv1.WatchPodUpdatesResponse{
		{Frame: frame(streamv1.Kind_KIND_SNAPSHOT, "later/a")},
		{Frame: frame(streamv1.Kind_KIND_SYNCED, "b")},
		{Frame: frame(streamv1.Kind_KIND_DELTA, "later/c")},
		{Frame: removed},
	}}
	sub, err := ConfigMux(later).Subscribe(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	for _, want := range []stream.Kind{stream.KindUnknown, stream.KindSynced, stream.KindUnknown, stream.KindDelta} {
		if m, err := sub.Next(t.Context()); err != nil || m.Kind != want || len(m.Token) == 0 {
			t.Fatalf("Next() = %v, %v, want kind %v", m, err, want)
		}
	}
}
