package components_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/quartet-node/quartet/internal/components"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// untilEnd is a typical component, which runs until the context ends.
func untilEnd(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

func TestTheEndOfTheProcessIsNoError(t *testing.T) {
	g := components.New(slog.New(slog.DiscardHandler))
	started := make(chan struct{})
	g.Run("one", untilEnd)
	g.Run("two", func(ctx context.Context) error {
		close(started)
		return untilEnd(ctx)
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-started
		cancel()
	}()
	if err := g.Wait(ctx); err != nil {
		t.Errorf("Wait() failed: %v", err)
	}
}

func TestOneThatFailsEndsAllAndIsNamed(t *testing.T) {
	var log bytes.Buffer
	g := components.New(slog.New(slog.NewTextHandler(&log, nil)))
	broken := errors.New("the disk is gone")
	g.Run("others", untilEnd)
	g.Run("image GC", func(context.Context) error { return broken })
	err := g.Wait(t.Context())
	if !errors.Is(err, broken) || err.Error() != "image GC: the disk is gone" {
		t.Errorf("Wait() error = %v, want %v and %q", err, broken, "image GC: the disk is gone")
	}
	if !strings.Contains(log.String(), `component="image GC"`) {
		t.Errorf("the log does not name it:\n%s", log.String())
	}
}

func TestACompletedComponentEndsNoOther(t *testing.T) {
	g := components.New(slog.New(slog.DiscardHandler))
	done, ctx := make(chan struct{}), t.Context()
	ctx, cancel := context.WithCancel(ctx)
	g.Run("once", func(context.Context) error {
		close(done)
		return nil
	})
	ended := false
	g.Run("others", func(ctx context.Context) error {
		<-done
		ended = ctx.Err() != nil
		cancel()
		return untilEnd(ctx)
	})
	if err := g.Wait(ctx); err != nil || ended {
		t.Errorf("error %v; the others were ended: %t", err, ended)
	}
}

func TestConstructedPartsAreClosedInReverseOrder(t *testing.T) {
	g := components.New(slog.New(slog.DiscardHandler))
	var closed []string
	for _, name := range []string{"lock", "runtime", "peers"} {
		g.OnClose(name, func() error {
			closed = append(closed, name)
			if name == "runtime" {
				return errors.New("it hangs")
			}
			return nil
		})
	}
	err := g.Close()
	if err == nil || err.Error() != "close runtime: it hangs" {
		t.Errorf("Close() error = %v, want %q", err, "close runtime: it hangs")
	}
	if err := g.Close(); err != nil {
		t.Errorf("the second call: %v", err)
	}
	if diff := cmp.Diff([]string{"peers", "runtime", "lock"}, closed); diff != "" {
		t.Errorf("closed components differ (-want +got):\n%s", diff)
	}
}
