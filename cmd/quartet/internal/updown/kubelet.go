package updown

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"

	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
	"sigs.k8s.io/yaml"

	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/statedir"
)

// configHeader is the comment at the beginning of the file.
const configHeader = `# Written by "quartet up"; changes are overwritten by the next start. "quartet up --config FILE" begins with a file of your own;
# "quartet node --config FILE" takes it as it is, against a container runtime that you name.
`

const (
	configMode    = 0o644
	manifestsMode = 0o755
	dirMode       = 0o700
)

// defaults returns fields that the file of --config may override. They do not include an address: without one, the
// read-only API is served on this machine only, and the authenticated API of a cluster's node where the API server can
// reach it. Swap is permitted, and containers do not use it. The iptables chains are off, because no program uses them
// and they would remain on the machine.
func defaults() map[string]any {
	return map[string]any{"fileCheckFrequency": "20s", "failSwapOn": false, "makeIPTablesUtilChains": false}
}

// ownFields holds the fields that flags set.
type ownFields struct {
	manifests    string
	readOnlyPort int32
	// healthzPort is nil for the value of the file.
	healthzPort *int32
}

// over overrides the fields of a file that the node and its runtime depend on, and those that flags set.
func (o ownFields) over(config map[string]any, l layout.Layout) {
	maps.Copy(config, map[string]any{
		"apiVersion":               kubeletconfigv1beta1.SchemeGroupVersion.String(),
		"kind":                     "KubeletConfiguration",
		"staticPodPath":            o.manifests,
		"containerRuntimeEndpoint": l.RuntimeEndpoint(),
		"podLogsDir":               l.PodLogs(),
		"cgroupRoot":               l.CgroupRoot(),
		"readOnlyPort":             o.readOnlyPort,
	})
	if o.healthzPort != nil {
		config["healthzPort"] = *o.healthzPort
	}
}

// kubeletConfig returns the configuration of a node with the bundled runtime: the defaults, overridden by the given
// KubeletConfiguration (YAML; it may be empty), overridden by the node's own fields.
func kubeletConfig(l layout.Layout, given []byte, own ownFields) (string, error) {
	config := defaults()
	if err := yaml.Unmarshal(given, &config); err != nil {
		return "", fmt.Errorf("reading the file of --config: %w", err)
	}
	if kind, ok := config["kind"]; ok && kind != "KubeletConfiguration" {
		return "", fmt.Errorf(
			"the file of --config is a %v: it must be a KubeletConfiguration (kubelet.config.k8s.io/v1beta1)",
			kind,
		)
	}
	own.over(config, l)
	body, err := yaml.Marshal(config)
	if err != nil {
		return "", fmt.Errorf("writing the node's configuration: %w", err)
	}
	return configHeader + string(body), nil
}

// writeConfig creates the manifests directory and writes the configuration, based on the file of --config if there is
// one.
func writeConfig(l layout.Layout, file string, own ownFields) error {
	var given []byte
	if file != "" {
		var err error
		if given, err = os.ReadFile(filepath.Clean(file)); err != nil {
			return fmt.Errorf("reading the file of --config: %w", err)
		}
	}
	config, err := kubeletConfig(l, given, own)
	if err != nil {
		return err
	}
	for dir, mode := range map[string]os.FileMode{
		l.StateDir(): dirMode, l.Root(): dirMode, l.PodLogs(): dirMode, own.manifests: manifestsMode,
	} {
		if err := os.MkdirAll(dir, mode); err != nil {
			return fmt.Errorf("making the node's directories: %w", err)
		}
	}
	return statedir.WriteIfChanged(l.ConfigFile(), []byte(config), configMode)
}
