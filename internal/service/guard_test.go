package service_test

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"slices"
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
	args := []string{"guard", "--", "-test.run=^TestAGuardRunsItsServiceAsAChild$"}
	var out, errOut logbuffer.Buffer
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
	earlier := slices.Insert(slices.Clone(args), 1, "--listen=unix:///run/pleg.sock")
	t.Setenv("SERVICE_TEST_GUARDED", "fails")
	if code := service.Start(t.Context(), nodeconfig.PLEG, earlier, &out, &errOut, nil); code != 7 ||
		!strings.Contains(errOut.String(), "leave out what is before") {
		t.Errorf("with flags of an earlier version: code %d, %s, want the child's 7 and a warning", code, &errOut)
	}
}
