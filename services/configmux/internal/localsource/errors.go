package localsource

import (
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/services/configmux/internal/apiobject"
	"github.com/quartet-node/quartet/services/configmux/internal/staticpod"
)

// ErrEnded is returned after the source has ended.
var ErrEnded = errors.New("configmux is stopping: try again after its restart")

// InvalidError lists the validation errors of an apply.
type InvalidError struct {
	// Problems has one entry for each invalid field, and at least one.
	Problems []staticpod.Problem
}

// Error lists the problems.
func (e *InvalidError) Error() string {
	texts := make([]string, 0, len(e.Problems))
	for _, p := range e.Problems {
		texts = append(texts, p.Error())
	}
	return strings.Join(texts, "; ")
}

// TakenError is returned if a pod of another source has the name or the UID of a pod.
type TakenError struct {
	// What is "name" or "UID".
	What string
	// Pod is the other pod.
	Pod types.NamespacedName
	// Source is its source, and Path its file or URL.
	Source, Path string
}

// Error names the other pod and the remedy.
func (e *TakenError) Error() string {
	return fmt.Sprintf(
		"the %s is that of the pod %s of the source %q, in %s: give this pod another, or take that one away first",
		e.What,
		e.Pod,
		e.Source,
		e.Path,
	)
}

// UnknownError is returned if the source has no pod of a name.
type UnknownError struct {
	// Name is the requested name.
	Name types.NamespacedName
}

// Error names the other places to look.
func (e *UnknownError) Error() string {
	return fmt.Sprintf(
		"the source %q has no pod %s: one of another source goes away with its file; quartet get pods lists all",
		Name,
		e.Name,
	)
}

// AmbiguousError is returned if a name is that of one pod, and, without the node's suffix, of another.
type AmbiguousError struct {
	// Exact is the pod with that name, and Suffixed the other.
	Exact, Suffixed types.NamespacedName
}

// Error names the remedy.
func (e *AmbiguousError) Error() string {
	return fmt.Sprintf(
		"it may be the pod %s or, without the node's suffix, %s: delete the latter first, by its whole name",
		e.Exact,
		e.Suffixed,
	)
}

// FullError is returned if a limit of the source is reached.
type FullError struct {
	// What is the kind of object, for example "pods", and Number the present number.
	What   string
	Number int
}

// Error names the remedy.
func (e *FullError) Error() string {
	return fmt.Sprintf("the source %q has %d %s and takes no more: delete some first", Name, e.Number, e.What)
}

// ObjectTakenError is returned if another source has the object.
type ObjectTakenError struct {
	// Key is the key of the object.
	Key apiobject.Key
	// Source is its source, and Path its file or URL.
	Source, Path string
}

// Error names the other object and the remedy.
func (e *ObjectTakenError) Error() string {
	return fmt.Sprintf(
		"the source %q has the %s, in %s: change it there, or take it away there first",
		e.Source,
		e.Key,
		e.Path,
	)
}

// UnknownObjectError is returned if the source has no such object.
type UnknownObjectError struct {
	// Key is the requested key.
	Key apiobject.Key
}

// Error names the other places to look.
func (e *UnknownObjectError) Error() string {
	return fmt.Sprintf(
		"the source %q has no %s: one of another source goes away with its file; quartet get %s lists all",
		Name,
		e.Key,
		e.Key.Kind.Plural(),
	)
}
