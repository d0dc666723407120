package oom_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/quartet-node/quartet/services/syncloop/internal/node/oom"
	"github.com/quartet-node/quartet/test/require"
)

// TestTheLogOfThisMachine checks that existing records are read in order, that a new record wakes the reader, and that
// a record of a process is not attributed to the kernel.
func TestTheLogOfThisMachine(t *testing.T) {
	log, err := oom.OpenLog(oom.Device)
	require.NoError(t, err)
	defer func() {
		if err := log.Close(); err != nil {
			t.Error(err)
		}
	}()
	if how, err := os.ReadFile("/proc/sys/kernel/printk_devkmsg"); err == nil && strings.TrimSpace(string(how)) == "off" {
		require.NoError(t, errors.New("no process may write into the kernel's log: sysctl kernel.printk_devkmsg=ratelimit"))
	}
	var last oom.Record
	for {
		r, ok, err := log.Pending()
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			break
		}
		if r.Sequence <= last.Sequence && last.Sequence > 0 {
			t.Fatalf("record %d came after %d", r.Sequence, last.Sequence)
		}
		last = r
	}
	text := fmt.Sprintf("a test of quartet, %d: Out of memory: Killed process 1 (none)", os.Getpid())
	if err := os.WriteFile(oom.Device, []byte(text+"\n"), 0); err != nil {
		require.NoError(t, err)
	}
	for {
		r, err := log.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if r.Sequence <= last.Sequence {
			t.Fatalf("record %d came after %d", r.Sequence, last.Sequence)
		}
		last = r
		if r.Message == text {
			if r.Kernel {
				t.Error("the record of this test is attributed to the kernel")
			}
			break
		}
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if _, err := log.Next(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("with a canceled context, Next returns %v, want %v", err, context.Canceled)
	}
}

func TestFilesThatAreNoLogAreReported(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kmsg")
	if err := os.WriteFile(file, []byte("6,1,1,-;something\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		file: "is not the log of the kernel", os.DevNull: "is not the log of the kernel", file + "x": "no such file",
	} {
		if _, err := oom.OpenLog(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
}
