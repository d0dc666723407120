package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/quartet-node/quartet/internal/machine"
	"github.com/quartet-node/quartet/internal/rpc"
)

// runtimeFacts are the facts about a container runtime.
type runtimeFacts struct {
	// owner is the process that listens on its socket, or ownerErr why there is none.
	owner    rpc.Owner
	ownerErr error
	// err is why it does not answer; the other facts are then empty.
	err error
	// version is its version.
	version *runtimeapi.VersionResponse
	// status holds its conditions, and its configuration as JSON if it reports one.
	status *runtimeapi.StatusResponse
	// driver is its cgroup driver; nil if it does not report one.
	driver *runtimeapi.CgroupDriver
	// imageDir is the directory of its images; empty if it does not report one.
	imageDir string
	// network holds the directories of the pods' network.
	network networkFacts
}

// checkRuntime queries the runtime in one check, because later findings depend on earlier ones.
func (p *patient) checkRuntime(ctx context.Context) []machine.Finding {
	if findings, usable := p.runtimeSocket(); !usable {
		return findings
	}
	facts := askRuntime(ctx, p.runtime.endpoint)
	findings := p.judgeRuntime(facts)
	if facts.version != nil && facts.err == nil {
		findings = append(findings, judgeNetwork(facts.network, p.mendNetwork())...)
	}
	if facts.imageDir != "" {
		findings = append(findings, p.machine.Disk("images", facts.imageDir, p.room("imagefs")))
	}
	return findings
}

// runtimeSocket checks the socket, and reports whether further checks are useful.
func (p *patient) runtimeSocket() (findings []machine.Finding, usable bool) {
	f := machine.Ok("runtime", "")
	target := p.runtime
	if target.endpoint == "" {
		f.Detail = "none runs for this state directory: quartet up brings one; --config names a file with another's containerRuntimeEndpoint"
		return []machine.Finding{f}, false
	}
	info, err := os.Stat(strings.TrimPrefix(target.endpoint, "unix://"))
	switch {
	case errors.Is(err, fs.ErrNotExist) && target.start != "" && !p.hasNode():
		f.Detail = "not running; " + target.start + " starts it"
		return []machine.Finding{f}, false
	case errors.Is(err, fs.ErrNotExist):
		return []machine.Finding{f.With(machine.Fault, target.endpoint+" is not there", p.startRuntime())}, false
	case err != nil:
		return []machine.Finding{f.With(machine.Fault, err.Error(), "run the command as root")}, false
	case info.Mode().Type() != fs.ModeSocket:
		return []machine.Finding{
			f.With(machine.Fault, target.endpoint+" is not a socket", "set containerRuntimeEndpoint to the runtime's socket"),
		}, false
	default:
		return nil, true
	}
}

// startRuntime returns the advice for a missing runtime.
func (p *patient) startRuntime() string {
	if p.runtime.start != "" {
		return p.runtime.start + " starts it; its log says why it ended"
	}
	return "start the runtime ('systemctl start containerd', or crio), or set containerRuntimeEndpoint in " + orElse(
		p.configFile,
		"the configuration",
	)
}

// mendNetwork returns the command that restores the network of the node's own runtime; empty if the runtime belongs to
// the machine.
func (p *patient) mendNetwork() string {
	switch {
	case p.runtime.start == "":
		return ""
	case p.stack != nil:
		return p.stack.commandLine("restart", "containerd") + " writes it again, and ends the pods on the way"
	default:
		return fmt.Sprintf("quartet down --keep-pods%[1]s && quartet up --detach%[1]s writes it again", p.stateDirFlag())
	}
}

// askRuntime gathers the facts. It stops if the runtime does not answer the first call.
func askRuntime(ctx context.Context, endpoint string) (facts runtimeFacts) {
	if facts.owner, facts.ownerErr = rpc.ServerOf(endpoint); facts.ownerErr != nil {
		return facts
	}
	conn, err := rpc.Dial(endpoint)
	if err != nil {
		facts.err = err
		return facts
	}
	defer func() { _ = conn.Close() }() // nothing was written to it
	client := runtimeapi.NewRuntimeServiceClient(conn)
	if facts.version, err = client.Version(ctx, &runtimeapi.VersionRequest{}); err != nil {
		facts.err = err
		return facts
	}
	if facts.status, err = client.Status(ctx, &runtimeapi.StatusRequest{Verbose: true}); err != nil {
		facts.err = err
		return facts
	}
	// Not every runtime serves the last two calls, and none has to.
	if config, err := client.RuntimeConfig(
		ctx,
		&runtimeapi.RuntimeConfigRequest{},
	); err == nil &&
		config.GetLinux() != nil {
		driver := config.GetLinux().GetCgroupDriver()
		facts.driver = &driver
	}
	facts.imageDir = imageDir(ctx, conn)
	facts.network = readNetwork(facts.status.GetInfo()["config"])
	return facts
}

func imageDir(ctx context.Context, conn grpc.ClientConnInterface) string {
	info, err := runtimeapi.NewImageServiceClient(conn).ImageFsInfo(ctx, &runtimeapi.ImageFsInfoRequest{})
	if err != nil {
		return ""
	}
	for _, fs := range info.GetImageFilesystems() {
		return fs.GetFsId().GetMountpoint()
	}
	return ""
}

// judgeRuntime evaluates the facts.
func (p *patient) judgeRuntime(facts runtimeFacts) []machine.Finding {
	f := machine.Ok("runtime", "")
	switch {
	case errors.Is(facts.ownerErr, fs.ErrPermission):
		return []machine.Finding{
			f.With(machine.Fault, p.runtime.endpoint+" may not be used by this user", "run the command as root"),
		}
	case facts.ownerErr != nil:
		return []machine.Finding{
			f.With(
				machine.Fault,
				"nobody listens on "+p.runtime.endpoint+": the runtime has ended, or is just starting",
				p.startRuntime(),
			),
		}
	case status.Code(facts.err) == codes.Unimplemented:
		return []machine.Finding{
			f.With(
				machine.Fault,
				p.runtime.endpoint+" does not serve CRI v1: "+status.Convert(facts.err).Message(),
				"take \"cri\" out of disabled_plugins in /etc/containerd/config.toml and restart containerd; containerd before 1.6 is too old",
			),
		}
	case facts.err != nil:
		return []machine.Finding{
			f.With(
				machine.Fault,
				fmt.Sprintf("%s, pid %d, at %s: %s", facts.owner.Name, facts.owner.PID, p.runtime.endpoint, callError(facts.err)),
				"see the log of the runtime; when it hangs, restart it: containers run on",
			),
		}
	}
	f.Detail = fmt.Sprintf("%s %s, CRI %s, at %s", facts.version.GetRuntimeName(), facts.version.GetRuntimeVersion(),
		facts.version.GetRuntimeApiVersion(), p.runtime.endpoint)
	findings := []machine.Finding{
		f,
		condition("RuntimeReady", runtimeapi.RuntimeReady, facts.status, "see the log of the runtime"),
		condition(
			"NetworkReady",
			runtimeapi.NetworkReady,
			facts.status,
			"see the two CNI lines below; when both are ok, restart the runtime (containerd does not notice a configuration that is moved into place)",
		),
	}
	if facts.driver != nil {
		findings = append(findings, p.cgroupDriver(*facts.driver))
	}
	return findings
}

// condition evaluates a condition of the runtime; a missing one is a fault.
func condition(name, kind string, response *runtimeapi.StatusResponse, fix string) machine.Finding {
	f := machine.Ok(name, "true")
	for _, c := range response.GetStatus().GetConditions() {
		if c.GetType() != kind {
			continue
		}
		if c.GetStatus() {
			return f
		}
		return f.With(machine.Fault, strings.Trim(c.GetReason()+": "+c.GetMessage(), ": "), fix)
	}
	return f.With(machine.Fault, "the runtime has no such condition", fix)
}

// cgroupDriver returns the cgroup driver of the runtime, which the node uses too.
func (p *patient) cgroupDriver(driver runtimeapi.CgroupDriver) machine.Finding {
	runtimeDriver := strings.ToLower(driver.String())
	if runtimeDriver != p.kubelet.CgroupDriver {
		return machine.Ok(
			"cgroup driver",
			"%s, the runtime's; %s in the configuration does not count",
			runtimeDriver,
			p.kubelet.CgroupDriver,
		)
	}
	return machine.Ok("cgroup driver", "%s", runtimeDriver)
}

// networkFacts holds the directories of CNI's files.
type networkFacts struct {
	configDir string
	binDirs   []string
}

// readNetwork reads the directories from containerd's configuration in its CRI status; CNI's defaults apply if a
// runtime does not report them.
func readNetwork(config string) networkFacts {
	facts := networkFacts{configDir: "/etc/cni/net.d", binDirs: []string{"/opt/cni/bin"}}
	var parsed struct {
		CNI struct {
			BinDirs []string `json:"binDirs"`
			BinDir  string   `json:"binDir"` // before containerd 2.1
			ConfDir string   `json:"confDir"`
		} `json:"cni"`
	}
	if err := json.Unmarshal([]byte(config), &parsed); err != nil {
		return facts
	}
	if parsed.CNI.ConfDir != "" {
		facts.configDir = parsed.CNI.ConfDir
	}
	switch {
	case len(parsed.CNI.BinDirs) > 0:
		facts.binDirs = parsed.CNI.BinDirs
	case parsed.CNI.BinDir != "":
		facts.binDirs = []string{parsed.CNI.BinDir}
	}
	return facts
}
