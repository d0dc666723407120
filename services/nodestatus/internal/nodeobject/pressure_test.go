package nodeobject

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/quartet-node/quartet/services/nodestatus/internal/eviction"
	"github.com/quartet-node/quartet/services/nodestatus/internal/facts"
)

func pressing(name string, available, threshold int64) []eviction.Signal {
	return []eviction.Signal{{Name: name, Available: available, Threshold: threshold, Hard: true, At: start}}
}

func TestPressure(t *testing.T) {
	for name, test := range map[string]struct {
		change  func(*facts.Readings)
		kind    v1.NodeConditionType
		want    v1.ConditionStatus
		message string
		signals []eviction.Signal
	}{
		"memory": {
			func(r *facts.Readings) { r.MemoryAvailableBytes = 50 << 20 }, v1.NodeMemoryPressure, v1.ConditionTrue,
			"kubelet has insufficient memory available: memory.available is 50Mi, 100Mi must be left",
			pressing("memory.available", 50<<20, 100<<20),
		},
		"disk": {
			func(r *facts.Readings) { r.NodeFS.AvailableBytes = 9 * gibi }, v1.NodeDiskPressure, v1.ConditionTrue,
			"kubelet has disk pressure: nodefs.available is 9Gi, 10Gi must be left",
			pressing("nodefs.available", 9*gibi, 10*gibi),
		},
		"inodes": {
			func(r *facts.Readings) { r.NodeFS.InodesFree = 49 }, v1.NodeDiskPressure, v1.ConditionTrue,
			"kubelet has disk pressure: nodefs.inodesFree is 49, 50 must be left",
			pressing("nodefs.inodesFree", 49, 50),
		},
		"processes": {
			func(r *facts.Readings) { r.RunningPIDs = 32700 }, v1.NodePIDPressure, v1.ConditionTrue,
			"kubelet has insufficient PID available: pid.available is 68, 100 must be left",
			pressing("pid.available", 68, 100),
		},
		"exactly enough": {
			func(r *facts.Readings) { r.MemoryAvailableBytes = 100 << 20 },
			v1.NodeMemoryPressure, v1.ConditionFalse, "kubelet has sufficient memory available", nil,
		},
		"memory that cannot be read": {
			func(r *facts.Readings) { r.MemoryAvailableBytes = 0 },
			v1.NodeMemoryPressure, v1.ConditionUnknown, "could not be read", nil,
		},
		"disk that cannot be read": {
			func(r *facts.Readings) { r.NodeFS = facts.Filesystem{} },
			v1.NodeDiskPressure, v1.ConditionUnknown, "nodefs.available", nil,
		},
		"a file system that has no inodes": {
			func(r *facts.Readings) { r.NodeFS.Inodes, r.NodeFS.InodesFree = 0, 0 },
			v1.NodeDiskPressure, v1.ConditionFalse, "kubelet has no disk pressure", nil,
		},
		"processes that cannot be read now": {
			func(r *facts.Readings) { r.MaxPIDs, r.RunningPIDs = 0, 0 },
			v1.NodePIDPressure, v1.ConditionUnknown, "could not be read", nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			in := input(t)
			test.change(&in.Readings)
			state := Build(in)
			got := condition(t, state, test.kind)
			if got.Status != test.want || !strings.Contains(got.Message, test.message) {
				t.Errorf("got %s %q, want %s with %q", got.Status, got.Message, test.want, test.message)
			}
			if diff := cmp.Diff(test.signals, state.Eviction.Pressing); diff != "" {
				t.Errorf("signals (-want +got):\n%s", diff)
			}
		})
	}
}

// TestASoftThresholdIsAConditionAtOnce and presses when its grace period is over.
func TestASoftThresholdIsAConditionAtOnce(t *testing.T) {
	in := input(t)
	thresholds, err := eviction.ThresholdsOf(&kubeletconfigv1beta1.KubeletConfiguration{
		EvictionSoft: map[string]string{
			"memory.available": "1Gi",
		},
		EvictionSoftGracePeriod: map[string]string{"memory.available": "1m"},
	})
	if err != nil {
		t.Fatal(err)
	}
	in.Settings.Thresholds, in.Readings.MemoryAvailableBytes = thresholds, gibi-1
	for _, test := range []struct {
		after    time.Duration
		pressing int
	}{{0, 0}, {59 * time.Second, 0}, {time.Minute, 1}} {
		in.Now = start.Add(test.after)
		in.Previous = Build(in)
		if got := condition(
			t,
			in.Previous,
			v1.NodeMemoryPressure,
		); got.Status != v1.ConditionTrue ||
			len(in.Previous.Eviction.Pressing) != test.pressing {
			t.Errorf("after %s: %s, %d press", test.after, got.Status, len(in.Previous.Eviction.Pressing))
		}
	}
	if left := Build(in).Node.Status.Allocatable[v1.ResourceMemory]; left.Value() != 14*gibi {
		t.Errorf(
			"a soft threshold leaves %s for pods to ask for, want all but 1Gi that is reserved and 1Gi of huge pages",
			left.String(),
		)
	}
}

func TestPressureIsReportedForTheTransitionPeriod(t *testing.T) {
	in := input(t)
	step := func(at time.Duration, available int64, want v1.ConditionStatus) {
		t.Helper()
		in.Now, in.Readings.MemoryAvailableBytes = start.Add(at), available
		in.Previous = Build(in)
		if got := condition(t, in.Previous, v1.NodeMemoryPressure); got.Status != want {
			t.Errorf("after %s: %s, want %s", at, got.Status, want)
		}
	}
	step(0, gibi, v1.ConditionFalse)
	step(10*time.Second, 1, v1.ConditionTrue)
	step(20*time.Second, gibi, v1.ConditionTrue)
	step(5*time.Minute+9*time.Second, gibi, v1.ConditionTrue)
	step(5*time.Minute+10*time.Second, gibi, v1.ConditionFalse)
	step(5*time.Minute+20*time.Second, gibi, v1.ConditionFalse)
}

// TestAClockThatJumpsDoesNotKeepAPressure sets the clock by a year while nodestatus is away, so that the time of the
// last pressure, which it has read from its file, is in the future or long ago. A pressure that is over ends within the
// transition period, and a present one goes on.
func TestAClockThatJumpsDoesNotKeepAPressure(t *testing.T) {
	const year = 365 * 24 * time.Hour
	for _, jump := range []time.Duration{year, -year} {
		in := input(t)
		step := func(at time.Duration, available int64, want v1.ConditionStatus) {
			t.Helper()
			in.Now, in.Readings.MemoryAvailableBytes = start.Add(at), available
			in.Previous = Build(in)
			if got := condition(t, in.Previous, v1.NodeMemoryPressure); got.Status != want {
				t.Errorf("after a jump by %s, at %s: %s, want %s", jump, at, got.Status, want)
			}
		}
		step(0, 1, v1.ConditionTrue)
		step(jump, 1, v1.ConditionTrue)
		step(-jump, 1, v1.ConditionTrue)
		step(10*time.Second, 1, v1.ConditionTrue)
		step(jump+5*time.Minute+10*time.Second, gibi, v1.ConditionFalse)
	}
}
