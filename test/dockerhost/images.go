package dockerhost

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/quartet-node/quartet/test/harness"
)

// Load loads images of the build by their names, "pleg" for bin/images/pleg.tar, and returns the name of each in the
// engine. At the end of the test an engine of the machine gets back the images that had these names before.
func (h *Host) Load(t testing.TB, names ...string) []string {
	t.Helper()
	refs := make([]string, 0, len(names))
	for _, name := range names {
		archive := filepath.Join(harness.BinDir(t), "images", name+".tar")
		if _, err := os.Stat(archive); err != nil {
			harness.Require(t, fmt.Errorf("%w: run make service-images test-tools", err))
		}
		refs = append(refs, h.load(t, archive))
	}
	return refs
}

func (h *Host) load(t testing.TB, archive string) string {
	t.Helper()
	ref, err := nameIn(archive)
	if err != nil {
		t.Fatalf("dockerhost: %v", err)
	}
	if !h.Own {
		h.keep(t, ref)
	}
	h.Docker(t, "load", "--quiet", "--input", archive)
	if h.imageID(ref) == "" {
		t.Fatalf("dockerhost: %s is loaded, but there is no image %s", archive, ref)
	}
	return ref
}

// keep records the image that has a name now, if any, and restores the name at the end of the test. It is for an engine
// that others use too.
func (h *Host) keep(t testing.TB, ref string) {
	t.Helper()
	commands := [][]string{{"image", "rm", "--force", ref}}
	if before := h.imageID(ref); before != "" {
		// An image without a name would be removed by the next clean-up.
		h.kept++
		second := fmt.Sprintf("quartet-kept:%d-%d", os.Getpid(), h.kept)
		h.Docker(t, "image", "tag", before, second)
		commands = append(commands, []string{"image", "tag", before, ref}, []string{"image", "rm", second})
	}
	t.Cleanup(func() {
		for _, command := range commands {
			if _, err := h.TryDocker(command...); err != nil {
				t.Errorf("dockerhost: %v", err)
			}
		}
	})
}

// imageID returns the id of an image, or "" when no image has the name.
func (h *Host) imageID(ref string) string {
	out, err := h.TryDocker("image", "inspect", "--format", "{{.Id}}", ref)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(out)
}
