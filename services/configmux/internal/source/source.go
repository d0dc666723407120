// Package source is the one seam between the places that pods come from, and config maps and secrets with them, and the mux
// that merges them. A source is anything that can say, again and again, which pods it wants; the file source is one, and others plug in beside it
// without the mux knowing.
package source

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/services/configmux/internal/apiobject"
)

// Source gives the full set of its pods, or the pods that have changed, whenever they, or what is wrong with them, may have
// changed.
type Source interface {
	// Name is the name that operators see: "file", "http", "api", "local" or "replay". It is unique among the sources of a mux.
	Name() string
	// Target is where the source reads, for people: a path, a URL.
	Target() string
	// Run reads and calls the sink until ctx ends, and then returns nil. What can mend itself (a file that is missing,
	// a server that is away) is retried and reported through the sink; an error ends the process.
	Run(ctx context.Context, sink Sink) error
}

// Sink takes what sources read.
type Sink interface {
	// Set takes one reading. The first one of the full set says that the source has spoken, and is made even when there are
	// no pods. The pods belong to the sink from now on and must not be changed; one that is unchanged since the last call
	// is best given as the same pointer.
	Set(name string, reading Reading)
}

// Reading is the outcome of reading a source.
type Reading struct {
	// Op says what Pods are. None: all pods of the source, which replace those that it gave before. Add, Update or Delete:
	// pods that are there now, beside those that it gave before and in the place of those with the same UIDs. Remove: pods
	// that are gone, of which only the UIDs matter. Restore: pods out of a checkpoint. They are run, but the source has not
	// spoken by it, and its first full set replaces them; once it has spoken nothing can be restored.
	Op podset.Op
	// Pods are free of repeated names and UIDs.
	Pods []Pod
	// Objects are all config maps and secrets of the source, in a reading with the Op None; with another they mean nothing, and
	// those of before stay. They are free of repeated keys, and belong to the sink as Pods do.
	Objects []Object
	// Failed is true when the source could not be read, so that its pods are not known: those that it gave before stay,
	// and one that has not spoken has still not spoken. Pods is then empty and means nothing.
	Failed bool
	// Errors is everything that is wrong with the source now; what is not in it has been mended.
	Errors []Error
	// ReadAt is when the source was last read in full; zero when it never was.
	ReadAt time.Time
	// Mode is how the source notices changes, for people.
	Mode string
	// Causes has, by path, the trace in which the change of that path was read. Paths that did not change are not in it.
	Causes map[string]context.Context
}

// Pod is a pod and where it was found.
type Pod struct {
	// Pod is defaulted and validated.
	*v1.Pod
	// Path is the file or URL.
	Path string
	// Life is another one than before when the pod was gone from that path and came back between two readings. Empty where the
	// source does not know that; it then tells by two readings.
	Life string
}

// Object is a config map or a secret and where it was found.
type Object struct {
	// Object is prepared: whole, defaulted and validated.
	*apiobject.Object
	// Path is the file or URL.
	Path string
	// CreatedAt is when it was applied first; zero where that is not known.
	CreatedAt time.Time
}

// Error is one thing that is wrong with what a source gives.
type Error struct {
	// Path is the file or URL that it was found in.
	Path string
	// Pod is "namespace/name", when it is known.
	Pod string
	// Object is the config map or secret that it is about, as people name it; empty of a pod.
	Object string
	// Field is the path of the offending field; empty when it is not about one.
	Field string
	// Message says what is wrong, what was kept, and what to do.
	Message string
	// SeenAt is when it was last found. The same error with a later time counts once more.
	SeenAt time.Time
}
