// Package linked holds the programs to what they may consist of. What is linked into a program costs disk and memory, and
// what registers itself at the start costs them on every node, whether it is used or not.
package linked

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/quartet-node/quartet/test/harness"
)

// tags are the product's build tags. With this one gRPC has no pages of its own, and so no templates: those call methods by
// names that the linker cannot know, for which it keeps every method of every type, a fifth of a program.
const tags = "grpcnotrace"

// forbidden returns the packages that no program may link, each with all that are below it, and why.
func forbidden() map[string]string {
	return map[string]string{
		"k8s.io/client-go/kubernetes":          "it registers every API group, which doubles a program: internal/apiclient has a client of the group version",
		"k8s.io/client-go/gentype":             "it brings the parsers of OpenAPI: make requests of the client that internal/apiclient has",
		"k8s.io/kubernetes/pkg/kubelet":        "the product behaves as the kubelet and has nothing of it",
		"github.com/quartet-node/quartet/test": "it is for tests",
		"testing":                              "it is for tests",
		"golang.org/x/net/trace":               "it brings templates: see that the product is built with -tags " + tags,
		"html/template":                        "it keeps the linker from leaving out what is never called",
	}
}

// Check is for a test of a main package, in whose directory it runs. It fails the test for every package that the program
// must not link, with how it came in; and when bin/ has the program, if that is larger than limit, in MiB.
func Check(t *testing.T, limit int64) {
	t.Helper()
	imports, program := list(t)
	for _, text := range wrong(imports, program) {
		t.Error(text)
	}
	file := filepath.Join(harness.BinDir(t), filepath.Base(program))
	info, err := os.Stat(file)
	switch {
	case errors.Is(err, fs.ErrNotExist): // it has not been built
	case err != nil:
		t.Error(err)
	case info.Size() > limit<<20:
		t.Errorf("%s has %.1f MiB, want at most %d: look with go tool nm -size for what has come in; if that is needed, raise the limit", file, float64(info.Size())/(1<<20), limit)
	}
}

// wrong returns what is to be said of each package that a program links and must not.
func wrong(imports map[string][]string, program string) []string {
	var out []string
	prohibited := forbidden()
	for _, path := range slices.Sorted(maps.Keys(imports)) {
		for prefix, why := range prohibited {
			if path == prefix || strings.HasPrefix(path, prefix+"/") {
				out = append(out, path+" is linked, as "+strings.Join(chain(imports, program, path), " imports ")+": "+why)
			}
		}
	}
	return out
}

// list returns what every package that the program consists of imports, and the path of the program's own.
func list(t *testing.T) (imports map[string][]string, program string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "-tags", tags, "-f", `{{.ImportPath}} {{join .Imports " "}}`, ".").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	imports = make(map[string][]string)
	for line := range strings.Lines(string(out)) {
		// What is imported comes first, and the program last.
		words := strings.Fields(line)
		program, imports[words[0]] = words[0], words[1:]
	}
	return imports, program
}

// chain returns a shortest way from one package to another that it imports, directly or not, with both ends.
func chain(imports map[string][]string, from, to string) []string {
	by := map[string]string{from: ""}
	for next := []string{from}; len(next) > 0; next = next[1:] {
		for _, path := range imports[next[0]] {
			if _, seen := by[path]; !seen {
				by[path] = next[0]
				next = append(next, path)
			}
		}
	}
	way := []string{to}
	for at := by[to]; at != ""; at = by[at] {
		way = append(way, at)
	}
	slices.Reverse(way)
	return way
}
