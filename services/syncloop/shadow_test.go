package syncloop

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"strings"
	"testing"

	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/service"
)

// TestAShadowThatHasComparedNothingSaysSo follows a node that is away: no difference is not the same as nothing
// compared, so the exit code is another.
func TestAShadowThatHasComparedNothingSaysSo(t *testing.T) {
	cfg, err := nodeconfig.Parse(nodeconfig.SyncLoop, []string{
		"--shadow", "--shadow-for=1s", "--state-dir=" + t.TempDir(), "--hostname-override=away",
	}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	err = runShadow(t.Context(), cfg, slog.New(slog.DiscardHandler), &out)
	var exit *service.ExitError
	if !errors.As(err, &exit) || exit.Code != 4 {
		t.Errorf("it ends with %v, want the exit code 4", err)
	}
	if !strings.HasPrefix(out.String(), "Nothing was compared: ") {
		t.Errorf("it prints %q, want that nothing was compared", &out)
	}
}
