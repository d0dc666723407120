package disks

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/test/diskfault"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/harness"
)

const (
	// whole is the environment variable that has every file fail in every way; otherwise sampled of them do.
	whole   = "QUARTET_HOSTILE"
	sampled = 6
	// patience bounds what the node does although a file fails, and what it does when the disk is well again.
	patience = 90 * time.Second
	// resizeTime is how long a resize has to begin or to say why it waits; on a disk that hangs it does neither.
	resizeTime = 5 * time.Second
	// callLimit bounds a call of the command.
	callLimit = 30 * time.Second
)

// fault is a way in which a file fails.
type fault struct {
	name  string
	errno unix.Errno
}

func faults() []fault {
	return []fault{{"full", unix.ENOSPC}, {"broken", unix.EIO}, {"read-only", unix.EROFS}, {"hanging", 0}}
}

// rig is a node on a disk, with a pod that no fault may touch.
type rig struct {
	node *harness.Node
	disk *diskfault.Disk
	bin  string
	kept string
	// turn numbers the cells, and cpu is the CPU request in millicores that the node has accepted for the applied pod.
	turn, cpu int
}

// TestNothingPromisedIsLostOnAFailingDisk has one file after the other fail, in each way, while the node is killed and
// started, pods and secrets are applied, pods are evicted, resized, terminated and shut down, pods exceed their
// deadline, and the key is rotated. Pods that have to end do so; what fails is said; and with the disk well again,
// everything that was promised is there.
func TestNothingPromisedIsLostOnAFailingDisk(t *testing.T) {
	r := start(t)
	type cell struct {
		file
		fault
	}
	var cells []cell
	for _, file := range files() {
		if !file.sampled && os.Getenv(whole) == "" {
			continue
		}
		for _, fault := range faults() {
			cells = append(cells, cell{file, fault})
		}
	}
	if os.Getenv(whole) == "" {
		seed := uint64(time.Now().UnixNano())
		t.Logf("%d of %d cells, seed %d; %s=1 runs all, and %s=FILE,… those of files",
			sampled, len(cells), seed, whole, whole)
		rand.New(rand.NewPCG(seed, 0)).Shuffle(len(cells), func(i, j int) { cells[i], cells[j] = cells[j], cells[i] })
		cells = cells[:sampled]
	}
	for _, c := range cells {
		if only := os.Getenv(whole); only != "" && only != "1" && !slices.Contains(strings.Split(only, ","), c.file.name) {
			continue
		}
		t.Run(strings.ReplaceAll(c.file.name, "/", ":")+" "+c.fault.name, func(t *testing.T) { r.fail(t, c.file, c.fault) })
	}
	r.known(t)
}

func start(t *testing.T) *rig {
	t.Helper()
	containerd := harness.StartContainerd(t)
	r := &rig{disk: diskfault.New(t), bin: harness.BinDir(t)}
	r.node = harness.StartNodeAs(t, containerd, r.disk.Wrap)
	r.node.WriteManifest(t, "kept.yaml", manifest("kept", "", "serve"))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	eventually.In(ctx, t, "the first pod is ready", func() bool { return harness.Ready(r.node.Pod(ctx, "kept")) })
	r.kept = container(r.node.Pod(ctx, "kept"))
	r.must(t, secret("kept", "k"), "apply", "-f", "-")
	r.cpu = 10
	r.must(t, sized(r.cpu), "apply", "-f", "-")
	return r
}

func manifest(name, fields, mode string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: default}
spec:
  terminationGracePeriodSeconds: 1
%s  containers:
    - name: hello
      image: "quartet.local/hello:1"
      imagePullPolicy: IfNotPresent
      args: [%s]
      readinessProbe: {exec: {command: ["/hello", "init"]}, periodSeconds: 1}
`, name, fields, mode)
}

// sized returns a pod that asks for CPU in millicores. It has a UID, because a manifest with another content and no UID
// is another pod, which is not resized.
func sized(cpu int) string {
	pod := strings.Replace(manifest("sized", "", "serve"), "{name: sized,", "{name: sized, uid: sized-1,", 1)
	return pod + fmt.Sprintf("      resources: {requests: {cpu: %dm}}\n", cpu)
}

func secret(name, value string) string {
	const text = "apiVersion: v1\nkind: Secret\nmetadata: {name: %s, namespace: default}\nstringData: {key: %s}\n"
	return fmt.Sprintf(text, name, value)
}

func container(p *v1.Pod) string {
	if p == nil || len(p.Status.ContainerStatuses) == 0 {
		return ""
	}
	return p.Status.ContainerStatuses[0].ContainerID
}

func evicted(p *v1.Pod) bool { return p != nil && p.Status.Reason == "Evicted" }

func isDown(p *v1.Pod) bool { return p != nil && p.Status.Reason == "Terminated" }

// hasCPU reports whether a CPU request in millicores is allocated to a pod.
func hasCPU(p *v1.Pod, cpu int) bool {
	return p != nil && len(p.Status.ContainerStatuses) > 0 &&
		p.Status.ContainerStatuses[0].AllocatedResources.Cpu().MilliValue() == int64(cpu)
}

// pending reports whether a resize of a pod waits.
func pending(p *v1.Pod) bool {
	return p != nil && slices.ContainsFunc(p.Status.Conditions, func(c v1.PodCondition) bool {
		return c.Type == v1.PodResizePending && c.Status == v1.ConditionTrue
	})
}

func overdue(p *v1.Pod) bool { return p != nil && p.Status.Reason == "DeadlineExceeded" }

// command runs quartet with an input, and returns what it says.
func (r *rig) command(ctx context.Context, input string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(r.bin, "quartet"),
		append(args, "--state-dir="+r.node.Layout.StateDir())...)
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (r *rig) must(t *testing.T, input string, args ...string) {
	t.Helper()
	if out, err := r.command(t.Context(), input, args...); err != nil {
		t.Fatalf("quartet %v: %v: %s", args, err, out)
	}
}

// kill kills the supervisor and the four processes at once.
func (r *rig) kill(ctx context.Context, t *testing.T) {
	t.Helper()
	for _, name := range append([]layout.Service{"quartet"}, layout.Services()...) {
		pid := r.node.PID(name)
		if pid == 0 {
			continue
		}
		if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
			t.Fatal(err)
		}
		eventually.In(ctx, t, string(name)+" has ended", func() bool { return unix.Kill(pid, 0) != nil })
	}
}

// of returns the name of a pod or a secret of this cell.
func (r *rig) of(name string) string { return fmt.Sprintf("%s-%d", name, r.turn) }

// fail is one cell.
func (r *rig) fail(t *testing.T, f file, how fault) {
	ctx, cancel := context.WithTimeout(t.Context(), 4*patience)
	defer cancel()
	r.turn++
	goes, late, added, pressed, down := r.of("goes"), r.of("late"), r.of("new"), r.of("pressed"), r.of("down")
	r.node.WriteManifest(t, "goes.yaml", manifest(goes, "", "serve"))
	r.node.WriteManifest(t, "pressed.yaml", manifest(pressed, "", "serve"))
	r.node.WriteManifest(t, "down.yaml", manifest(down, "", "serve"))
	r.node.WriteManifest(t, "late.yaml", manifest(late, "  activeDeadlineSeconds: 8\n", "serve"))
	eventually.In(ctx, t, "the pods are ready", func() bool {
		p := r.node.Pod(ctx, late) // on a busy machine its deadline may be over
		return harness.Ready(r.node.Pod(ctx, goes)) && harness.Ready(r.node.Pod(ctx, pressed)) &&
			harness.Ready(r.node.Pod(ctx, down)) && (harness.Ready(p) || overdue(p))
	})
	said := r.logged(t)

	r.disk.Set(diskfault.Fault{Errno: how.errno, Match: func(path string) bool {
		return f.matches(r.node.Layout.StateDir(), path)
	}})
	r.kill(ctx, t)
	ended := r.node.Spawn(t)
	limit := patience
	if f.refuses {
		limit /= 6
	}
	healthy := r.within(ctx, limit, r.node.Healthy)
	// An open that hangs cannot be told from one that takes long.
	if !healthy && !(f.refuses && (how.errno == 0 || r.says(t, said, f))) {
		t.Errorf("the node does not start, and says %s", r.last(t, said))
	}
	select {
	case err := <-ended:
		t.Logf("the node has ended: %v", err)
		ended = nil
	default:
	}
	var promised []string
	if healthy {
		promised = r.demand(ctx, t, f, how, said)
	}
	hits := r.disk.Clear()
	t.Logf("%d calls had the fault: %q", len(hits), slices.Compact(slices.Sorted(slices.Values(hits))))
	if ended == nil {
		r.node.Start(t)
	}
	r.recovers(ctx, t, late, pressed, added, promised, healthy)
}

// demand has pods end, start and be resized, and returns what the node has accepted. said is the size of its log before
// the fault.
func (r *rig) demand(ctx context.Context, t *testing.T, f file, how fault, said int) (promised []string) {
	t.Helper()
	goes, late, added, applied, pressed := r.of("goes"), r.of("late"), r.of("new"), r.of("applied"), r.of("pressed")
	if err := os.Remove(filepath.Join(r.node.Manifests, "goes.yaml")); err != nil {
		t.Error(err)
	}
	if !r.within(ctx, patience, func(ctx context.Context) bool { return r.away(ctx, goes) }) {
		t.Errorf("the pod without a manifest has not ended; the node says %s", r.last(t, said))
	}
	if !r.within(ctx, patience, func(ctx context.Context) bool { return overdue(r.node.Pod(ctx, late)) }) {
		t.Errorf("the pod beyond its deadline has not ended; the node says %s", r.last(t, said))
	}
	r.evict(ctx, t, pressed, said)
	r.shutDown(ctx, t, f, r.of("down"), said)
	r.node.WriteManifest(t, "new.yaml", manifest(added, "", "serve"))
	if !r.within(ctx, patience/3, func(ctx context.Context) bool { return harness.Ready(r.node.Pod(ctx, added)) }) &&
		!r.says(t, said, f) && !(f.ofPods && how.errno == 0 && r.works(ctx, added)) {
		t.Errorf("the new pod does not start, and the node does not say why: %s", r.last(t, said))
	}
	inputs := map[string]string{applied: manifest(applied, "", "serve"), r.of("secret"): secret(r.of("secret"), "s")}
	for name, input := range inputs {
		out, err := r.command(ctx, input, "apply", "-f", "-")
		if err == nil {
			promised = append(promised, name)
		} else {
			t.Logf("apply of %s: %v: %s", name, err, out)
		}
	}
	if _, err := r.command(ctx, sized(r.cpu+1), "apply", "-f", "-"); err == nil {
		r.cpu++
		r.within(ctx, resizeTime, func(ctx context.Context) bool {
			p := r.node.Pod(ctx, "sized")
			return hasCPU(p, r.cpu) || pending(p)
		})
	}
	if out, err := r.command(ctx, "", "secrets", "rotate-key"); err != nil {
		t.Logf("the rotation: %s", out)
	}
	return promised
}

// evict evicts a pod, as under the pressure of the node.
func (r *rig) evict(ctx context.Context, t *testing.T, name string, said int) {
	t.Helper()
	p := r.node.Pod(ctx, name)
	conn, err := rpc.Dial(r.node.Layout.Address(layout.SyncLoop))
	if err != nil || p == nil {
		t.Errorf("there is no pod to evict: %v", err)
		return
	}
	defer conn.Close() //nolint:errcheck // nothing was written to it
	request := &enginev1.EvictPodRequest{PodUid: string(p.UID), Reason: "Evicted", Message: "memory"}
	if _, err := enginev1.NewEngineServiceClient(conn).EvictPod(ctx, request); err != nil {
		t.Errorf("the eviction: %v", err)
	}
	if !r.within(ctx, patience, func(ctx context.Context) bool { return evicted(r.node.Pod(ctx, name)) }) {
		t.Errorf("the evicted pod has not ended; the node says %s", r.last(t, said))
	}
}

// shutDown ends a pod, as before the machine goes down. It waits for the volumes as long as the shutdown lets it, and
// those in a directory that cannot be read are never known to be released.
func (r *rig) shutDown(ctx context.Context, t *testing.T, f file, name string, said int) {
	t.Helper()
	p := r.node.Pod(ctx, name)
	conn, err := rpc.Dial(r.node.Layout.Address(layout.SyncLoop))
	if err != nil || p == nil {
		t.Errorf("there is no pod to shut down: %v", err)
		return
	}
	defer conn.Close() //nolint:errcheck // nothing was written to it
	limited, cancel := context.WithTimeout(ctx, patience/3)
	defer cancel()
	request := &enginev1.ShutDownPodsRequest{Pods: []*enginev1.PodEnd{{PodUid: string(p.UID), GracePeriodSeconds: 1}}}
	_, err = enginev1.NewEngineServiceClient(conn).ShutDownPods(limited, request)
	if err != nil && !(f.ofPods && r.says(t, said, f)) {
		t.Errorf("the shutdown does not end its pod: %v; the node says %s", err, r.last(t, said))
	}
	if p := r.node.Pod(ctx, name); !isDown(p) || runs(p) {
		t.Errorf("the pod of the shutdown has not ended; the node says %s", r.last(t, said))
	}
}

// runs reports whether a container of a pod runs.
func runs(p *v1.Pod) bool {
	return slices.ContainsFunc(p.Status.ContainerStatuses, func(c v1.ContainerStatus) bool {
		return c.State.Running != nil
	})
}

// works reports whether the worker of a pod is busy.
func (r *rig) works(ctx context.Context, name string) bool {
	out, err := r.command(ctx, "", "get", "workers")
	return err == nil && strings.Contains(out, name)
}

// recovers checks that a node whose disk is well has what it has promised, also after a kill.
func (r *rig) recovers(
	ctx context.Context, t *testing.T, late, pressed, added string, promised []string, healthy bool,
) {
	t.Helper()
	if !healthy { // it could not be evicted before
		eventually.In(ctx, t, "the pods are known", func() bool { return r.node.Pod(ctx, pressed) != nil })
		r.evict(ctx, t, pressed, 0)
	}
	r.node.WriteManifest(t, "new.yaml", manifest(added, "", "serve"))
	eventually.In(ctx, t, "the new pod is ready", func() bool { return harness.Ready(r.node.Pod(ctx, added)) })
	eventually.In(ctx, t, "the pod is overdue, and this is recorded", func() bool {
		p := r.node.Pod(ctx, late)
		book, err := os.ReadFile(filepath.Join(r.node.Layout.StateDir(), "evictions.json"))
		q := r.node.Pod(ctx, pressed)
		return err == nil && overdue(p) && strings.Contains(string(book), string(p.UID)) &&
			evicted(q) && strings.Contains(string(book), string(q.UID))
	})
	eventually.In(ctx, t, "the applied pod has the CPU that was accepted", func() bool {
		return hasCPU(r.node.Pod(ctx, "sized"), r.cpu)
	})
	r.must(t, "", "secrets", "rotate-key")
	r.kill(ctx, t)
	r.node.Start(t)
	eventually.In(ctx, t, "the first pod is ready", func() bool { return harness.Ready(r.node.Pod(ctx, "kept")) })
	if got := container(r.node.Pod(ctx, "kept")); got != r.kept {
		t.Errorf("the first pod ran in %s, and runs in %s", r.kept, got)
		r.kept = got
	}
	if p := r.node.Pod(ctx, late); p != nil && !overdue(p) {
		t.Errorf("after a restart the overdue pod is %s %s", p.Status.Phase, p.Status.Reason)
	}
	if p := r.node.Pod(ctx, pressed); p != nil && !evicted(p) {
		t.Errorf("after a restart the evicted pod is %s %s", p.Status.Phase, p.Status.Reason)
	}
	if p := r.node.Pod(ctx, r.of("down")); healthy && p != nil && !isDown(p) {
		t.Errorf("after a restart the pod of the shutdown is %s %s", p.Status.Phase, p.Status.Reason)
	}
	if p := r.node.Pod(ctx, "sized"); !hasCPU(p, r.cpu) {
		t.Errorf("after a restart the applied pod does not have %d millicores", r.cpu)
	}
	secrets, err := r.command(ctx, "", "get", "secrets")
	if err != nil || !strings.Contains(secrets, "kept") {
		t.Errorf("the first secret is lost: %v: %s", err, secrets)
	}
	for _, name := range promised {
		if !strings.Contains(secrets, name) && !r.within(ctx, patience/3, func(ctx context.Context) bool {
			return r.node.Pod(ctx, name) != nil
		}) {
			t.Errorf("%s was accepted, and is lost", name)
		}
	}
	for _, name := range []string{"late.yaml", "new.yaml", "goes.yaml", "pressed.yaml", "down.yaml"} {
		if err := os.Remove(filepath.Join(r.node.Manifests, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Error(err)
		}
	}
	if applied := fmt.Sprintf("applied-%d", r.turn); slices.Contains(promised, applied) {
		r.must(t, "", "delete", "pod", applied)
	}
}

// within reports whether a condition becomes true in a time.
func (r *rig) within(ctx context.Context, limit time.Duration, met func(context.Context) bool) bool {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for {
		if met(ctx) {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-ticker.C:
		}
	}
}

// away reports whether the node answers and does not have a pod.
func (r *rig) away(ctx context.Context, name string) bool {
	pods, err := r.node.Pods(ctx)
	return err == nil && !slices.ContainsFunc(pods, func(p v1.Pod) bool { return strings.HasPrefix(p.Name, name+"-") })
}

// logged returns the size of the node's log.
func (r *rig) logged(t *testing.T) int {
	t.Helper()
	info, err := os.Stat(r.node.LogFile)
	if err != nil {
		t.Fatal(err)
	}
	return int(info.Size())
}

// last returns the end of what the node has logged since.
func (r *rig) last(t *testing.T, since int) string {
	t.Helper()
	log, err := os.ReadFile(r.node.LogFile)
	if err != nil {
		t.Fatal(err)
	}
	log = log[since:]
	return string(log[max(0, len(log)-4000):])
}

// says reports whether the node has logged the name of a file since.
func (r *rig) says(t *testing.T, since int, f file) bool {
	t.Helper()
	log, err := os.ReadFile(r.node.LogFile)
	if err != nil {
		t.Fatal(err)
	}
	part := strings.Trim(strings.TrimSuffix(f.name, "**"), "/*")
	return strings.Contains(string(log[since:]), part)
}

// known checks that each file that the node has written is in the list.
func (r *rig) known(t *testing.T) {
	t.Helper()
	dir := r.node.Layout.StateDir()
	for _, path := range r.disk.Written() {
		name, err := filepath.Rel(dir, path)
		notOurs := err != nil || strings.HasPrefix(name, "..") || strings.HasPrefix(name, "runtime/")
		if notOurs || statedir.IsAside(path) || filepath.Ext(strings.TrimSuffix(path, ".link")) == ".sock" {
			continue
		}
		if !slices.ContainsFunc(files(), func(f file) bool { return f.matches(dir, path) }) {
			t.Errorf("the node writes %s, which is not in the list of files", name)
		}
	}
}
