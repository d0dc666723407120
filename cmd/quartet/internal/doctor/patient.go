package doctor

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"

	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/cmd/quartet/internal/nodecmd"
	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/machine"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/statedir"
)

// environment holds the dependencies of the checks other than the node's sockets; tests pass in fakes.
type environment struct {
	machine machine.Machine
	// command runs a program and returns its standard output. The error contains its standard error.
	command func(ctx context.Context, name string, args ...string) (string, error)
	// engine is the client of the container engine; nil if dockerHost is not a socket of this machine.
	engine *http.Client
	// dockerHost is the variable DOCKER_HOST.
	dockerHost string
}

// thisMachine returns the real dependencies.
func thisMachine() environment {
	host := os.Getenv("DOCKER_HOST")
	return environment{machine: machine.This(), command: command, engine: engineClient(host), dockerHost: host}
}

func command(ctx context.Context, name string, args ...string) (string, error) {
	var stderr strings.Builder
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil && stderr.Len() > 0 {
		err = fmt.Errorf("%w: %s", err, strings.TrimSpace(stderr.String()))
	}
	return string(out), err
}

// patient is the examined machine with the node of one state directory.
type patient struct {
	environment
	layout layout.Layout
	// kubelet is the node's configuration, or the defaults if it is missing or invalid. configFile is empty without a
	// file, and configErr is the problem with it.
	kubelet    kubeletconfigv1beta1.KubeletConfiguration
	configFile string
	configErr  error
	// runtime is the container runtime of the node.
	runtime runtimeTarget
	// stack is the compose stack, and stackErr why it is unknown; both are nil without --compose. stackFile is its file.
	stack     *stack
	stackErr  error
	stackFile string
	// processes returns the processes of the machine, which it reads once.
	processes func() ([]machine.Process, error)
}

// runtimeTarget is the container runtime of a node.
type runtimeTarget struct {
	// endpoint is its socket; empty if the runtime is unknown.
	endpoint string
	// start is the command that starts it if it belongs to the node; empty if it belongs to the machine.
	start string
}

// newPatient determines the node: its configuration, its runtime, its stack.
func newPatient(ctx context.Context, s environment, l layout.Layout, opts options) *patient {
	p := &patient{environment: s, layout: l, stackFile: opts.stackFile, processes: sync.OnceValues(s.machine.Processes)}
	if opts.stackFile != "" {
		ctx, cancel := context.WithTimeout(ctx, checkTimeout)
		defer cancel()
		p.stack, p.stackErr = readStack(ctx, s.command, opts.stackFile)
	}
	if p.stack != nil && !opts.stateDirGiven {
		if stackLayout, err := layout.New(p.stack.stateDir); err == nil {
			p.layout = stackLayout
		}
	}
	p.configFile = opts.configFile
	if p.configFile == "" && p.stack != nil {
		p.configFile = p.stack.configFile
	}
	if _, err := os.Stat(p.layout.ConfigFile()); err == nil && p.configFile == "" && p.stack == nil {
		p.configFile = p.layout.ConfigFile()
	}
	p.readConfig()
	p.runtime = p.findRuntime(opts.configFile != "")
	return p
}

// readConfig reads the configuration as pleg does, because all four services have the same.
func (p *patient) readConfig() {
	read := func(args ...string) (nodeconfig.Config, error) {
		return nodeconfig.Parse(nodeconfig.PLEG, append(args, "--state-dir="+p.layout.StateDir()), nil)
	}
	cfg, err := read("--config=" + p.configFile)
	if err != nil {
		p.configErr = err
		// The defaults are used, even if they are invalid because of the host's name.
		cfg, _ = read()
	}
	p.kubelet = cfg.Kubelet
	if p.stack != nil && p.stack.podLogs != "" {
		p.kubelet.PodLogsDir = p.stack.podLogs
	}
}

func (p *patient) findRuntime(configGiven bool) runtimeTarget {
	own := runtimeTarget{endpoint: p.layout.RuntimeEndpoint(), start: "quartet up --detach" + p.stateDirFlag()}
	switch {
	case p.configErr != nil:
		return runtimeTarget{} // it does not name an endpoint
	case configGiven:
		return runtimeTarget{endpoint: p.kubelet.ContainerRuntimeEndpoint}
	case p.stack != nil && p.stack.bundled:
		return runtimeTarget{endpoint: p.stack.endpoint, start: p.stack.up("containerd")}
	case p.stack != nil:
		return runtimeTarget{endpoint: p.stack.endpoint}
	case p.configFile != "" && p.kubelet.ContainerRuntimeEndpoint == own.endpoint:
		return own
	}
	if _, err := os.Stat(p.layout.RuntimeSocket()); err == nil {
		return own
	}
	return runtimeTarget{}
}

// stateDirFlag returns the flag that selects this node in a command.
func (p *patient) stateDirFlag() string {
	if p.layout.IsDefault() {
		return ""
	}
	return " --state-dir " + p.layout.StateDir()
}

// checks returns all checks in the order of printing.
func (p *patient) checks() []check {
	m, stateDir := p.machine, p.layout.StateDir()
	checks := []check{
		one("root", m.User),
		one("capabilities", m.Capabilities),
		one("CAP_SYS_RESOURCE", m.OOMScores),
		one("kernel", m.Kernel),
		one("cgroups", m.Cgroups),
		one("overlayfs", m.Overlay),
		one("open files", m.OpenFiles),
		one("processes", m.Threads),
		p.withProcesses("inotify", m.Inotify),
		// Without a configuration, the check is for a node of "quartet up", which permits swap.
		one("swap", func() machine.Finding { return m.Swap(p.configFile != "" && ptr.Deref(p.kubelet.FailSwapOn, true)) }),
		one("clock", func() machine.Finding { return m.Clock(stateDir) }),
		one("state directory", func() machine.Finding { return m.StateDir(stateDir) }),
		one("mount propagation", func() machine.Finding { return m.Propagation(stateDir) }),
		one("disk of state", func() machine.Finding { return m.Disk("state", stateDir, p.room("nodefs")) }),
		one("disk of logs", func() machine.Finding { return m.Disk("logs", p.kubelet.PodLogsDir, p.room("nodefs")) }),
		one("packet filter", m.Masquerading),
		one("ip_forward", m.Forwarding),
		one("br_netfilter", m.BridgeFilter),
		{name: "configuration", run: func(context.Context) []machine.Finding { return p.configuration() }},
	}
	if p.kubelet.ReadOnlyPort != 0 {
		checks = append(checks, p.readOnlyPort())
	}
	if *p.kubelet.HealthzPort != 0 {
		checks = append(checks, p.healthzPort())
	}
	checks = append(checks,
		p.withProcesses("kubelet", func(processes []machine.Process) machine.Finding {
			return m.Kubelet(p.runtime.endpoint, processes)
		}),
		check{name: "runtime", run: p.checkRuntime},
	)
	if p.stackFile != "" {
		checks = append(checks, p.stackChecks()...)
	}
	return append(checks, p.serviceChecks()...)
}

// withProcesses returns a check that needs the processes of the machine.
func (p *patient) withProcesses(name string, find func([]machine.Process) machine.Finding) check {
	return one(name, func() machine.Finding {
		processes, err := p.processes()
		if err != nil {
			return machine.Unknown(name, err)
		}
		return find(processes)
	})
}

// room returns the eviction thresholds of a file system, "nodefs" or "imagefs".
func (p *patient) room(fs string) machine.Room {
	threshold := func(signal string) nodeconfig.Threshold {
		t, err := nodeconfig.ParseThreshold(p.kubelet.EvictionHard[signal])
		if err != nil { // not set: set values have been validated
			return nodeconfig.Threshold{}
		}
		return t
	}
	return machine.Room{
		Bytes: threshold(fs + ".available"), Inodes: threshold(fs + ".inodesFree"),
		Fields: "evictionHard: " + fs + ".available, " + fs + ".inodesFree",
	}
}

// configuration returns a finding for each problem with the configuration.
func (p *patient) configuration() []machine.Finding {
	const name = "configuration"
	switch {
	case p.configErr != nil:
		all := []error{p.configErr}
		var several nodeconfig.Errors
		if errors.As(p.configErr, &several) {
			all = several
		}
		var findings []machine.Finding
		for _, err := range all {
			findings = append(
				findings,
				machine.Ok(name, "").
					With(machine.Fault, err.Error(), "mend "+orElse(p.configFile, "it")+": no process starts with it"),
			)
		}
		return findings
	case p.configFile == "":
		return []machine.Finding{machine.Ok(name, "the defaults; --config names a file")}
	default:
		return []machine.Finding{machine.Ok(name, "%s", p.configFile)}
	}
}

func (p *patient) readOnlyPort() check {
	port := int(p.kubelet.ReadOnlyPort)
	return p.withProcesses(fmt.Sprintf("port %d", port), func(processes []machine.Process) machine.Finding {
		fix := "set another readOnlyPort in " + orElse(p.configFile, "the configuration")
		if p.runtime.start != "" && p.stack == nil || p.configFile == "" {
			fix = "choose another --read-only-port of quartet up (0 is none)"
		}
		return p.machine.Port(port, "the read-only API of syncloop", fix, processes, p.listensFor(layout.SyncLoop))
	})
}

// listensFor returns a function that reports whether a process is a service, or the command that keeps the service's
// sockets open while it restarts.
func (p *patient) listensFor(service layout.Service) func(machine.Process) bool {
	return func(holder machine.Process) bool {
		if owner, err := rpc.ServerOf(p.layout.Address(service)); err == nil && owner.PID == holder.PID {
			return true
		}
		command, err := statedir.LastHolder(p.layout.StateDir(), nodecmd.Name)
		return err == nil && command.PID == holder.PID && command.PID != 0
	}
}

// healthzPort checks the port of the node's health. A port in use by another program is no fault, because the node runs
// without it.
func (p *patient) healthzPort() check {
	port := int(*p.kubelet.HealthzPort)
	return p.withProcesses(fmt.Sprintf("port %d", port), func(processes []machine.Process) machine.Finding {
		fix := "set another healthzPort in " + orElse(p.configFile, "the configuration")
		if p.runtime.start != "" && p.stack == nil || p.configFile == "" {
			fix = "choose another --healthz-port of quartet up (0 is none)"
		}
		found := p.machine.Port(port, "the health of the node", fix, processes, p.listensFor(layout.NodeStatus))
		found.Level = min(found.Level, machine.Warning)
		return found
	})
}

func orElse(text, other string) string {
	if text == "" {
		return other
	}
	return text
}
