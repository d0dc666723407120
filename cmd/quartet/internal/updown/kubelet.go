package updown

import (
	"fmt"
	"os"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
	"sigs.k8s.io/yaml"

	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/statedir"
)

// configHeader tells whoever opens the file where its content comes from.
const configHeader = `# Written by "quartet up"; changes are overwritten by the next start. To run a node with a file of your own, start
# "quartet node --config FILE" against a container runtime.
`

const (
	configMode    = 0o644
	manifestsMode = 0o755
	dirMode       = 0o700
)

// settings is the part of the configuration that is about this node: only what differs from the kubelet's defaults.
type settings struct {
	metav1.TypeMeta          `json:",inline"`
	StaticPodPath            string `json:"staticPodPath"`
	FileCheckFrequency       string `json:"fileCheckFrequency"`
	ContainerRuntimeEndpoint string `json:"containerRuntimeEndpoint"`
	PodLogsDir               string `json:"podLogsDir"`
	CgroupRoot               string `json:"cgroupRoot"`
	Address                  string `json:"address"`
	ReadOnlyPort             int32  `json:"readOnlyPort"`
}

// kubeletConfig is the configuration of a node with the bundled runtime.
func kubeletConfig(l layout.Layout, manifests string, readOnlyPort int32) (string, error) {
	body, err := yaml.Marshal(settings{
		TypeMeta: metav1.TypeMeta{
			APIVersion: kubeletconfigv1beta1.SchemeGroupVersion.String(),
			Kind:       "KubeletConfiguration",
		},
		StaticPodPath:            manifests,
		FileCheckFrequency:       "20s",
		ContainerRuntimeEndpoint: l.RuntimeEndpoint(),
		PodLogsDir:               l.PodLogs(),
		CgroupRoot:               l.CgroupRoot(),
		Address:                  readOnlyAddress,
		ReadOnlyPort:             readOnlyPort,
	})
	if err != nil {
		return "", fmt.Errorf("writing the node's configuration: %w", err)
	}
	return configHeader + string(body), nil
}

// writeConfig makes the manifests directory and writes the configuration.
func writeConfig(l layout.Layout, manifests string, readOnlyPort int32) error {
	config, err := kubeletConfig(l, manifests, readOnlyPort)
	if err != nil {
		return err
	}
	for dir, mode := range map[string]os.FileMode{
		l.StateDir(): dirMode, l.Root(): dirMode, l.PodLogs(): dirMode, manifests: manifestsMode,
	} {
		if err := os.MkdirAll(dir, mode); err != nil {
			return fmt.Errorf("making the node's directories: %w", err)
		}
	}
	return statedir.WriteFileAtomic(l.ConfigFile(), []byte(config), configMode)
}
