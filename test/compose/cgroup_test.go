package compose

import (
	"github.com/quartet-node/quartet/test/livenode"
)

// podCgroup checks that syncloop, with its few capabilities, creates cgroups of the machine and removes them.
func podCgroup(s *stack) {
	s.place("weighed", manifest("weighed", "    resources: {requests: {cpu: 250m}}\n"))
	name := s.node.PodCgroup(s.awaitReady("weighed"))
	// 256 shares of cgroup v1, and the corresponding weight of v2.
	if weight, err := livenode.ReadCgroup(name, "cpu.shares", "cpu.weight"); err != nil || weight != "256" && weight != "10" {
		s.t.Errorf("the pod has the weight %q, %v", weight, err)
	}
	s.must(s.node.TakeAway("weighed.yaml"))
	s.await("its cgroup is gone", func() bool {
		dirs, err := livenode.Cgroups(name)
		return err == nil && len(dirs) == 0
	}, func() string { return name })
}
