package bundle

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	template "github.com/DataDog/datadog-agent/pkg/template/text"

	"github.com/quartet-node/quartet/internal/machine"
	"github.com/quartet-node/quartet/internal/statedir"
)

// runtimeConfig holds every value in containerd's configuration.
type runtimeConfig struct {
	// Root keeps images and snapshots; State keeps what does not survive a reboot.
	Root, State string
	// Socket is containerd's socket, and ShimSockets the directory of its shims' sockets.
	Socket, ShimSockets string
	// BinDir holds the shim, runc and the CNI plugins.
	BinDir string
	// NetworkDir holds the CNI configuration.
	NetworkDir string
	// Opt and RuncRoot are directories that containerd would otherwise share with the machine's own containerd.
	Opt, RuncRoot string
	// SandboxImage is the pinned image of sandboxes.
	SandboxImage string
	// Snapshotter is overlayfs or native.
	Snapshotter string
	// RestrictOOMScore keeps an OOM score that may not be lowered, instead of failing.
	RestrictOOMScore bool
	// LimitHugePages limits the huge pages of each container. By default containerd leaves this to the cgroups of pods.
	LimitHugePages bool
}

// configTemplate sets each path whose default is outside the state directory. NRI is off because its socket and plugins
// belong to the machine. The usage of processors is collected as often as a kubelet does, every 10 s: containerd's
// default of 1 s takes a quarter of a processor with a hundred pods, from pods that do nothing.
var configTemplate = template.Must(template.New("containerd").Funcs(template.FuncMap{"quote": quoteTOML}).Parse(
	`# Written by quartet; changes are overwritten by the next start.
version = 3
root = {{quote .Root}}
state = {{quote .State}}
imports = []

[grpc]
  address = {{quote .Socket}}

[ttrpc]
  address = {{quote (print .Socket ".ttrpc")}}

[plugins.'io.containerd.shim.v1.manager']
  socket_dir = {{quote .ShimSockets}}

[plugins.'io.containerd.internal.v1.opt']
  path = {{quote .Opt}}

[plugins.'io.containerd.image-verifier.v1.bindir']
  bin_dir = {{quote (print .Opt "/image-verifier")}}

[plugins.'io.containerd.nri.v1.nri']
  disable = true

[plugins.'io.containerd.cri.v1.images']
  snapshotter = {{quote .Snapshotter}}

[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = {{quote .SandboxImage}}

[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = {{.RestrictOOMScore}}
  disable_hugetlb_controller = {{not .LimitHugePages}}
  netns_mounts_under_state_dir = true
  stats_collect_period = '10s'

[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = [{{quote .BinDir}}]
  conf_dir = {{quote .NetworkDir}}

[plugins.'io.containerd.cri.v1.runtime'.containerd]
  default_runtime_name = 'runc'

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = 'io.containerd.runc.v2'
  runtime_path = {{quote (print .BinDir "/containerd-shim-runc-v2")}}

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
  BinaryName = {{quote (print .BinDir "/runc")}}
  Root = {{quote .RuncRoot}}
  SystemdCgroup = false
`))

// quoteTOML returns a TOML basic string. It encodes control characters in the only escape that TOML and JSON share.
func quoteTOML(s string) (string, error) {
	var out strings.Builder
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(s); err != nil {
		return "", err
	}
	return strings.TrimSuffix(out.String(), "\n"), nil
}

func (c runtimeConfig) render() (string, error) {
	var out strings.Builder
	if err := configTemplate.Execute(&out, c); err != nil {
		return "", fmt.Errorf("writing containerd's configuration: %w", err)
	}
	return out.String(), nil
}

// countsHugePages reports whether the cgroups of the machine count huge pages. If they do not, containerd would log a
// warning for each container. Cgroups of version 1 count as if they did not: their controller may be one of the kernel
// without being mounted, and runc then starts no container.
func countsHugePages(mounted fs.FS) bool {
	list, err := fs.ReadFile(mounted, "cgroup.controllers")
	return err == nil && slices.Contains(strings.Fields(string(list)), "hugetlb")
}

// configure writes containerd's and the network's configuration.
func (b *Bundle) configure(network networkConfig) error {
	snapshotter, why := chooseSnapshotter(b.cfg.Layout.Runtime())
	if why != "" {
		b.cfg.Note(why)
	}
	config := runtimeConfig{
		Root:             b.dir("root"),
		State:            b.dir("state"),
		Socket:           b.cfg.Layout.RuntimeSocket(),
		ShimSockets:      b.cfg.Layout.ShimSocketDir(),
		BinDir:           b.binDir(),
		NetworkDir:       b.networkDir(),
		Opt:              b.dir("opt"),
		RuncRoot:         b.dir("runc"),
		SandboxImage:     PauseImage,
		Snapshotter:      snapshotter,
		RestrictOOMScore: !machine.This().HasCapability(machine.CapSysResource),
		LimitHugePages:   countsHugePages(os.DirFS("/sys/fs/cgroup")),
	}
	text, err := config.render()
	if err != nil {
		return err
	}
	conflist, err := network.render()
	if err != nil {
		return err
	}
	for path, content := range map[string]string{b.configFile(): text, b.networkConfigFile(): conflist} {
		// containerd watches the network's directory.
		if err := statedir.WriteIfChanged(path, []byte(content), fileMode); err != nil {
			return err
		}
	}
	return nil
}
