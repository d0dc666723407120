package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/test/livenode"
	"github.com/quartet-node/quartet/test/registry"
)

// waits reports whether the first container of a pod waits for one of some reasons.
func waits(reasons ...string) func(*v1.Pod) bool {
	return func(p *v1.Pod) bool {
		if p == nil || len(p.Status.ContainerStatuses) == 0 || p.Status.ContainerStatuses[0].State.Waiting == nil {
			return false
		}
		for _, reason := range reasons {
			if p.Status.ContainerStatuses[0].State.Waiting.Reason == reason {
				return true
			}
		}
		return false
	}
}

// TestImagesComeFromARegistry pulls images with the credentials of the node's file, and checks the pod's message when a
// pull fails. The password is in no message, even when the registry repeats it.
func TestImagesComeFromARegistry(t *testing.T) {
	const password = "e2e-pass-w0rd"
	reg := registry.Start(t, filepath.Join(livenode.Bin(), "images", "hello.tar"))
	reg.Protect("private/app", "puller", password)
	reg.Protect("open/app", "puller", password)
	reg.Protect("private/talks", "puller", password)
	reg.Break("private/talks", registry.Talkative)
	reg.Break("private/absent", registry.Missing)
	credentials := filepath.Join(node.Layout.StateDir(), "root", "config.json")
	if err := os.WriteFile(credentials, fmt.Appendf(nil, `{"auths":{"%s/private":{"username":"puller","password":%q}}}`, reg.Host(), password), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Remove(credentials); err != nil {
			t.Error(err)
		}
	})
	for name, repository := range map[string]string{"pulled": "private/app", "denied": "open/app", "talked": "private/talks", "missing": "private/absent"} {
		place(t, name+".yaml", strings.Replace(manifest(name, 1, "sleep"), image, reg.Image(repository), 1))
	}
	p := await(t, "pulled", "Ready", ready)
	awaitThat(t, "the pull in its events", func() bool {
		out := quartet(t, "events", "e2e/"+p.Name, "-o", "json")
		return strings.Contains(out, `Pulling image \"`+reg.Image("private/app")+`\"`) && strings.Contains(out, `Successfully pulled image \"`+reg.Image("private/app")+`\" in `)
	})
	for name, why := range map[string]string{"denied": "authorization failed", "talked": "user puller with password [credential]", "missing": "not found"} {
		p := await(t, name, "waiting for its image", waits("ErrImagePull", "ImagePullBackOff"))
		if message := p.Status.ContainerStatuses[0].State.Waiting.Message; !strings.Contains(message, why) {
			t.Errorf("pod %s waits because %q, want %q", name, message, why)
		}
		awaitThat(t, "the failure in its events", func() bool {
			out := quartet(t, "events", "e2e/"+p.Name, "-o", "json")
			if strings.Contains(out, password) {
				t.Fatalf("the password is in the events:\n%s\nwant text without %q", out, password)
			}
			return strings.Contains(out, `Failed to pull image`) && strings.Contains(out, `Error: ErrImagePull`)
		})
	}
	log, err := os.ReadFile(filepath.Join(node.Layout.Logs(), "node.log"))
	if err != nil || strings.Contains(string(log), password) {
		t.Errorf("the password is in the log of the node, or that cannot be read: %v", err)
	}
	awaitThat(t, "the failed pull is traced", func() bool {
		found := false
		for _, s := range traces.Spans() {
			if s.Service == "containerd" { // the node does not control the spans of containerd
				continue
			}
			if text := fmt.Sprint(s.Message, s.Attributes); strings.Contains(text, password) {
				t.Fatalf("the password is in a span of %s: %s, want text without %q", s.Service, text, password)
			}
			found = found || s.Name == "image.pull" && strings.Contains(s.Message, "[credential]")
		}
		return found
	})
}
