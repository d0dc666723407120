package syncloop

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"runtime/pprof"
	"strings"
	"testing"
	"testing/fstest"

	"golang.org/x/sys/unix"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/ptr"
)

// TestOpenFilesAreLimited runs in a process of its own, because a lowered hard limit cannot be raised again.
func TestOpenFilesAreLimited(t *testing.T) {
	const variable = "QUARTET_TEST_OPEN_FILES"
	if os.Getenv(variable) != "" {
		if err := limitOpenFiles(500); err != nil {
			t.Fatal(err)
		}
		var limit unix.Rlimit
		if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			t.Fatal(err)
		}
		fmt.Printf("limits: %d %d\n", limit.Cur, limit.Max)
		child, err := exec.CommandContext(t.Context(), "sh", "-c", "ulimit -n").Output()
		fmt.Printf("child: %s%v\n", child, err)
		return
	}
	self := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestOpenFilesAreLimited$", "-test.v")
	self.Env = append(os.Environ(), variable+"=yes")
	out, err := self.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "limits: 500 500\n") || !strings.Contains(string(out), "child: 500\n<nil>\n") {
		t.Errorf("CombinedOutput() error = %v: %s, want text with %q and with %q",
			err, out, "limits: 500 500\n", "child: 500\n<nil>\n")
	}
}

func TestALimitThatTheKernelDoesNotPermitIsReported(t *testing.T) {
	if err := limitOpenFiles(1 << 40); err == nil || !strings.Contains(err.Error(), "maxOpenFiles: ") {
		t.Errorf("limitOpenFiles() error = %v, want an error with %q", err, "maxOpenFiles: ")
	}
}

func TestOtherSettingsOfTheKernelAreReported(t *testing.T) {
	var out bytes.Buffer
	var now unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &now); err != nil {
		t.Fatal(err)
	}
	adjustLimits(int64(min(now.Max, 1<<30)), fstest.MapFS{"proc/sys/kernel/panic": {Data: []byte("0\n")}}, slog.New(slog.NewTextHandler(&out, nil)))
	if got := out.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "kernel.panic is 0, and should be 10") {
		t.Errorf("logged %s, want %q once and with %q", got, "\n", "kernel.panic is 0, and should be 10")
	}
}

func TestContentionIsProfiledOnRequest(t *testing.T) {
	defer runtime.SetBlockProfileRate(0)
	kubelet := &kubeletconfigv1beta1.KubeletConfiguration{
		EnableDebuggingHandlers: ptr.To(true), EnableProfilingHandler: ptr.To(false), EnableContentionProfiling: true,
	}
	wait := func() (profiled bool) {
		done := make(chan struct{})
		go func() {
			runtime.Gosched()
			close(done)
		}()
		<-done
		var text bytes.Buffer
		if err := pprof.Lookup("block").WriteTo(&text, 1); err != nil {
			t.Fatal(err)
		}
		return strings.Contains(text.String(), "TestContentionIsProfiledOnRequest")
	}
	profileContention(kubelet)
	if wait() {
		t.Error("contention is profiled although the profile is not served")
	}
	*kubelet.EnableProfilingHandler = true
	profileContention(kubelet)
	for range 100 { // one wait may not be sampled
		if wait() {
			return
		}
	}
	t.Error("contention is not profiled")
}
