package systemd_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/quartet-node/quartet/internal/systemd"
)

func TestSystemdIsNotified(t *testing.T) {
	for what, socket := range map[string]string{"a path": filepath.Join(t.TempDir(), "s"), "no file": fmt.Sprintf("@quartet-test-%d", os.Getpid())} {
		listener, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
		if err != nil {
			t.Fatal(err)
		}
		t.Setenv("NOTIFY_SOCKET", socket)
		notifier := systemd.Take()
		if left, found := os.LookupEnv("NOTIFY_SOCKET"); found {
			t.Errorf("%s: a child would find the socket %q", what, left)
		}
		var log bytes.Buffer
		logger := slog.New(slog.NewTextHandler(&log, nil))
		notifier.Ready(logger)
		notifier.Stopping(logger)
		for _, want := range []string{"READY=1", "STOPPING=1"} {
			message := make([]byte, 100)
			n, err := listener.Read(message)
			if err != nil || string(message[:n]) != want {
				t.Errorf("%s: systemd is told %q, %v; want %q", what, message[:n], err, want)
			}
		}
		if err := listener.Close(); err != nil {
			t.Error(err)
		}
		if log.Len() > 0 {
			t.Errorf("%s: the log has %s", what, &log)
		}
	}
}

func TestWithoutSystemdNotifyIsANoOp(t *testing.T) {
	notifier := systemd.Take()
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	notifier.Ready(logger)
	if log.Len() > 0 {
		t.Errorf("the log has %s", &log)
	}
	systemd.Notifier{Socket: filepath.Join(t.TempDir(), "gone")}.Ready(logger)
	if !strings.Contains(log.String(), "cannot notify systemd") || !strings.Contains(log.String(), "READY=1") {
		t.Errorf("that nobody takes the message is said as %s", &log)
	}
}
