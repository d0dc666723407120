package telemetry_test

import (
	"io"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quartet-node/quartet/internal/telemetry"
)

func TestAnUnreadLogIsBlocked(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "")
	synctest.Test(t, func(t *testing.T) {
		read, write := io.Pipe()
		tel, err := telemetry.Setup(t.Context(), telemetry.Config{Service: "pleg", Output: write})
		if err != nil {
			t.Fatal(err)
		}
		logger := tel.Logger.With("more", 1).WithGroup("group")
		go logger.Info("a line")
		time.Sleep(time.Minute)
		synctest.Wait()
		if err := telemetry.LogBlocked(logger); err != nil {
			t.Errorf("after a minute: %v", err)
		}
		time.Sleep(time.Second)
		if err := telemetry.LogBlocked(logger); err == nil ||
			!strings.Contains(err.Error(), "has not been written for 1m1s") {
			t.Errorf("after more: %v", err)
		}
		if _, err := read.Read(make([]byte, 1<<10)); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if err := telemetry.LogBlocked(logger); err != nil {
			t.Errorf("when it has been read: %v", err)
		}
		if err := telemetry.LogBlocked(slog.New(slog.DiscardHandler)); err != nil {
			t.Errorf("of another logger: %v", err)
		}
	})
}
