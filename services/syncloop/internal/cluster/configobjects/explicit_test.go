package configobjects_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/configobjects"
	"github.com/quartet-node/quartet/test/eventually"
)

// newExplicitRig is newRig for a configmux of a site.
func newExplicitRig(t *testing.T) *rig {
	r := &rig{t: t, clock: testingclock.NewFakeClock(time.Unix(1000, 0)), notified: make(chan types.UID, 1000)}
	r.err = status.Error(codes.Unavailable, "nobody listens")
	r.mux = configobjects.NewConfigmux(configobjects.ConfigmuxConfig{
		Stream: r, Explicit: true, Clock: r.clock, Logger: slog.New(slog.DiscardHandler),
		Changed: func(uid types.UID) { r.notified <- uid },
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = r.mux.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return r
}

// site starts a configmux of a site with these objects; ready is whether the API server has answered for all of them.
func (r *rig) site(ready bool) *stream.Level[*configobjects.Entry] {
	level := stream.NewLevel[*configobjects.Entry](stream.Config{})
	r.t.Cleanup(level.Close)
	level.Put("source/api", &configobjects.Entry{Source: "api", Ready: ready})
	return level
}

func putMissing(level *stream.Level[*configobjects.Entry], name string) {
	key := configobjects.Key{Kind: configobjects.Secret, Namespace: "shop", Name: name}
	level.Put("Secret/shop/"+name, &configobjects.Entry{Key: key, Missing: true})
}

// says returns the value of a secret, "missing", or why it is unknown.
func (r *rig) says(name string) string {
	s, err := r.mux.Secret(r.t.Context(), "shop", name)
	var unknown *configobjects.UnknownError
	switch {
	case err == nil:
		return string(s.Data["k"])
	case apierrors.IsNotFound(err):
		return "missing"
	case errors.As(err, &unknown):
		return unknown.Why
	default:
		return err.Error()
	}
}

// TestAnObjectOfASiteIsUnknownUntilItIsSaid: a pod with an optional secret must not start without it because configmux
// has not got it yet.
func TestAnObjectOfASiteIsUnknownUntilItIsSaid(t *testing.T) {
	r := newExplicitRig(t)
	comes := func(name, want string) {
		t.Helper()
		eventually.Wait{Step: func() { r.clock.Step(time.Second) }}.
			That(t, name+" is "+want, func() bool { return strings.Contains(r.says(name), want) })
	}
	const unknown = "has not got it from the API server yet"
	r.mux.Use(pod("web", "login"))
	comes("login", unknown)
	level := r.site(true)
	put(level, secret("other", "x"))
	r.serve(level, nil)
	comes("other", "x")
	comes("login", unknown) // the source is ready, and nothing is said of this object
	putMissing(level, "login")
	comes("login", "missing")
	put(level, secret("login", "one"))
	comes("login", "one")
	putMissing(level, "login")
	comes("login", "missing")
	level.Delete("Secret/shop/login")
	comes("login", unknown)

	// A restarted configmux that has not asked for all objects yet takes none away.
	put(level, secret("login", "two"))
	comes("login", "two")
	again := r.site(false)
	put(again, secret("other", "y"))
	r.serve(again, nil)
	level.Close()
	comes("other", "y")
	if got := r.says("login"); got != "two" {
		t.Errorf("with a restarted configmux that is not ready it is %q, want %q", got, "two")
	}
	again.Put("source/api", &configobjects.Entry{Source: "api", Ready: true})
	comes("login", unknown)
}

func TestAConfigmuxOfNoSiteIsSaid(t *testing.T) {
	r := newExplicitRig(t)
	r.serve(nil, status.Error(codes.Unimplemented, "no objects"))
	said := func() bool { return strings.Contains(r.says("login"), "start it with --nodes") }
	eventually.Wait{Step: func() { r.clock.Step(time.Second) }}.That(t, "the error says what to do", said)
}
