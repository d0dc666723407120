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

// runtimeFacts is what a container runtime says of itself.
type runtimeFacts struct {
	// owner listens on its socket, or ownerErr says why nobody does.
	owner    rpc.Owner
	ownerErr error
	// err is why it does not say anything; the rest is then empty.
	err error
	// version is the answer to the first question.
	version *runtimeapi.VersionResponse
	// status has its conditions, and its configuration as JSON when it tells.
	status *runtimeapi.StatusResponse
	// driver is its cgroup driver; nil when it does not tell.
	driver *runtimeapi.CgroupDriver
	// imageDir is where its images are; empty when it does not tell.
	imageDir string
	// network is what it uses for the pods' network.
	network networkFacts
}

// checkRuntime asks the runtime everything in one check: what comes later makes no sense without what comes before.
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

// runtimeSocket looks at the socket alone, and says whether it makes sense to go on.
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
		return []machine.Finding{f.With(machine.Fault, target.endpoint+" is not a socket", "set containerRuntimeEndpoint to the runtime's socket")}, false
	default:
		return nil, true
	}
}

// startRuntime is what to do about a runtime that is not there.
func (p *patient) startRuntime() string {
	if p.runtime.start != "" {
		return p.runtime.start + " starts it; its log says why it ended"
	}
	return "start the runtime ('systemctl start containerd', or crio), or set containerRuntimeEndpoint in " + orElse(p.configFile, "the configuration")
}

// mendNetwork is what puts the network of the node's own runtime back; empty when the runtime is the machine's.
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

// askRuntime gathers the facts. A runtime that does not answer the first question is not asked the others.
func askRuntime(ctx context.Context, endpoint string) (facts runtimeFacts) {
	if facts.owner, facts.ownerErr = rpc.WhoServes(endpoint); facts.ownerErr != nil {
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
	// The last two are not served by every runtime, and none has to.
	if config, err := client.RuntimeConfig(ctx, &runtimeapi.RuntimeConfigRequest{}); err == nil && config.GetLinux() != nil {
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

// judgeRuntime says what the facts mean.
func (p *patient) judgeRuntime(facts runtimeFacts) []machine.Finding {
	f := machine.Ok("runtime", "")
	switch {
	case errors.Is(facts.ownerErr, fs.ErrPermission):
		return []machine.Finding{f.With(machine.Fault, p.runtime.endpoint+" may not be used by this user", "run the command as root")}
	case facts.ownerErr != nil:
		return []machine.Finding{f.With(machine.Fault, "nobody listens on "+p.runtime.endpoint+": the runtime has ended, or is just starting", p.startRuntime())}
	case status.Code(facts.err) == codes.Unimplemented:
		return []machine.Finding{f.With(machine.Fault, p.runtime.endpoint+" does not serve CRI v1: "+status.Convert(facts.err).Message(),
			"take \"cri\" out of disabled_plugins in /etc/containerd/config.toml and restart containerd; containerd before 1.6 is too old")}
	case facts.err != nil:
		return []machine.Finding{f.With(machine.Fault, fmt.Sprintf("%s, pid %d, at %s: %s", facts.owner.Name, facts.owner.PID, p.runtime.endpoint, said(facts.err)),
			"see the log of the runtime; when it hangs, restart it: containers run on")}
	}
	f.Detail = fmt.Sprintf("%s %s, CRI %s, at %s", facts.version.GetRuntimeName(), facts.version.GetRuntimeVersion(),
		facts.version.GetRuntimeApiVersion(), p.runtime.endpoint)
	findings := []machine.Finding{f,
		condition("RuntimeReady", runtimeapi.RuntimeReady, facts.status, "see the log of the runtime"),
		condition("NetworkReady", runtimeapi.NetworkReady, facts.status, "see the two CNI lines below; when both are ok, restart the runtime (containerd does not notice a configuration that is moved into place)"),
	}
	if facts.driver != nil {
		findings = append(findings, p.cgroupDriver(*facts.driver))
	}
	return findings
}

// condition is a condition of the runtime's; one that it does not have is not well.
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

// cgroupDriver says what the runtime uses, which the node uses too.
func (p *patient) cgroupDriver(driver runtimeapi.CgroupDriver) machine.Finding {
	theirs := strings.ToLower(driver.String())
	if theirs != p.kubelet.CgroupDriver {
		return machine.Ok("cgroup driver", "%s, the runtime's; %s in the configuration does not count", theirs, p.kubelet.CgroupDriver)
	}
	return machine.Ok("cgroup driver", "%s", theirs)
}

// networkFacts is where CNI's files are.
type networkFacts struct {
	configDir string
	binDirs   []string
}

// readNetwork takes the directories from containerd's configuration, as its CRI status has it in JSON; CNI's defaults
// where a runtime says nothing.
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
