package preparecmd_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/quartet-node/quartet/cmd/quartet/internal/preparecmd"
	"github.com/quartet-node/quartet/internal/logind/logindtest"
	"github.com/quartet-node/quartet/test/require"
)

const (
	header = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
	groups = header + "shutdownGracePeriodByPodPriority:\n" +
		"- {priority: 0, shutdownGracePeriodSeconds: 40}\n- {priority: 2000000000, shutdownGracePeriodSeconds: 20}\n"
)

// TestLogindWaitsForTheUnitOfNodestatus: root extends logind's delay to what the configuration gives to pods, because
// the user of the unit may not; and never shortens it.
func TestLogindWaitsForTheUnitOfNodestatus(t *testing.T) {
	for name, test := range map[string]struct {
		config  string
		delay   time.Duration
		written string
		says    string
	}{
		"two groups":                  {groups, 5 * time.Second, "InhibitDelayMaxSec=60", "logind waits 1m0s"},
		"one period":                  {header + "shutdownGracePeriod: 30s\n", 5 * time.Second, "InhibitDelayMaxSec=30", "logind waits 30s"},
		"pods are not waited for":     {header, 5 * time.Second, "", ""},
		"logind waits longer already": {groups, time.Hour, "", ""},
		"a configuration that is wrong": {
			header + "shutdownGracePeriod: 1ms\n", 5 * time.Second, "", "the delay of a shutdown is not known",
		},
	} {
		t.Run(name, func(t *testing.T) {
			address := logindtest.StartBus(t)
			t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", address)
			dropIn, said := filepath.Join(t.TempDir(), "logind.conf.d", "99-quartet.conf"), &strings.Builder{}
			logindtest.Start(t, address, test.delay).ReadsOnHangup(t, dropIn)
			preparecmd.Lengthen(t.Context(), configuration(t, test.config), dropIn, said)
			content, err := os.ReadFile(dropIn)
			if (err == nil) != (test.written != "") || !strings.Contains(string(content), test.written) {
				t.Errorf("the file has %q, %v, want %q", content, err, test.written)
			}
			if got := said.String(); !strings.Contains(got, test.says) || (got == "") != (test.says == "") {
				t.Errorf("it says %q, want %q", got, test.says)
			}
		})
	}
}

// TestAMachineWithoutLogindIsSaid and nothing is written.
func TestAMachineWithoutLogindIsSaid(t *testing.T) {
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path="+filepath.Join(t.TempDir(), "none"))
	dropIn, said := filepath.Join(t.TempDir(), "99-quartet.conf"), &strings.Builder{}
	preparecmd.Lengthen(t.Context(), configuration(t, groups), dropIn, said)
	if _, err := os.Stat(dropIn); !os.IsNotExist(err) {
		t.Errorf("the file is there: %v, want %v", err, fs.ErrNotExist)
	}
	if got := said.String(); !strings.Contains(got, "may not wait 1m0s") || !strings.Contains(got, "D-Bus") {
		t.Errorf("it says %q", got)
	}
}

func configuration(t *testing.T, content string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubelet.yaml")
	require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
	return file
}
