package streamrpc

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	streamv1 "github.com/quartet-node/quartet/gen/quartet/stream/v1"
	"github.com/quartet-node/quartet/internal/stream"
)

// TestASubscriptionWithoutBookmarksEnds: a peer that hangs keeps the connection open and sends nothing.
func TestASubscriptionWithoutBookmarksEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		frames := make(chan *streamv1.Frame)
		src := NewSource(func(ctx context.Context, _ []byte) (Receive[string], error) {
			return func() (*streamv1.Frame, string, error) {
				select {
				case frame := <-frames:
					return frame, "", nil
				case <-ctx.Done():
					return nil, "", status.FromContextError(ctx.Err()).Err()
				}
			}, nil
		})
		sub, err := src.Subscribe(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer sub.Close()
		for range 3 {
			go func() {
				<-time.After(stream.BookmarkInterval)
				frames <- &streamv1.Frame{Kind: streamv1.Kind_KIND_BOOKMARK}
			}()
			if m, err := sub.Next(t.Context()); err != nil || m.Kind != stream.KindBookmark {
				t.Fatalf("Next() = %v, %v, want a bookmark", m, err)
			}
		}
		begun := time.Now()
		_, err = sub.Next(t.Context())
		if took := time.Since(begun); status.Code(err) != codes.Unavailable || took != silence {
			t.Errorf("Next() failed after %v with %v, want after %v with %v", took, err, silence, codes.Unavailable)
		}
	})
}

// TestAFrameOfALaterVersionIsSkipped: a newer peer may send a kind of frame that this version does not know.
func TestAFrameOfALaterVersionIsSkipped(t *testing.T) {
	src := NewSource(func(context.Context, []byte) (Receive[string], error) {
		return func() (*streamv1.Frame, string, error) {
			return &streamv1.Frame{Kind: 99, ResumeToken: []byte("after")}, "", nil
		}, nil
	})
	sub, err := src.Subscribe(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	m, err := sub.Next(t.Context())
	if err != nil || m.Kind != stream.KindUnknown || string(m.Token) != "after" {
		t.Errorf("Next() = %v, %v, want a message of an unknown kind", m, err)
	}
}
