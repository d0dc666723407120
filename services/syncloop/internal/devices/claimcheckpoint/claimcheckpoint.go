// Package claimcheckpoint reads and writes the kubelet's checkpoint of resource claims, so that a node can change
// between a kubelet and Quartet without preparing any claim anew.
package claimcheckpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/claimbook"
)

const (
	// File is the kubelet's name of the file, in the root directory.
	File = "dra_manager_state"
	// mode is the kubelet's mode of the file.
	mode = 0o600
	// maxBytes bounds the file. A node with 500 pods that have 8 devices each needs about 1 MiB.
	maxBytes = 64 << 20
	// kind and version are those of the data.
	kind, version = "DRACheckpoint", "checkpoint.dra.kubelet.k8s.io/v1"
)

// file is the content of the file: JSON in a string, and the checksum of that string.
type file struct {
	Data     string
	Checksum uint32
}

// content is the data. The names and the order of the fields are the kubelet's.
type content struct {
	metav1.TypeMeta
	ClaimInfoStateList []claim
}

type claim struct {
	ClaimUID    types.UID
	ClaimName   string
	Namespace   string
	PodUIDs     map[string]struct{}
	DriverState map[string]driver
}

type driver struct {
	Devices            []device
	SkipNodeOperations []resourceapi.SkipNodeOperation `json:"skipNodeOperations,omitempty"`
}

type device struct {
	PoolName     string
	DeviceName   string
	ShareID      *types.UID
	RequestNames []string
	CDIDeviceIDs []string
}

// Read reads the checkpoint in a folder. If there is none, the error is fs.ErrNotExist. One that is damaged or cannot
// be read is set aside, and the error is a *statedir.DamagedError.
func Read(dir string) ([]claimbook.Entry, error) {
	path := filepath.Join(dir, File)
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err != nil {
		return nil, statedir.SetAside(path, err)
	}
	if info.Size() > maxBytes {
		return nil, statedir.SetAside(path, fmt.Errorf("it has %d bytes, more than %d", info.Size(), maxBytes))
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, statedir.SetAside(path, err)
	}
	entries, err := decode(data)
	if err != nil {
		return nil, statedir.SetAside(path, err)
	}
	return entries, nil
}

func decode(data []byte) ([]claimbook.Entry, error) {
	var read file
	if err := json.Unmarshal(data, &read); err != nil {
		return nil, err
	}
	if sum := crc32.ChecksumIEEE([]byte(read.Data)); sum != read.Checksum {
		return nil, fmt.Errorf("its checksum is %d, not %d", read.Checksum, sum)
	}
	var has content
	if err := json.Unmarshal([]byte(read.Data), &has); err != nil {
		return nil, err
	}
	entries := make([]claimbook.Entry, 0, len(has.ClaimInfoStateList))
	for i := range has.ClaimInfoStateList {
		entries = append(entries, has.ClaimInfoStateList[i].entry())
	}
	return entries, nil
}

// Write replaces the checkpoint in a folder, durably.
func Write(dir string, entries []claimbook.Entry) error {
	data, err := encode(entries)
	if err == nil {
		err = statedir.WriteFileAtomic(filepath.Join(dir, File), data, mode)
	}
	if err != nil {
		return fmt.Errorf("could not save checkpoint %s: %w", File, err)
	}
	return nil
}

func encode(entries []claimbook.Entry) ([]byte, error) {
	has := content{TypeMeta: metav1.TypeMeta{Kind: kind, APIVersion: version}}
	for i := range entries {
		has.ClaimInfoStateList = append(has.ClaimInfoStateList, stateOf(&entries[i]))
	}
	data, err := json.Marshal(has)
	if err != nil {
		return nil, err
	}
	return json.Marshal(file{Data: string(data), Checksum: crc32.ChecksumIEEE(data)})
}

// Encode returns claims as text, for the annotation of a pod's sandbox.
func Encode(claims []claimbook.Claim) (string, error) {
	states := make([]claim, 0, len(claims))
	for _, c := range claims {
		states = append(states, stateOf(&claimbook.Entry{Claim: c}))
	}
	data, err := json.Marshal(states)
	return string(data), err
}

// Decode returns the claims of a text that Encode has returned.
func Decode(text string) ([]claimbook.Claim, error) {
	var states []claim
	if err := json.Unmarshal([]byte(text), &states); err != nil {
		return nil, err
	}
	claims := make([]claimbook.Claim, 0, len(states))
	for i := range states {
		claims = append(claims, states[i].entry().Claim)
	}
	return claims, nil
}

func stateOf(e *claimbook.Entry) claim {
	c := claim{
		ClaimUID: e.UID, ClaimName: e.Name.Name, Namespace: e.Name.Namespace, PodUIDs: map[string]struct{}{},
		DriverState: map[string]driver{},
	}
	for _, uid := range e.Pods {
		c.PodUIDs[string(uid)] = struct{}{}
	}
	for name, has := range e.Drivers {
		d := driver{SkipNodeOperations: has.Skips}
		for _, one := range has.Devices {
			d.Devices = append(d.Devices, device{
				PoolName: one.Pool, DeviceName: one.Name, ShareID: one.ShareID, RequestNames: one.Requests, CDIDeviceIDs: one.CDI,
			})
		}
		c.DriverState[name] = d
	}
	return c
}

func (c *claim) entry() claimbook.Entry {
	e := claimbook.Entry{Claim: claimbook.Claim{
		Name: types.NamespacedName{Namespace: c.Namespace, Name: c.ClaimName}, UID: c.ClaimUID,
		Drivers: map[string]claimbook.Driver{},
	}}
	for uid := range c.PodUIDs {
		e.Pods = append(e.Pods, types.UID(uid))
	}
	for name, has := range c.DriverState {
		d := claimbook.Driver{Skips: has.SkipNodeOperations}
		for _, one := range has.Devices {
			d.Devices = append(d.Devices, claimbook.Device{
				Pool: one.PoolName, Name: one.DeviceName, ShareID: one.ShareID, Requests: one.RequestNames, CDI: one.CDIDeviceIDs,
			})
		}
		e.Drivers[name] = d
	}
	return e
}
