package podchanges_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podchanges"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestWhatIsNotedBeforeRunIsHandedOnOnceAndContentFirst(t *testing.T) {
	c := podchanges.New()
	both, content := c.Note(podchanges.Content|podchanges.Sync), c.Note(podchanges.Content)
	for range 1000 { // a burst is one change
		both("u1")
	}
	handed := make(chan string)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- c.Run(ctx,
			func(uid types.UID) { handed <- "content " + string(uid) },
			func(uid types.UID) { handed <- "sync " + string(uid) })
	}()
	next := func() string {
		select {
		case got := <-handed:
			return got
		case <-time.After(10 * time.Second):
			return "nothing within 10 s"
		}
	}
	for _, want := range []string{"content u1", "sync u1"} {
		if got := next(); got != want {
			t.Errorf("%q was handed on, want %q", got, want)
		}
	}
	content("u2")
	if got := next(); got != "content u2" {
		t.Errorf("%q was handed on, want %q", got, "content u2")
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("error = %v, want %v", err, context.Canceled)
	}
}

func TestWhatIsNotedWhileOneIsHandedOnIsNotLost(t *testing.T) {
	c := podchanges.New()
	note := c.Note(podchanges.Sync)
	note("u1")
	ctx, cancel := context.WithCancel(t.Context())
	seen := 0
	err := c.Run(ctx, nil, func(uid types.UID) {
		seen++
		if seen < 100 {
			note(uid)
			return
		}
		cancel()
	})
	if !errors.Is(err, context.Canceled) || seen != 100 {
		t.Errorf("%d were handed on, error %v, want %v and 100", seen, err, context.Canceled)
	}
}
