package volumes_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
	"github.com/quartet-node/quartet/test/require"
)

// TestRefsAreTheOtherMountsOfADirectory binds a directory of a file system, and another one, which is no reference.
func TestRefsAreTheOtherMountsOfADirectory(t *testing.T) {
	require.Root(t, "mounting")
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	mount := func(from, to string) {
		t.Helper()
		err := errors.Join(os.MkdirAll(from, 0o750), os.MkdirAll(to, 0o750), unix.Mount(from, to, "", unix.MS_BIND, ""))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := unix.Unmount(to, unix.MNT_DETACH); err != nil {
				t.Error(err)
			}
		})
	}
	mount(at("volume"), at("staged"))
	mount(at("staged"), at("pod"))
	mount(at("volume/below"), at("part"))
	mount(at("other"), at("elsewhere"))
	for path, want := range map[string][]string{
		"staged": {at("pod")}, "pod": {at("staged")}, "volume": {at("staged"), at("pod")},
		"volume/below": {at("part")}, "elsewhere": nil, "missing": nil,
	} {
		got, err := volumes.Machine{}.Refs(at(path))
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("Refs(%s) = %v, %v; want %v", path, got, err, want)
		}
	}
}
