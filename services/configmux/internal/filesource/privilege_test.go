package filesource

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/quartet-node/quartet/internal/metrics/metricstest"
	"github.com/quartet-node/quartet/internal/privilege"
)

// networked returns a manifest of a pod with the host's network.
func networked(name, image string) string {
	return strings.Replace(manifest(name, image), "spec: {", "spec: {hostNetwork: true, ", 1)
}

func allowing(allowed privilege.Allowed) option {
	return func(s *Source) { s.cfg.Allowed = allowed }
}

func TestAPodThatAsksForMoreThanItMayKeepsItsLastGoodVersion(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.yaml")
	replace(t, path, manifest("a", "i:1"))
	r := start(t, dir, allowing(privilege.Allowed{HostNetwork: []string{"http"}}))
	r.has(0, "a-node i:1")
	replace(t, path, networked("a", "i:2"))
	e := r.has(1, "a-node i:1").Errors[0]
	if e.Path != path || e.Pod != "default/a-node" || e.Field != "spec.hostNetwork" ||
		!strings.Contains(
			e.Message,
			"--host-network-sources",
		) || !strings.HasSuffix(e.Message, "the last good version of the pod is kept: mend the file") {
		t.Errorf("error %+v, want Path %v, Pod %q, Field %q, Message with %q and Message ending with %q",
			e, path, "default/a-node", "spec.hostNetwork", "--host-network-sources",
			"the last good version of the pod is kept: mend the file")
	}
	replace(t, path, manifest("a", "i:3"))
	r.has(0, "a-node i:3")
}

// The checkpoint does not restore pods that the current configuration does not allow.
func TestAStricterConfigurationCountsForLastGoodVersionsToo(t *testing.T) {
	dir, kept := t.TempDir(), filepath.Join(t.TempDir(), "checkpoint.json")
	path := filepath.Join(dir, "a.yaml")
	replace(t, path, networked("a", "i:1")+"---\n"+manifest("b", "i:1"))
	first := start(t, dir, keeping(kept, "node"), allowing(privilege.Allowed{HostNetwork: []string{Name}}))
	first.has(0, "a-node i:1", "b-node i:1")
	first.stop()

	second := start(t, dir, keeping(kept, "node"))
	if e := second.has(1, "b-node i:1").Errors[0]; !strings.HasSuffix(e.Message, "the pod is left out: mend the file") {
		t.Errorf("error %+v, want Message ending with %q", e, "the pod is left out: mend the file")
	}
	second.stop()

	overwrite(t, path, "{")
	start(t, dir, keeping(kept, "node")).has(1, "b-node i:1")
}

// An ignored annotation is listed while it is there, and does not count as a broken manifest.
func TestAForgedAnnotationIsListedAndThePodRuns(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.yaml")
	forged := strings.Replace(manifest("a", "i:1"), "name: a", `name: a, annotations: {kubernetes.io/config.mirror: x}`, 1)
	replace(t, path, forged)
	r := start(t, dir)
	got := r.has(1, "a-node i:1")
	e := got.Errors[0]
	if e.Path != path || e.Pod != "default/a-node" || e.Field != "metadata.annotations[kubernetes.io/config.mirror]" ||
		!strings.Contains(e.Message, "it is ignored") {
		t.Errorf("error %+v, want Path %v, Pod %q, Field %q and Message with %q",
			e, path, "default/a-node", "metadata.annotations[kubernetes.io/config.mirror]", "it is ignored")
	}
	metricstest.Want(t, r.registry, 1, "quartet_configmux_manifests_read_total")
	metricstest.Want(t, r.registry, 0, "quartet_configmux_manifests_failed_total")
	uid := got.Pods[0].UID
	replace(t, path, manifest("a", "i:1"))
	if mended := r.has(0, "a-node i:1"); mended.Pods[0].UID != uid {
		t.Errorf("without the annotation it is another pod")
	}
}
