package podcgroups

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
	statsv1alpha1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// Pressure tells how long the processes of a cgroup waited for a resource (PSI). It is known with cgroup v2 only; a
// part is nil if the kernel does not measure it. As in the kubelet, totals are in the kernel's microseconds.
type Pressure struct{ CPU, Memory, IO *statsv1alpha1.PSIStats }

// pressureOf reads the pressure files of a cgroup of version 2.
func pressureOf(dir string) (Pressure, error) {
	var p Pressure
	for file, into := range map[string]**statsv1alpha1.PSIStats{
		"cpu.pressure": &p.CPU, "memory.pressure": &p.Memory, "io.pressure": &p.IO,
	} {
		var err error
		if *into, err = readPressure(filepath.Join(dir, file)); err != nil {
			return Pressure{}, err
		}
	}
	return p, nil
}

// readPressure reads one file; nil if the kernel measures no pressure. Older kernels have no line "full" for
// processors.
func readPressure(path string) (*statsv1alpha1.PSIStats, error) {
	text, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENODEV), errors.Is(err, unix.EOPNOTSUPP):
		return nil, nil
	case err != nil:
		return nil, err
	}
	stats := &statsv1alpha1.PSIStats{}
	for line := range strings.Lines(string(text)) {
		name, figures, _ := strings.Cut(strings.TrimSpace(line), " ")
		into := map[string]*statsv1alpha1.PSIData{"some": &stats.Some, "full": &stats.Full}[name]
		if into == nil {
			continue // of a later kernel
		}
		const form = "avg10=%g avg60=%g avg300=%g total=%d"
		if _, err := fmt.Sscanf(figures, form, &into.Avg10, &into.Avg60, &into.Avg300, &into.Total); err != nil {
			return nil, fmt.Errorf("%s: %q: %w", path, line, err)
		}
	}
	return stats, nil
}
