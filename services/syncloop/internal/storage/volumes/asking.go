package volumes

import (
	"context"
	"time"
)

// SlowAfter is how long an answer may take until users are told that an operation waits for it.
const SlowAfter = 2 * time.Second

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
func (s *state) waitsFor(now time.Time) string {
	if s.running != none && s.asks.whom != "" && now.Sub(s.asks.since) >= SlowAfter {
		return s.asks.whom
	}
	if s.err != nil {
		return waitsFor(s.err)
	}
	return ""
}
