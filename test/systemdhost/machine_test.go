package systemdhost_test

import (
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/systemdhost"
)

func TestTwoMachinesOfTheTestsOwn(t *testing.T) {
	t.Cleanup(func() { nothingIsLeft(t) })
	a, b := systemdhost.Boot(t, "machine-a"), systemdhost.Boot(t, "machine-b")
	systemdhost.Connect(t, a, netip.MustParsePrefix("192.168.231.1/24"), b, netip.MustParsePrefix("192.168.231.2/24"))

	if name := a.Run(t, "hostname"); name != "machine-a" {
		t.Errorf("the machine is called %q, want %q", name, "machine-a")
	}
	// A unit is enabled, runs, is logged, and can write to the writable directories of a machine.
	const file = "/var/lib/written"
	const script = "#!/bin/sh\ntouch /etc/written /opt/written /usr/bin/written /tmp/written " + file + "\necho it serves\nexec sleep 600\n"
	a.WriteFile(t, "/usr/local/bin/serve", script)
	a.Run(t, "chmod", "755", "/usr/local/bin/serve")
	a.WriteFile(t, systemdhost.AdminUnits+"/serve.service", "[Service]\nType=exec\nExecStart=/usr/local/bin/serve\n[Install]\nWantedBy=multi-user.target\n")
	a.Run(t, "systemctl", "enable", "--now", "serve.service")
	if state := a.Run(t, "systemctl", "is-enabled", "serve.service"); state != "enabled" {
		t.Errorf("the unit is %s, want %q", state, "enabled")
	}
	eventually.That(t, "the unit has printed", func() bool { return strings.Contains(a.Log("serve"), "it serves") })
	if _, err := os.Stat(a.Path(file)); err != nil {
		t.Error(err)
	}
	// The other machine and this one have none of it.
	if out, err := b.Try(t, "systemctl", "status", "serve.service"); err == nil {
		t.Errorf("the other machine has the unit:\n%s", out)
	}
	for _, path := range []string{"/etc/written", "/opt/written", "/usr/bin/written", "/tmp/written", file} {
		for _, at := range []string{path, b.Path(path)} {
			if _, err := os.Stat(at); err == nil {
				t.Errorf("%s has been written", at)
			}
		}
	}
	// The machines reach each other.
	a.WriteFile(t, systemdhost.AdminUnits+"/answer.socket", "[Socket]\nListenStream=192.168.231.1:80\nAccept=yes\n")
	a.WriteFile(t, systemdhost.AdminUnits+"/answer@.service", "[Service]\nExecStart=-/bin/sh -c 'echo from afar >&0'\nStandardInput=socket\n")
	a.Run(t, "systemctl", "daemon-reload")
	a.Run(t, "systemctl", "start", "answer.socket")
	if got := b.Run(t, "bash", "-c", "cat </dev/tcp/192.168.231.1/80"); got != "from afar" {
		t.Errorf("it answers %q, want %q", got, "from afar")
	}
}
