package volumes

import (
	"context"
	"time"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/dirlock"
)

// SlowAfter is how long an answer may take until users are told that an operation waits for it.
const SlowAfter = 2 * time.Second

// itsTurn is what a volume waits for while as many operations as may run at once are in progress.
const itsTurn = "end of operations on other volumes"

// asked is another program whose answer a running operation waits for.
type asked struct {
	whom  string
	since time.Time
}

// Asking records that an operation waits for another program until answered is called. Whom is shown to users, for
// example "NFS server 192.0.2.1", if it takes long. ctx is that of SetUp or TearDown; any other one is ignored. An
// operation asks one program at a time.
func Asking(ctx context.Context, whom string) (answered func()) {
	mine, ok := ctx.Value(turnKey{}).(turnOf)
	if !ok {
		return func() {}
	}
	mine.manager.ask(mine.volume, whom)
	return func() { mine.manager.ask(mine.volume, "") }
}

// Locked waits for the lock of a directory that other operations may hold, and returns the function that gives it back.
// Whom is shown to users as by Asking while it is waited for. It fails with the error of ctx.
func Locked(ctx context.Context, locks *dirlock.Locks, dir, whom string) (unlock func(), err error) {
	defer Asking(ctx, whom)()
	return locks.Lock(ctx, dir)
}

// What an operation waits for, for users: until the files of a volume belong to a group, and until the API server
// answers a request for a token.
const (
	Owners      = "change of the owners of its files"
	IssuedToken = "API server to issue a token"
)

// OtherCall returns what an operation waits for, for users, while another one of the same volume waits for its driver.
func OtherCall(driver string) string {
	return "CSI driver " + driver + " to end another call for the volume"
}

// InUseError is the kubelet's error of a volume with the access mode ReadWriteOncePod that another pod uses.
type InUseError struct{}

// Error implements error.
func (*InUseError) Error() string {
	return "volume uses the ReadWriteOncePod access mode and is already in use by another pod"
}

// WaitsFor returns what has to change, for users.
func (*InUseError) WaitsFor() string { return "end of the other pod with this volume" }

// ask records whom a running operation asks; empty for nobody.
func (m *Manager) ask(volume key, whom string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pods[volume.pod].volumes[volume].asks = asked{whom: whom, since: m.cfg.Clock.Now()}
}

// waitsFor returns what has to change or to answer before a volume is in its desired state; empty if it is not known.
func (s *state) waitsFor(pod intent, now time.Time) string {
	switch {
	case s.running != none && s.asks.whom != "" && now.Sub(s.asks.since) >= SlowAfter:
		return s.asks.whom
	case s.turn.granted != nil, s.running == none && s.err == nil && s.wants(pod) != none:
		return itsTurn
	}
	if s.err != nil {
		return waitsFor(s.err)
	}
	return ""
}
