package bundle

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/quartet-node/quartet/internal/machine"
)

// Preflight checks the requirements of the bundled runtime and changes nothing. binDir holds the built binaries.
func Preflight(binDir string) machine.Findings {
	m := machine.This()
	return machine.Findings{m.User(), checkBinaries(binDir), m.Cgroups(), m.OOMScores()}
}

func checkBinaries(binDir string) machine.Finding {
	f := machine.Ok("bundled runtime", "built in %s", binDir)
	var missing []string
	for _, name := range binaries() {
		if _, err := os.Stat(filepath.Join(binDir, name)); err != nil {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		return f.With(machine.Fault, fmt.Sprintf("%s not in %s", strings.Join(missing, ", "), binDir), "run make build")
	}
	return f
}
