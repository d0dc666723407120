package eviction_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
	"pgregory.net/rapid"

	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/services/nodestatus/internal/eviction"
)

var start = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

func thresholds(t testing.TB, change func(*kubeletconfigv1beta1.KubeletConfiguration)) []eviction.Threshold {
	t.Helper()
	var k kubeletconfigv1beta1.KubeletConfiguration
	change(&k)
	all, err := eviction.ThresholdsOf(&k)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// left returns a reading with an available amount of a thousand.
func left(available int64, at time.Time) eviction.Reading {
	return eviction.Reading{Available: available, Capacity: 1000, At: at}
}

func TestThresholdsOf(t *testing.T) {
	all := thresholds(t, func(k *kubeletconfigv1beta1.KubeletConfiguration) {
		k.EvictionHard = map[string]string{
			"memory.available":      "100Mi",
			"nodefs.available":      "10%",
			"nodefs.inodesFree":     "0%",
			"imagefs.available":     "100%",
			"containerfs.available": "5%",
		}
		k.EvictionSoft = map[string]string{"memory.available": "200Mi", "pid.available": "500"}
		k.EvictionSoftGracePeriod = map[string]string{"memory.available": "1m30s", "pid.available": "10s"}
		k.EvictionMinimumReclaim = map[string]string{"memory.available": "50Mi"}
		k.EnforceNodeAllocatable = []string{"pods"}
	})
	var got []string
	for _, threshold := range all {
		got = append(
			got,
			fmt.Sprintf(
				"%s %d+%d %s",
				threshold.Signal,
				threshold.Value.Of(1000),
				threshold.MinReclaim.Of(1000),
				threshold.Grace,
			),
		)
	}
	want := strings.Join([]string{
		"allocatableMemory.available 104857600+52428800 0s",
		"memory.available 104857600+52428800 0s",
		"memory.available 209715200+52428800 1m30s",
		"nodefs.available 100+0 0s",
		"pid.available 500+0 10s",
	}, "\n")
	if strings.Join(got, "\n") != want {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), want)
	}
}

// TestThresholdsOfTheContainersFileSystem: they are those of the node's, if it is read.
func TestThresholdsOfTheContainersFileSystem(t *testing.T) {
	configured := thresholds(t, func(k *kubeletconfigv1beta1.KubeletConfiguration) {
		k.EvictionHard = map[string]string{
			"nodefs.available": "10%", "imagefs.available": "15%", "containerfs.available": "5%",
		}
		k.EvictionSoft = map[string]string{"nodefs.inodesFree": "20%"}
		k.EvictionSoftGracePeriod = map[string]string{"nodefs.inodesFree": "0s"}
	})
	readings := map[string]eviction.Reading{
		eviction.NodeFS: left(500, start), eviction.NodeFSInodes: left(500, start), eviction.ImageFS: left(500, start),
	}
	if got := eviction.WithContainerFS(configured, readings); len(got) != len(configured) {
		t.Errorf("without a reading: %v", got)
	}
	readings[eviction.ContainerFS], readings[eviction.ContainerFSInodes] = left(99, start), left(200, start)
	state := eviction.Step(eviction.WithContainerFS(configured, readings), eviction.State{}, readings, start)
	if len(state.Pressing) != 1 || state.Pressing[0].Name != eviction.ContainerFS || state.Pressing[0].Threshold != 100 ||
		state.Seen[v1.NodeDiskPressure] != start {
		t.Errorf("the state is %+v, want containerfs.available pressing, with the threshold 100", state)
	}
}

// TestAnHour has successive readings, each with the expected signals: C for crossed, P for pressing.
func TestAnHour(t *testing.T) {
	const step = 10 * time.Second
	for name, test := range map[string]struct {
		hard, soft, grace, reclaim string
		readings                   []int64
		want                       string
	}{
		"a hard threshold presses at once and no longer than it is crossed": {
			hard: "10%", readings: []int64{100, 99, 0, 100}, want: "- CP CP -",
		},
		"a soft one presses when its grace period is over": {
			soft: "10%", grace: "20s", readings: []int64{99, 99, 99, 99, 100, 99}, want: "C C CP CP - C",
		},
		"its grace period begins anew each time": {
			soft: "10%", grace: "20s", readings: []int64{99, 99, 100, 99, 99, 99}, want: "C C - C C CP",
		},
		"one that has pressed does so until more is left": {
			hard: "10%", reclaim: "5%", readings: []int64{149, 99, 100, 149, 150, 149}, want: "- CP CP CP - -",
		},
		"what is to be left more is an amount, too": {
			hard: "100", reclaim: "20", readings: []int64{99, 119, 120}, want: "CP CP -",
		},
		"one that was only crossed does not": {
			soft: "10%", grace: "20s", reclaim: "5%", readings: []int64{99, 100}, want: "C -",
		},
		"what cannot be read is not crossed": {
			hard: "10%", readings: []int64{99, -1, 99}, want: "CP ? CP",
		},
	} {
		t.Run(name, func(t *testing.T) {
			all := thresholds(t, func(k *kubeletconfigv1beta1.KubeletConfiguration) {
				set := func(field *map[string]string, text string) {
					if text != "" {
						*field = map[string]string{"nodefs.available": text}
					}
				}
				set(&k.EvictionHard, test.hard)
				set(&k.EvictionSoft, test.soft)
				set(&k.EvictionSoftGracePeriod, test.grace)
				set(&k.EvictionMinimumReclaim, test.reclaim)
			})
			var state eviction.State
			var got []string
			for i, available := range test.readings {
				now := start.Add(time.Duration(i) * step)
				readings := map[string]eviction.Reading{}
				if available >= 0 {
					readings["nodefs.available"] = left(available, now)
				}
				state = eviction.Step(all, state, readings, now)
				word := strings.Repeat(
					"C",
					len(state.Crossed),
				) + strings.Repeat(
					"P",
					len(state.Pressing),
				) + strings.Repeat(
					"?",
					len(state.Unread),
				)
				if word == "" {
					word = "-"
				}
				got = append(got, word)
			}
			if strings.Join(got, " ") != test.want {
				t.Errorf("got  %s\nwant %s", strings.Join(got, " "), test.want)
			}
		})
	}
}

func TestAReadingThatIsTooOldIsNone(t *testing.T) {
	all := thresholds(t, func(k *kubeletconfigv1beta1.KubeletConfiguration) {
		k.EvictionHard = map[string]string{"imagefs.available": "10%"}
	})
	state := eviction.Step(
		all,
		eviction.State{},
		map[string]eviction.Reading{"imagefs.available": left(1, start)},
		start.Add(31*time.Second),
	)
	if len(state.Pressing) != 0 || len(state.Unread) != 1 {
		t.Errorf("Step() = %+v, want no Pressing and len(Unread) 1", state)
	}
}

func TestEachSignalSetsItsCondition(t *testing.T) {
	for signal, want := range map[string]v1.NodeConditionType{
		"memory.available": "MemoryPressure", "allocatableMemory.available": "MemoryPressure", "nodefs.available": "DiskPressure",
		"nodefs.inodesFree": "DiskPressure", "imagefs.available": "DiskPressure", "imagefs.inodesFree": "DiskPressure", "pid.available": "PIDPressure",
		"containerfs.available": "DiskPressure", "containerfs.inodesFree": "DiskPressure",
	} {
		if got := eviction.ConditionOf(signal); got != want {
			t.Errorf("%s sets %s, want %s", signal, got, want)
		}
	}
	for _, signal := range nodeconfig.EvictionSignals() {
		if eviction.ConditionOf(signal) == "" {
			t.Errorf("%s may be configured and sets no condition", signal)
		}
	}
}

// TestWhatPressesIsCrossed checks for any sequence of readings: a pressing signal is crossed, a crossed one was read
// and its condition was seen now, and the inputs are not modified.
func TestWhatPressesIsCrossed(t *testing.T) {
	all := thresholds(t, func(k *kubeletconfigv1beta1.KubeletConfiguration) {
		k.EvictionHard = map[string]string{"memory.available": "100", "pid.available": "10%"}
		k.EvictionSoft = map[string]string{"memory.available": "200"}
		k.EvictionSoftGracePeriod = map[string]string{"memory.available": "30s"}
		k.EvictionMinimumReclaim = map[string]string{"memory.available": "50"}
	})
	rapid.Check(t, func(t *rapid.T) {
		var state eviction.State
		now := start
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 60).Draw(t, "seconds")) * time.Second)
			readings := map[string]eviction.Reading{}
			for _, signal := range []string{"memory.available", "pid.available"} {
				if rapid.Bool().Draw(t, signal+" is read") {
					readings[signal] = left(rapid.Int64Range(0, 300).Draw(t, signal), now)
				}
			}
			before := fmt.Sprint(state)
			next := eviction.Step(all, state, readings, now)
			if fmt.Sprint(state) != before {
				t.Fatal("the state before was changed")
			}
			crossed := map[eviction.Signal]bool{}
			for _, signal := range next.Crossed {
				crossed[signal] = true
				if next.Seen[eviction.ConditionOf(signal.Name)] != now {
					t.Fatalf("%+v is crossed and its condition was not seen", signal)
				}
			}
			for _, signal := range next.Pressing {
				if !crossed[signal] {
					t.Fatalf("%+v presses and is not crossed", signal)
				}
			}
			for _, signal := range next.Read {
				if signal.Available < signal.Threshold && !crossed[signal] {
					t.Fatalf("%+v is not crossed", signal)
				}
			}
			if len(next.Read)+len(next.Unread) < 2 {
				t.Fatalf("%+v says nothing of some signal", next)
			}
			state = next
		}
	})
}

// TestWhatWasSeenBeforeTheClockWasSetBack: such a time counts as the start of the next process.
func TestWhatWasSeenBeforeTheClockWasSetBack(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)
	left := eviction.State{
		Seen: map[v1.NodeConditionType]time.Time{
			v1.NodeMemoryPressure: now.Add(time.Hour),
			v1.NodeDiskPressure:   now.Add(-time.Minute),
		},
	}
	got := left.Recalled(now).Seen
	if len(got) != 2 || !got[v1.NodeMemoryPressure].Equal(now) || !got[v1.NodeDiskPressure].Equal(now.Add(-time.Minute)) {
		t.Errorf("seen are %v", got)
	}
	if !left.Seen[v1.NodeMemoryPressure].Equal(now.Add(time.Hour)) {
		t.Error("what was left has changed")
	}
}
