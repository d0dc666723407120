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
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/hostips"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/containerspec"
)

// nodeFileMode lets only the owner read the file.
const nodeFileMode = 0o600

// nodeTimeout bounds the question for the Node: a nodestatus that hangs costs a start no more than this.
const nodeTimeout = 100 * time.Millisecond

// toldNode is what containers are told of the Node. It is kept in a file, so that a process which comes after this one tells them the
// same while nobody answers for the Node.
type toldNode struct {
	Name        string          `json:"name"`
	IPs         []string        `json:"ips,omitempty"`
	Allocatable v1.ResourceList `json:"allocatable,omitempty"`
}

// learnNode asks for the Node, so that the containers that are about to start are told what is for pods now. What was known last
// stays when nobody answers.
func (m *Manager) learnNode(ctx context.Context) {
	if m.cfg.Node == nil {
		return
	}
	asking, cancel := context.WithTimeout(ctx, nodeTimeout)
	defer cancel()
	object, err := m.cfg.Node(asking)
	if err != nil {
		m.cfg.Logger.DebugContext(ctx, "the Node is not known, a pod starts with what was known last", telemetry.KeyError, err)
		return
	}
	told := toldNode{Name: m.cfg.NodeName, Allocatable: object.Status.Allocatable, IPs: hostips.Of(object)}
	if m.takeNode(told) {
		m.keepNode(ctx, told)
	}
}

// takeNode makes the Manager know what was told, and tells whether it knew anything else before.
func (m *Manager) takeNode(told toldNode) (changed bool) {
	m.cfg.HostIPs.Take(told.IPs)
	m.nodeMu.Lock()
	defer m.nodeMu.Unlock()
	node := *m.node.Load()
	if len(told.IPs) == 0 {
		told.IPs = node.IPs
	}
	if slices.Equal(node.IPs, told.IPs) && node.Allocatable != nil && equality.Semantic.DeepEqual(node.Allocatable, told.Allocatable) {
		return false
	}
	node.Allocatable, node.IPs = told.Allocatable, told.IPs
	m.node.Store(&node)
	return true
}

// keepNode writes the file. No start depends on it.
func (m *Manager) keepNode(ctx context.Context, told toldNode) {
	if m.cfg.NodeFile == "" {
		return
	}
	data, err := json.Marshal(told)
	if err == nil {
		m.nodeFileMu.Lock()
		err = statedir.ReplaceFile(m.cfg.NodeFile, data, nodeFileMode)
		m.nodeFileMu.Unlock()
	}
	if err != nil {
		m.cfg.Logger.WarnContext(ctx, "what pods are told of the node was not saved: after a restart of syncloop they may be told something else until nodestatus answers",
			telemetry.KeyFile, m.cfg.NodeFile, telemetry.KeyError, err)
	}
}

// recallNode takes what was kept by the process before this one. A file that is not there, is damaged or is another node's is nothing.
func (m *Manager) recallNode() {
	if m.cfg.NodeFile == "" {
		return
	}
	data, err := os.ReadFile(m.cfg.NodeFile)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	var told toldNode
	if err == nil {
		err = json.Unmarshal(data, &told)
	}
	if err != nil {
		m.cfg.Logger.Warn("what pods were told of the node last is not known: it is as soon as nodestatus answers", telemetry.KeyFile, m.cfg.NodeFile, telemetry.KeyError, err)
		return
	}
	if told.Name == m.cfg.NodeName {
		m.takeNode(told)
	}
}

// nodeNow is what is known of the node, with the addresses that it has now.
func (m *Manager) nodeNow() *containerspec.Node {
	node := *m.node.Load()
	node.IPs = m.cfg.HostIPs.Get()
	return &node
}

// Swaps tells whether a container of a pod may swap on this node.
func (m *Manager) Swaps(pod *v1.Pod, c *v1.Container) bool {
	return containerspec.Swaps(pod, c, *m.node.Load())
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
	node.MaskedPaths = maskedPathsOf(os.DirFS("/"))
	machine := cgroupsOf(os.DirFS("/"))
	node.CgroupV2, node.SwapLimit, node.HugePages = machine.v2, machine.swap, cgroups.HugePageSizes()
	node.Sysctls = nodeconfig.DefaultPodSysctls(kubelet)
	node.LimitedSwap = kubelet.MemorySwap.SwapBehavior == nodeconfig.LimitedSwap
	node.GroupOOMKill = kubelet.SingleProcessOOMKill == nil || !*kubelet.SingleProcessOOMKill
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

// maskedPathsOf are the paths of a machine that are hidden from containers beside those of every machine: how often each of its
// processors was throttled for heat, which tells containers of each other's work.
func maskedPathsOf(machine fs.FS) []string {
	found, err := fs.Glob(machine, "sys/devices/system/cpu/cpu[0-9]*/thermal_throttle")
	if err != nil {
		return nil // the pattern is right
	}
	slices.SortFunc(found, func(a, b string) int { // by the numbers of the processors
		return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
	})
	for i := range found {
		found[i] = "/" + found[i]
	}
	return found
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
