package plugins

import (
	"cmp"
	"slices"
	"time"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/backoff"
)

// identity distinguishes a socket from an earlier one with the same path.
type identity struct {
	device, inode uint64
	modified      time.Time
}

// operation is an operation on a socket.
type operation int

// The operations.
const (
	none operation = iota
	registering
	deregistering
)

// socket is the desired and the observed state of the socket at one path.
type socket struct {
	// seen is the socket in the folder; nil if there is none.
	seen *identity
	// registered is the socket whose plugin is registered, and plugin is that plugin; nil if none is.
	registered *identity
	plugin     Plugin
	// running is the present operation, and on the socket that it is done for.
	running operation
	on      identity
	// failures counts the consecutive failed registrations of the socket, err is the last error, and notBefore the time of
	// the retry.
	failures  int
	notBefore time.Time
	err       error
}

// wants returns the next operation on a socket.
func (s *socket) wants() operation {
	switch {
	case s.registered != nil && (s.seen == nil || *s.seen != *s.registered):
		return deregistering
	case s.registered == nil && s.seen != nil:
		return registering
	}
	return none
}

// outdated reports whether the present operation is a registration of a socket that is gone or replaced.
func (s *socket) outdated() bool {
	return s.running == registering && (s.seen == nil || *s.seen != s.on)
}

// step is an operation to start.
type step struct {
	path   string
	op     operation
	plugin Plugin
}

// book holds the sockets by path. It decides which plugins are registered and deregistered, and when; it has no clock,
// disk or network.
type book struct {
	sockets map[string]*socket
	// limit is the maximum number of sockets.
	limit int
}

func newBook(limit int) *book { return &book{sockets: map[string]*socket{}, limit: limit} }

// observe records the sockets in the folder. Unknown reports whether nothing can be said about a path, because its
// directory could not be read; the socket there stays as it is. It returns the paths whose present operation has to be
// canceled, and the number of sockets that exceed the limit. Sockets that are known stay below it.
func (b *book) observe(found map[string]identity, unknown func(path string) bool) (cancel []string, excess int) {
	for path, s := range b.sockets {
		if _, present := found[path]; present || unknown(path) {
			continue
		}
		s.seen = nil
		b.drop(path)
	}
	paths := make([]string, 0, len(found))
	for path := range found {
		paths = append(paths, path)
	}
	slices.Sort(paths)
	for _, path := range paths {
		s, id := b.sockets[path], found[path]
		if s == nil {
			if len(b.sockets) >= b.limit {
				excess++
				continue
			}
			s = &socket{}
			b.sockets[path] = s
		}
		if s.seen == nil || *s.seen != id {
			s.seen, s.failures, s.notBefore = &id, 0, time.Time{}
		}
	}
	for path, s := range b.sockets {
		if s.outdated() {
			cancel = append(cancel, path)
		}
	}
	return cancel, excess
}

// drop forgets a path without a socket, a plugin and an operation.
func (b *book) drop(path string) {
	if s := b.sockets[path]; s.seen == nil && s.registered == nil && s.running == none {
		delete(b.sockets, path)
	}
}

// decide returns the operations to start now, and the time of the next decision: zero if there is none. A socket has at
// most one operation at a time. Plugins are deregistered first, so that the successor of one can have its name.
func (b *book) decide(now time.Time) (steps []step, again time.Time) {
	for path, s := range b.sockets {
		if s.running != none {
			continue
		}
		op := s.wants()
		switch {
		case op == none:
		case op == registering && s.notBefore.After(now):
			if again.IsZero() || s.notBefore.Before(again) {
				again = s.notBefore
			}
		default:
			steps = append(steps, step{path: path, op: op, plugin: s.plugin})
		}
	}
	slices.SortFunc(steps, func(a, b step) int {
		return cmp.Or(cmp.Compare(b.op, a.op), cmp.Compare(a.path, b.path))
	})
	return steps, again
}

// begin records the start of a step of decide.
func (b *book) begin(next step) {
	s := b.sockets[next.path]
	s.running = next.op
	if next.op == registering {
		s.on = *s.seen
	}
}

// registered records the end of a registration, and returns the delay until the retry: 0 if there is none. News is true
// if the previous result was another one.
func (b *book) registered(path string, plugin Plugin, err error, now time.Time) (retry time.Duration, news bool) {
	s := b.sockets[path]
	outdated, on := s.outdated(), s.on
	s.running = none
	switch {
	case err == nil:
		s.registered, s.plugin, s.err = &on, plugin, nil
		s.failures, s.notBefore = 0, time.Time{}
		return 0, true
	case outdated: // the failure does not concern the present socket
		b.drop(path)
		return 0, false
	}
	news = s.err == nil || s.err.Error() != err.Error()
	s.err = err
	retry = backoff.After(s.failures)
	s.failures++
	s.notBefore = now.Add(retry)
	return retry, news
}

// deregistered records the end of a deregistration.
func (b *book) deregistered(path string) {
	s := b.sockets[path]
	s.running, s.registered, s.plugin = none, nil, Plugin{}
	b.drop(path)
}
