package configmux

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/service"
	"github.com/quartet-node/quartet/internal/standby"
	"github.com/quartet-node/quartet/test/eventually"
)

// childArgs, in the environment, makes TestConfigmuxAsAProcess a configmux with these flags.
const childArgs = "CONFIGMUX_TEST_ARGS"

func TestConfigmuxAsAProcess(t *testing.T) {
	args, ok := os.LookupEnv(childArgs)
	if !ok {
		t.Skip("a test that needs a process of its own starts this one")
	}
	if code := service.Start(
		t.Context(),
		nodeconfig.ConfigMux,
		strings.Split(args, "\n"),
		os.Stdout,
		os.Stderr,
		run,
	); code != 0 {
		t.Fatalf("configmux ended with %d, want 0", code)
	}
}

// spawn starts configmux with the configuration of p, as a process that can be killed.
func (p *process) spawn() *exec.Cmd {
	p.t.Helper()
	file := filepath.Join(filepath.Dir(p.dir), "kubelet.yaml")
	must(
		p.t,
		os.WriteFile(
			file,
			[]byte("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nstaticPodPath: "+p.dir+"\n"),
			0o600,
		),
	)
	self, err := os.Executable()
	must(p.t, err)
	cmd := exec.Command(self, "-test.run=^TestConfigmuxAsAProcess$")
	cmd.Env = append(os.Environ(), childArgs+"="+strings.Join([]string{
		"--config=" + file,
		"--state-dir=" + p.cfg.StateDir,
		"--listen=" + p.cfg.Listen,
		"--hostname-override=node",
		"--standby",
	}, "\n"))
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must(p.t, cmd.Start())
	return cmd
}

// kill ends a process at once, as the kernel does when memory is short.
func (p *process) kill(cmd *exec.Cmd) {
	p.t.Helper()
	must(p.t, cmd.Process.Kill())
	if err := cmd.Wait(); err == nil {
		p.t.Error("it ended well, though killed")
	}
}

// servedBy waits until a process serves on the socket of p.
func (p *process) servedBy(pid int) {
	p.t.Helper()
	eventually.That(p.t, fmt.Sprintf("process %d serves", pid), func() bool {
		owner, err := rpc.ServerOf(p.cfg.Listen)
		return err == nil && owner.PID == pid
	})
}

// TestAStandbyTakesOverAndAFollowerSeesNothing has two configmux on one state directory and one socket, and kills the
// one that serves, twice: the one that was killed comes back as the standby.
func TestAStandbyTakesOverAndAFollowerSeesNothing(t *testing.T) {
	p := newProcess(t)
	var want []string
	for i := range 50 {
		name := fmt.Sprintf("p%02d", i)
		p.write(name+".yaml", manifest(name, "", "i:1"))
		want = append(want, "ADD "+name+"-node i:1")
	}
	first := p.spawn()
	p.servedBy(first.Process.Pid)
	f := follow(p)
	f.until(want...)
	for round := range 2 {
		second := p.spawn()
		p.standsBy(first.Process.Pid)
		p.servedBy(first.Process.Pid)

		begin := time.Now()
		p.kill(first)
		p.servedBy(second.Process.Pid)
		took := time.Since(begin)
		if took > 30*time.Second {
			t.Errorf("it took %v until the standby served", took)
		}
		t.Logf("taken over within %v", took)
		f.untilSynced(round + 2)
		// A change shows that it follows the successor. The change before it was the last one.
		name := fmt.Sprintf("later%d", round)
		p.write(name+".yaml", manifest(name, "", "i:1"))
		want = append(want, "ADD "+name+"-node i:1")
		f.until(want...)
		first = second
	}
	p.kill(first)
}

// standsBy waits until a process is the standby of the one with this process id.
func (p *process) standsBy(pid int) {
	p.t.Helper()
	eventually.That(p.t, fmt.Sprintf("one stands by for %d", pid), func() bool {
		ctx, cancel := context.WithTimeout(p.t.Context(), patience)
		defer cancel()
		holder, ok, err := standby.Ask(ctx, p.cfg.StateDir, nodeconfig.ConfigMux)
		must(p.t, err)
		return ok && holder.PID == pid
	})
}

func TestTheSecondWithoutStandbySaysThatItCould(t *testing.T) {
	p := newProcess(t)
	p.run()
	p.ready()
	err := run(t.Context(), p.cfg, p.tel)
	for _, want := range []string{fmt.Sprintf("configmux with pid %d", os.Getpid()), "stop that process", "--state-dir", "--standby"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q in it", err, want)
		}
	}
}

func TestAStandbyStopsCleanlyOnASignal(t *testing.T) {
	p := newProcess(t)
	p.run()
	p.ready()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	cfg := p.cfg
	cfg.Standby = true
	go func() { done <- run(ctx, cfg, p.tel) }()
	p.standsBy(os.Getpid())
	cancel()
	if err := <-done; err != nil {
		t.Errorf("got %v", err)
	}
}

// TestASubscriberOfAConfigmuxThatStartsGetsThePodsAtOnce, or the other pods when a source cannot be read.
func TestASubscriberOfAConfigmuxThatStartsGetsThePodsAtOnce(t *testing.T) {
	p := newProcess(t)
	for i := range 20 {
		p.write(fmt.Sprintf("%d.yaml", i), manifest(fmt.Sprintf("p%d", i), "", "i"))
	}
	p.run()
	next := p.watch(nil)
	var kinds []string
	for m := next(); !strings.HasPrefix(text(t, m), "SYNCED"); m = next() {
		if m.GetPod() != nil {
			kinds = append(kinds, m.GetFrame().GetKind().String())
		}
	}
	if len(kinds) != 20 || slices.Contains(kinds, "KIND_DELTA") {
		t.Errorf("the snapshot has %v, want the 20 pods", kinds)
	}

	away := newProcess(t)
	away.cfg.Kubelet.StaticPodPath = filepath.Join(away.dir, "loop")
	must(t, os.Symlink("loop", away.cfg.Kubelet.StaticPodPath))
	away.run()
	expect(t, away.watch(nil), "OPENED", "SNAPSHOT source file ready=false", "SYNCED")
}

// TestAStandbyServesNothingWhereTheOtherServes: the health of a standby is on a socket of its own.
func TestAStandbyServesNothingWhereTheOtherServes(t *testing.T) {
	p := newProcess(t)
	held, err := lock(t.Context(), p.cfg, p.tel.Logger)
	must(t, err)
	cfg := p.cfg
	cfg.Standby = true
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- run(ctx, cfg, p.tel) }()
	p.standsBy(os.Getpid())
	if _, err := grpc_health_v1.NewHealthClient(p.conn).
		Check(t.Context(), &grpc_health_v1.HealthCheckRequest{}); status.Code(
		err,
	) != codes.Unavailable {
		t.Errorf("while it stands by: %v, want nobody to answer", err)
	}
	must(t, held.Release())
	if _, err := p.client.ListPods(t.Context(), &configv1.ListPodsRequest{}, grpc.WaitForReady(true)); err != nil {
		t.Errorf("after it has taken over: %v", err)
	}
	cancel()
	must(t, <-done)
}
