package configmux

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/internal/recording"
	"github.com/quartet-node/quartet/test/eventually"
)

// A replay sends the messages that another configmux sent to its subscriber.
func TestAReplayTellsWhatWasRecorded(t *testing.T) {
	first := newProcess(t)
	path := filepath.Join(t.TempDir(), "updates.jsonl")
	file, err := os.Create(path)
	must(t, err)
	w, err := recording.NewWriter(file, time.Now())
	must(t, err)
	first.write("a.yaml", manifest("a", "a1", "i:1"))
	first.run()
	first.ready()
	next := first.watch(nil)
	kept := func() *configv1.WatchPodUpdatesResponse {
		m := next()
		must(t, w.Write(time.Now(), m))
		return m
	}
	expect(t, kept, "OPENED", "SNAPSHOT ADD a-node i:1", "SNAPSHOT source file ready=true", "SYNCED")
	first.write("b.yaml", manifest("b", "b1", "i:1"))
	expect(t, kept, "DELTA ADD b-node i:1", "DELTA source file ready=true")
	first.write("b.yaml", manifest("b", "b1", "i:2"))
	expect(t, kept, "DELTA UPDATE b-node i:2", "DELTA source file ready=true")
	must(t, os.Remove(filepath.Join(first.dir, "a.yaml")))
	expect(t, kept, "DELTA REMOVE a-node i:1", "DELTA source file ready=true")
	must(t, w.End(time.Now()))
	must(t, file.Close())

	second := newProcess(t)
	second.write("c.yaml", manifest("c", "c1", "i:1")) // which it does not read
	second.cfg.Replay = path
	second.run()
	second.ready()
	eventually.That(second.t, "the replay has ended", func() bool {
		sources, err := second.client.ListSources(t.Context(), &configv1.ListSourcesRequest{})
		must(t, err)
		all := sources.GetSources()
		return len(all) == 1 && all[0].GetName() == "replay" && all[0].GetTarget() == path && all[0].GetReady() &&
			all[0].GetMode() == "replayed to its end" && all[0].GetPods() == 1
	})
	f := follow(second)
	f.until("ADD b-node i:2")
	listed, err := second.client.ListPods(t.Context(), &configv1.ListPodsRequest{})
	must(t, err)
	if len(listed.GetPods()) != 1 || decode(t, listed.GetPods()[0]).Annotations[podset.AnnotationSource] != "replay" {
		t.Errorf("pods %v, want the one that the recording ended with, of the source replay", listed.GetPods())
	}
	if _, err := second.client.ApplyPod(
		t.Context(),
		&configv1.ApplyPodRequest{},
	); status.Code(err) != codes.Unimplemented {
		t.Errorf("ApplyPod: %v, want UNIMPLEMENTED", err)
	}
}

func TestAReplayWaitsForTheTimeOfAMessage(t *testing.T) {
	p := newProcess(t)
	p.cfg.Replay, p.cfg.ReplaySpeed = filepath.Join(t.TempDir(), "updates.jsonl"), 2
	must(t, os.WriteFile(p.cfg.Replay, []byte(`{"time":"2026-05-01T12:00:00Z","format":"quartet.pod-updates","version":1}
{"time":"2026-05-01T12:00:00Z","update":{"frame":{"kind":"KIND_OPENED","opening":{"start":"START_SNAPSHOT"}}}}
{"time":"2026-05-01T12:00:00Z","update":{"frame":{"kind":"KIND_SNAPSHOT","key":"source/file"},"source":{"name":"file","ready":true}}}
{"time":"2026-05-01T12:00:00Z","update":{"frame":{"kind":"KIND_SYNCED","resumeToken":"AA=="}}}
{"time":"2026-05-01T18:00:00Z","update":{"frame":{"kind":"KIND_BOOKMARK","resumeToken":"AA=="}}}
{"time":"2026-05-01T18:00:00Z","end":true}
`), 0o600))
	p.run()
	p.ready()
	listed, err := p.client.ListSources(t.Context(), &configv1.ListSourcesRequest{})
	must(t, err)
	if all := listed.GetSources(); len(all) != 1 || all[0].GetMode() != "replaying" || !all[0].GetReady() {
		t.Errorf("sources %v, want the replay on its way", all)
	}
}

func TestADamagedRecordingEndsTheProcess(t *testing.T) {
	p := newProcess(t)
	p.cfg.Replay = filepath.Join(t.TempDir(), "updates.jsonl")
	must(
		t,
		os.WriteFile(
			p.cfg.Replay,
			[]byte(`{"time":"2026-05-01T12:00:00Z","format":"quartet.pod-updates","version":1}`+"\n"),
			0o600,
		),
	)
	err := run(t.Context(), p.cfg, p.tel)
	if err == nil || !strings.Contains(err.Error(), p.cfg.Replay+":2: the recording has no last line") {
		t.Errorf("got %v, want the file and the line", err)
	}
}
