package jaeger

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestItAnswersAndEnds(t *testing.T) {
	s := Start(t)
	if err := s.answers(t.Context()); err != nil {
		t.Error(err)
	}
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	if state := s.cmd.ProcessState; !state.Exited() {
		t.Errorf("it did not end by itself: %v; its log:\n%s", state, s.log)
	}
	if s.answers(t.Context()) == nil {
		t.Error("it answers after its end")
	}
}

func TestWhyItDoesNotStart(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "jaeger")
	if _, err := New(t.Context(), binary); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("without a binary: %v", err)
	}
	if err := os.WriteFile(binary, []byte("#!/bin/sh\necho unknown flag: $1\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := New(t.Context(), binary); err == nil ||
		!strings.Contains(err.Error(), "unknown flag: --query.http-server.host-port") {
		t.Errorf("want what it wrote: %v", err)
	}
}
