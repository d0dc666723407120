package oracle

import (
	"math/rand/v2"
	"slices"

	"github.com/google/cadvisor/lib/model"
)

// drawMachine returns a machine of one to eight NUMA nodes, with one to four NUMA nodes in a socket or one to two
// sockets in a NUMA node, with one or two CPUs for each core, and with one to two caches in a NUMA node. The numbers of
// CPUs of a core are neighbors, or far from each other, as on most machines.
func drawMachine(r *rand.Rand) *model.MachineInfo {
	nodes := []int{1, 1, 2, 2, 2, 3, 4, 4, 5, 6, 8}[r.IntN(11)]
	nodesPerSocket, socketsPerNode := 1, 1
	switch r.IntN(4) {
	case 0:
		socketsPerNode = 2
	case 1:
		nodesPerSocket = []int{2, 4}[r.IntN(2)]
	}
	if nodes%nodesPerSocket != 0 {
		nodesPerSocket = 1 // the kubelet takes CPUs that are not free if sockets have different sizes
	}
	cores := socketsPerNode * []int{1, 2, 2, 4, 6}[r.IntN(5)]
	threads := 1 + r.IntN(2)
	caches := 1 + r.IntN(2)
	total := nodes * cores
	neighbors := r.IntN(2) == 0
	info := &model.MachineInfo{NumCores: total * threads, NumPhysicalCores: total}
	sockets := map[int]bool{}
	for node := range nodes {
		n := model.Node{Id: node}
		for other := range nodes {
			n.Distances = append(n.Distances, distance(r, node, other))
		}
		for core := range cores {
			number := node*cores + core
			socket := node / nodesPerSocket
			if socketsPerNode == 2 {
				socket = node*2 + core*2/cores
			}
			sockets[socket] = true
			c := model.Core{Id: core, SocketID: socket}
			for thread := range threads {
				id := number + thread*total
				if neighbors {
					id = number*threads + thread
				}
				c.Threads = append(c.Threads, id)
			}
			if caches == 2 || nodesPerSocket > 1 {
				c.UncoreCaches = []model.Cache{{Id: node*caches + core*caches/cores}}
			}
			n.Cores = append(n.Cores, c)
		}
		info.Topology = append(info.Topology, n)
	}
	info.NumSockets = len(sockets)
	return info
}

func distance(r *rand.Rand, a, b int) uint64 {
	if a == b {
		return 10
	}
	return 10 + 5*uint64(1+r.IntN(3))
}

// cpusOf returns the CPUs of a machine, sorted.
func cpusOf(info *model.MachineInfo) []int {
	var all []int
	for _, node := range info.Topology {
		for _, core := range node.Cores {
			all = append(all, core.Threads...)
		}
	}
	slices.Sort(all)
	return all
}
