package iptableschains_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"k8s.io/utils/clock"
	testclock "k8s.io/utils/clock/testing"

	"github.com/quartet-node/quartet/services/syncloop/internal/node/iptableschains"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/require"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// tables is a fake of a machine's iptables.
type tables struct {
	mu sync.Mutex
	// entries has the chains and rules, "iptables mangle CHAIN RULE", in the order of their creation.
	entries []string
	// exitCode is the exit code of every run if it is not 0.
	exitCode int
	// missing is true if the programs do not exist.
	missing bool
	// calls counts the runs.
	calls int
}

func (m *tables) run(_ context.Context, program string, args ...string) (int, string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.calls++
	if m.missing {
		return 0, "", exec.ErrNotFound
	}
	if m.exitCode > 0 {
		return m.exitCode, "Permission denied", nil
	}
	if args[0] != "-w" || args[2] != "-t" {
		return 0, "", errors.New("no lock, or no table")
	}
	entry := program + " " + args[3] + " " + strings.Join(args[5:], " ")
	exists := slices.Contains(m.entries, entry) || args[5] == "POSTROUTING"
	switch args[4] {
	case "-S", "-C":
		if !exists {
			return 1, "", nil
		}
	case "-N":
		if exists {
			return 1, "Chain already exists.", nil
		}
		m.entries = append(m.entries, entry)
	case "-I", "-A":
		m.entries = append(m.entries, entry)
	}
	return 0, "", nil
}

func (m *tables) got() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.entries)
}

func (m *tables) runs() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.calls
}

func (m *tables) set(change func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change()
}

var want = []string{
	"iptables mangle KUBE-IPTABLES-HINT", "iptables filter KUBE-FIREWALL",
	"iptables filter OUTPUT -j KUBE-FIREWALL", "iptables filter INPUT -j KUBE-FIREWALL",
	"iptables filter KUBE-FIREWALL -m comment --comment block incoming localnet connections --dst 127.0.0.0/8 ! --src 127.0.0.0/8 " +
		"-m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP",
	"iptables filter KUBE-KUBELET-CANARY", "iptables nat KUBE-KUBELET-CANARY", "iptables mangle KUBE-KUBELET-CANARY",
	"ip6tables mangle KUBE-IPTABLES-HINT", "ip6tables filter KUBE-KUBELET-CANARY", "ip6tables nat KUBE-KUBELET-CANARY",
	"ip6tables mangle KUBE-KUBELET-CANARY",
}

// startKeeper runs a Keeper until the test ends or end is called.
func startKeeper(t *testing.T, m *tables) (time *testclock.FakeClock, log *bytes.Buffer, end func()) {
	t.Helper()
	fake, log := testclock.NewFakeClock(timeZero), &bytes.Buffer{}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	keeper := iptableschains.New(m.run, fake, slog.New(slog.NewTextHandler(log, nil)))
	go func() { done <- keeper.Run(ctx) }()
	end = sync.OnceFunc(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run: %v, want %v", err, context.Canceled)
		}
	})
	t.Cleanup(end)
	return fake, log, end
}

var timeZero = time.Unix(1000, 0)

func TestTheChainsAreMadeAndMadeAgain(t *testing.T) {
	m := &tables{}
	clock, _, end := startKeeper(t, m)
	eventually.That(t, "everything is created", func() bool { return len(m.got()) == len(want) })
	if diff := cmp.Diff(want, m.got()); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	m.set(func() { m.entries = m.entries[:2] }) // most of them are flushed
	eventually.That(t, "the Keeper waits", clock.HasWaiters)
	clock.Step(time.Minute)
	eventually.That(t, "everything is created again", func() bool { return len(m.got()) == len(want) })
	if diff := cmp.Diff(want, m.got()); diff != "" {
		t.Errorf("after a flush: -want +got\n%s", diff)
	}
	end()
	if len(m.got()) != len(want) {
		t.Error("something was removed at the end")
	}
}

func TestAMachineWithoutIPTables(t *testing.T) {
	m := &tables{missing: true}
	_, log, end := startKeeper(t, m)
	end()
	if !strings.Contains(log.String(), "no iptables") {
		t.Errorf("the log is %s, want text with %q", log.String(), "no iptables")
	}
}

func TestAFailureIsReportedOnceAndRetried(t *testing.T) {
	m := &tables{}
	clock, log, end := startKeeper(t, m)
	eventually.That(t, "everything is created", func() bool { return len(m.got()) == len(want) })
	m.set(func() { m.entries, m.exitCode = nil, 4 })
	for range 2 {
		before := m.runs()
		clock.Step(time.Minute)
		eventually.That(t, "both programs are tried", func() bool { return m.runs() == before+2 })
	}
	m.set(func() { m.exitCode = 0 })
	clock.Step(time.Minute)
	eventually.That(t, "everything is created again", func() bool { return len(m.got()) == len(want) })
	end()
	if got := strings.Count(log.String(), "level=WARN"); got != 2 || !strings.Contains(log.String(), "exit code 4: Permission denied") {
		t.Errorf("the log has %d warnings, want one for each program: %s", got, log.String())
	}
}

// TestTheChainsOfThisMachine runs iptables in a network namespace of its own.
func TestTheChainsOfThisMachine(t *testing.T) {
	require.Root(t, "a network namespace")
	_, err := exec.LookPath("iptables")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	made := make(chan string, 1)
	go func() {
		runtime.LockOSThread() // It is never unlocked, so that the thread and its namespace end.
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- err
			return
		}
		keeper := iptableschains.New(func(ctx context.Context, program string, args ...string) (int, string, error) {
			code, out, err := iptableschains.Exec(ctx, program, args...)
			if program == "iptables" && slices.Equal(args, []string{"-w", "5", "-t", "mangle", "-N", "KUBE-KUBELET-CANARY"}) {
				rules, _ := exec.CommandContext(ctx, "iptables-save").CombinedOutput()
				made <- string(rules)
			}
			return code, out, err
		}, clock.RealClock{}, slog.New(slog.DiscardHandler))
		done <- keeper.Run(ctx)
	}()
	select {
	case rules := <-made:
		for _, want := range []string{
			":KUBE-IPTABLES-HINT ", ":KUBE-FIREWALL ", "-A INPUT -j KUBE-FIREWALL", "-A OUTPUT -j KUBE-FIREWALL",
			"block incoming localnet connections", ":KUBE-KUBELET-CANARY ",
		} {
			if !strings.Contains(rules, want) {
				t.Errorf("%q is missing in\n%s", want, rules)
			}
		}
	case err := <-done:
		cancel()
		require.NoError(t, fmt.Errorf("making a network namespace: %w", err))
	case <-time.After(time.Minute):
		t.Error("nothing was created")
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
