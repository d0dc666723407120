package e2e

import (
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// TestTheExampleOfFilesDoesWhatItSays follows the comment in examples/files.yaml: the page needs the password, and the
// next answers have a change of both, without a restart.
func TestTheExampleOfFilesDoesWhatItSays(t *testing.T) {
	example, err := os.ReadFile(filepath.Join("..", "..", "examples", "files.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "files.yaml")
	apply := func(changes ...string) {
		t.Helper()
		text := strings.ReplaceAll(string(example), "namespace: default", "namespace: e2e")
		if err := os.WriteFile(file, []byte(strings.NewReplacer(changes...).Replace(text)), 0o600); err != nil {
			t.Fatal(err)
		}
		quartet(t, "apply", "-f", file)
	}
	apply()
	t.Cleanup(func() {
		if _, err := node.Command(context.Background(), "delete", "-f", file); err != nil {
			t.Error(err)
		}
	})
	p := await(t, "files", "Ready", ready)
	answers := func(password string) (int, string) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+p.Status.PodIP+":8080/", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		req.SetBasicAuth("me", password)
		resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
		if err != nil {
			return 0, err.Error()
		}
		body, err := io.ReadAll(resp.Body)
		if err != nil || resp.Body.Close() != nil {
			return 0, "the answer broke off"
		}
		return resp.StatusCode, string(body)
	}
	if code, body := answers("change-me"); code != http.StatusOK || body != "Hello from a config map.\n" {
		t.Errorf("with the password: %d %q, want %d and %q", code, body, http.StatusOK, "Hello from a config map.\n")
	}
	if code, body := answers("guessed"); code != http.StatusUnauthorized {
		t.Errorf("with another password: %d %q", code, body)
	}
	apply("Hello from", "Greetings from", "password: change-me", "password: changed")
	awaitThat(t, "the change is in the answer", func() bool {
		code, body := answers("changed")
		return code == http.StatusOK && body == "Greetings from a config map.\n"
	})
	if again := await(t, "files", "Ready", ready); again.Status.ContainerStatuses[0].ContainerID != p.Status.ContainerStatuses[0].ContainerID {
		t.Error("the container was restarted")
	}
}

// TestAManifestThatIsRemovedAndCreatedAgainRunsItsPodAgain: the pod runs again although the content is the same, and as
// with a kubelet its container counts as restarted, without a crash back-off. Replacing a manifest by the same content
// restarts nothing.
func TestAManifestThatIsRemovedAndCreatedAgainRunsItsPodAgain(t *testing.T) {
	text := manifest("recreated", 1, "sleep")
	place(t, "recreated.yaml", text)
	first := bare(await(t, "recreated", "Ready", ready))
	if err := node.Prepare("recreated.yaml", text); err != nil {
		t.Fatal(err)
	}
	takeAway(t, "recreated.yaml")
	if err := node.Rename("recreated.yaml"); err != nil {
		t.Fatal(err)
	}
	again := await(t, "recreated", "Ready in another life", func(p *v1.Pod) bool { return ready(p) && bare(p) != first })
	if n := again.Status.ContainerStatuses[0].RestartCount; n != 1 {
		t.Errorf("restart count %d of a pod that came back while it ended, want 1", n)
	}
	place(t, "recreated.yaml", text)
	place(t, "recreatedlater.yaml", manifest("recreatedlater", 1, "sleep"))
	await(t, "recreatedlater", "Ready", ready)
	if p := await(t, "recreated", "Ready", ready); bare(p) != bare(again) {
		t.Error("a manifest that was replaced by the same content restarted its pod")
	}
}
