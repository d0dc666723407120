// Package stream is the one implementation of the contract that every watch stream between Quartet's processes obeys:
// snapshot, marker, deltas, opaque resume tokens, bookmarks.
//
// It has two publishers and one follower. [Level] publishes desired or computed state: what a subscriber has not been
// sent yet folds, per key, into the latest. [Edge] publishes events: they never fold; a subscriber that is too slow
// is told so and begins again. [Follow] is the subscriber that survives everything: it reconnects, resumes, and turns a
// fresh snapshot into the changes against what it holds.
//
// The package knows nothing of gRPC: streamrpc carries a [Source] over the wire, and streamtest checks the guarantees
// (Ordered, Unique, Reliable, Resumable, Bounded) on any Source, in process and through a socket.
package stream

import (
	"context"
	"errors"
	"time"

	"k8s.io/utils/clock"
)

// BookmarkInterval is how long a subscription stays silent before it says that it is alive.
const BookmarkInterval = 10 * time.Second

var (
	// ErrOverflow ends a subscription that fell so far behind that a change would have been lost, or that may have been told by an
	// earlier run what comes next. Subscribe again with the last token: a snapshot follows, and the publisher knows that this is no
	// new follower.
	ErrOverflow = errors.New("subscriber fell behind and has to begin again from a snapshot")
	// ErrClosed ends every subscription when the publisher stops. Subscribe again with the last token.
	ErrClosed = errors.New("publisher stopped")
)

// Kind says what a message is.
type Kind int

// The kinds of message, in the order in which a subscription sends them.
const (
	// KindOpened is the first message of every subscription, with Start set.
	KindOpened Kind = iota + 1
	// KindSnapshot is one thing of the state as it was when the subscription began.
	KindSnapshot
	// KindSynced says that the snapshot is complete.
	KindSynced
	// KindDelta is one change.
	KindDelta
	// KindBookmark says that nothing has happened for BookmarkInterval.
	KindBookmark
)

// Start says from where a subscription begins.
type Start int

// The ways in which a subscription begins; all but StartResumed are followed by a snapshot.
const (
	// StartResumed: the token was good, only what was missed follows.
	StartResumed Start = iota + 1
	// StartSnapshot: there was no token.
	StartSnapshot
	// StartSnapshotEpoch: the token was given by another run of the publisher.
	StartSnapshotEpoch
	// StartSnapshotCompacted: what came after the token is no longer known.
	StartSnapshotCompacted
	// StartSnapshotInvalid: the token cannot be read.
	StartSnapshotInvalid
)

// Message is one message of a subscription.
type Message[V any] struct {
	// Kind says which of the other fields are set.
	Kind Kind
	// Start is set on KindOpened.
	Start Start
	// Token resumes after this message. Empty on KindSnapshot, and on a KindOpened that a snapshot follows.
	Token []byte
	// Key names what the message is about, on KindSnapshot and KindDelta.
	Key string
	// Removed is true on a KindDelta whose key is gone. A key may be said to be gone that the subscriber was never told of,
	// when it came and went between two messages.
	Removed bool
	// Value is the state, or the event; the last one when Removed.
	Value V
}

// Source can be subscribed to: a publisher in this process, or a client of one in another.
type Source[V any] interface {
	// Subscribe begins a subscription after token, the Token of the last message that was handled; nil for a new one.
	// It fails when the publisher cannot be reached or has stopped (ErrClosed). A token that is no longer good is not
	// an error: the first message says what became of it.
	Subscribe(ctx context.Context, token []byte) (Subscription[V], error)
}

// Subscription is one subscriber's place in a stream. It is used by one goroutine at a time.
type Subscription[V any] interface {
	// Next waits for the next message. It fails with ErrOverflow, with ErrClosed, with the error of ctx, or, through
	// the wire, with the error of the connection; after a failure the subscription is over.
	Next(ctx context.Context) (Message[V], error)
	// Close gives up the subscription.
	Close()
}

// Config are the settings of a publisher. The zero value is good for production.
type Config struct {
	// Epoch names this run of the publisher; tokens of another epoch are not resumed, but those of Continues. Random when empty.
	Epoch string
	// Continues are tokens of earlier runs of an Edge whose holders were told all that was before this run: they are resumed,
	// and get this run's events from the first one on. What lets a publisher say so is that it has kept, over its restart, both
	// the token of its last event and what it had told by then.
	Continues [][]byte
	// Clock times the bookmarks; the real one when nil.
	Clock clock.WithTicker
	// LogSize is how many events an Edge keeps for resumption and for slow subscribers; DefaultLogSize when 0.
	LogSize int
	// Tombstones is how many removed keys a Level remembers for resumption; DefaultTombstones when 0.
	Tombstones int
	// Metrics counts what happens; nobody sees it when nil.
	Metrics *ServedMetrics
}

const (
	// DefaultLogSize is enough for every event of 500 pods that start at once (sandbox, two containers and their addresses).
	DefaultLogSize = 2048
	// DefaultTombstones is twice the pods of a node of 500 that are all replaced.
	DefaultTombstones = 1024
)
