package linked

import (
	"slices"
	"strings"
	"testing"
)

// TestAPackageThatMustNotBeLinkedIsNamed checks the message, with the shortest chain of several.
func TestAPackageThatMustNotBeLinkedIsNamed(t *testing.T) {
	const scheme = "k8s.io/client-go/kubernetes/scheme"
	imports := map[string][]string{
		"main": {"a", "b"}, "a": {"b", "c"}, "b": {"d"}, "c": {"d"}, "d": {scheme, "k8s.io/client-go/rest"},
		scheme: {}, "k8s.io/client-go/rest": {}, "testingx": {},
	}
	got := wrong(imports, "main")
	if len(got) != 1 || !strings.HasPrefix(got[0], scheme+" is linked, as main imports b imports d imports "+scheme+": ") {
		t.Errorf("wrong(main) = %q, want exactly one and got[0] beginning with %q",
			got, scheme+" is linked, as main imports b imports d imports "+scheme+": ")
	}
}

// TestTheImportsOfAPackageAreListed checks the imports of a package and of its dependencies.
func TestTheImportsOfAPackageAreListed(t *testing.T) {
	imports, program := list(t)
	if program != "github.com/quartet-node/quartet/test/linked" || !slices.Contains(imports[program], "testing") || !slices.Contains(imports["testing"], "runtime") {
		t.Errorf("%s imports %q", program, imports[program])
	}
}
