package bundle

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/template"

	"github.com/quartet-node/quartet/internal/machine"
	"github.com/quartet-node/quartet/internal/statedir"
)

// runtimeConfig is all that containerd's configuration depends on.
type runtimeConfig struct {
	// Root keeps images and snapshots, State what is gone after a reboot.
	Root, State string
	// Socket is containerd's, ShimSockets the directory of its shims'.
	Socket, ShimSockets string
	// BinDir has the shim, runc and the CNI plugins.
	BinDir string
	// NetworkDir has the CNI configuration.
	NetworkDir string
	// Opt, RuncRoot are directories that would otherwise be shared with the machine's own containerd.
	Opt, RuncRoot string
	// SandboxImage is the pinned image of sandboxes.
	SandboxImage string
	// Snapshotter is overlayfs or native.
	Snapshotter string
	// RestrictOOMScore leaves a score that may not be lowered as it is, instead of failing.
	RestrictOOMScore bool
}

// configTemplate names each path that has a default outside the state directory. NRI is off because its socket and
// plugins are the machine's.
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
  netns_mounts_under_state_dir = true

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

// quoteTOML writes a basic string. Paths with control characters are written in the one escape that TOML and JSON share.
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
		if err := writeIfChanged(path, content); err != nil {
			return err
		}
	}
	return nil
}

// writeIfChanged leaves a file alone that already says the same: containerd watches the network's directory.
func writeIfChanged(path, content string) error {
	if have, err := os.ReadFile(filepath.Clean(path)); err == nil && string(have) == content {
		return nil
	}
	return statedir.WriteFileAtomic(path, []byte(content), fileMode)
}
