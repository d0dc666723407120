package debugapi

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"pgregory.net/rapid"
)

// TestASpoolKeepsEveryByte: what is written is sent in order and in chunks of bounded size, or the spool overflows.
func TestASpoolKeepsEveryByte(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		writes := rapid.SliceOf(rapid.SliceOfN(rapid.Byte(), 0, 2000)).Draw(t, "writes")
		out := newSpool(rapid.IntRange(1, 10000).Draw(t, "limit"))
		var want, got bytes.Buffer
		overflown := false
		for _, data := range writes {
			if _, err := out.Write(data); err != nil {
				overflown = true
			}
			want.Write(data)
			if rapid.Bool().Draw(t, "received") {
				received, _, _ := out.take()
				got.Write(received)
			}
		}
		out.end(nil)
		err := send(context.Background(), out, func(data []byte) error {
			if len(data) == 0 || len(data) > chunkSize {
				t.Fatalf("a chunk has %d bytes", len(data))
			}
			got.Write(data)
			return nil
		})
		if (err != nil) != overflown {
			t.Fatalf("it overflows: %t, and its caller gets %v", overflown, err)
		}
		if !overflown && !bytes.Equal(got.Bytes(), want.Bytes()) {
			t.Fatalf("got %d bytes, want the %d written ones", got.Len(), want.Len())
		}
	})
}

func TestASpoolFailsAsItsProfile(t *testing.T) {
	out, broken := newSpool(maxUnsent), errors.New("no profiler")
	out.end(broken)
	if _, err := out.next(t.Context()); !errors.Is(err, broken) {
		t.Errorf("it fails with %v, want %v", err, broken)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := newSpool(maxUnsent).next(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller that is gone gets %v", err)
	}
}
