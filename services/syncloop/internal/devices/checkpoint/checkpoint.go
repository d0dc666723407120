// Package checkpoint reads and writes the kubelet's checkpoint of devices, so that a node can change between a kubelet
// and Quartet without a change of any allocation. The names of its types are those of the kubelet's package of this
// name, because they are part of the checksum.
package checkpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"

	"k8s.io/utils/dump"

	"github.com/quartet-node/quartet/internal/statedir"
)

const (
	// File is the kubelet's name of the file, in the folder of device plugins.
	File = "kubelet_internal_checkpoint"
	// mode is the kubelet's mode of the file.
	mode = 0o600
	// corruptSuffix is appended to the name of a file that was set aside.
	corruptSuffix = ".corrupt"
	// maxBytes bounds the file. A node with 500 pods that have 8 devices each needs about 1 MiB.
	maxBytes = 64 << 20
)

// DevicesPerNUMA has the IDs of devices by NUMA node; a device without one is under -1, and a device of several under
// each.
type DevicesPerNUMA map[int64][]string

// PodDevicesEntry has the devices of one resource that a container has.
type PodDevicesEntry struct {
	PodUID        string
	ContainerName string
	ResourceName  string
	DeviceIDs     DevicesPerNUMA
	// AllocResp is the encoded answer of the plugin to Allocate; nil if it is not known. An empty answer is not nil, also
	// in the file.
	AllocResp []byte
}

// checkpointData is the content of the file.
type checkpointData struct {
	PodDeviceEntries  []PodDevicesEntry
	RegisteredDevices map[string][]string
}

// Content is the content of a checkpoint.
type Content struct {
	// Entries are the allocations.
	Entries []PodDevicesEntry
	// Registered are the registered resources with their healthy devices.
	Registered map[string][]string
}

// file is the file with its checksum.
type file struct {
	Data     checkpointData
	Checksum uint64
}

// CorruptError is the error of a file that cannot be used and was set aside.
type CorruptError struct {
	// Path is the path of the file, and Aside the one that it has now; empty if it could not be renamed.
	Path, Aside string
	// Err is the reason.
	Err error
}

// Error implements error.
func (e *CorruptError) Error() string {
	if e.Aside == "" {
		return fmt.Sprintf("the checkpoint of devices %s is damaged: %v", e.Path, e.Err)
	}
	return fmt.Sprintf("the checkpoint of devices %s is damaged, and is now %s: %v", e.Path, e.Aside, e.Err)
}

// Unwrap returns the reason.
func (e *CorruptError) Unwrap() error { return e.Err }

// Read reads the checkpoint in a folder. If there is none, the error is fs.ErrNotExist. It renames one that is damaged
// or cannot be read, and fails with a CorruptError.
func Read(dir string) (Content, error) {
	path := filepath.Join(dir, File)
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Content{}, err
	}
	var data []byte
	switch {
	case err != nil:
	case info.Size() > maxBytes:
		err = fmt.Errorf("it has %d bytes, more than %d", info.Size(), maxBytes)
	default:
		data, err = os.ReadFile(path)
	}
	var content Content
	if err == nil {
		content, err = decode(data)
	}
	if err == nil {
		return content, nil
	}
	aside := path + corruptSuffix
	if renamed := os.Rename(path, aside); renamed != nil {
		aside, err = "", errors.Join(err, renamed)
	}
	return Content{}, &CorruptError{Path: path, Aside: aside, Err: err}
}

func decode(data []byte) (Content, error) {
	var read file
	if err := json.Unmarshal(data, &read); err != nil {
		return Content{}, err
	}
	if sum := checksum(read.Data); sum != read.Checksum {
		return Content{}, fmt.Errorf("its checksum is %d, not %d", sum, read.Checksum)
	}
	return Content{Entries: read.Data.PodDeviceEntries, Registered: read.Data.RegisteredDevices}, nil
}

// Write replaces the checkpoint in a folder, durably.
func Write(dir string, content Content) error {
	data := checkpointData{PodDeviceEntries: content.Entries, RegisteredDevices: content.Registered}
	encoded, err := json.Marshal(file{Data: data, Checksum: checksum(data)})
	if err == nil {
		err = statedir.WriteFileAtomic(filepath.Join(dir, File), encoded, mode)
	}
	if err != nil {
		return fmt.Errorf("failed to write checkpoint file %q: %w", File, err)
	}
	return nil
}

// checksum returns the kubelet's checksum.
func checksum(data checkpointData) uint64 {
	hash := fnv.New32a()
	fmt.Fprintf(hash, "%v", dump.ForHash(data))
	return uint64(hash.Sum32())
}
