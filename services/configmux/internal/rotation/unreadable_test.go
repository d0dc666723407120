package rotation_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/services/configmux/internal/apiobject"
	"github.com/quartet-node/quartet/services/configmux/internal/sealing"
	"github.com/quartet-node/quartet/test/eventually"
)

// TestARotationStopsAtTheFirstRecordThatItCannotRead damages a file with secrets before a rotation. The rotation fails
// and keeps the old key. With the file back, everything is readable, and a rotation succeeds.
func TestARotationStopsAtTheFirstRecordThatItCannotRead(t *testing.T) {
	for name, test := range map[string]struct {
		file  func(root string) string
		spoil func(path string, content []byte) error
	}{
		"a secret of garbage":           {secretFile, holding("}{")},
		"a secret without content":      {secretFile, holding("{}")},
		"a secret with another content": {secretFile, changing(`"data":"`, `"data":"AAAA`)},
		"a secret of a missing key":     {secretFile, changing(`"key":"`, `"key":"0`)},
		"a secret with a wrong checksum": {secretFile, func(path string, content []byte) error {
			return os.WriteFile(path, []byte(strings.Replace(string(content), `"createdAt":"2`, `"createdAt":"3`, 1)), 0o600)
		}},
		"a directory in the place of a secret": {secretFile, func(path string, _ []byte) error {
			return errors.Join(os.Remove(path), os.Mkdir(path, 0o700))
		}},
		"a checkpoint of garbage":            {checkpointFile, holding("}{")},
		"a checkpoint with a changed secret": {checkpointFile, changing(`"data":"`, `"data":"AAAA`)},
	} {
		t.Run(name, func(t *testing.T) {
			root, old := prepare(t)
			before, err := os.Stat(checkpointFile(root))
			must(t, err)
			n := start(t, root)
			n.secrets()
			eventually.That(t, "the checkpoint is written after the start", func() bool {
				after, err := os.Stat(checkpointFile(root))
				return err == nil && !os.SameFile(before, after)
			})
			path := test.file(root)
			content, err := os.ReadFile(path)
			must(t, err)
			must(t, test.spoil(path, content))
			if _, _, err := n.rotation.Rotate(t.Context()); err == nil || !strings.Contains(err.Error(), path) {
				t.Errorf("Rotate() = %v, want an error that names %s", err, path)
			}
			if rotating, err := n.seals.Rotating(); !rotating || err != nil {
				t.Errorf("after the failure both keys are kept: %v, %v, want true", rotating, err)
			}
			n.stop()
			must(t, os.RemoveAll(path))
			must(t, os.WriteFile(path, content, 0o600))
			next := start(t, root)
			if got := next.secrets(); strings.Join(got, " ") != all {
				t.Errorf("with the file back there are %q, want %q", got, all)
			}
			_, _, err = next.rotation.Rotate(t.Context())
			must(t, err)
			next.stop()
			sealedWith(t, root, old, false)
			last := start(t, root)
			defer last.stop()
			if got := last.secrets(); strings.Join(got, " ") != all {
				t.Errorf("after the rotation there are %q, want %q", got, all)
			}
		})
	}
}

// holding returns a function that replaces the content of a file.
func holding(content string) func(path string, _ []byte) error {
	return func(path string, _ []byte) error { return os.WriteFile(path, []byte(content), 0o600) }
}

// changing returns a function that replaces a part of a file without a checksum.
func changing(from, to string) func(path string, content []byte) error {
	return func(path string, content []byte) error {
		object, err := statedir.Checked(content, "")
		if err != nil {
			return err
		}
		return os.WriteFile(path, []byte(strings.Replace(string(object), from, to, 1)), 0o600)
	}
}

func secretFile(root string) string {
	files, err := filepath.Glob(filepath.Join(root, "state", "applied", "*.secret"))
	if err != nil || len(files) == 0 {
		return "no secret in " + root
	}
	return files[0]
}

func checkpointFile(root string) string { return filepath.Join(root, "state", "manifests.json") }

// TestAKeyFileThatDisappearedIsAnErrorAtTheNextWrite removes the key file of a running process. What was sealed is
// readable, and nothing is sealed with a key that no later process has.
func TestAKeyFileThatDisappearedIsAnErrorAtTheNextWrite(t *testing.T) {
	root, _ := prepare(t)
	n := start(t, root)
	n.secrets()
	must(t, os.Rename(n.seals.Path(), n.seals.Path()+".away"))
	secret := &apiobject.Object{Secret: &v1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "c"}, StringData: map[string]string{"key": "3"},
	}}
	var unusable *sealing.FileError
	if _, err := n.local.ApplyObject(t.Context(), secret, false); !errors.As(err, &unusable) ||
		!strings.Contains(err.Error(), "has disappeared: restore it from a backup") {
		t.Errorf("applying a secret = %v, want a %T that says what to do", err, unusable)
	}
	if _, _, err := n.rotation.Rotate(t.Context()); !errors.As(err, &unusable) {
		t.Errorf("Rotate() = %v, want a %T", err, unusable)
	}
	if got := n.secrets(); strings.Join(got, " ") != all {
		t.Errorf("without the file there are %q, want %q", got, all)
	}
	must(t, os.Rename(n.seals.Path()+".away", n.seals.Path()))
	n.apply("c", "3")
	_, _, err := n.rotation.Rotate(t.Context())
	must(t, err)
	n.stop()
	next := start(t, root)
	defer next.stop()
	if got := next.secrets(); strings.Join(got, " ") != "a=1 b=2 c=3 filed=f" {
		t.Errorf("with the file back there are %q", got)
	}
}

// TestAKeyFileThatIsReplacedDuringARotationKeepsItsKeys puts the file of before the rotation back while it runs.
func TestAKeyFileThatIsReplacedDuringARotationKeepsItsKeys(t *testing.T) {
	k := sealing.NewKeyring(filepath.Join(t.TempDir(), "secrets.key"), os.Geteuid())
	_, err := k.Seal([]byte("s"), "a")
	must(t, err)
	before, err := os.ReadFile(k.Path())
	must(t, err)
	must(t, k.Begin())
	must(t, os.WriteFile(k.Path(), before, 0o600))
	var unusable *sealing.FileError
	if err := k.Finish(); !errors.As(err, &unusable) {
		t.Errorf("Finish() = %v, want a %T", err, unusable)
	}
}
