package machine

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"
)

// defaultRuntime is the kubelet's default CRI endpoint.
const defaultRuntime = "unix:///run/containerd/containerd.sock"

// Kubelet checks that no kubelet uses the same runtime, because each would remove the pods of the other. endpoint is
// the CRI socket of this node; empty if there is none yet.
func (m Machine) Kubelet(endpoint string, processes []Process) Finding {
	f := Ok("kubelet", "none runs")
	for _, p := range processes {
		if len(p.Args) == 0 || filepath.Base(p.Args[0]) != "kubelet" {
			continue
		}
		kubeletSocket := m.kubeletEndpoint(p)
		if !m.sameSocket(p, kubeletSocket, endpoint) {
			f.Detail = fmt.Sprintf("pid %d uses another runtime, %s", p.PID, kubeletSocket)
			continue
		}
		return f.With(
			Fault,
			fmt.Sprintf("pid %d uses the same runtime, %s: each removes the pods of the other", p.PID, kubeletSocket),
			"systemctl disable --now kubelet, or another containerRuntimeEndpoint in the configuration",
		)
	}
	return f
}

// kubeletEndpoint returns the CRI endpoint of a kubelet: its flag, or else its configuration file, or else the default.
func (m Machine) kubeletEndpoint(p Process) string {
	if endpoint := flagOf(p.Args, "container-runtime-endpoint"); endpoint != "" {
		return fullEndpoint(endpoint)
	}
	file := flagOf(p.Args, "config")
	if file == "" {
		return defaultRuntime
	}
	// The path is resolved from the kubelet's root and working directory, because it may run in a container and the path
	// may be relative.
	proc := filepath.Join("proc", strconv.Itoa(p.PID))
	from := filepath.Join(proc, "root")
	if !filepath.IsAbs(file) {
		from = filepath.Join(proc, "cwd")
	}
	content, err := os.ReadFile(m.path(from, file))
	if err != nil {
		return defaultRuntime
	}
	var config struct {
		ContainerRuntimeEndpoint string `json:"containerRuntimeEndpoint"`
	}
	if err := yaml.Unmarshal(content, &config); err != nil || config.ContainerRuntimeEndpoint == "" {
		return defaultRuntime
	}
	return fullEndpoint(config.ContainerRuntimeEndpoint)
}

// fullEndpoint adds the scheme to an endpoint that is only a path. The kubelet accepts one.
func fullEndpoint(endpoint string) string {
	if filepath.IsAbs(endpoint) {
		return "unix://" + endpoint
	}
	return endpoint
}

// flagOf returns the value of --NAME VALUE or --NAME=VALUE, with one dash or two. The last one counts.
func flagOf(args []string, name string) (value string) {
	for i, arg := range args {
		arg, isFlag := strings.CutPrefix(arg, "-")
		if !isFlag {
			continue
		}
		arg = strings.TrimPrefix(arg, "-")
		if arg == name && i+1 < len(args) {
			value = args[i+1]
		}
		if v, found := strings.CutPrefix(arg, name+"="); found {
			value = v
		}
	}
	return value
}

// sameSocket compares the sockets themselves, each seen from its process, because paths may differ by links, or be
// equal in different containers.
func (m Machine) sameSocket(p Process, kubeletSocket, ownSocket string) bool {
	their, err := os.Stat(m.path("proc", strconv.Itoa(p.PID), "root", strings.TrimPrefix(kubeletSocket, "unix://")))
	if err != nil {
		return false
	}
	our, err := os.Stat(m.path(strings.TrimPrefix(ownSocket, "unix://")))
	return err == nil && os.SameFile(their, our)
}
