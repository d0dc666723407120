package conformance_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/quartet-node/quartet/conformance"
)

// TestRulesQuoteTheContracts checks that the comment of each rule exists and has its words.
func TestRulesQuoteTheContracts(t *testing.T) {
	for _, suite := range conformance.Suites() {
		names := map[string]bool{}
		for _, rule := range suite.Rules() {
			if names[rule.Name] {
				t.Errorf("%s has two rules with the name %s", suite.Service, rule.Name)
			}
			names[rule.Name] = true
			if text := commentsOf(t, rule.Comment); !strings.Contains(text, rule.Text) {
				t.Errorf("%s of %s: the comments of the file of %s do not say %q", rule.Name, suite.Service, rule.Comment,
					rule.Text)
			}
		}
	}
}

// commentsOf returns the words of all comments of the file of an element, or of a package, which is one file.
func commentsOf(t *testing.T, element string) string {
	t.Helper()
	var path string
	note := func(f protoreflect.FileDescriptor) bool {
		path = f.Path()
		return false
	}
	protoregistry.GlobalFiles.RangeFilesByPackage(protoreflect.FullName(element), note)
	if path == "" {
		path = fileOf(t, protoreflect.FullName(element))
	}
	data, err := os.ReadFile(filepath.Join("..", "proto", filepath.FromSlash(path)))
	if err != nil {
		t.Fatal(err)
	}
	var words []string
	for line := range strings.Lines(string(data)) {
		if comment, ok := strings.CutPrefix(strings.TrimSpace(line), "//"); ok {
			words = append(words, strings.Fields(comment)...)
		}
	}
	return strings.Join(words, " ")
}

// fileOf returns the path of the file that declares an element. A value of an enum is named below its enum.
func fileOf(t *testing.T, element protoreflect.FullName) string {
	t.Helper()
	if found, err := protoregistry.GlobalFiles.FindDescriptorByName(element); err == nil {
		return found.ParentFile().Path()
	}
	found, err := protoregistry.GlobalFiles.FindDescriptorByName(element.Parent())
	if err != nil {
		t.Fatalf("%s: %v", element, err)
	}
	enum, ok := found.(protoreflect.EnumDescriptor)
	if !ok || enum.Values().ByName(element.Name()) == nil {
		t.Fatalf("%s: there is no such element", element)
	}
	return found.ParentFile().Path()
}
