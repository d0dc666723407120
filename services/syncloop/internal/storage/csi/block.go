package csi

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/rmtree"
)

// A block device has these paths, which are the kubelet's:
//
//	plugins/kubernetes.io/csi/volumeDevices/staging/PV        the driver stages it here
//	plugins/kubernetes.io/csi/volumeDevices/publish/PV/UID    the driver publishes it here: a device
//	plugins/kubernetes.io/csi/volumeDevices/PV/dev/UID        it is mounted here, and held with a loop device
//	plugins/kubernetes.io/csi/volumeDevices/PV/data/          the records
//	pods/UID/volumeDevices/kubernetes.io~csi/PV               the link to the published device, which containers get

// eventMapped is the kubelet's reason of the event for a block device, which it has twice: for each of the two paths.
const eventMapped = "SuccessfulMountVolume"

// reportDevice records that a pod has a block device, unless the device was published before.
func (p *Plugin) reportDevice(ctx context.Context, v *volume, published bool) {
	if published {
		return
	}
	const succeeded = "MapVolume.MapPodDevice succeeded for volume %q %s %q"
	p.cfg.Events.Normal(ctx, v.Pod, "", eventMapped, fmt.Sprintf(succeeded, v.PV.Name, "globalMapPath",
		p.driverPath(filepath.Dir(p.books.held(v.place)))))
	p.cfg.Events.Normal(ctx, v.Pod, "", eventMapped, fmt.Sprintf(succeeded, v.PV.Name, "volumeMapPath",
		p.driverPath(filepath.Dir(p.books.dir(v.place)))))
}

// forgetDevice removes the directories of a block device that is not staged any more. One that is in use is left: a pod
// uses the volume again.
func (p *Plugin) forgetDevice(v identity) error {
	top := filepath.Join(p.books.devices(), v.name)
	for _, dir := range []string{
		filepath.Join(p.books.devices(), "publish", v.name), filepath.Join(top, "dev"), filepath.Join(top, "data"), top,
	} {
		if err := remove(dir); err != nil && !errors.Is(err, unix.ENOTEMPTY) {
			return err
		}
	}
	return nil
}

// removeStaging removes the path of a volume that is not staged any more. That of a device may have content, which
// belongs to the driver.
func (p *Plugin) removeStaging(v identity) error {
	if v.block {
		return rmtree.All(p.books.staging(v))
	}
	return remove(p.books.staging(v))
}
