package show

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/stream"
)

// desireSet publishes a full set of the desired pods in a mode, caused by a change of a source.
func (n *node) desireSet(mode configv1.Mode, source string, ready bool, pods ...*v1.Pod) {
	n.t.Helper()
	set := &configv1.PodSet{
		Source:  source,
		Sources: []*configv1.SourceState{{Name: "file", Ready: ready}, {Name: "local", Ready: true}},
	}
	for _, p := range pods {
		u := n.podUpdate(configv1.Op_OP_ADD, p).GetPod()
		if p.Namespace == "kube-system" {
			u.Op = configv1.Op_OP_RESTORE
		}
		set.Pods = append(set.Pods, u)
	}
	n.inMode(mode).Put("pods", &configv1.WatchPodUpdatesResponse{Payload: &configv1.WatchPodUpdatesResponse_Set{Set: set}})
}

// inMode returns configmux's stream of a mode with sets.
func (n *node) inMode(mode configv1.Mode) *stream.Level[podUpdates] {
	if n.config.modes[mode] == nil {
		n.config.modes[mode] = stream.NewLevel[podUpdates](stream.Config{})
	}
	return n.config.modes[mode]
}

func somePods(count int) []*v1.Pod {
	var pods []*v1.Pod
	for i := range count {
		pods = append(pods, pod("default", fmt.Sprintf("web-%03d-node-1", i), "web"))
	}
	return pods
}

func TestASetHasItsPodsBelowIt(t *testing.T) {
	n := newNode(t)
	n.serve(layout.ConfigMux)
	n.desireSet(
		configv1.Mode_MODE_SNAPSHOT,
		"",
		false,
		pod("default", "hello-node-1", "web"),
		pod("kube-system", "dns-node-1", "dns"),
	)
	golden(t, "updates-set.txt", n.must("updates", "--mode", "snapshot"))
	golden(t, "updates-set-wide.txt", n.must("updates", "--mode", "snapshot", "-o", "wide"))
	golden(t, "updates-set.json", n.must("updates", "--mode", "snapshot", "-o", "json"))
	golden(t, "updates-set-name.txt", n.must("updates", "--mode", "snapshot", "hello"))
}

func TestALongSetIsCutInTheTableOnly(t *testing.T) {
	n := newNode(t)
	n.serve(layout.ConfigMux)
	n.desireSet(configv1.Mode_MODE_SNAPSHOT, "file", true, somePods(23)...)
	plain := n.must("updates", "--mode", "snapshot")
	if !strings.Contains(plain, "23 pods") || !strings.Contains(plain, "web-019") || strings.Contains(plain, "web-020") ||
		!strings.Contains(plain, "and 3 more: -o wide lists all") {
		t.Errorf("the table is\n%s\nwant text with %q, with %q, without %q and with %q",
			plain, "23 pods", "web-019", "web-020", "and 3 more: -o wide lists all")
	}
	for _, args := range [][]string{{"-o", "wide"}, {"-o", "json"}, {"web-022"}} {
		if got := n.must(
			append([]string{"updates", "--mode", "snapshot"}, args...)...); !strings.Contains(got, "web-022") ||
			strings.Contains(got, "more") {
			t.Errorf("%v: must() =\n%s\nwant text with %q and without %q", args, got, "web-022", "more")
		}
	}
}

func TestSomePodsOfASet(t *testing.T) {
	n := newNode(t)
	n.serve(layout.ConfigMux)
	n.desireSet(
		configv1.Mode_MODE_SNAPSHOT,
		"file",
		true,
		pod("default", "hello-node-1", "web"),
		pod("kube-system", "dns-node-1", "dns"),
	)
	for _, args := range [][]string{{"hello"}, {"hello-node-1"}, {"default/hello-node-1"}, {"-n", "default"}} {
		out := n.must(append([]string{"updates", "--mode", "snapshot", "-o", "json"}, args...)...)
		var set updateView
		if err := json.Unmarshal([]byte(strings.Split(out, "\n")[1]), &set); err != nil {
			t.Fatalf("%v: %v:\n%s", args, err, out)
		}
		if len(set.Set.Pods) != 1 || set.Set.Pods[0].Pod.Name != "hello-node-1" || set.Set.Total != 2 {
			t.Errorf("%v: must() =\n%s\nwant len(set.Set.Pods) 1, set.Set.Pods[0].Pod.Name %q and set.Set.Total 2",
				args, out, "hello-node-1")
		}
	}
	const want = `there is no pod "other": there are hello-node-1, kube-system/dns-node-1`
	if _, _, err := n.run("updates", "--mode", "snapshot", "other"); err == nil || err.Error() != want {
		t.Errorf("the error is %v, want %s", err, want)
	}
}

func TestWatchSetsAndUpdatesThroughALostConnection(t *testing.T) {
	const mode = configv1.Mode_MODE_SNAPSHOT_AND_UPDATES
	n := newNode(t)
	stop := n.serve(layout.ConfigMux)
	hello, dns := pod("default", "hello-node-1", "web"), pod("kube-system", "dns-node-1", "dns")
	n.desireSet(mode, "", true, hello)
	r := n.start("updates", "-w", "--mode", "snapshot-and-updates", "-o", "wide", "hello")
	r.until(r.out, "SYNCED")
	n.inMode(mode).Put(string(hello.UID), n.podUpdate(configv1.Op_OP_UPDATE, hello))
	r.until(r.out, "UPDATE")
	// Of another pod: not printed.
	n.inMode(mode).Put(string(dns.UID), n.podUpdate(configv1.Op_OP_UPDATE, dns))
	n.desireSet(mode, "file", true, dns)
	r.until(r.out, "0 of 1")
	stop()
	r.until(r.errOut, "configmux is unreachable")
	n.config.modes[mode] = nil
	n.desireSet(mode, "", true, hello, dns)
	n.serve(layout.ConfigMux)
	r.untilTrue("the second snapshot is complete", func() bool { return strings.Count(r.out.String(), "SYNCED") == 2 })
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	golden(t, "updates-set-watch.txt", r.out.String())
}

func TestModesThatAreNot(t *testing.T) {
	n := newNode(t)
	n.serve(layout.ConfigMux)
	n.desireSome()
	file := filepath.Join(t.TempDir(), "updates.jsonl")
	for want, args := range map[string][]string{
		"must be incremental, snapshot-and-updates or snapshot": {"--mode", "full"},
		"it is always incremental":                              {"record", file, "--mode", "snapshot"},
		`"snapshot-and-updates" for "--mode" flag: a recording`: {"--mode", "snapshot-and-updates", "record", file},
	} {
		if _, _, err := n.run(append([]string{"updates"}, args...)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", args, err, want)
		}
	}
	golden(t, "updates.txt", n.must("updates", "--mode", "incremental"))
	n.must("updates", "record", file, "--mode", "incremental", "--for", "100ms")
}
