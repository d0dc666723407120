package syncloop

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/internal/boottime"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/gracebook"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/resizes"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resize"
	"github.com/quartet-node/quartet/test/damage"
	"github.com/quartet-node/quartet/test/logbuffer"
)

// TestPodsRunOnWhateverHappenedToTheFilesOfSyncloop damages each file of the state directory in each way. Each time the
// running pod is ready in the same container, and the damage is in the log.
func TestPodsRunOnWhateverHappenedToTheFilesOfSyncloop(t *testing.T) {
	m := newMachine(t)
	pod := newPod("u1", "web", "main")
	pod.Spec.Containers[0].ReadinessProbe = &v1.Probe{
		ProbeHandler: v1.ProbeHandler{Exec: &v1.ExecAction{Command: []string{"true"}}}, PeriodSeconds: 1, TimeoutSeconds: 1,
		SuccessThreshold: 1, FailureThreshold: 1,
	}
	late := newPod("u2", "late", "main")
	late.Spec.ActiveDeadlineSeconds = ptr.To[int64](1)
	m.put(pod)
	m.put(late)
	stop := m.start()
	m.eventually("the pod is ready, and the other overdue", func() bool {
		return m.ready("u1")() && strings.Contains(fmt.Sprint(m.pods()), "DeadlineExceeded")
	})
	stop()
	m.writeOthers()
	before := m.containers()
	known := []string{
		"evictions.json", "syncloop.reserve", "endings/*.json", "resizes/*.json", "probes/*.json",
		"oom-told.json", "syncloop.lock", "kubelet.yaml", "root/cpu_manager_state",
		"root/memory_manager_state", "root/pods/u1/etc-hosts", "root-mount",
	}
	damage.Each(t, m.cfg.StateDir, known, func(t *testing.T, file string, kind damage.Kind) {
		// Each start takes a second or more.
		sampled := kind.Name == "a directory" || (!silent(file) && (kind.Name == "garbage" || kind.Name == "a flipped bit in a text"))
		if !sampled && os.Getenv("QUARTET_HOSTILE") == "" {
			return
		}
		var log logbuffer.Buffer
		m.tel.Logger = slog.New(slog.NewTextHandler(&log, nil))
		m := *m
		m.t = t
		stop := m.start()
		m.eventually("the pod is ready", m.ready("u1"))
		stop()
		if after := m.containers(); fmt.Sprint(after) != fmt.Sprint(before) {
			t.Errorf("the running pod was restarted: its containers went from %v to %v", before, after)
			before = after
		}
		if kind.Shows && !silent(file) && !strings.Contains(log.String(), file) {
			t.Errorf("nothing is said of %s: %s", file, log.String())
		}
	})
}

// silent reports whether a file has no content that counts.
func silent(file string) bool {
	switch filepath.Base(file) {
	case "syncloop.lock", "syncloop.reserve", "root-mount", "etc-hosts", "kubelet.yaml":
		return true
	}
	return false
}

// writeOthers writes the records that only a pod in the middle of a change has.
func (m *machine) writeOthers() {
	m.t.Helper()
	boot, err := boottime.Boot()
	if err != nil {
		m.t.Fatal(err)
	}
	_, err = gracebook.Open(gracebook.Config{
		Dir: filepath.Join(m.cfg.StateDir, "endings"), Boot: boot, Now: func() time.Duration { return boottime.Now() },
		Logger: m.tel.Logger,
	}).Left("u3", 60)
	resized := resizes.Open(filepath.Join(m.cfg.StateDir, "resizes"), "", m.tel.Logger)
	pod := newPod("u1", "web", "main")
	err = errors.Join(err, resized.Note("u1", resize.Of(pod), func(*resize.Record) {}))
	if err != nil {
		m.t.Fatal(err)
	}
}
