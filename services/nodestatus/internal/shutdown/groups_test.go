package shutdown_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/services/nodestatus/internal/shutdown"
)

const critical = 2_000_000_000

func period(priority int32, seconds int64) kubeletconfigv1beta1.ShutdownGracePeriodByPodPriority {
	return kubeletconfigv1beta1.ShutdownGracePeriodByPodPriority{Priority: priority, ShutdownGracePeriodSeconds: seconds}
}

// pod returns a pod with a name, and with a priority and a grace period unless they are nil.
func pod(name string, priority *int32, grace *int64) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)},
		Spec:       v1.PodSpec{Priority: priority, TerminationGracePeriodSeconds: grace},
	}
}

func TestPeriodsOf(t *testing.T) {
	duration := func(d time.Duration) metav1.Duration { return metav1.Duration{Duration: d} }
	for name, test := range map[string]struct {
		cfg   kubeletconfigv1beta1.KubeletConfiguration
		want  string
		total time.Duration
	}{
		"nothing is asked for": {},
		"all pods, of which the critical ones go last": {
			kubeletconfigv1beta1.KubeletConfiguration{ShutdownGracePeriod: duration(30 * time.Second),
				ShutdownGracePeriodCriticalPods: duration(10 * time.Second)},
			"0:20 2000000000:10", 30 * time.Second,
		},
		"no time for critical ones": {
			kubeletconfigv1beta1.KubeletConfiguration{ShutdownGracePeriod: duration(30 * time.Second)}, "0:30 2000000000:0",
			30 * time.Second,
		},
		"groups in any order": {
			kubeletconfigv1beta1.KubeletConfiguration{ShutdownGracePeriodByPodPriority: shutdown.Periods{period(critical, 60),
				period(0, 180), period(-5, -1), period(1000, 120)}},
			"-5:-1 0:180 1000:120 2000000000:60", 6 * time.Minute,
		},
	} {
		t.Run(name, func(t *testing.T) {
			periods := shutdown.PeriodsOf(&test.cfg)
			var got []string
			for _, p := range periods {
				got = append(got, fmt.Sprint(p.Priority, ":", p.ShutdownGracePeriodSeconds))
			}
			if strings.Join(got, " ") != test.want || periods.Total() != test.total {
				t.Errorf("got %q in %v, want %q in %v", got, periods.Total(), test.want, test.total)
			}
			// Root asks logind for it before nodestatus starts.
			if delay := nodeconfig.ShutdownDelay(&test.cfg); delay != test.total {
				t.Errorf("ShutdownDelay() = %v, want %v", delay, test.total)
			}
		})
	}
}

func TestDue(t *testing.T) {
	periods := shutdown.Periods{period(0, 20), period(1000, 15), period(critical, 10)}
	pods := []*v1.Pod{
		pod(
			"none",
			nil,
			ptr.To[int64](30),
		),
		pod("below", ptr.To[int32](-7), nil),
		pod("short", ptr.To[int32](999), ptr.To[int64](3)),
		pod(
			"middle",
			ptr.To[int32](1000),
			ptr.To[int64](30),
		),
		pod("critical", ptr.To[int32](critical), ptr.To[int64](30)),
		pod("node", ptr.To[int32](critical+1000), ptr.To[int64](0)),
	}
	for name, test := range map[string]struct {
		group int
		left  time.Duration
		want  string
	}{
		"a pod has the time of its group, or its own when that is less": {0, 20 * time.Second, "none:20 below:20 short:3"},
		"what is left of earlier groups goes on with the next":          {1, 15 * time.Second, "none:15 below:15 short:3 middle:15"},
		"the last group is all":          {2, 10 * time.Second, "none:10 below:10 short:3 middle:10 critical:10 node:0"},
		"what is left of a group's time": {0, 7900 * time.Millisecond, "none:7 below:7 short:3"},
		"a second at least":              {0, -time.Second, "none:1 below:1 short:1"},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, end := range periods.Due(test.group, test.left, pods) {
				got = append(got, fmt.Sprint(end.Pod.Name, ":", end.GraceSeconds))
			}
			if strings.Join(got, " ") != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// Each pod has one group: the last one whose priority it reaches. No pod with a higher priority is in an earlier group,
// and the groups contain all pods.
func TestEveryPodHasItsGroup(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := kubeletconfigv1beta1.KubeletConfiguration{}
		for _, priority := range rapid.SliceOfNDistinct(rapid.Int32Range(-50, 50), 1, 6, rapid.ID).Draw(t, "groups") {
			cfg.ShutdownGracePeriodByPodPriority = append(
				cfg.ShutdownGracePeriodByPodPriority,
				period(priority, rapid.Int64Range(0, 30).Draw(t, "seconds")),
			)
		}
		periods := shutdown.PeriodsOf(&cfg)
		var pods []*v1.Pod
		for i, priority := range rapid.SliceOf(rapid.Int32Range(-60, 60)).Draw(t, "pods") {
			pods = append(pods, pod(fmt.Sprint(i), &priority, nil))
		}
		slices.SortFunc(pods, func(a, b *v1.Pod) int { return cmp.Compare(*a.Spec.Priority, *b.Spec.Priority) })
		before := 0
		for _, p := range pods {
			group := periods.Group(*p.Spec.Priority)
			if group < before {
				t.Fatalf("a pod of priority %d goes in group %d, one of less in %d", *p.Spec.Priority, group, before)
			}
			before = group
			if reaches := periods[group].Priority <= *p.Spec.Priority; !reaches && group > 0 {
				t.Fatalf("a pod of priority %d goes in the group of %d", *p.Spec.Priority, periods[group].Priority)
			}
			if group+1 < len(periods) && periods[group+1].Priority <= *p.Spec.Priority {
				t.Fatalf("a pod of priority %d goes before the group of %d", *p.Spec.Priority, periods[group+1].Priority)
			}
		}
		if all := periods.Due(len(periods)-1, time.Second, pods); len(all) != len(pods) {
			t.Fatalf("%d of %d pods have had to go", len(all), len(pods))
		}
	})
}
