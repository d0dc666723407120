package configmux

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
)

// With any content of the manifests directory, the valid pods are published, and each error is listed with its file,
// and with pod and field where known.
func TestBadInputIsListedAndHidesNoGoodPod(t *testing.T) {
	p := newProcess(t)
	laughs := "a: &a " + strings.Repeat("x", 1<<20) + "\nb: [" + strings.Repeat("*a,", 1000) + "]\n"
	for name, content := range map[string]string{
		"aliases.yaml": laughs, "binary": "\x00\x01\x02", "encoding.yaml": "# \xe4\n" + manifest("x", "", "i"),
		"repeated.yaml": manifest("x", "", "i") + "kind: Pod\n", "unknown.yaml": manifest("unknown", "", "i, imag: i"),
		"a-good.yaml": manifest("good", "good", "i:1"), "same.yaml": manifest("good", "other", "i:2"),
	} {
		p.write(name, content)
	}
	large, err := os.Create(filepath.Join(p.dir, "large.yaml"))
	must(t, err)
	must(t, large.Truncate(100<<20))
	must(t, large.Close())
	must(t, unix.Mkfifo(filepath.Join(p.dir, "pipe.yaml"), 0o600))
	must(t, os.Symlink("circle.yaml", filepath.Join(p.dir, "circle.yaml")))
	must(t, os.Symlink("/dev/zero", filepath.Join(p.dir, "device.yaml")))
	p.run()
	p.ready()
	next := p.watch(nil)
	expect(t, next, "OPENED", "SNAPSHOT ADD good-node i:1", "SNAPSHOT source file ready=true", "SYNCED")

	listed, err := p.client.ListSources(t.Context(), &configv1.ListSourcesRequest{})
	must(t, err)
	got := map[string]string{}
	for _, s := range listed.GetSources() {
		for _, e := range s.GetErrors() {
			got[filepath.Base(e.GetPath())] = e.GetPod() + "|" + e.GetField() + "|" + e.GetMessage()
			if e.GetCount() < 1 || !e.GetFirstSeenAt().IsValid() {
				t.Errorf("%s: seen %d times, first at %v", e.GetPath(), e.GetCount(), e.GetFirstSeenAt())
			}
		}
	}
	for name, want := range map[string]string{
		"aliases.yaml": "||cannot parse it: line 1: the aliases", "binary": "||line 1: a zero byte", "encoding.yaml": "||line 1: not UTF-8",
		"repeated.yaml": `||cannot parse it: line 5: key "kind" already set`,
		"unknown.yaml":  "default/unknown-node|spec.containers[0].imag|line 4: unknown field",
		"same.yaml":     "default/good-node|metadata.name|the pod default/good-node is already given, by " + filepath.Join(p.dir, "a-good.yaml"),
		"large.yaml":    "||cannot read it: it is larger than the limit of 10 MiB", "pipe.yaml": "||it is skipped: it is a named pipe",
		"circle.yaml": "||it is skipped: too many levels of symbolic links", "device.yaml": "||it is skipped: it is a device",
	} {
		if !strings.HasPrefix(got[name], want) {
			t.Errorf("%s is listed as %q, want %q at the beginning", name, got[name], want)
		}
		delete(got, name)
	}
	if len(got) > 0 {
		t.Errorf("more is listed: %v", got)
	}
	p.write("a-good.yaml", manifest("good", "good", "i:3"))
	expect(t, next, "DELTA UPDATE good-node i:3")
}
