package filesource

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"

	"github.com/quartet-node/quartet/services/configmux/internal/source"
	"github.com/quartet-node/quartet/test/logbuffer"
	"github.com/quartet-node/quartet/test/require"
)

// Each of these contents is an error of its own file only.
func TestBadContentIsReportedBesideGoodPods(t *testing.T) {
	dir := t.TempDir()
	replace(t, filepath.Join(dir, "good.yaml"), manifest("good", "i:1"))
	laughs := "a: &a [x,x,x,x,x,x,x,x,x,x]\n"
	for c := 'b'; c < 'm'; c++ {
		laughs += fmt.Sprintf("%c: &%c [%s]\n", c, c, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*%c,", c-1), 10), ","))
	}
	wants := map[string]struct{ content, pod, field, message string }{
		"aliases.yaml": {laughs, "", "", "the aliases of this document"},
		"binary":       {"\x7fELF\x02\x01\x00", "", "", "line 1: a zero byte"},
		"latin.yaml":   {"# gr\xfcn\n" + manifest("latin", "i:1"), "", "", "line 1: not UTF-8"},
		"twice.yaml":   {manifest("twice", "i:1") + "kind: Pod\n", "", "", `line 5: key "kind" already set`},
		"unknown.yaml": {
			strings.Replace(manifest("unknown", "i:1"), "image", "\n imag", 1),
			"default/unknown-node",
			"spec.containers[0].imag",
			"line 5: unknown field",
		},
	}
	for name, w := range wants {
		replace(t, filepath.Join(dir, name), w.content)
	}
	r := start(t, dir)
	for _, e := range r.has(len(wants), "good-node i:1").Errors {
		w := wants[filepath.Base(e.Path)]
		if e.Pod != w.pod || e.Field != w.field || !strings.Contains(e.Message, w.message) {
			t.Errorf("error %+v, want pod %q, field %q and %q in its message", e, w.pod, w.field, w.message)
		}
	}
	replace(t, filepath.Join(dir, "good.yaml"), manifest("good", "i:2"))
	r.has(len(wants), "good-node i:2")
}

func TestNothingIsReadOfAFileThatIsTooLarge(t *testing.T) {
	path := filepath.Join(t.TempDir(), "large.yaml")
	large, err := os.Create(path)
	must(t, err)
	must(t, large.Truncate(100<<20))
	must(t, large.Close())
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, _, err := read(path); err == nil || !strings.Contains(err.Error(), "limit of 10 MiB") {
		t.Errorf("error %v, want one that tells the limit", err)
	}
	runtime.ReadMemStats(&after)
	if used := after.TotalAlloc - before.TotalAlloc; used > 1<<20 {
		t.Errorf("%d KiB of memory for a file that is refused", used>>10)
	}
}

func TestAManifestThatGrowsTooLargeKeepsItsPods(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.yaml")
	replace(t, path, manifest("a", "i:1"))
	r := start(t, dir)
	r.has(0, "a-node i:1")
	must(t, os.Truncate(path, 100<<20))
	if e := r.has(1, "a-node i:1").Errors[0]; e.Path != path ||
		!strings.Contains(e.Message, "the last good version is kept") {
		t.Errorf("error %+v, want Path %v and Message with %q", e, path, "the last good version is kept")
	}
}

func TestSocketsAndDevicesAreSkipped(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir) // the path of a socket must be short
	listener, err := net.Listen("unix", "c.yaml")
	must(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	must(t, os.Symlink("/dev/zero", filepath.Join(dir, "b.yaml"))) // an endless file
	replace(t, filepath.Join(dir, "a.yaml"), manifest("a", "i:1"))
	r := start(t, dir)
	got := r.has(2, "a-node i:1")
	for i, want := range []string{"a device", "a socket"} {
		if !strings.Contains(got.Errors[i].Message, want) {
			t.Errorf("error %d is %q, want %q in it", i, got.Errors[i].Message, want)
		}
	}
}

func TestTheDirectoryBecomesAFileAndBack(t *testing.T) {
	root := t.TempDir()
	path := filepath.Join(root, "manifests")
	must(t, os.Mkdir(path, 0o700))
	overwrite(t, filepath.Join(path, "a.yaml"), manifest("a", "i:0"))
	r := start(t, path)
	r.has(0, "a-node i:0")
	for i := range 3 {
		must(t, os.Rename(path, path+".away"))
		replace(t, path, manifest("single", fmt.Sprintf("i:%d", i)))
		r.has(0, fmt.Sprintf("single-node i:%d", i))
		overwrite(t, path, manifest("single", "i:w"))
		r.has(0, "single-node i:w")

		must(t, os.Remove(path))
		must(t, os.Rename(path+".away", path))
		r.has(0, fmt.Sprintf("a-node i:%d", i))
		replace(t, filepath.Join(path, "a.yaml"), manifest("a", fmt.Sprintf("i:%d", i+1)))
		r.has(0, fmt.Sprintf("a-node i:%d", i+1))
	}
}

func TestADirectoryThatBecomesUnreadableKeepsItsPods(t *testing.T) {
	if os.Geteuid() == 0 { // root can read every file
		asNobody(t)
		return
	}
	dir := filepath.Join(t.TempDir(), "manifests")
	must(t, os.Mkdir(dir, 0o700))
	replace(t, filepath.Join(dir, "a.yaml"), manifest("a", "i:1"))
	r := start(t, dir)
	r.has(0, "a-node i:1")
	for _, mode := range []os.FileMode{0, 0o300} { // neither searchable nor readable, and only searchable
		must(t, os.Chmod(dir, mode))
		got := r.until("a failure", func(got source.Reading) bool { return got.Failed })
		if len(got.Errors) != 1 || got.Errors[0].Path != dir ||
			!strings.Contains(got.Errors[0].Message, "permission denied; its last known content is kept") {
			t.Errorf("mode %v: errors %+v, want exactly one, got.Errors[0].Path %v and got.Errors[0].Message with %q",
				mode, got.Errors, dir, "permission denied; its last known content is kept")
		}
		must(t, os.Chmod(dir, 0o700))
		r.has(0, "a-node i:1")
	}
	// The files of a directory that is readable but not searchable cannot be read.
	must(t, os.Chmod(dir, 0o600))
	r.has(1, "a-node i:1")
	must(t, os.Chmod(dir, 0o700))
	r.has(0, "a-node i:1")
}

// A file that is replaced while it is read counts as the old one or as the new one, never as a mixture.
func TestAFileThatIsReplacedWhileItIsReadIsNeverMixed(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "all.yaml")
	const pods, versions = 4, 60
	version := func(n int) string {
		var b strings.Builder
		for i := range pods {
			// Padded, so that it takes a while to read.
			fmt.Fprintf(
				&b,
				"# %s\n%s---\n",
				strings.Repeat("x", 128<<10),
				manifest(fmt.Sprintf("p%d", i), fmt.Sprintf("i:%d", n)),
			)
		}
		return b.String()
	}
	replace(t, path, version(0))
	r := start(t, dir)
	for n := 1; n <= versions; n++ {
		replace(t, path, version(n))
	}
	r.until("the last version", func(got source.Reading) bool {
		return len(got.Pods) == pods && got.Pods[0].Spec.Containers[0].Image == fmt.Sprintf("i:%d", versions)
	})
	for _, reading := range r.all() {
		if len(reading.Pods) != pods || len(reading.Errors) > 0 {
			t.Fatalf("a reading of %d pods, errors %v, want %d and none", len(reading.Pods), reading.Errors, pods)
		}
		for _, p := range reading.Pods {
			if p.Spec.Containers[0].Image != reading.Pods[0].Spec.Containers[0].Image {
				t.Fatalf("a mixture: %v, want p.Spec.Containers[0].Image %v",
					summary(reading), reading.Pods[0].Spec.Containers[0].Image)
			}
		}
	}
}

func TestTenThousandFiles(t *testing.T) {
	dir := t.TempDir()
	const n, bad = 10_000, 2_000
	for i := range n {
		content := "apiVersion: v1\nkind: List\nitems: []\n"
		switch {
		case i < bad:
			content = "kind: Nothing\n"
		case i%20 == 0:
			content = manifest(fmt.Sprintf("p%d", i), "i:1")
		}
		overwrite(t, filepath.Join(dir, fmt.Sprintf("%05d.yaml", i)), content)
	}
	const pods = (n - bad) / 20
	r := start(t, dir)
	got := r.until("all pods", func(got source.Reading) bool { return len(got.Pods) == pods })
	if len(got.Errors) != maxErrors+1 ||
		!strings.Contains(got.Errors[maxErrors].Message, fmt.Sprintf("%d more errors", bad-maxErrors)) {
		t.Errorf(
			"%d errors, the last %+v; want %d and one that counts the rest",
			len(got.Errors),
			last(r.all()).Errors[len(got.Errors)-1],
			maxErrors,
		)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	began := time.Now()
	replace(t, filepath.Join(dir, "09980.yaml"), manifest("p9980", "i:2"))
	r.until("the change", func(got source.Reading) bool {
		return len(got.Pods) == pods && got.Pods[pods-1].Spec.Containers[0].Image == "i:2"
	})
	took := time.Since(began)
	runtime.ReadMemStats(&after)
	// It takes some milliseconds; the limit allows for a busy machine.
	if took > 10*time.Second {
		t.Errorf("one change among %d files took %v", n, took)
	}
	if used := after.TotalAlloc - before.TotalAlloc; used > 64<<20 {
		t.Errorf("one change among %d files took %d MiB of memory", n, used>>20)
	}
	t.Logf("one change among %d files took %v, %d KiB", n, took, (after.TotalAlloc-before.TotalAlloc)>>10)
}

func logTo(l *logbuffer.Buffer) option {
	return func(s *Source) { s.cfg.Logger = slog.New(slog.NewTextHandler(l, nil)) }
}

func TestALimitOfInotifyIsNamedWithWhatToRaise(t *testing.T) {
	for limit, want := range map[error]string{
		unix.EMFILE: "fs.inotify.max_user_instances", unix.ENOSPC: "fs.inotify.max_user_watches", unix.ENFILE: "fs.file-max",
	} {
		t.Run(want, func(t *testing.T) {
			out := &logbuffer.Buffer{}
			r := start(t, t.TempDir(), logTo(out), func(s *Source) {
				s.newWatcher = func() (*fsnotify.Watcher, error) { return nil, limit }
			})
			if got := r.has(0); got.Mode != "polling" || strings.Count(out.String(), "raise the sysctl "+want) != 1 {
				t.Errorf("mode %q, log %s; want polling and one line that says to raise %s", got.Mode, out, want)
			}
		})
	}
}

// In a user namespace the kernel's limits can be set for one process.
func TestTheKernelsLimitsOfInotify(t *testing.T) {
	if os.Getenv("LIMITED") == "" {
		inUserNamespace(t)
		return
	}
	for file, want := range map[string]string{
		"max_inotify_watches": "fs.inotify.max_user_watches", "max_inotify_instances": "fs.inotify.max_user_instances",
	} {
		t.Run(file, func(t *testing.T) {
			limit := filepath.Join("/proc/sys/user", file)
			usual, err := os.ReadFile(limit)
			must(t, err)
			must(t, os.WriteFile(limit, []byte("0"), 0))
			dir, out := t.TempDir(), &logbuffer.Buffer{}
			r := start(t, dir, logTo(out), func(s *Source) { s.cfg.Period = 100 * time.Millisecond })
			if got := r.has(0); got.Mode != "polling" || !strings.Contains(out.String(), "raise the sysctl "+want) {
				t.Errorf("mode %q, log %s; want polling, and to raise %s", got.Mode, out, want)
			}
			replace(t, filepath.Join(dir, "a.yaml"), manifest("a", "i:1"))
			r.has(0, "a-node i:1")
			must(t, os.WriteFile(limit, usual, 0))
			r.until("inotify again", func(got source.Reading) bool { return got.Mode == "inotify" })
			if n := strings.Count(out.String(), "polling for changes instead"); n != 1 {
				t.Errorf("it was said %d times, want once: %s", n, out)
			}
		})
	}
}

// inUserNamespace runs the calling test again, as root of a user namespace.
func inUserNamespace(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/proc/self/exe", "-test.v", "-test.run", "^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), "LIMITED=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		require.NoError(t, fmt.Errorf("a user namespace, in which the kernel's limits can be set: %w", err))
	}
	if err := cmd.Wait(); err != nil || !strings.Contains(out.String(), "--- PASS: "+t.Name()) {
		t.Errorf("in a user namespace: %v\n%s", err, &out)
	}
}
