package bundle

import (
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/quartet-node/quartet/test/require"
)

// TestRulesOfPodsThatAPluginHasLeftGo checks that they are removed with the network, and that the rules of another
// network stay. The test uses a network namespace of its own, not the machine's rules.
func TestRulesOfPodsThatAPluginHasLeftGo(t *testing.T) {
	require.Root(t, "a packet filter rule")
	_, err := exec.LookPath("iptables")
	require.NoError(t, err)
	iptables := func(args ...string) string {
		out, err := exec.Command("iptables", append([]string{"--wait", "--table", "nat"}, args...)...).CombinedOutput()
		if err != nil {
			t.Errorf("iptables %s: %v: %s", strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	// As the plugins "bridge" and "portmap" create them for a pod.
	pod := func(network, chain, address string) {
		comment := []string{"-m", "comment", "--comment", `name: "` + network + `" id: "0123456789abcdef"`}
		iptables("--new-chain", chain)
		iptables(append([]string{"-A", chain, "-d", "10.88.108.0/23", "-j", "ACCEPT"}, comment...)...)
		iptables(append([]string{"-A", chain, "!", "-d", "224.0.0.0/4", "-j", "MASQUERADE"}, comment...)...)
		iptables(append([]string{"-A", "POSTROUTING", "-s", address, "-j", chain}, comment...)...)
		published := "CNI-DN-" + chain[len("CNI-"):len("CNI-")+20]
		iptables("--new-chain", published)
		iptables("-A", published, "-p", "tcp", "--dport", "8080", "-j", "DNAT", "--to-destination", address+":80")
		iptables(
			"-A",
			"CNI-HOSTPORT-DNAT",
			"-p",
			"tcp",
			"-m",
			"comment",
			"--comment",
			`dnat name: "`+network+`" id: "0123456789abcdef"`,
			"-m",
			"multiport",
			"--destination-ports",
			"8080",
			"-j",
			published,
		)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Errorf("making a network namespace: %v", err)
			return
		}
		iptables("--new-chain", "CNI-HOSTPORT-DNAT")
		iptables("-A", "PREROUTING", "-j", "CNI-HOSTPORT-DNAT")
		pod("quartet-bbbbbbb", "CNI-bbbbbbbbbbbbbbbbbbbbbbbb", "10.88.2.2")
		before := iptables("-S")
		pod("quartet-aaaaaaa", "CNI-aaaaaaaaaaaaaaaaaaaaaaaa", "10.88.108.6")
		pod("quartet-aaaaaaa", "CNI-cccccccccccccccccccccccc", "10.88.108.7")
		if made := iptables("-S"); made == before {
			t.Errorf("there are no rules of pods:\n%s", made)
		}
		for range 2 {
			if err := endMasquerading("quartet-aaaaaaa"); err != nil {
				t.Error(err)
			}
		}
		if left := iptables("-S"); left != before {
			t.Errorf("the rules are\n%s\nand were before\n%s", left, before)
		}
	}()
	<-done
}
