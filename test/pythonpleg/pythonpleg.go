// Package pythonpleg makes the pleg of examples/pleg-python a program, for tests of a node whose pleg was replaced.
package pythonpleg

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/quartet-node/quartet/test/require"
)

// python is the interpreter with the modules of the distribution's packages.
const python = "/usr/bin/python3"

// Program generates the stubs of the pleg and returns the path of a program with them, which exists until the test
// ends. It skips a test on a machine without the needed packages, or fails it with CI=true.
func Program(t *testing.T) string {
	t.Helper()
	require.NoError(t, requirements())
	example, err := find()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	stubs, program := filepath.Join(dir, "stubs"), filepath.Join(dir, "pleg")
	generate := exec.CommandContext(t.Context(), filepath.Join(example, "generate"), stubs)
	if out, err := generate.CombinedOutput(); err != nil {
		t.Fatalf("generating the stubs: %v\n%s", err, out)
	}
	script := fmt.Sprintf("#!/bin/sh\nSTUBS=%s exec %s %s \"$@\"\n", stubs, python, filepath.Join(example, "pleg.py"))
	if err := os.WriteFile(program, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return program
}

// find returns the directory of the example. Tests run in the directory of their package.
func find() (string, error) {
	dir, err := os.Getwd()
	for ; err == nil; dir = filepath.Dir(dir) {
		example := filepath.Join(dir, "examples", "pleg-python")
		if _, statErr := os.Stat(example); statErr == nil {
			return example, nil
		}
		if dir == filepath.Dir(dir) {
			err = errors.New("there is no examples/pleg-python above the test's directory")
		}
	}
	return "", err
}

// requirements returns an error unless the packages are there.
func requirements() error {
	const remedy = "install the packages that examples/pleg-python/README.md names"
	var missing []error
	for _, program := range []string{python, "protoc", "grpc_python_plugin"} {
		if _, err := exec.LookPath(program); err != nil {
			missing = append(missing, fmt.Errorf("%w: %s", err, remedy))
		}
	}
	if _, err := os.Stat("/usr/include/google/protobuf/timestamp.proto"); err != nil {
		missing = append(missing, fmt.Errorf("%w: %s", err, remedy))
	}
	if out, err := exec.Command(python, "-c", "import grpc, google.protobuf").CombinedOutput(); err != nil {
		missing = append(missing, fmt.Errorf("%w: %s: %s", err, out, remedy))
	}
	return errors.Join(missing...)
}
