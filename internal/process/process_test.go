package process_test

import (
	"context"
	"errors"
	"os/exec"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/quartet-node/quartet/internal/process"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// child starts a shell script and returns when it has printed a line.
func child(t *testing.T, script string) int {
	t.Helper()
	cmd := exec.Command("/bin/sh", "-c", script)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			if err := process.Kill(context.Background(), cmd.Process.Pid); err != nil {
				t.Error(err)
			}
			_ = cmd.Wait() // the test has checked how it ended
		}
	})
	return cmd.Process.Pid
}

func TestEndIsPatientFirst(t *testing.T) {
	pid := child(t, `trap 'exit 0' TERM; echo up; while :; do sleep 0.02; done`)
	begin := time.Now()
	if err := process.End(t.Context(), pid, time.Minute); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begin); took > 30*time.Second {
		t.Errorf("it took %v", took)
	}
}

func TestEndKillsInTheEnd(t *testing.T) {
	pid := child(t, `trap '' TERM; echo up; while :; do sleep 0.02; done`)
	if err := process.End(t.Context(), pid, 50*time.Millisecond); err != nil {
		t.Fatal(err)
	}
}

func TestWaitEndsWithItsContext(t *testing.T) {
	pid := child(t, `echo up; exec sleep 100`)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := process.Wait(ctx, pid); err != nil {
		t.Fatal(err)
	}
	if ctx.Err() == nil {
		t.Error("it returned while the process runs")
	}
}

func TestWhatNeverWasHasEnded(t *testing.T) {
	const none = 1<<22 - 1 // above the highest default pid
	if err := process.End(t.Context(), none, time.Minute); err != nil {
		t.Error(err)
	}
}

func TestAnotherProcessIsNotOpened(t *testing.T) {
	pid := child(t, `echo up; exec sleep 100`)
	another := errors.New("another")
	if _, err := process.Open(pid, func() error { return another }); !errors.Is(err, another) {
		t.Errorf("Open() = %v, want %v", err, another)
	}
	// A process that ends while it is looked at may have left its number to another one.
	_, err := process.Open(pid, func() error { return process.Kill(context.Background(), pid) })
	if !errors.Is(err, process.ErrEnded) {
		t.Errorf("Open() = %v, want %v", err, process.ErrEnded)
	}
}

func TestAnIdentityIsOfOneProcess(t *testing.T) {
	self, err := process.Self()
	if err != nil {
		t.Fatal(err)
	}
	pid := child(t, `echo up; exec sleep 100`)
	other, err := process.Of(pid)
	if err != nil {
		t.Fatal(err)
	}
	if other == self || other.Boot != self.Boot || other.Namespace != self.Namespace || other.Started < self.Started {
		t.Errorf("Of(child) = %+v, and Self() = %+v", other, self)
	}
	if _, err := process.Of(1<<22 - 1); !errors.Is(err, process.ErrEnded) {
		t.Errorf("Of() = %v, want %v", err, process.ErrEnded)
	}
}
