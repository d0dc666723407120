package cluster

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// script returns a server that runs a shell script and is ready at once.
func script(t *testing.T, text string) *Server {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "tools"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "tools", "script"), []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return newServer(dir, dir, "script", func(context.Context) error { return nil })
}

func TestAServerThatHasEndedByItselfIsAnError(t *testing.T) {
	for name, end := range map[string]func(*Server) error{"stop": (*Server).stop, "kill": (*Server).kill} {
		s := script(t, "exit 3")
		if err := s.start(t.Context()); err != nil {
			t.Fatal(err)
		}
		<-s.run.ended
		if err := end(s); err == nil || !strings.Contains(err.Error(), "script has ended by itself: exit status 3") {
			t.Errorf("%s: end() error = %v, want an error with %q", name, err, "script has ended by itself: exit status 3")
		}
		if err := end(s); err != nil {
			t.Errorf("%s again: %v", name, err)
		}
	}
}

func TestAServerStartsOnceAndIsSignalledWhileItRuns(t *testing.T) {
	s := script(t, "exec sleep 300")
	if err := s.signal(0); err == nil || !strings.Contains(err.Error(), "script is not running") {
		t.Errorf("before its start: %v", err)
	}
	if err := s.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.start(t.Context()); err == nil || !strings.Contains(err.Error(), "script is already running") {
		t.Errorf("a second start: %v", err)
	}
	if err := s.stop(); err != nil {
		t.Error(err)
	}
}

func TestOnlyTheEndOfALongLogIsShown(t *testing.T) {
	s := script(t, "")
	if err := os.WriteFile(s.log, []byte(strings.Repeat("early\n", logTail)+"late\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	size := s.logSize()
	if log := s.logFrom(0); !strings.HasSuffix(log, "early\nlate\n") || len(log) > logTail+100 {
		t.Errorf("%d bytes are shown", len(log))
	}
	if log := s.logFrom(size - int64(len("late\n"))); !strings.HasSuffix(log, ":\nlate\n") {
		t.Errorf("from an offset on it shows %q, want text ending with %q", log, ":\nlate\n")
	}
}
