package vmnode

import (
	"fmt"
	"os"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// testAppArmor confines a container by the runtime's profile. One with a profile that the kernel does not have waits.
func testAppArmor(n *node) {
	const profile = "securityContext: {appArmorProfile: {type: %s}}\n"
	n.place("confined", hosted, bestEffort+fmt.Sprintf(profile, "RuntimeDefault"))
	n.place("unknown", hosted, bestEffort+fmt.Sprintf(profile, "Localhost, localhostProfile: no-such-profile"))
	n.ready("confined")
	current, err := os.ReadFile(fmt.Sprintf("/proc/%d/attr/current", n.process("confined")))
	if err != nil || strings.TrimSpace(string(current)) != "cri-containerd.apparmor.d (enforce)" {
		n.t.Errorf("the container runs with the profile %q, %v", current, err)
	}
	n.awaitPod("unknown", "waiting for its profile", func(pod *v1.Pod) bool {
		waiting := status(pod).State.Waiting
		return waiting != nil && waiting.Reason == "CreateContainerError" &&
			strings.Contains(waiting.Message, "apparmor profile not found no-such-profile")
	})
}
