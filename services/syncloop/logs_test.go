package syncloop

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// names returns the names of a directory's entries.
func names(dir string) []string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

// TestALogIsLinkedRotatedAndRemoved follows a container's log from its creation over its rotation to its removal.
func TestALogIsLinkedRotatedAndRemoved(t *testing.T) {
	m := newMachine(t)
	m.cfg.Kubelet.ContainerLogMaxSize, m.cfg.Kubelet.ContainerLogMonitorInterval.Duration = "1Ki", 100*time.Millisecond
	m.put(newPod("u1", "web", "a"))
	m.configmux.speak()
	m.start()
	m.eventually("web is ready", m.ready("u1"))
	pods := m.cfg.Kubelet.PodLogsDir
	dir, links := filepath.Join(pods, "default_web_u1", "a"), filepath.Join(filepath.Dir(pods), "containers")
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	linked := func(id string) func() bool {
		name := "web_default_a-" + id + ".log"
		return func() bool { return slices.Contains(names(links), name) }
	}
	first := m.containers()[0]
	write("0.log", "small")
	m.eventually("there is a link", linked(first))
	write("0.log", strings.Repeat("large", 1000))
	m.eventually("it is rotated", func() bool {
		return m.cri.Count("ReopenContainerLog", first) > 0 && slices.ContainsFunc(names(dir), func(name string) bool { return strings.HasPrefix(name, "0.log.") })
	})
	m.wantMetrics("what the logs take", map[string]float64{
		"kubelet_container_log_filesystem_used_bytes container=a namespace=default pod=web uid=u1": 5000, "quartet_container_log_rotations_total": 1,
	})

	crash := func() {
		t.Helper()
		m.eventually("web runs", func() bool { return len(m.containers()) == 1 })
		m.cri.Exit(m.containers()[0], 3)
	}
	crash()
	m.eventually("it is started again", func() bool { return len(m.containers()) == 1 && m.containers()[0] != first })
	write("1.log", "second")
	m.eventually("there is another link", linked(m.containers()[0]))
	if !linked(first)() {
		t.Error("the link to the log of the last end is gone")
	}
	crash()
	m.eventually("the logs and the link of the first end are gone", func() bool {
		return slices.Equal(names(dir), []string{"1.log"}) && !linked(first)()
	})
	m.wantMetrics("what was removed", map[string]float64{"quartet_garbage_removed_total kind=container": 1})

	m.configmux.level.Delete("u1")
	m.eventually("nothing of the pod is left", func() bool { return len(names(pods)) == 0 && len(names(links)) == 0 && len(m.cri.Containers()) == 0 })
}
