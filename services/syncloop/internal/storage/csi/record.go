package csi

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	storagev1 "k8s.io/api/storage/v1"

	"github.com/quartet-node/quartet/internal/statedir"
)

// The keys of a record. Those of the kubelet come first; a kubelet ignores the others.
const (
	keySpec       = "specVolID"
	keyHandle     = "volumeHandle"
	keyDriver     = "driverName"
	keyNode       = "nodeName"
	keyAttachment = "attachmentID"
	keyLifecycle  = "volumeLifecycleMode"
	keyLabel      = "seLinuxMountContext"
	keyState      = "quartet.state"
	keyBoot       = "quartet.boot"
	keyMounted    = "quartet.mounted"
	keyAttach     = "quartet.attach"
)

// phase is how far a volume is.
type phase string

// The phases. A record is written before the call that leads to a phase.
const (
	// begun is that of a pod's volume that the driver has not been asked to publish: the pod needs it staged. It is also
	// that of a volume of a driver that does not stage.
	begun phase = "begun"
	// uncertain: the driver has been asked to do or to undo it, and may have done it. It is also that of a kubelet's
	// record.
	uncertain phase = ""
	// done: the driver has done it.
	done phase = "done"
)

// record is a volume that is staged, or published for a pod. It is on disk, so that the next process knows it.
type record struct {
	identity
	place
	phase phase
	// boot is the boot of the machine in which the phase was written, because a reboot unmounts everything.
	boot string
	// mounted is true if the path was a mount point when it was done; some drivers mount nothing.
	mounted bool
	// attach is true if the volume is attached to the node by the cluster.
	attach bool
	// inline is true for a volume in a pod's spec, which is not staged.
	inline bool
	// node is the name of the node.
	node string
	// label is the SELinux label that it is mounted with; empty for none.
	label string
}

// encode returns the content of the file of a record.
func (r record) encode() ([]byte, error) {
	values := map[string]string{
		keyHandle: r.handle, keyDriver: r.driver, keyState: string(r.phase), keyBoot: r.boot,
		keyMounted: fmt.Sprint(r.mounted), keyAttach: fmt.Sprint(r.attach),
	}
	if r.pod != "" {
		mode := storagev1.VolumeLifecyclePersistent
		if r.inline {
			mode = storagev1.VolumeLifecycleEphemeral
		}
		values[keySpec], values[keyNode], values[keyLifecycle] = r.place.name, r.node, string(mode)
		values[keyAttachment] = attachmentName(r.handle, r.driver, r.node)
	}
	if r.label != "" {
		values[keyLabel] = r.label
	}
	if r.identity.block {
		values[keySpec] = r.identity.name
	}
	return json.Marshal(values)
}

// read reads the record in a file, of this program or of a kubelet.
func read(file string) (record, error) {
	text, err := readFile(file)
	if err != nil {
		return record{}, err
	}
	values := map[string]string{}
	if err := json.Unmarshal(text, &values); err != nil {
		return record{}, fmt.Errorf("failed to parse volume data file [%s]: %w", file, err)
	}
	r := record{
		identity: identity{driver: values[keyDriver], handle: values[keyHandle]},
		phase:    phase(values[keyState]), boot: values[keyBoot], node: values[keyNode],
		mounted: values[keyMounted] == "true", attach: values[keyAttach] != "false",
		inline: values[keyLifecycle] == string(storagev1.VolumeLifecycleEphemeral), label: values[keyLabel],
	}
	if !isFileName(r.driver) || r.handle == "" {
		return record{}, fmt.Errorf("failed to parse volume data file [%s]: it names no driver and volume", file)
	}
	r.attach = r.attach && !r.inline
	return r, nil
}

// maxRecord bounds the size of a record, in bytes. A volume handle may be long.
const maxRecord = 1 << 20

// readFile reads a small regular file. It follows no link, and does not wait for a writer of a pipe.
func readFile(file string) (text []byte, err error) {
	f, err := os.OpenFile(file, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxRecord {
		return nil, fmt.Errorf("%s is no record: it is no file, or has more than %d bytes", file, maxRecord)
	}
	return io.ReadAll(io.LimitReader(f, maxRecord))
}

// write writes a record to a file, so that a crash leaves the old or the new one.
func write(file string, r record) error {
	if err := os.MkdirAll(filepath.Dir(file), folderMode); err != nil {
		return err
	}
	text, err := r.encode()
	if err != nil {
		return err
	}
	return statedir.ReplaceFile(file, text, dataMode)
}

// The modes of what is created.
const (
	folderMode = 0o750
	dataMode   = 0o640
)
