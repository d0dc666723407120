package executor

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/cgroups"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/containerspec"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resources"
)

// HostIPs holds the addresses of the node.
type HostIPs interface {
	// Get returns the addresses, the primary one first; nil if none is known.
	Get() []string
	// Learn sets the addresses from the Node, and returns those of the Node.
	Learn(node *v1.Node) []string
	// Take sets the addresses. It is a no-op for none.
	Take(ips []string)
}

// nodeFileMode restricts the file to its owner.
const nodeFileMode = 0o600

// nodeTimeout limits the request for the Node: a nodestatus that hangs delays a start by no more than this.
const nodeTimeout = 100 * time.Millisecond

// nodeFacts are the facts of the Node that containers get. They are kept in a file, so that the next process gives
// containers the same ones until nodestatus answers.
type nodeFacts struct {
	Name        string          `json:"name"`
	IPs         []string        `json:"ips,omitempty"`
	Allocatable v1.ResourceList `json:"allocatable,omitempty"`
}

// refreshNode requests the Node, so that containers start with its current allocatable resources and addresses. If the
// request fails, the last known facts stay.
func (m *Manager) refreshNode(ctx context.Context) {
	if m.cfg.Node == nil {
		return
	}
	nodeCtx, cancel := context.WithTimeout(ctx, nodeTimeout)
	defer cancel()
	object, err := m.cfg.Node(nodeCtx)
	if err != nil {
		m.cfg.Logger.DebugContext(ctx, "cannot read the Node; the pod starts with the last known Node", telemetry.KeyError, err)
		return
	}
	facts := nodeFacts{Name: m.cfg.NodeName, Allocatable: object.Status.Allocatable, IPs: m.cfg.HostIPs.Learn(object)}
	if m.storeNode(facts) {
		m.saveNode(ctx, facts)
	}
}

// storeNode stores the facts, and reports whether they differ from the stored ones.
func (m *Manager) storeNode(facts nodeFacts) (changed bool) {
	m.cfg.HostIPs.Take(facts.IPs)
	m.nodeMu.Lock()
	defer m.nodeMu.Unlock()
	node := *m.node.Load()
	if len(facts.IPs) == 0 {
		facts.IPs = node.IPs
	}
	if slices.Equal(node.IPs, facts.IPs) && node.Allocatable != nil &&
		equality.Semantic.DeepEqual(node.Allocatable, facts.Allocatable) {
		return false
	}
	node.Allocatable, node.IPs = facts.Allocatable, facts.IPs
	m.node.Store(&node)
	return true
}

// saveNode writes the facts to the file. A failure is only logged.
func (m *Manager) saveNode(ctx context.Context, facts nodeFacts) {
	if m.cfg.NodeFile == "" {
		return
	}
	data, err := json.Marshal(facts)
	if err == nil {
		data, err = statedir.WithChecksum(data, facts.Name)
	}
	if err == nil {
		err = m.nodeFile.Write(func() error { return statedir.ReplaceFile(m.cfg.NodeFile, data, nodeFileMode) })
	}
	if err != nil {
		m.cfg.Logger.WarnContext(ctx, "cannot save the facts of the Node: after a restart of syncloop, pods may get others until nodestatus answers",
			telemetry.KeyFile, m.cfg.NodeFile, telemetry.KeyError, err)
	}
}

// loadNode loads the facts that the previous process wrote. It ignores a file that is missing or of another node, and
// sets a damaged one aside.
func (m *Manager) loadNode() {
	if m.cfg.NodeFile == "" {
		return
	}
	var facts nodeFacts
	err := statedir.LoadCache(m.cfg.NodeFile, "", &facts, nil) // another node's is no damage
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err != nil {
		m.cfg.Logger.Warn("cannot read the saved facts of the Node: they are not known until nodestatus answers", telemetry.KeyFile, m.cfg.NodeFile, telemetry.KeyError, err)
		return
	}
	if facts.Name == m.cfg.NodeName {
		m.storeNode(facts)
	}
}

// nodeNow returns the known node with its current addresses.
func (m *Manager) nodeNow() *containerspec.Node {
	node := *m.node.Load()
	node.IPs = m.cfg.HostIPs.Get()
	return &node
}

// Swaps reports whether a container of a pod may swap on this node.
func (m *Manager) Swaps(pod *v1.Pod, c *v1.Container) bool {
	return containerspec.Swaps(pod, c, *m.node.Load())
}

// nodeOf returns the facts of the node that the specs of all pods share.
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
	node.MaskedPaths = maskedPathsOf(os.DirFS("/"))
	machine := cgroupsOf(os.DirFS("/"))
	node.CgroupV2, node.SwapLimit, node.HugePages = machine.v2, machine.swap, cgroups.HugePageSizes()
	node.Sysctls = nodeconfig.DefaultPodSysctls(kubelet)
	node.LimitedSwap = kubelet.MemorySwap.SwapBehavior == nodeconfig.LimitedSwap
	node.MemoryQoS = cfg.MemoryQoS
	node.GroupOOMKill = kubelet.SingleProcessOOMKill == nil || !*kubelet.SingleProcessOOMKill
	if kubelet.CPUCFSQuotaPeriod != nil {
		node.CPUPeriod = kubelet.CPUCFSQuotaPeriod.Duration
	}
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err == nil {
		node.Capacity[v1.ResourceMemory] = *resource.NewQuantity(int64(info.Totalram)*int64(info.Unit), resource.BinarySI) //nolint:gosec // bytes of memory fit
		node.SwapCapacity = int64(info.Totalswap) * int64(info.Unit)                                                       //nolint:gosec // as above
		node.MemoryForPods = resources.ForAllPods(node.Capacity, cfg.NotForPods...).Memory
	} else {
		cfg.Logger.Warn("cannot read the size of the machine's memory: the downward API and OOM scores do not use it", "error", err)
	}
	return node
}

// cgroupFacts are the features of the machine's cgroups.
type cgroupFacts struct{ v2, swap bool }

// cgroupsOf reads the features from the files of a machine; machine is its root folder.
func cgroupsOf(machine fs.FS) cgroupFacts {
	exists := func(name string) bool {
		_, err := fs.Stat(machine, name)
		return err == nil
	}
	if !exists("sys/fs/cgroup/cgroup.controllers") {
		return cgroupFacts{swap: exists("sys/fs/cgroup/memory/memory.memsw.limit_in_bytes")}
	}
	// The root cgroup has no limits: the cgroup of this process shows which limits exist.
	own, err := fs.ReadFile(machine, "proc/self/cgroup")
	if err != nil {
		return cgroupFacts{v2: true}
	}
	_, name, _ := strings.Cut(strings.TrimSpace(string(own)), "0::")
	return cgroupFacts{v2: true, swap: exists(path.Join("sys/fs/cgroup", name, "memory.swap.max"))}
}

// maskedPathsOf returns the paths that are hidden from containers on this machine, besides those that are hidden on
// every machine. They are the thermal throttle counters of its processors, which would show the load of other
// containers.
func maskedPathsOf(machine fs.FS) []string {
	found, err := fs.Glob(machine, "sys/devices/system/cpu/cpu[0-9]*/thermal_throttle")
	if err != nil {
		return nil // the pattern is valid
	}
	slices.SortFunc(found, func(a, b string) int { // by processor number
		return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
	})
	for i := range found {
		found[i] = "/" + found[i]
	}
	return found
}

// cgroupParent returns the name of the parent cgroup of all pods: kubepods, below the configured root.
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
