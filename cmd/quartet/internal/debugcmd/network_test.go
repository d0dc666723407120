package debugcmd

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/debugapi"
	"github.com/quartet-node/quartet/internal/logging"
	"github.com/quartet-node/quartet/internal/peertls"
	"github.com/quartet-node/quartet/internal/rights"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/test/authority"
	"github.com/quartet-node/quartet/test/freeport"
	"github.com/quartet-node/quartet/test/harness"
	"github.com/quartet-node/quartet/test/logbuffer"
)

// TestALaptopLooksIntoAPart by its address and a certificate, of the flags or the environment.
func TestALaptopLooksIntoAPart(t *testing.T) {
	ca := authority.New(t, "ca")
	port, err := freeport.Find()
	if err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprintf("127.0.0.1:%d", port)
	log := new(logbuffer.Buffer)
	tel, err := telemetry.Setup(t.Context(), telemetry.Config{
		Service: "pleg", Output: log, Logging: logging.Config{Verbosity: 1},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- rpc.Serve(ctx, rpc.Config{
			Address: "unix://" + filepath.Join(harness.ShortDir(t), "pleg.sock"), Health: rpc.NewHealth(),
			Logger: slog.New(slog.DiscardHandler), Ready: func() { close(ready) },
			Network: peertls.Listen{
				Address: address, Files: ca.Issue(t, t.TempDir(), authority.Request{Hosts: []string{"127.0.0.1", "pleg"}}),
				Names: rights.Names{rights.Admin: {"laptop"}, rights.Observe: {"guest"}},
			},
			Register: debugapi.With(debugapi.Config{Logger: tel.Logger, Clock: clock.RealClock{}}, func(*grpc.Server) {}),
		})
	}()
	<-ready
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	line := func(files peertls.Files) string {
		return fmt.Sprintf("pleg log-level 4 --pleg-address=%s --tls-cert=%s --tls-key=%s --tls-ca=%s",
			address, files.Cert, files.Key, files.CA)
	}
	laptop := ca.Issue(t, t.TempDir(), authority.Request{Name: "laptop"})
	out, err := run(t, t.TempDir(), line(laptop))
	if err != nil || !strings.Contains(out, "4 until pleg ends") || !strings.Contains(log.String(), "laptop") {
		t.Errorf("quartet debug: %q, %v, and the log of pleg has\n%s", out, err, log)
	}
	for name, want := range map[string]string{
		"guest": `needs the role "admin"`, "stranger": "--observe-names of this service",
	} {
		files := ca.Issue(t, t.TempDir(), authority.Request{Name: name})
		if _, err := run(t, t.TempDir(), line(files)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s gets %v, want %q", name, err, want)
		}
	}
	other := authority.New(t, "other").Issue(t, t.TempDir(), authority.Request{Name: "laptop"})
	if _, err := run(t, t.TempDir(), line(other)); err == nil ||
		!strings.Contains(err.Error(), "cannot reach pleg at "+address) ||
		!strings.Contains(err.Error(), "unknown authority") {
		t.Errorf("a laptop of another authority gets %v", err)
	}
	if _, err := run(t, t.TempDir(), "pleg log-level --pleg-address="+address); err == nil ||
		!strings.Contains(err.Error(), "give --tls-cert, --tls-key and --tls-ca") {
		t.Errorf("a laptop without a certificate gets %v", err)
	}
	for name, value := range map[string]string{
		"PLEG_ADDRESS": address, "TLS_CERT": laptop.Cert, "TLS_KEY": laptop.Key, "TLS_CA": laptop.CA,
	} {
		t.Setenv("QUARTET_"+name, value)
	}
	if out, err := run(t, t.TempDir(), "pleg log-level"); err != nil || !strings.Contains(out, "4 until pleg ends") {
		t.Errorf("quartet debug with variables: %q, %v", out, err)
	}
}
