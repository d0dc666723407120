package main

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

const beMain = "HELLO_TEST_BE_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(beMain) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

func hello(t *testing.T, args ...string) (*exec.Cmd, *bufio.Reader) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe, args...)
	cmd.Env = append(os.Environ(), beMain+"=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, bufio.NewReader(out)
}

func line(t *testing.T, r *bufio.Reader) string {
	t.Helper()
	text, err := r.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(text)
}

func TestServeAnswersAndEndsOnSIGTERM(t *testing.T) {
	cmd, out := hello(t, "serve", "-addr", "127.0.0.1:0", "-message", "hi", "-every", "10ms")
	_, address, found := strings.Cut(line(t, out), "serving on ")
	if !found {
		t.Fatal("it does not say where it serves")
	}
	resp, err := http.Get("http://" + address + "/path")
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.Body.Close() != nil || !strings.HasPrefix(string(body), "hi (") {
		t.Errorf("ReadAll() = %q (%v), want no resp.Body.Close and beginning with %q", body, err, "hi (")
	}
	if got := line(t, out); got != "hi: line 1" {
		t.Errorf("the first line is %q, want %q", got, "hi: line 1")
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(out); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("it did not end well: %v", err)
	}
}

func TestExitCodes(t *testing.T) {
	for want, args := range map[int][]string{
		0: {"init"}, 7: {"crash", "-after", "1ms", "-code", "7"}, usageCode: {"nonsense"},
	} {
		cmd, out := hello(t, args...)
		if _, err := io.ReadAll(out); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // the exit code is checked
		if got := cmd.ProcessState.ExitCode(); got != want {
			t.Errorf("hello %v: exit code %d, want %d", args, got, want)
		}
	}
}

func TestIgnoreTermNeedsSIGKILL(t *testing.T) {
	cmd, out := hello(t, "sleep", "-ignore-term")
	line(t, out)
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if got := line(t, out); got != "ignoring terminated" {
		t.Errorf("line() = %q, want %q", got, "ignoring terminated")
	}
	if err := cmd.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("it has ended: %v", err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(time.Minute, func() { t.Error("it does not end") })
	defer timer.Stop()
	_ = cmd.Wait() // it was killed
}

func TestGrowTakesItsMemory(t *testing.T) {
	cmd, out := hello(t, "grow", "-mib", "64", "-message", "growing")
	if got := line(t, out); got != "growing" {
		t.Errorf("line() = %q, want %q", got, "growing")
	}
	deadline := time.Now().Add(60 * time.Second)
	for residentKiB(t, cmd.Process.Pid) < 64<<10 {
		if time.Now().After(deadline) {
			t.Fatal("it has not taken 64 MiB after a minute")
		}
		<-time.After(10 * time.Millisecond)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("it ended with %v", err)
	}
}

// residentKiB returns the resident memory of a process.
func residentKiB(t *testing.T, pid int) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for text := range strings.Lines(string(status)) {
		if value, ok := strings.CutPrefix(text, "VmRSS:"); ok {
			kib, err := strconv.Atoi(strings.Fields(value)[0])
			if err != nil {
				t.Fatal(err)
			}
			return kib
		}
	}
	return 0
}
