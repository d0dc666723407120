package nodeconfig

import (
	"strings"
	"testing"
)

func TestDefaultPodSysctls(t *testing.T) {
	decode := func(sysctls, gates string) (Decoded, []error) {
		return Decode("f", []byte(head+"defaultPodSysctls: {"+sysctls+"}\nfeatureGates: {"+gates+"}\n"))
	}
	const gate = "DefaultPodSysctls: true"
	decoded, errs := decode(`net.core.somaxconn: "1024", kernel/shmmax: "1"`, gate)
	if got := DefaultPodSysctls(&decoded.Kubelet); len(errs) > 0 || len(got) != 2 ||
		len(decoded.unsupported(SyncLoop)) > 0 {
		t.Errorf("DefaultPodSysctls() = %v, %v, want none, 2 entries and no unsupported", got, errs)
	}
	for sysctls, want := range map[string]string{
		`vm.swappiness: "1"`: "f:3: defaultPodSysctls.vm.swappiness: is the machine's and not a pod's",
		`net..core: "1"`:     "f:3: defaultPodSysctls.net..core: is not the name of a sysctl",
		`net.core.somaxconn: "1", net/core/somaxconn: "2"`: "f:3: defaultPodSysctls.net/core/somaxconn: is the same as net.core.somaxconn",
	} {
		if _, errs := decode(sysctls, gate); len(errs) != 1 || !strings.HasPrefix(errs[0].Error(), want) {
			t.Errorf("%s: decode() = %v, want exactly one and errs[0].Error beginning with %q", sysctls, errs, want)
		}
	}
	if _, errs := decode(
		`net.core.somaxconn: "1"`,
		"",
	); len(errs) != 1 ||
		!strings.Contains(errs[0].Error(), "needs the feature gate DefaultPodSysctls") {
		t.Errorf("without the gate: %v", errs)
	}
}
