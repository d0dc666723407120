// Package source is the interface between the sources of pods, config maps and secrets, and the mux that merges them. A
// source is anything that can repeatedly deliver its desired pods, for example the file source. The mux does not depend
// on their implementations.
package source

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/services/configmux/internal/apiobject"
)

// Source delivers the full set of its pods, or the changed pods, whenever they, or its errors, may have changed.
type Source interface {
	// Name is the name for operators: "file", "http", "api", "local" or "replay". It is unique among the sources of a mux.
	Name() string
	// Target is the place that the source reads, for people: a path, a URL.
	Target() string
	// Run reads and calls the sink until ctx ends, and then returns nil. Transient problems, such as a missing file or an
	// unreachable server, are retried and reported through the sink; an error ends the process.
	Run(ctx context.Context, sink Sink) error
}

// Sink receives the readings of sources.
type Sink interface {
	// Set receives one reading. The first reading of the full set makes the source ready, and is sent even if there are no
	// pods. The sink takes ownership of the pods, and they must not be changed. An unchanged pod should keep its pointer.
	Set(name string, reading Reading)
}

// Reading is the result of reading a source.
type Reading struct {
	// Op is the kind of Pods. None: all pods of the source, which replace the previous ones. Add, Update or Delete: pods
	// that are present in addition to the previous ones, and replace those with the same UIDs. Remove: removed pods, of
	// which only the UIDs matter. Restore: pods of a checkpoint. They run, but they do not make the source ready, and its
	// first full set replaces them; a ready source cannot restore.
	Op podset.Op
	// Pods have unique names and UIDs.
	Pods []Pod
	// Objects are all config maps and secrets of the source, in a reading with the Op None; otherwise they are ignored,
	// and the previous ones stay. They have unique keys, and the sink owns them as it does Pods.
	Objects []Object
	// Failed is true if the source could not be read, so that its pods are unknown: the previous ones stay, and the
	// readiness of the source does not change. Pods is then ignored.
	Failed bool
	// Errors lists all present errors of the source; errors that are not in it are solved.
	Errors []Error
	// ReadAt is the time of the last full read; zero if there was none.
	ReadAt time.Time
	// Mode is the way in which the source notices changes, for people.
	Mode string
	// Causes maps paths to the trace in which the change of that path was read. It omits unchanged paths.
	Causes map[string]context.Context
}

// Pod is a pod and its origin.
type Pod struct {
	// Pod is defaulted and validated.
	*v1.Pod
	// Path is the file or URL.
	Path string
	// Life changes when the pod was removed from that path and added again between two readings. It is empty if the source
	// does not track that.
	Life string
}

// Object is a config map or a secret and its origin.
type Object struct {
	// Object is prepared: complete, defaulted and validated.
	*apiobject.Object
	// Path is the file or URL.
	Path string
	// CreatedAt is the time of the first apply; zero if unknown.
	CreatedAt time.Time
}

// Error is one problem with the content of a source.
type Error struct {
	// Path is the file or URL with the problem.
	Path string
	// Pod is "namespace/name", if it is known.
	Pod string
	// Object is the readable name of the config map or secret; empty for a pod.
	Object string
	// Field is the path of the field; empty if the problem is not about one.
	Field string
	// Message describes the problem, what was kept, and the remedy.
	Message string
	// SeenAt is the time at which it was last found. The same error with a later time is counted again.
	SeenAt time.Time
}
