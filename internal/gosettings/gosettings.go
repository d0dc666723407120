// Package gosettings sets Go's runtime for a process of a node: how often it collects garbage (package memory), and on
// how many processors (package processors).
//
// A process can set them only when its packages are initialized, which is a large part of its start. With Go's own
// settings it collects once meanwhile, waits for the end of that collection, and runs threads for all processors of the
// machine. So a process of a node passes the settings to its children, in the variables that Go reads. Four processes
// that start at once on two processors are initialized a quarter sooner (docs/performance.md).
package gosettings

import (
	"os"
	"slices"
	"strings"

	"github.com/quartet-node/quartet/internal/memory"
	"github.com/quartet-node/quartet/internal/processors"
)

// variable has the names of the variables that the parent has set and the operator has not, separated by commas.
const variable = "QUARTET_START_SETTINGS"

const separator = ","

// Begin sets Go's runtime for this process. A main function calls it once, before it reads the environment, because it
// removes what ChildEnv has added: children of this process may be any program.
func Begin() {
	given := strings.Split(os.Getenv(variable), separator)
	unset(variable)
	for _, name := range []string{memory.Variable, processors.Variable} {
		if slices.Contains(given, name) {
			unset(name)
		}
	}
	memory.Start()
	if !slices.Contains(given, processors.Variable) { // else it is limited already
		processors.Limit()
	}
}

// unset removes a variable from the environment. That fails only for a name that no variable can have.
func unset(name string) { _ = os.Unsetenv(name) }

// ChildEnv returns the environment for a child of this process that calls Begin: environ, and settings for the time
// until then, unless the operator has set them. A program that does not know Begin keeps them, and works with them.
func ChildEnv(environ []string) []string {
	var names, added []string
	for _, one := range []struct{ name, value string }{
		{memory.Variable, memory.ForChild()}, {processors.Variable, processors.ForChild()},
	} {
		if !slices.ContainsFunc(environ, func(v string) bool { return strings.HasPrefix(v, one.name+"=") }) {
			names, added = append(names, one.name), append(added, one.name+"="+one.value)
		}
	}
	if len(names) > 0 {
		added = append(added, variable+"="+strings.Join(names, separator))
	}
	return slices.Concat(environ, added)
}
