package show

import (
	"cmp"
	"slices"

	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// printHeld prints what containers have for themselves. A kind of which no container has anything is left out, because
// few nodes have all of them.
func (d nodeDescription) printHeld(p *page) {
	kinds := []struct {
		name    string
		columns []string
		rows    func(c *podresourcesv1.ContainerResources) [][]string
	}{
		{"Devices", []string{"Resource", "Device", "NUMA"}, deviceRows},
		{"Exclusive CPUs", []string{"CPUs"}, cpuRows},
		{"Memory Blocks", []string{"Type", "Amount", "NUMA"}, memoryRows},
		{"Resource Claims", []string{"Claim", "Driver", "Pool", "Device"}, claimRows},
	}
	for _, kind := range kinds {
		var rows [][]string
		for _, pod := range d.held.GetPodResources() {
			for _, c := range pod.GetContainers() {
				for _, row := range kind.rows(c) {
					rows = append(rows, append(row, pod.GetNamespace()+"/"+pod.GetName(), c.GetName()))
				}
			}
		}
		if len(rows) == 0 {
			continue
		}
		if len(kind.columns) > 1 { // by resource, type or claim; CPUs stay in the order of pods
			slices.SortStableFunc(rows, func(a, b []string) int { return cmp.Compare(a[0], b[0]) })
		}
		p.table(kind.name, append(kind.columns, "Pod", "Container"), rows)
	}
}

// nodesOf returns the NUMA nodes of a topology, <none> without any.
func nodesOf(topologies ...*podresourcesv1.TopologyInfo) string {
	var nodes []int64
	for _, t := range topologies {
		for _, node := range t.GetNodes() {
			nodes = append(nodes, node.GetID())
		}
	}
	return cmp.Or(numbers(nodes), noValue)
}

// deviceRows returns a row for each device. The API has an entry for each of its NUMA nodes.
func deviceRows(c *podresourcesv1.ContainerResources) [][]string {
	type device struct{ resource, id string }
	var order []device
	topologies := map[device][]*podresourcesv1.TopologyInfo{}
	for _, entry := range c.GetDevices() {
		for _, id := range entry.GetDeviceIds() {
			d := device{resource: entry.GetResourceName(), id: id}
			if _, seen := topologies[d]; !seen {
				order = append(order, d)
			}
			topologies[d] = append(topologies[d], entry.GetTopology())
		}
	}
	rows := make([][]string, 0, len(order))
	for _, d := range order {
		rows = append(rows, []string{d.resource, d.id, nodesOf(topologies[d]...)})
	}
	return rows
}

func cpuRows(c *podresourcesv1.ContainerResources) [][]string {
	if len(c.GetCpuIds()) == 0 {
		return nil
	}
	return [][]string{{numbers(c.GetCpuIds())}}
}

func memoryRows(c *podresourcesv1.ContainerResources) [][]string {
	var rows [][]string
	for _, block := range c.GetMemory() {
		rows = append(rows, []string{block.GetMemoryType(), bytesOf(block.GetSize()), nodesOf(block.GetTopology())})
	}
	return rows
}

// claimRows returns a row for each device of a claim, and one for a claim without a device.
func claimRows(c *podresourcesv1.ContainerResources) [][]string {
	var rows [][]string
	for _, claim := range c.GetDynamicResources() {
		name := claim.GetClaimNamespace() + "/" + claim.GetClaimName()
		if len(claim.GetClaimResources()) == 0 {
			rows = append(rows, []string{name, noValue, noValue, noValue})
		}
		for _, r := range claim.GetClaimResources() {
			rows = append(rows, []string{name, orNone(r.GetDriverName()), orNone(r.GetPoolName()), orNone(r.GetDeviceName())})
		}
	}
	return rows
}
