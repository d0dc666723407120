package disks

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/test/diskfault"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/harness"
)

// TestEvictionsOutliveKillsWhileTheirRecordFails has the record of evictions fail on a node whose sockets are in
// memory: no read and no write of it succeeds, and then its writes hang. Pods are evicted, and syncloop is killed after
// each. The evicted pods stay ended, and with the disk well all evictions are in the record.
func TestEvictionsOutliveKillsWhileTheirRecordFails(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	containerd := harness.StartContainerd(t)
	dir := filepath.Join(containerd.StateDir, "node")
	mountMemory(t, filepath.Join(dir, "run"))
	r := &rig{disk: diskfault.New(t), bin: harness.BinDir(t)}
	r.node = harness.StartNodeIn(t, containerd, dir, r.disk.Wrap)
	record := filepath.Join(dir, "evictions.json")
	var all []string
	for _, how := range []fault{{"broken", unix.EIO}, {"hanging", 0}} {
		r.turn++
		names := []string{r.of("before"), r.of("first"), r.of("second")}
		for _, name := range names {
			r.node.WriteManifest(t, name+".yaml", manifest(name, "", "serve"))
		}
		for _, name := range names {
			eventually.In(ctx, t, name+" is ready", func() bool { return harness.Ready(r.node.Pod(ctx, name)) })
			all = append(all, string(r.node.Pod(ctx, name).UID))
		}
		said := r.logged(t)
		r.evict(ctx, t, names[0], said)
		r.disk.Set(diskfault.Fault{Errno: how.errno, Match: func(path string) bool { return path == record }})
		r.killOne(ctx, t, layout.SyncLoop)
		for i, name := range names[1:] {
			eventually.In(ctx, t, name+" is known", func() bool { return harness.Ready(r.node.Pod(ctx, name)) })
			r.evict(ctx, t, name, said)
			r.killOne(ctx, t, layout.SyncLoop)
			for _, evictee := range names[1 : i+2] {
				r.isStill(ctx, t, evictee, evicted)
			}
		}
		if hits := r.disk.Clear(); len(hits) == 0 {
			t.Errorf("%s: the record had no fault", how.name)
		}
		eventually.In(ctx, t, "the evictions are in the record alone", func() bool {
			data, err := os.ReadFile(record)
			_, spare := os.Lstat(filepath.Join(dir, "run", "syncloop", "evictions.json"))
			for _, uid := range all {
				if !strings.Contains(string(data), uid) {
					return false
				}
			}
			return err == nil && errors.Is(spare, os.ErrNotExist)
		})
		for _, name := range names {
			eventually.In(ctx, t, name+" is evicted", func() bool { return evicted(r.node.Pod(ctx, name)) })
		}
	}
}
