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

// configHeader tells whoever opens the file where its content comes from.
const configHeader = `# Written by "quartet up"; changes are overwritten by the next start. "quartet up --config FILE" begins with a file of your own;
# "quartet node --config FILE" takes it as it is, against a container runtime that you name.
`

const (
	configMode    = 0o644
	manifestsMode = 0o755
	dirMode       = 0o700
)

// defaults are what the file of --config may say otherwise. No address is among them: without one the read-only API is served on this
// machine only, and the authenticated one of a node of a cluster wherever the API server may call it. A machine with swap is fine: its
// containers do not swap. Nobody of such a node needs chains of iptables, which would stay on the machine.
func defaults() map[string]any {
	return map[string]any{"fileCheckFrequency": "20s", "failSwapOn": false, "makeIPTablesUtilChains": false}
}

// ownFields is what the flags say of a configuration.
type ownFields struct {
	manifests    string
	readOnlyPort int32
	// healthzPort is nil when it is the file's.
	healthzPort *int32
}

// over puts the fields that the node and its runtime depend on, and those that flags set, over what a file says.
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

// kubeletConfig is the configuration of a node with the bundled runtime: the defaults, over them the given KubeletConfiguration
// (YAML; it may be empty), over all what is the node's own.
func kubeletConfig(l layout.Layout, given []byte, own ownFields) (string, error) {
	config := defaults()
	if err := yaml.Unmarshal(given, &config); err != nil {
		return "", fmt.Errorf("reading the file of --config: %w", err)
	}
	if kind, ok := config["kind"]; ok && kind != "KubeletConfiguration" {
		return "", fmt.Errorf("the file of --config is a %v: it must be a KubeletConfiguration (kubelet.config.k8s.io/v1beta1)", kind)
	}
	own.over(config, l)
	body, err := yaml.Marshal(config)
	if err != nil {
		return "", fmt.Errorf("writing the node's configuration: %w", err)
	}
	return configHeader + string(body), nil
}

// writeConfig makes the manifests directory and writes the configuration, which begins with the file of --config if there is one.
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
	return statedir.WriteFileAtomic(l.ConfigFile(), []byte(config), configMode)
}
