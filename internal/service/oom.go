package service

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strconv"

	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/telemetry"
)

// oomScoreFile is where the kernel has how soon it kills this process when memory runs out.
const oomScoreFile = "/proc/self/oom_score_adj"

// adjustOOMScore sets it to what the configuration says. A process that may not lower it runs on as it is: a unit of systemd can set it
// before (OOMScoreAdjust).
func adjustOOMScore(file string, score int32, logger *slog.Logger) {
	err := os.WriteFile(file, []byte(strconv.Itoa(int(score))), 0o600) //nolint:mnd // it is there
	if err == nil {
		return
	}
	level := slog.LevelWarn
	if score == nodeconfig.DefaultOOMScoreAdj {
		level = slog.LevelDebug // nobody has asked for it
	}
	logger.Log(context.Background(), level, "the OOM score of this process cannot be set; set OOMScoreAdjust in its unit, or give it CAP_SYS_RESOURCE",
		telemetry.KeyError, fmt.Errorf("oomScoreAdj: %w", err))
}
