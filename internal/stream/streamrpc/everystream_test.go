package streamrpc_test

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	_ "github.com/quartet-node/quartet/gen/quartet/config/v1"
	_ "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	_ "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	_ "github.com/quartet-node/quartet/gen/quartet/node/v1"
)

var (
	// opens matches a client that follows a stream, and tried a test of that with a later version.
	opens = regexp.MustCompile(`(?:streamrpc\.NewSource|\bsourceOf)\((?s:.*?)\.(Watch[A-Z][A-Za-z]*)\(`)
	tried = regexp.MustCompile(`streamtest\.Later\(t, "quartet\.[a-z]+\.v1\.[A-Za-z]+\.(Watch[A-Za-z]+)"`)
)

// TestEveryClientOfAStreamIsTriedWithALaterVersion: each package that follows a stream has a test with
// streamtest.Later, and each stream of the contracts has one.
func TestEveryClientOfAStreamIsTriedWithALaterVersion(t *testing.T) {
	const root = "../../.."
	opened, tests := map[string][]string{}, map[string][]string{}
	for _, top := range []string{"cmd", "internal", "services"} {
		err := filepath.WalkDir(filepath.Join(root, top), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || filepath.Ext(path) != ".go" {
				return err
			}
			content, err := os.ReadFile(filepath.Clean(path))
			if err != nil {
				return err
			}
			into, pattern := opened, opens
			if strings.HasSuffix(path, "_test.go") {
				into, pattern = tests, tried
			}
			for _, match := range pattern.FindAllStringSubmatch(string(content), -1) {
				into[filepath.Dir(path)] = append(into[filepath.Dir(path)], match[1])
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for dir, methods := range opened {
		for _, method := range methods {
			if !slices.Contains(tests[dir], method) {
				t.Errorf("%s follows %s, and has no test of it with streamtest.Later", dir, method)
			}
		}
	}
	all := slices.Concat(slices.Collect(maps.Values(tests))...)
	for _, method := range streams() {
		if !slices.Contains(all, string(method)) {
			t.Errorf("no client of %s is tried with a later version", method)
		}
	}
}

// streams returns the methods of the contracts that send frames.
func streams() (names []protoreflect.Name) {
	protoregistry.GlobalFiles.RangeFiles(func(file protoreflect.FileDescriptor) bool {
		for i := range file.Services().Len() {
			methods := file.Services().Get(i).Methods()
			for j := range methods.Len() {
				method := methods.Get(j)
				frame := method.Output().Fields().ByName("frame")
				if method.IsStreamingServer() && frame != nil && frame.Message().FullName() == "quartet.stream.v1.Frame" {
					names = append(names, method.Name())
				}
			}
		}
		return true
	})
	return names
}
