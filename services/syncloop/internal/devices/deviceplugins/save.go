package deviceplugins

import (
	"cmp"
	"errors"
	"io/fs"
	"reflect"
	"slices"

	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/types"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/allocation"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/checkpoint"
)

// noNode is the NUMA node of a device without one in the checkpoint.
const noNode = -1

// errNotRecovered is the error of a write before Recover. The checkpoint would lack the devices of running containers.
var errNotRecovered = errors.New("it is not known yet which devices the containers in the runtime have")

// load fills the book from the checkpoint. Without one, the devices are read from what runs later. A process that was
// killed before it had written what it read from a damaged one has left none.
func (m *Manager) load() error {
	content, err := checkpoint.Read(m.dir)
	if errors.Is(err, fs.ErrNotExist) {
		m.rebuild = true
		m.written = &checkpoint.Content{Registered: map[string][]string{}} // a node without devices needs no checkpoint
		return nil
	}
	if corrupt := (*checkpoint.CorruptError)(nil); errors.As(err, &corrupt) {
		m.cfg.Logger.Error("the devices of running pods are read from their containers, because the checkpoint is damaged",
			telemetry.KeyFile, corrupt.Path, "set_aside", corrupt.Aside, telemetry.KeyError, corrupt.Err)
		m.rebuild = true
		return nil
	}
	if err != nil {
		return err
	}
	for _, entry := range content.Entries {
		grant := allocation.Grant{Devices: devicesOf(entry.DeviceIDs)}
		response := &pluginapi.ContainerAllocateResponse{}
		if err := proto.Unmarshal(entry.AllocResp, response); err != nil {
			m.cfg.Logger.Error("ignoring an entry of the checkpoint of devices", telemetry.KeyPodUID, entry.PodUID,
				telemetry.KeyContainer, entry.ContainerName, keyResource, entry.ResourceName, telemetry.KeyError, err)
			continue
		}
		if grant.Rebuilt = entry.AllocResp == nil; !grant.Rebuilt {
			grant.Response = response
		}
		m.book.Put(allocation.Container{Pod: types.UID(entry.PodUID), Name: entry.ContainerName}, entry.ResourceName, grant)
	}
	for name := range content.Registered {
		m.book.Expect(name)
		m.lost[name] = m.cfg.Clock.Now()
	}
	return nil
}

// devicesOf returns the devices of an entry of the checkpoint.
func devicesOf(byNode checkpoint.DevicesPerNUMA) []allocation.Device {
	nodes := map[string][]int64{}
	for node, ids := range byNode {
		for _, id := range ids {
			nodes[id] = append(nodes[id], node)
		}
	}
	devices := make([]allocation.Device, 0, len(nodes))
	for id, of := range nodes {
		slices.Sort(of)
		devices = append(devices, allocation.Device{
			ID: id, NUMANodes: slices.DeleteFunc(of, func(node int64) bool { return node == noNode }),
		})
	}
	slices.SortFunc(devices, func(a, b allocation.Device) int { return cmp.Compare(a.ID, b.ID) })
	return devices
}

// save writes the checkpoint: the allocations that plugins have answered, and the resources. It fails before Recover.
func (m *Manager) save() error {
	m.saving.Lock() // the writes must be in the order of the snapshots
	defer m.saving.Unlock()
	content, err := m.snapshot()
	if err != nil || m.written != nil && reflect.DeepEqual(*m.written, content) {
		return err
	}
	if err := checkpoint.Write(m.dir, content); err != nil {
		return err
	}
	m.written = &content
	return nil
}

func (m *Manager) snapshot() (checkpoint.Content, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.rebuild {
		return checkpoint.Content{}, errNotRecovered
	}
	content := checkpoint.Content{Registered: map[string][]string{}}
	var errs []error
	m.book.Each(func(c allocation.Container, resource string, g allocation.Grant) {
		if !g.Settled() {
			return
		}
		var response []byte
		if g.Response != nil {
			var err error
			if response, err = proto.Marshal(g.Response); err != nil {
				errs = append(errs, err)
				return
			}
		}
		ids := checkpoint.DevicesPerNUMA{}
		for _, d := range g.Devices {
			if len(d.NUMANodes) == 0 {
				ids[noNode] = append(ids[noNode], d.ID)
			}
			for _, node := range d.NUMANodes {
				ids[node] = append(ids[node], d.ID)
			}
		}
		content.Entries = append(content.Entries, checkpoint.PodDevicesEntry{
			PodUID: string(c.Pod), ContainerName: c.Name, ResourceName: resource, DeviceIDs: ids, AllocResp: response,
		})
	})
	for _, name := range m.book.Registered() { // a kubelet reads the names, and not the devices
		content.Registered[name] = []string{}
	}
	return content, errors.Join(errs...)
}

// saveOrWarn writes the checkpoint after a change that the next write repeats. Before Recover, that is the next write.
func (m *Manager) saveOrWarn() {
	if err := m.save(); err != nil && !errors.Is(err, errNotRecovered) {
		m.cfg.Logger.Warn("cannot write the checkpoint of devices: check the disk of the root directory",
			telemetry.KeyError, err)
	}
}
