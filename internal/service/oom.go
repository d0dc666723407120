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

// oomScoreFile holds the adjustment of this process's OOM score.
const oomScoreFile = "/proc/self/oom_score_adj"

// adjustOOMScore sets the OOM score to the configured value. If it may not be lowered, the process continues with its
// present score, which a systemd unit can set (OOMScoreAdjust).
func adjustOOMScore(file string, score int32, logger *slog.Logger) {
	err := os.WriteFile(file, []byte(strconv.Itoa(int(score))), 0o600) //nolint:mnd // it is there
	if err == nil {
		return
	}
	level := slog.LevelWarn
	if score == nodeconfig.DefaultOOMScoreAdj {
		level = slog.LevelDebug // it is only the default
	}
	logger.Log(context.Background(), level,
		"the OOM score of this process cannot be set; set OOMScoreAdjust in its unit, or give it CAP_SYS_RESOURCE",
		telemetry.KeyError, fmt.Errorf("oomScoreAdj: %w", err))
}
