// Package linked checks the packages and the size of the linked programs. A linked package costs disk and memory, and
// one that registers itself at the start costs them on every node, whether it is used or not.
package linked

import (
	"bytes"
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

// tags are the product's build tags. With this tag gRPC has no debug pages, and so no templates: see caller.
const tags = "grpcnotrace"

// forbidden returns the packages that no program may link, each including all packages below it, with the reason.
func forbidden() map[string]string {
	return map[string]string{
		"k8s.io/client-go/kubernetes":          "it registers every API group, which doubles a program's size: use the client of the group version of internal/apiclient",
		"k8s.io/client-go/gentype":             "it links the parsers of OpenAPI: use the requests of the client of internal/apiclient",
		"k8s.io/kubernetes/pkg/kubelet":        "the product must not contain code of the kubelet",
		"github.com/quartet-node/quartet/test": "it is for tests",
		"testing":                              "it is for tests",
		"golang.org/x/net/trace":               "it links templates: build the product with -tags " + tags,
	}
}

// needed is the package of the tests that the product needs: the runtime of `quartet conformance pleg`.
const needed = "github.com/quartet-node/quartet/test/fakecri"

// caller is the function by which a template of Go's library calls a method by its name. A program that links it has
// every method of every type, which is a fifth of it. Many packages import text/template or html/template, and few call
// it.
const caller = "text/template.(*state).evalField"

// Check is for a test of a main package and runs in its directory. It fails the test for every forbidden package that
// the program links, with the chain of imports. When bin/ or bin/services/ has the program, it also fails the test if
// the program is larger than limit, in MiB.
func Check(t *testing.T, limit int64) {
	t.Helper()
	imports, program := list(t)
	for _, text := range wrong(imports, program) {
		t.Error(text)
	}
	file := filepath.Join(harness.BinDir(t), "services", filepath.Base(program))
	if name := filepath.Base(program); strings.HasPrefix(name, "quartet") { // a program that is no service
		file = filepath.Join(harness.BinDir(t), name)
	}
	content, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return // the program has not been built
	}
	if err != nil {
		t.Fatal(err)
	}
	if size := float64(len(content)) / (1 << 20); size > float64(limit) {
		t.Errorf("%s has %.1f MiB, want at most %d: find the new symbols with go tool nm -size; "+
			"if they are needed, raise the limit", file, size, limit)
	}
	if bytes.Contains(content, []byte("\x00"+caller+"\x00")) { // one of the names of functions, which no strip removes
		t.Errorf("%s has %s, so the linker cannot drop unused methods: use the templates of DataDog's package, "+
			"which call none; go build -ldflags=-dumpdep prints what leads to it", file, caller)
	}
}

// wrong returns an error text for each forbidden package that a program links.
func wrong(imports map[string][]string, program string) []string {
	var out []string
	prohibited := forbidden()
	for _, path := range slices.Sorted(maps.Keys(imports)) {
		for prefix, why := range prohibited {
			if path == needed {
				continue
			}
			if path == prefix || strings.HasPrefix(path, prefix+"/") {
				out = append(out, path+" is linked, as "+strings.Join(chain(imports, program, path), " imports ")+": "+why)
			}
		}
	}
	return out
}

// list returns the imports of every package of the program, and the import path of the program.
func list(t *testing.T) (imports map[string][]string, program string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "-tags", tags, "-f", `{{.ImportPath}} {{join .Imports " "}}`, ".").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	imports = make(map[string][]string)
	for line := range strings.Lines(string(out)) {
		// Dependencies come first, and the program last.
		words := strings.Fields(line)
		program, imports[words[0]] = words[0], words[1:]
	}
	return imports, program
}

// chain returns the shortest chain of imports from one package to another, with both ends.
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
