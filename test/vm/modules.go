package vm

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// resolve returns the files of modules and of what they depend on, relative to the folder of the kernel's modules, in
// the order in which they can be loaded. Modules that are built into the kernel have none.
func resolve(folder string, names []string) ([]string, error) {
	dependencies, err := os.ReadFile(filepath.Join(folder, "modules.dep"))
	if err != nil {
		return nil, err
	}
	// A line has a module and what it depends on, the deepest last: "fs/a.ko: fs/b.ko fs/c.ko".
	lines := map[string][]string{}
	for line := range strings.Lines(string(dependencies)) {
		if file, rest, found := strings.Cut(line, ":"); found {
			lines[moduleName(file)] = append([]string{file}, strings.Fields(rest)...)
		}
	}
	builtin, err := os.ReadFile(filepath.Join(folder, "modules.builtin"))
	if err != nil {
		return nil, err
	}
	for file := range strings.Lines(string(builtin)) {
		lines[moduleName(strings.TrimSpace(file))] = []string{}
	}
	var files []string
	for _, name := range names {
		line, found := lines[moduleName(name)]
		if !found {
			return nil, fmt.Errorf("the kernel has no module %s", name)
		}
		for _, file := range slices.Backward(line) {
			if !slices.Contains(files, file) {
				files = append(files, file)
			}
		}
	}
	return files, nil
}

// moduleName returns the name of a module from its file. The kernel does not distinguish "-" and "_".
func moduleName(file string) string {
	name, _, _ := strings.Cut(filepath.Base(file), ".ko")
	return strings.ReplaceAll(name, "-", "_")
}
