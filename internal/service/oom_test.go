package service

import (
	"bytes"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/quartet-node/quartet/internal/nodeconfig"
)

// TestTheOOMScoreIsSet raises the OOM score of a separate process, which needs no privilege.
func TestTheOOMScoreIsSet(t *testing.T) {
	const variable = "QUARTET_TEST_OOM_SCORE"
	if os.Getenv(variable) != "" {
		adjustOOMScore(oomScoreFile, 777, slog.New(slog.NewTextHandler(os.Stdout, nil)))
		got, err := os.ReadFile(oomScoreFile)
		if err != nil || strings.TrimSpace(string(got)) != "777" {
			t.Errorf("ReadFile() = %s, %v, want %q", got, err, "777")
		}
		return
	}
	self := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestTheOOMScoreIsSet$", "-test.v")
	self.Env = append(os.Environ(), variable+"=yes")
	if out, err := self.CombinedOutput(); err != nil || strings.Contains(string(out), "level=") {
		t.Errorf("CombinedOutput() error = %v: %s, want text without %q", err, out, "level=")
	}
}

func TestAnOOMScoreThatCannotBeSetIsReportedIfItWasRequested(t *testing.T) {
	var out bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&out, nil))
	nowhere := filepath.Join(t.TempDir(), "none", "file")
	adjustOOMScore(nowhere, nodeconfig.DefaultOOMScoreAdj, logger)
	if out.Len() > 0 {
		t.Errorf("the default: said %s", out.String())
	}
	adjustOOMScore(nowhere, -500, logger)
	if !strings.Contains(out.String(), "oomScoreAdj: ") || !strings.Contains(out.String(), "level=WARN") {
		t.Errorf("said %s, want text with %q and with %q", out.String(), "oomScoreAdj: ", "level=WARN")
	}
}
