package diskfault_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/quartet-node/quartet/test/diskfault"
	"github.com/quartet-node/quartet/test/eventually"
)

func TestMain(m *testing.M) {
	diskfault.Launch()
	os.Exit(m.Run())
}

// TestOnlyTheChosenFileFails runs a shell, and the programs that it starts, on a disk of which one file fails.
func TestOnlyTheChosenFileFails(t *testing.T) {
	disk := diskfault.New(t)
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad")
	for errno, want := range map[unix.Errno]string{
		unix.ENOSPC: "No space left on device", unix.EIO: "Input/output error", unix.EROFS: "Read-only file system",
	} {
		disk.Set(diskfault.Fault{Errno: errno, Match: func(path string) bool { return path == bad }})
		script := "cd " + dir + "; echo a > good; cat good; echo b > bad; sh -c 'echo c > .bad.tmp-12'; mv good bad"
		cmd := exec.Command("/bin/sh", "-c", script)
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		disk.Wrap(cmd)
		if err := cmd.Run(); err == nil && errno != unix.ENOSPC {
			t.Errorf("%v: the last rename succeeded", errno)
		}
		hits := disk.Clear()
		if text := out.String(); !strings.HasPrefix(text, "a\n") || !strings.Contains(text, want) || len(hits) == 0 {
			t.Errorf("%v: the shell said %q, and the calls %q had the fault, want %q for those of bad alone",
				errno, text, hits, want)
		}
		if err := os.RemoveAll(bad); err != nil {
			t.Fatal(err)
		}
	}
}

// TestAHangLastsUntilTheFaultIsOver has a shell write to a file that hangs.
func TestAHangLastsUntilTheFaultIsOver(t *testing.T) {
	disk := diskfault.New(t)
	dir := t.TempDir()
	disk.Set(diskfault.Fault{Match: func(path string) bool { return filepath.Base(path) == "bad" }})
	cmd := exec.Command("/bin/sh", "-c", "cd "+dir+"; echo a > good; echo b > bad")
	disk.Wrap(cmd)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	eventually.That(t, "the shell has written the good file", func() bool {
		_, err := os.Stat(filepath.Join(dir, "good"))
		return err == nil
	})
	if _, err := os.Stat(filepath.Join(dir, "bad")); err == nil {
		t.Error("the bad file exists, want a hang before")
	}
	disk.Clear()
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	if content, err := os.ReadFile(filepath.Join(dir, "bad")); string(content) != "b\n" {
		t.Errorf("after the hang the file has %q, %v", content, err)
	}
}
