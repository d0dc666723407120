package relist_test

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/trace/noop"

	"github.com/quartet-node/quartet/internal/boottime"
	"github.com/quartet-node/quartet/services/pleg/internal/relist"
)

// TestARecordHasTheResultOfARunningInspection takes the record while inspections run: one ends, and one hangs for
// longer than the record waits, so the moment of its record is before that inspection.
func TestARecordHasTheResultOfARunningInspection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		for _, uid := range []string{"well", "slow", "stuck"} {
			w.addSandbox(uid)
		}
		p := startProcess(w, &storage{}, noop.NewTracerProvider().Tracer(""))
		defer p.end()
		defer w.heal()
		synctest.Wait()
		w.hang("slow", "stuck")
		for _, uid := range []string{"slow", "stuck"} {
			w.addContainer(uid)
			p.Hint(uid, time.Time{})
		}
		synctest.Wait()
		hung := boottime.Now()
		go func() {
			time.Sleep(relist.Period)
			w.release("slow")
		}()
		all, err := p.Recorded(t.Context())
		if err != nil || len(all) != 4 || all[0].GetPod() != nil || !all[0].GetSynced() {
			t.Fatalf("the record is %v, error %v, want a head that is synced, and three pods", all, err)
		}
		for _, one := range all[1:] {
			uid, status := one.GetPod().GetUid(), one.GetPod().GetObserved().GetStatus()
			if want := map[string]int{"slow": 1}[uid]; len(status.GetContainers()) != want {
				t.Errorf("%s has %d containers in the record, want %d", uid, len(status.GetContainers()), want)
			}
			before := one.GetTakenBoottimeNs() < int64(hung)
			if before != (uid == "stuck") {
				t.Errorf("the record of %s is from before the inspections: %v, want %v", uid, before, uid == "stuck")
			}
		}
	})
}

// TestARecordHasTheResultOfRunningLists takes the record of a restarted pleg while its first lists run. They confirm a
// pod, which is not inspected.
func TestARecordHasTheResultOfRunningLists(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, disk, tracer := newWorld(), &storage{}, noop.NewTracerProvider().Tracer("")
		w.addSandbox("well")
		before := startProcess(w, disk, tracer)
		synctest.Wait()
		before.end()
		w.hangAll()
		p := startProcess(w, disk, tracer)
		defer p.end()
		synctest.Wait()
		var healed sync.WaitGroup
		healed.Go(func() {
			time.Sleep(relist.Period)
			w.heal()
		})
		all, err := p.Recorded(t.Context())
		healed.Wait()
		if err != nil || len(all) != 2 {
			t.Fatalf("the record is %v, error %v, want a head and a pod", all, err)
		}
		if one := all[1].GetPod(); one.GetObserved() == nil || one.GetPublished() != nil {
			t.Errorf("the pod is %v, want an observation", one)
		}
	})
}
