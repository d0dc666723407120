package localsource

import (
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/services/configmux/internal/apiobject"
	"github.com/quartet-node/quartet/services/configmux/internal/staticpod"
)

// ErrEnded says that the source takes no more requests.
var ErrEnded = errors.New("configmux is ending: try again when it is back")

// InvalidError says what is wrong with what was to be applied.
type InvalidError struct {
	// Problems has one entry for each field that is wrong, and at least one.
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

// TakenError says that the name or the UID of a pod is that of a pod that somebody else gave.
type TakenError struct {
	// What is "name" or "UID".
	What string
	// Pod is the pod that has it.
	Pod types.NamespacedName
	// Source is its source, and Path the file or URL that it was found in.
	Source, Path string
}

// Error says who has it and what to do.
func (e *TakenError) Error() string {
	return fmt.Sprintf("the %s is that of the pod %s of the source %q, in %s: give this pod another, or take that one away first", e.What, e.Pod, e.Source, e.Path)
}

// UnknownError says that no pod of the source has a name.
type UnknownError struct {
	// Name is what was asked for.
	Name types.NamespacedName
}

// Error says where to look.
func (e *UnknownError) Error() string {
	return fmt.Sprintf("the source %q has no pod %s: one of another source goes away with its file; quartet get pods lists all", Name, e.Name)
}

// AmbiguousError says that a name is that of one pod, and, without the node's suffix, of another.
type AmbiguousError struct {
	// Exact is the pod whose name it is, Suffixed the other.
	Exact, Suffixed types.NamespacedName
}

// Error says what to do.
func (e *AmbiguousError) Error() string {
	return fmt.Sprintf("it may be the pod %s or, without the node's suffix, %s: delete the latter first, by its whole name", e.Exact, e.Suffixed)
}

// FullError says that the source has as much as it takes.
type FullError struct {
	// What is of what, "pods" for example, and Number how many there are.
	What   string
	Number int
}

// Error says what to do.
func (e *FullError) Error() string {
	return fmt.Sprintf("the source %q has %d %s and takes no more: delete some first", Name, e.Number, e.What)
}

// ObjectTakenError says that another source has a config map or a secret of a name.
type ObjectTakenError struct {
	// Key says which one.
	Key apiobject.Key
	// Source is its source, and Path the file or URL that it was found in.
	Source, Path string
}

// Error says who has it and what to do.
func (e *ObjectTakenError) Error() string {
	return fmt.Sprintf("the source %q has the %s, in %s: change it there, or take it away there first", e.Source, e.Key, e.Path)
}

// UnknownObjectError says that the source has no config map or secret of a name.
type UnknownObjectError struct {
	// Key is what was asked for.
	Key apiobject.Key
}

// Error says where to look.
func (e *UnknownObjectError) Error() string {
	return fmt.Sprintf("the source %q has no %s: one of another source goes away with its file; quartet get %ss lists all", Name, e.Key, strings.ToLower(string(e.Key.Kind)))
}
