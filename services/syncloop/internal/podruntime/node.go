package podruntime

import (
	"context"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/opencontainers/cgroups"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/containerspec"
)

// nodeTimeout bounds the question for the Node: a nodestatus that hangs costs a start no more than this.
const nodeTimeout = 100 * time.Millisecond

// learnNode asks for the Node, so that the pod that is about to start is told what is for pods now. What was known last
// stays when nobody answers.
func (m *Manager) learnNode(ctx context.Context) {
	if m.cfg.Node == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, nodeTimeout)
	defer cancel()
	object, err := m.cfg.Node(ctx)
	if err != nil {
		m.cfg.Logger.DebugContext(ctx, "the Node is not known, a pod starts with what was known last", telemetry.KeyError, err)
		return
	}
	node := *m.node.Load()
	node.Allocatable = object.Status.Allocatable
	var ips []string
	for _, address := range object.Status.Addresses {
		if address.Type == v1.NodeInternalIP {
			ips = append(ips, address.Address)
		}
	}
	if len(ips) > 0 {
		node.IPs = ips
	}
	m.node.Store(&node)
}

// nodeOf gathers what the specs of all pods have in common.
func nodeOf(cfg Config) *containerspec.Node {
	kubelet := cfg.Kubelet
	node := &containerspec.Node{
		Name: cfg.NodeName, PodLogsDir: cfg.PodLogsDir, SeccompDir: filepath.Join(cfg.RootDir, "seccomp"),
		SeccompDefault: kubelet.SeccompDefault != nil && *kubelet.SeccompDefault,
		CPUQuota:       kubelet.CPUCFSQuota == nil || *kubelet.CPUCFSQuota,
		CgroupParent:   cgroupParent(cfg.CgroupDriver, kubelet.CgroupRoot),
		ClusterDNS:     kubelet.ClusterDNS, ClusterDomain: kubelet.ClusterDomain,
		Capacity: v1.ResourceList{v1.ResourceCPU: *resource.NewQuantity(int64(runtime.NumCPU()), resource.DecimalSI)},
	}
	machine := cgroupsOf(os.DirFS("/"))
	node.CgroupV2, node.SwapLimit, node.HugePages = machine.v2, machine.swap, cgroups.HugePageSizes()
	node.Sysctls = nodeconfig.DefaultPodSysctls(kubelet)
	node.LimitedSwap = kubelet.MemorySwap.SwapBehavior == nodeconfig.LimitedSwap
	node.GroupOOMKill = kubelet.SingleProcessOOMKill == nil || !*kubelet.SingleProcessOOMKill
	if cfg.NodeIP != "" {
		node.IPs = strings.Split(cfg.NodeIP, ",")
	}
	if kubelet.CPUCFSQuotaPeriod != nil {
		node.CPUPeriod = kubelet.CPUCFSQuotaPeriod.Duration
	}
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err == nil {
		node.Capacity[v1.ResourceMemory] = *resource.NewQuantity(int64(info.Totalram)*int64(info.Unit), resource.BinarySI) //nolint:gosec // bytes of memory fit
		node.SwapCapacity = int64(info.Totalswap) * int64(info.Unit)                                                       //nolint:gosec // as above
	} else {
		cfg.Logger.Warn("the machine's memory is not known: downward API and oom scores do without", "error", err)
	}
	return node
}

// cgroupFacts is what the machine's cgroups can do.
type cgroupFacts struct{ v2, swap bool }

// cgroupsOf looks at the files of a machine, by their paths without the first slash.
func cgroupsOf(machine fs.FS) cgroupFacts {
	there := func(name string) bool {
		_, err := fs.Stat(machine, name)
		return err == nil
	}
	if !there("sys/fs/cgroup/cgroup.controllers") {
		return cgroupFacts{swap: there("sys/fs/cgroup/memory/memory.memsw.limit_in_bytes")}
	}
	// The root of the hierarchy has no limits: what there is shows in the cgroup of this process.
	own, err := fs.ReadFile(machine, "proc/self/cgroup")
	if err != nil {
		return cgroupFacts{v2: true}
	}
	_, name, _ := strings.Cut(strings.TrimSpace(string(own)), "0::")
	return cgroupFacts{v2: true, swap: there(path.Join("sys/fs/cgroup", name, "memory.swap.max"))}
}

// cgroupParent names the cgroup that all pods are under: kubepods, below the configured root.
func cgroupParent(driver, root string) string {
	if driver != "systemd" {
		return filepath.Join("/", root, "kubepods")
	}
	prefix := strings.ReplaceAll(strings.Trim(strings.ReplaceAll(root, ".slice", ""), "/"), "/", "-")
	if prefix != "" {
		prefix += "-"
	}
	return prefix + "kubepods.slice"
}
