package logrotate_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/quartet-node/quartet/internal/containerlog"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/logrotate"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/harness"
)

const (
	// written is the number of bytes that the test's container writes, mib the unit of the size limit of its current file.
	written = 50 << 20
	mib     = 1 << 20
)

// TestOnContainerd has a container write 50 times the size limit of its file, and reads every line in the meantime.
func TestOnContainerd(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a containerd")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	containerd := harness.StartContainerd(t)
	runtime := harness.ConnectCRI(ctx, t, containerd.Endpoint).Runtime
	id, log := startWriter(ctx, t, containerd, runtime)

	var running atomic.Bool
	running.Store(true)
	var followed counted
	read := make(chan error, 1)
	go func() {
		read <- containerlog.Read(ctx, log, containerlog.Options{
			Tail: -1, Follow: true, Running: func(context.Context) (bool, error) { return running.Load(), nil },
		}, &followed)
	}()

	policy := logrotate.Policy{MaxSize: mib, MaxFiles: 6}
	fakeClock := clocktesting.NewFakeClock(time.Now().Add(time.Hour))
	rotating, stopRotating := context.WithCancel(ctx)
	var rotations, rotatedBytes atomic.Int64
	rotator := logrotate.New(logrotate.Config{
		Containers: func() []logrotate.Container {
			return []logrotate.Container{{ID: id, Pod: "default/writer", Name: "hello", LogPath: log, Running: running.Load()}}
		},
		Reopen: func(ctx context.Context, id string) error {
			if err := runtime.ReopenContainerLog(ctx, id); err != nil {
				return err
			}
			// The newest rotated file is not compressed yet. It is larger than the limit on a slow machine.
			files, err := containerlog.List(log)
			if err != nil {
				return err
			}
			info, err := os.Stat(files.Rotated[len(files.Rotated)-1].Path)
			if err != nil {
				return err
			}
			rotations.Add(1)
			rotatedBytes.Add(info.Size())
			return nil
		},
		Policy: policy, Workers: 1, Interval: interval, Clock: fakeClock, Logger: slog.New(slog.DiscardHandler),
	})
	rotated := make(chan error, 1)
	go func() { rotated <- rotator.Run(rotating) }()

	eventually.In(ctx, t, "50 MiB are written", func() bool {
		// The reader must be faster than the removal of files, which the rotator does not wait for. The reader's output is
		// a hundredth smaller than the files, because it has no times and streams.
		if followed.written.Load() >= rotatedBytes.Load()*98/100-mib {
			fakeClock.Step(interval)
		}
		files, err := containerlog.List(log)
		if err != nil {
			t.Fatal(err)
		}
		if n := len(files.Rotated) + 1; n > policy.MaxFiles {
			t.Fatalf("there are %d files: %v", n, files)
		}
		return rotatedBytes.Load() >= written
	})
	if err := runtime.StopContainer(ctx, id, 10); err != nil {
		t.Fatal(err)
	}
	running.Store(false)
	if err := <-read; err != nil {
		t.Fatal(err)
	}
	stopRotating()
	if err := <-rotated; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}

	lines := strings.Split(strings.TrimSuffix(followed.String(), "\n"), "\n")
	last := len(lines) - 1
	if lines[last] != "bye" {
		t.Errorf("the last line is %q, want %q", lines[last], "bye")
	}
	for i, line := range lines[1:last] {
		if !strings.HasSuffix(line, fmt.Sprintf(": line %d", i+1)) {
			t.Fatalf("line %d of %d followed ones is %q, want line ending with %q",
				i+1, len(lines), line[max(0, len(line)-40):], fmt.Sprintf(": line %d", i+1))
		}
	}
	// The rest on the disk is the end of the log without a gap.
	var left bytes.Buffer
	if err := containerlog.Read(ctx, log, containerlog.Options{Tail: -1}, &left); err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(followed.String(), left.String()) || left.Len() < (policy.MaxFiles-2)*mib*9/10 {
		t.Errorf("%d bytes are left, and are not the end of the %d that were written", left.Len(), followed.Len())
	}
	t.Logf("%d lines in %d files", len(lines), rotations.Load()+1)
}

// counted is a buffer that reports how much has been written so far.
type counted struct {
	bytes.Buffer
	written atomic.Int64
}

// Write implements io.Writer.
func (c *counted) Write(p []byte) (int, error) {
	c.written.Add(int64(len(p)))
	return c.Buffer.Write(p)
}

// startWriter starts a container that writes lines of 4 KiB with at most 4 MiB per second, and returns its ID and its
// log.
func startWriter(
	ctx context.Context,
	t *testing.T,
	c *harness.Containerd,
	runtime internalapi.RuntimeService,
) (id, log string) {
	t.Helper()
	dir := filepath.Join(c.Layout.PodLogs(), "writer")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	sandbox := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: "writer", Namespace: "default", Uid: "writer"}, LogDirectory: dir, Linux: &runtimeapi.LinuxPodSandboxConfig{},
	}
	pod, err := runtime.RunPodSandbox(ctx, sandbox, "")
	if err != nil {
		t.Fatal(err)
	}
	id, err = runtime.CreateContainer(ctx, pod, &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "hello"}, Image: &runtimeapi.ImageSpec{Image: harness.HelloImage}, LogPath: "0.log",
		Args: []string{"serve", "-every", "1ms", "-message", strings.Repeat("x", 4<<10)}, Linux: &runtimeapi.LinuxContainerConfig{},
	}, sandbox)
	if err != nil {
		t.Fatal(err)
	}
	if err := runtime.StartContainer(ctx, id); err != nil {
		t.Fatal(err)
	}
	return id, filepath.Join(dir, "0.log")
}
