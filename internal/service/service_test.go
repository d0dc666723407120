package service_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/service"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/logbuffer"
)

func TestExitCodesAndOutput(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "kubelet.yaml")
	if err := os.WriteFile(
		bad,
		[]byte("kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\nstaticPodPaht: /x\n"),
		0o600,
	); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		args           []string
		result         error
		code           int
		stdout, stderr string
	}{
		"told to stop":      {nil, nil, 0, "", ""},
		"help":              {[]string{"--help"}, nil, 0, "--config", ""},
		"cannot go on":      {nil, errors.New("the disk is gone"), 1, "", "pleg: the disk is gone"},
		"bad configuration": {[]string{"--config", bad}, nil, nodeconfig.ExitWrong, "", "staticPodPaht"},
		"bad flag":          {[]string{"--frobnicate"}, nil, nodeconfig.ExitWrong, "", "frobnicate"},
		"bad file that the configuration names": {
			nil, fmt.Errorf("connecting: %w", &nodeconfig.WrongError{Err: errors.New("no kubeconfig")}), nodeconfig.ExitWrong, "", "connecting: no kubeconfig",
		},
	} {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			code := service.Start(t.Context(), nodeconfig.PLEG, tc.args, &stdout, &stderr,
				func(_ context.Context, cfg nodeconfig.Config, tel *telemetry.Telemetry) error {
					if cfg.Listen == "" || tel.Logger == nil {
						t.Error("run was given no configuration or no logger")
					}
					return tc.result
				})
			if code != tc.code || !strings.Contains(stdout.String(), tc.stdout) ||
				!strings.Contains(stderr.String(), tc.stderr) {
				t.Errorf("code %d, stdout %q, stderr %q, want %d, with %q and with %q",
					code, stdout.String(), stderr.String(), tc.code, tc.stdout, tc.stderr)
			}
			if tc.stderr == "" && stderr.Len() > 0 {
				t.Errorf("it complains: %s", stderr.String())
			}
		})
	}
}

func TestACollectorThatIsAwayIsNoFailure(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
	var stdout, stderr bytes.Buffer
	code := service.Start(t.Context(), nodeconfig.PLEG, nil, &stdout, &stderr,
		func(ctx context.Context, _ nodeconfig.Config, tel *telemetry.Telemetry) error {
			_, span := tel.Tracer.Start(ctx, "work")
			span.End()
			return nil
		})
	if code != 0 || stderr.Len() > 0 {
		t.Errorf("code %d, stderr %q: want a process that was told to stop to end well", code, stderr.String())
	}
}

// TestALogThatIsNotReadStopsNoService has a service log more than a pipe and the queue hold while nobody reads, as when
// journald or a container engine stalls. The reader then gets the number of missing lines, and the last words.
func TestALogThatIsNotReadStopsNoService(t *testing.T) {
	reader, stderr, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	logged, end, code := make(chan struct{}), make(chan struct{}), make(chan int, 1)
	go func() {
		code <- service.Start(t.Context(), nodeconfig.PLEG, nil, io.Discard, stderr,
			func(_ context.Context, _ nodeconfig.Config, tel *telemetry.Telemetry) error {
				for range 10 {
					tel.Logger.Info(strings.Repeat("x", 1<<20))
				}
				close(logged)
				<-end
				return errors.New("the disk is gone")
			})
	}()
	select {
	case <-logged:
	case <-time.After(time.Minute):
		t.Fatal("the service waits for the reader of its log")
	}
	var seen logbuffer.Buffer
	read := make(chan struct{})
	go func() {
		defer close(read)
		_, _ = io.Copy(&seen, reader) // the test checks what it has read
	}()
	eventually.That(t, "the log says how many lines are missing", func() bool {
		return strings.Contains(seen.String(), "lines were dropped")
	})
	close(end)
	if got := <-code; got != 1 {
		t.Errorf("Start() = %d, want 1", got)
	}
	if err := stderr.Close(); err != nil {
		t.Error(err)
	}
	if <-read; !strings.HasSuffix(seen.String(), "pleg: the disk is gone\n") {
		text := seen.String()
		t.Errorf("the log ends with %q, want the last words", text[max(0, len(text)-200):])
	}
}

func TestAnExitErrorIsOnlyACode(t *testing.T) {
	var out, errOut bytes.Buffer
	code := service.Start(t.Context(), nodeconfig.PLEG, nil, &out, &errOut,
		func(context.Context, nodeconfig.Config, *telemetry.Telemetry) error {
			return fmt.Errorf("wrapped: %w", &service.ExitError{Code: 3})
		})
	if code != 3 || errOut.Len() > 0 {
		t.Errorf("code %d, %q, want 3 and nothing", code, errOut.String())
	}
}
