package compose

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/test/harness"
)

// ownImages are the images that "make images" builds.
var ownImages = []string{"configmux", "pleg", "syncloop", "nodestatus", "quartet", "containerd"}

// pinImages loads the images of the build, and has the script of "make images" pin them for this stack.
func (s *stack) pinImages() {
	s.t.Helper()
	s.host.Load(s.t, ownImages...)
	jaeger := s.host.Load(s.t, "jaeger-standin")[0]
	s.jaegerImage = strings.TrimSpace(s.host.Docker(s.t, "image", "inspect", "--format", "{{.Id}}", jaeger))
	args := []string{"--pin", filepath.Join(s.images, "dev.yaml")}
	for _, name := range ownImages {
		args = append(args, filepath.Join(harness.BinDir(s.t), "images", name+".tar"))
	}
	script := exec.CommandContext(s.t.Context(), "../../tools/scripts/load-images", args...)
	script.Env = s.host.Env()
	if out, err := script.CombinedOutput(); err != nil {
		s.t.Fatalf("%v: %s", err, out)
	}
}

// pinned writes a file as "make images" does, with the image of one service. It returns the version, which is its name.
func (s *stack) pinned(version, service, image string) string {
	s.t.Helper()
	content := fmt.Sprintf("services:\n  %s: { image: %q, pull_policy: never }\n", service, image)
	s.must(os.WriteFile(filepath.Join(s.images, version+".yaml"), []byte(content), 0o600))
	return version
}

// otherImage returns the ID of an image with another label. It has no name, so that no other test sees it.
func (s *stack) otherImage(service string) string {
	s.t.Helper()
	id := strings.TrimSpace(s.host.Docker(s.t, "create", "quartet.local/"+service+":dev"))
	defer s.host.Docker(s.t, "rm", id)
	label := "LABEL quartet.test=" + filepath.Base(s.node.Layout.StateDir())
	image := strings.TrimSpace(s.host.Docker(s.t, "commit", "--change", label, id))
	s.t.Cleanup(func() { s.host.Docker(s.t, "rmi", "--force", image) })
	return image
}

// images checks what the containers were made of. That does not change with the tag of a later build.
func images(s *stack) {
	ids := map[layout.Service]string{}
	for _, service := range layout.Services() {
		ids[service] = s.container(service)
	}
	for _, service := range append(layout.Services(), "containerd", "jaeger") {
		named, is, _ := strings.Cut(s.inspect(s.container(service), "{{.Config.Image}} {{.Image}}"), " ")
		if named != is || !strings.HasPrefix(is, "sha256:") {
			s.t.Errorf("%s has the image %q, which is %s, want it by its ID", service, named, is)
		}
	}
	const tag = "quartet.local/pleg:dev"
	was := strings.TrimSpace(s.host.Docker(s.t, "image", "inspect", "--format", "{{.Id}}", tag))
	s.host.Docker(s.t, "tag", s.otherImage("pleg"), tag)
	defer s.host.Docker(s.t, "tag", was, tag)
	s.compose("up", "--detach")
	for _, service := range layout.Services() {
		if now := s.container(service); now != ids[service] {
			s.t.Errorf("the container of %s was replaced because another image has the tag", service)
		}
	}
}
