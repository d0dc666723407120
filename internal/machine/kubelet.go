package machine

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"
)

// defaultRuntime is the endpoint of a kubelet that is told no other.
const defaultRuntime = "unix:///run/containerd/containerd.sock"

// Kubelet checks that no kubelet uses the same runtime: each would remove the other's pods, which it does not know.
// endpoint is the CRI socket of this node; empty when there is none yet.
func (m Machine) Kubelet(endpoint string, processes []Process) Finding {
	f := Ok("kubelet", "none runs")
	for _, p := range processes {
		if len(p.Args) == 0 || filepath.Base(p.Args[0]) != "kubelet" {
			continue
		}
		theirs := m.kubeletEndpoint(p)
		if !m.sameSocket(p, theirs, endpoint) {
			f.Detail = fmt.Sprintf("pid %d uses another runtime, %s", p.PID, theirs)
			continue
		}
		return f.With(Fault, fmt.Sprintf("pid %d uses the same runtime, %s: each removes the pods of the other", p.PID, theirs),
			"systemctl disable --now kubelet, or another containerRuntimeEndpoint in the configuration")
	}
	return f
}

// kubeletEndpoint is what a kubelet was told: the flag, else its file, else the default.
func (m Machine) kubeletEndpoint(p Process) string {
	if endpoint := flagOf(p.Args, "container-runtime-endpoint"); endpoint != "" {
		return endpoint
	}
	file := flagOf(p.Args, "config")
	if file == "" {
		return defaultRuntime
	}
	// As the kubelet sees it: it may be in a container, and its path relative.
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
	return config.ContainerRuntimeEndpoint
}

// flagOf is the value of --NAME VALUE or --NAME=VALUE, with one dash or two; the last one counts.
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

// sameSocket compares the sockets themselves, each seen from whose it is: paths may differ by links, or be equal in
// different containers.
func (m Machine) sameSocket(p Process, theirs, ours string) bool {
	their, err := os.Stat(m.path("proc", strconv.Itoa(p.PID), "root", strings.TrimPrefix(theirs, "unix://")))
	if err != nil {
		return false
	}
	our, err := os.Stat(m.path(strings.TrimPrefix(ours, "unix://")))
	return err == nil && os.SameFile(their, our)
}
