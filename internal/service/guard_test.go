package service_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/service"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/logbuffer"
)

// TestAGuardRunsItsServiceAsAChild runs this program as the child: its exit code is the guard's, and it gets SIGTERM
// when the guard is to stop.
func TestAGuardRunsItsServiceAsAChild(t *testing.T) {
	switch os.Getenv("SERVICE_TEST_GUARDED") {
	case "fails":
		os.Exit(7)
	case "serves":
		terminated := make(chan os.Signal, 1)
		signal.Notify(terminated, syscall.SIGTERM)
		fmt.Println("serving")
		<-terminated
		os.Exit(3)
	}
	address := "unix://" + filepath.Join(t.TempDir(), "pleg.sock")
	args := []string{"guard", "--listen", address, "--", "-test.run=^TestAGuardRunsItsServiceAsAChild$"}
	var out, errOut bytes.Buffer
	t.Setenv("SERVICE_TEST_GUARDED", "fails")
	if code := service.Start(t.Context(), nodeconfig.PLEG, args, &out, &errOut, nil); code != 7 {
		t.Errorf("code %d, want the child's 7: %s%s", code, &out, &errOut)
	}
	t.Setenv("SERVICE_TEST_GUARDED", "serves")
	ctx, stop := context.WithCancel(t.Context())
	var log logbuffer.Buffer
	code := make(chan int, 1)
	go func() { code <- service.Start(ctx, nodeconfig.PLEG, args, &log, &log, nil) }()
	eventually.That(t, "the child serves", func() bool { return strings.Contains(log.String(), "serving") })
	stop()
	if got := <-code; got != 3 {
		t.Errorf("code %d, want the child's 3 after SIGTERM: %s", got, log.String())
	}
	if code := service.Start(t.Context(), nodeconfig.PLEG, []string{"guard", "--none", "--"}, &out, &errOut, nil); code !=
		nodeconfig.ExitWrong || !strings.Contains(errOut.String(), "unknown flag: --none") {
		t.Errorf("code %d, %s, want %d and the unknown flag", code, &errOut, nodeconfig.ExitWrong)
	}
}
