package volumes_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	"github.com/quartet-node/quartet/test/eventually"
)

func TestAMountThatHangsDelaysNothingElseNorTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
		defer cancel()
		var opens []func()
		defer func() {
			for _, open := range opens {
				open()
			}
			eventually.That(r.t, "they end", func() bool { return r.plugin.underWay() == 0 })
		}()
		for i := range 8 { // more than run concurrently
			opens = append(opens, r.plugin.hanging(fmt.Sprintf("stuck-%d", i)))
			pod := newPod(types.UID(fmt.Sprintf("hung-%d", i)), fmt.Sprintf("stuck-%d", i))
			r.manager.Want(ctx, pod)
		}
		eventually.That(r.t, "four hang", func() bool { return r.plugin.underWay() == 4 })
		done := make(chan error, 1)
		go func() { done <- r.want(newPod("u9", "config")) }()
		var err error
		for waiting := true; waiting; {
			select {
			case err = <-done:
				waiting = false
			case <-time.After(2 * time.Millisecond):
				r.clock.Step(time.Second) // the hanging ones give up their slots
			}
		}
		if err != nil {
			t.Fatalf("a pod beside them: %v", err)
		}
		var late error
		waiting := make(chan error, 1)
		go func() { waiting <- r.want(newPod("hung-0", "stuck-0")) }()
		for late == nil {
			select {
			case late = <-waiting:
			case <-time.After(2 * time.Millisecond):
				r.clock.Step(5 * time.Second)
			}
		}
		if want := "Unable to attach or mount volumes: unmounted volumes=[stuck-0]"; !strings.HasPrefix(late.Error(), want) || !strings.Contains(r.events.String(), want) {
			t.Errorf("after two minutes: %v; told: %s", late, r.events)
		}
		if got := r.manager.Describe("hung-0"); len(got) != 1 || got[0].GetState() != enginev1.VolumeState_VOLUME_STATE_SETTING_UP || got[0].GetSince() == nil {
			t.Errorf("described as %v", got)
		}
		r.stop() // does not hang
	})
}

// TestAnOperationThatHangsSaysWhomItWaitsFor checks it before the first error and after one, and that nothing is said
// of an answer that comes soon.
func TestAnOperationThatHangsSaysWhomItWaitsFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.plugin.asks = "NFS server of 192.0.2.1:/data"
		waitsFor := func() string {
			synctest.Wait()
			return r.manager.Describe("u1")[0].GetWaitsFor()
		}
		r.plugin.failing("v", waitError("secret shop/key"))
		for round, before := range []string{"", "secret shop/key"} {
			goOn := r.plugin.hanging("v")
			r.manager.Want(t.Context(), newPod("u1", "v"))
			r.clock.Step(2*time.Second - time.Nanosecond) // also the back-off ends
			if got := waitsFor(); got != before {
				t.Errorf("round %d: at first it waits for %q, want %q", round, got, before)
			}
			r.clock.Step(2 * time.Second)
			if got := waitsFor(); got != r.plugin.asks {
				t.Errorf("round %d: then it waits for %q, want %q", round, got, r.plugin.asks)
			}
			goOn()
			if got := waitsFor(); got != "secret shop/key" {
				t.Errorf("round %d: after it has failed it waits for %q", round, got)
			}
		}
		r.plugin.failing("v", nil)
		r.clock.Step(time.Minute)
		if got := waitsFor(); got != "" || !r.manager.Ready("u1") {
			t.Errorf("a volume in place waits for %q", got)
		}
		if err := r.release("u1"); err != nil {
			t.Error(err)
		}
	})
}

// TestAVolumeThatWaitsForOthersSaysSo has one operation more than run at once.
func TestAVolumeThatWaitsForOthersSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		var opens []func()
		for i := range 4 {
			name := fmt.Sprintf("slow-%d", i)
			opens = append(opens, r.plugin.hanging(name))
			r.manager.Want(t.Context(), newPod(types.UID(name), name))
		}
		synctest.Wait()
		r.manager.Want(t.Context(), newPod("u1", "v"))
		synctest.Wait()
		if got := r.manager.Describe("u1")[0].GetWaitsFor(); got != "end of operations on other volumes" {
			t.Errorf("it waits for %q", got)
		}
		for _, open := range opens {
			open()
		}
		synctest.Wait()
		if got := r.manager.Describe("u1")[0].GetWaitsFor(); got != "" || !r.manager.Ready("u1") {
			t.Errorf("then it waits for %q", got)
		}
	})
}

// TestARemovalThatHangsDelaysNothingElseNorTheEnd also checks that the caller that waits for the removal gets an error
// at the end.
func TestARemovalThatHangsDelaysNothingElseNorTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		var opens []func()
		defer func() {
			for _, open := range opens {
				open()
			}
			eventually.That(r.t, "they end", func() bool { return r.plugin.underWay() == 0 })
		}()
		const many = 8 // more than run concurrently
		late := make(chan error, many)
		named := func(i int) (types.UID, string) {
			return types.UID(fmt.Sprintf("hung-%d", i)), fmt.Sprintf("stuck-%d", i)
		}
		for i := range many {
			if err := r.want(newPod(named(i))); err != nil {
				t.Fatal(err)
			}
		}
		for i := range many {
			uid, name := named(i)
			opens = append(opens, r.plugin.hanging(name))
			go func() { late <- r.release(uid) }()
		}
		eventually.That(r.t, "four hang", func() bool { return r.plugin.underWay() == 4 })
		done := make(chan error, 1)
		go func() { done <- r.want(newPod("u9", "config")) }()
		for waiting, left := true, many; waiting || left > 0; {
			select {
			case err := <-done:
				if waiting = false; err != nil || left < many {
					t.Errorf("a pod beside them: %v; %d still wait", err, left)
				}
			case err := <-late:
				if left--; err == nil || !strings.Contains(err.Error(), "the removal takes too long: something on this machine hangs") {
					t.Errorf("after two minutes: %v", err)
				}
			case <-time.After(2 * time.Millisecond):
				r.clock.Step(time.Second)
			}
		}
		r.stop() // does not hang
	})
}

// underWay returns the number of operations in progress.
func (p *plugin) underWay() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.now
}
