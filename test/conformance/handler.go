package main

import (
	"fmt"
	"os"
	"strings"
)

const (
	// usualHandler is the handler with which the bundled runtime runs pods.
	usualHandler = "runc"
	// suiteHandler is the handler that the suite expects for its runtime classes.
	suiteHandler = "test-handler"
)

// addHandler adds the suite's handler to the runtime's configuration. It is a copy of the usual one.
func addHandler(configFile string) error {
	config, err := os.ReadFile(configFile)
	if err != nil {
		return err
	}
	both, err := withHandler(string(config))
	if err != nil {
		return fmt.Errorf("%s: %w", configFile, err)
	}
	return os.WriteFile(configFile, []byte(both), 0o600)
}

// withHandler adds the tables of the suite's handler to a configuration of containerd: copies of the usual handler's
// tables under another name.
func withHandler(config string) (string, error) {
	var added []string
	copying := false
	for line := range strings.Lines(config) {
		if strings.HasPrefix(line, "[") {
			copying = strings.Contains(line, ".runtimes."+usualHandler+"]") || strings.Contains(line, ".runtimes."+usualHandler+".")
			line = strings.Replace(line, ".runtimes."+usualHandler, ".runtimes."+suiteHandler, 1)
		}
		if copying {
			added = append(added, line)
		}
	}
	if len(added) == 0 {
		return "", fmt.Errorf("there is no handler %s", usualHandler)
	}
	return config + "\n" + strings.Join(added, ""), nil
}
