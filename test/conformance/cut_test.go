package main

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/quartet-node/quartet/internal/nodeconfig"
)

const reportInJSON = `[{"SpecReports": [
	{"LeafNodeType": "SynchronizedBeforeSuite", "State": "failed", "Failure": {"Message": "EOF"}},
	{"LeafNodeType": "It", "ContainerHierarchyTexts": ["[sig-node] Pods"], "LeafNodeText": "should run",
	 "State": "passed"},
	{"LeafNodeType": "It", "ContainerHierarchyTexts": ["[sig-node] Pods", "of many kinds"], "LeafNodeText": "should stop",
	 "State": "failed", "Failure": {"Message": "unexpected EOF", "TimelineLocation": {"Time": "2026-11-22T20:00:03Z"}}}
]}]`

const someKills = `2026-11-22T20:00:00Z killed pleg, pid 7: <nil>
2026-11-22T20:00:01.5Z killed syncloop, pid 8: <nil>
`

func TestFailuresAndKillsAreRead(t *testing.T) {
	dir := t.TempDir()
	report, log := filepath.Join(dir, jsonFile), filepath.Join(dir, killsFile)
	for path, content := range map[string]string{report: reportInJSON, log: someKills} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	failures, err := readFailures(report)
	if err != nil {
		t.Fatal(err)
	}
	at := time.Date(2026, 11, 22, 20, 0, 3, 0, time.UTC)
	want := failure{Name: "[sig-node] Pods of many kinds should stop", Message: "unexpected EOF", At: at}
	if len(failures) != 1 || failures[0] != want {
		t.Errorf("got %v, want %v", failures, want)
	}
	kills, err := readKills(log, nodeconfig.SyncLoop)
	if err != nil {
		t.Fatal(err)
	}
	if len(kills) != 1 || !kills[0].Equal(at.Add(-1500*time.Millisecond)) {
		t.Errorf("got kills at %v", kills)
	}
}

func TestOnlyACutOffStreamIsRepeated(t *testing.T) {
	kill := time.Now()
	for what, c := range map[string]struct {
		message string
		after   time.Duration
		cut     bool
	}{
		"a log that ended":   {`Get "https://192.0.2.2:10250/containerLogs/ns/pod/c": EOF`, time.Second, true},
		"an exec that ended": {"error dialing backend: read tcp 192.0.2.2:1: read: connection reset by peer", 0, true},
		"one over WebSocket": {"next reader: websocket: close 1006 (abnormal closure): unexpected EOF", time.Second, true},
		"a log that the API server did not get": {
			`failed to get logs from pod: an error on the server ("unknown") has prevented the request`, time.Second, true,
		},
		"an exec whose error is not told":      {"expected to be able to verify file", time.Second, true},
		"one long after the kill":              {"unexpected EOF", time.Minute, false},
		"one before the kill":                  {"unexpected EOF", -time.Second, false},
		"a refused connection":                 {"dial tcp 192.0.2.2:10250: connect: connection refused", time.Second, false},
		"pods that are not known":              {"the pods are not known yet: syncloop is starting", time.Second, false},
		"a pod that does not become what must": {"timed out waiting for the condition", time.Second, false},
	} {
		failures := []failure{{Name: "spec", Message: c.message, At: kill.Add(c.after)}}
		names := cutOff(failures, []time.Time{kill.Add(-time.Hour), kill})
		if (len(names) == 1) != c.cut {
			t.Errorf("%s: got %q, want cut: %t", what, names, c.cut)
		}
	}
}

func TestSpecsAreChosenByTheirWholeNames(t *testing.T) {
	names := []string{`[sig-node] Pods should (run) "a.b"`, "[sig-node] Pods should stop"}
	focus := regexp.MustCompile(exactly(names))
	for name, want := range map[string]bool{
		names[0]: true, names[1]: true, names[1] + " twice": false, "[sig-node] Pods should": false,
	} {
		if focus.MatchString("E2eNode Suite "+name) != want {
			t.Errorf("%q: got %v", name, !want)
		}
	}
}
