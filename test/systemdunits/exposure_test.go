package systemdunits

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/quartet-node/quartet/test/require"
)

// explained are the words in the table of docs/howto/run-a-node.md for what it does not name one by one.
var explained = map[string]string{
	"CapabilityBoundingSet":   "capabilities and address families",
	"RestrictAddressFamilies": "capabilities and address families",
	"RestrictNamespaces":      "other namespaces",
	"SystemCallFilter":        "`SystemCallFilter=` otherwise",
}

// TestEachExposureOfSyncloopIsExplained: docs/howto/run-a-node.md has a reason for each setting that "systemd-analyze
// security" counts against the unit of syncloop, which needs most privileges.
func TestEachExposureOfSyncloopIsExplained(t *testing.T) {
	_, err := exec.LookPath("systemd-analyze")
	require.NoError(t, err)
	out, err := exec.CommandContext(t.Context(), "systemd-analyze", "security", "--no-pager", "--offline=true",
		"--json=short", filepath.Join(units, "quartet-syncloop.service")).Output()
	require.NoError(t, err)
	var settings []struct {
		Name     string  `json:"name"`
		Exposure *string `json:"exposure"`
	}
	require.NoError(t, json.Unmarshal(out, &settings))
	document, err := os.ReadFile("../../docs/howto/run-a-node.md")
	require.NoError(t, err)
	_, table, _ := strings.Cut(string(document), "| exposure | because syncloop |")
	table, _, _ = strings.Cut(table, "\n\n")
	table = strings.ReplaceAll(table, `\|`, "|")

	exposed := 0
	for _, setting := range settings {
		if setting.Exposure == nil {
			continue // it does not apply, or is set
		}
		exposed++
		// "User=/DynamicUser=" is one setting with two names, "RestrictNamespaces=~user" one value of several.
		name, value, _ := strings.Cut(setting.Name, "=")
		value, isValue := strings.CutPrefix(value, "~")
		switch words := explained[name]; {
		case !isValue && strings.Contains(table, "`"+name+"=`"):
		case isValue && regexp.MustCompile("[`~]"+regexp.QuoteMeta(value)+"`").MatchString(table):
		case isValue && words != "" && strings.Contains(table, words):
		default:
			t.Errorf("docs/howto/run-a-node.md has no reason for %s", setting.Name)
		}
	}
	if exposed < 20 {
		t.Errorf("systemd-analyze counts %d settings, want those of a unit without restrictions: %s", exposed, out)
	}
}

// limits checks what systemd has understood of the settings that bound a unit.
func limits(t *testing.T) {
	t.Helper()
	for name, memory := range map[string]string{
		"configmux": "1073741824", "pleg": "1073741824", "nodestatus": "536870912", "syncloop": "infinity",
	} {
		unit := "quartet-" + name + ".service"
		for setting, want := range map[string]string{
			"MemoryMax": memory, "Restart": "always", "RestartUSec": "100ms", "StartLimitIntervalUSec": "0",
			"OOMScoreAdjust": "-999",
		} {
			if got := property(t, unit, setting); got != want {
				t.Errorf("%s has %s=%s, want %s", unit, setting, got, want)
			}
		}
		// systemd 253 and older have no back-off, and ignore its settings.
		content, err := os.ReadFile(filepath.Join(units, unit))
		must(t, err)
		if text := string(content); !strings.Contains(text, "\nRestartSteps=6\n") ||
			!strings.Contains(text, "\nRestartMaxDelaySec=5s\n") {
			t.Errorf("%s has no back-off of its restarts", unit)
		}
	}
}
