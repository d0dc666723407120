// Package stream implements the contract of every watch stream between Quartet's processes: snapshot, marker, deltas,
// opaque resume tokens, bookmarks.
//
// It has two publishers and one follower. [Level] publishes desired or computed state: unsent changes of a key fold
// into the latest one. [Edge] publishes events: they never fold; a subscriber that is too slow receives an error and
// starts again. [Follow] is a subscriber that survives all failures: it reconnects, resumes, and turns a fresh snapshot
// into the changes relative to its state.
//
// The package is independent of gRPC: streamrpc carries a [Source] over the wire, and streamtest checks the guarantees
// (Ordered, Unique, Reliable, Resumable, Bounded) on any Source, in process and through a socket.
package stream

import (
	"context"
	"errors"
	"time"

	"k8s.io/utils/clock"
)

// BookmarkInterval is the time of silence after which a subscription sends a bookmark.
const BookmarkInterval = 10 * time.Second

var (
	// ErrOverflow ends a subscription that fell so far behind that a change would be lost, or that may have received the
	// next events from an earlier run. Subscribe again with the last token: a snapshot follows, and the publisher
	// recognizes the follower.
	ErrOverflow = errors.New("subscriber fell behind and has to begin again from a snapshot")
	// ErrClosed ends every subscription when the publisher stops. Subscribe again with the last token.
	ErrClosed = errors.New("publisher stopped")
)

// Kind is the kind of a message.
type Kind int

// The kinds of message, in the order in which a subscription sends them.
const (
	// KindOpened is the first message of every subscription, with Start set.
	KindOpened Kind = iota + 1
	// KindSnapshot is one entry of the state at the start of the subscription.
	KindSnapshot
	// KindSynced marks the end of the snapshot.
	KindSynced
	// KindDelta is one change.
	KindDelta
	// KindBookmark is sent if nothing has happened for BookmarkInterval.
	KindBookmark
	// KindUnknown is a message of a later version. A subscriber skips it.
	KindUnknown
)

// Start is the way in which a subscription begins.
type Start int

// The ways in which a subscription begins. All except StartResumed are followed by a snapshot.
const (
	// StartResumed: the token is valid, and only the missed changes follow.
	StartResumed Start = iota + 1
	// StartSnapshot: there was no token.
	StartSnapshot
	// StartSnapshotEpoch: the token is from another run of the publisher.
	StartSnapshotEpoch
	// StartSnapshotCompacted: the changes after the token are no longer known.
	StartSnapshotCompacted
	// StartSnapshotInvalid: the token cannot be read.
	StartSnapshotInvalid
)

// Message is one message of a subscription.
type Message[V any] struct {
	// Kind determines which of the other fields are set.
	Kind Kind
	// Start is set on KindOpened.
	Start Start
	// API is set on KindOpened of a publisher in another process: its version of k8s.io/api, empty if it does not say one.
	API string
	// OtherAPI is true if API is not the version of this process. It is false if either is not known.
	OtherAPI bool
	// Token resumes after this message. It is empty on KindSnapshot, and on a KindOpened that a snapshot follows.
	Token []byte
	// Key is the key of a KindSnapshot or KindDelta.
	Key string
	// Removed is true on a KindDelta that removes its key. The subscriber may not know the key, if it came and went
	// between two messages.
	Removed bool
	// Value is the state or the event; the last one if Removed is true.
	Value V
}

// Source is a publisher in this process, or a client of one in another.
type Source[V any] interface {
	// Subscribe begins a subscription after token, the Token of the last handled message; nil for a new one. It fails if
	// the publisher is unreachable or has stopped (ErrClosed). An invalid token is no error: the first message reports it.
	Subscribe(ctx context.Context, token []byte) (Subscription[V], error)
}

// Subscription is one subscriber's position in a stream. It is used by one goroutine at a time.
type Subscription[V any] interface {
	// Next waits for the next message. It fails with ErrOverflow, with ErrClosed, with the error of ctx, or, through the
	// wire, with the error of the connection. A failure ends the subscription.
	Next(ctx context.Context) (Message[V], error)
	// Close ends the subscription.
	Close()
}

// Config holds the settings of a publisher. The zero value is suitable for production.
type Config struct {
	// Epoch identifies this run of the publisher. Tokens of other epochs are not resumed, except those in Continues.
	// Random if empty.
	Epoch string
	// Continues are tokens of earlier runs of an Edge whose holders know everything before this run. They are resumed with
	// this run's first event. A publisher can set it if it has kept, across its restart, both a Token of the Edge and the
	// state at that Token.
	Continues [][]byte
	// Clock times the bookmarks; the real clock if nil.
	Clock clock.WithTicker
	// LogSize is the number of events that an Edge keeps for resumption and for slow subscribers; DefaultLogSize if 0.
	LogSize int
	// Tombstones is the number of removed keys that a Level remembers for resumption; DefaultTombstones if 0.
	Tombstones int
	// Metrics counts the operations; nothing is counted if it is nil.
	Metrics *ServedMetrics
}

const (
	// DefaultLogSize is enough for all events of 500 pods that start at once (sandbox, two containers and their
	// addresses).
	DefaultLogSize = 2048
	// DefaultTombstones is enough for a node of 500 pods that are all replaced twice.
	DefaultTombstones = 1024
)
