package csi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/quartet-node/quartet/services/syncloop/internal/pod/csimigration"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/blockdevice"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/fsgroup"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/persistentvolumes"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
)

// Mount implements persistentvolumes.Kind.
func (p *Plugin) Mount(ctx context.Context, r persistentvolumes.Request) (string, error) {
	if err := p.books.isRead(); err != nil {
		return "", err
	}
	ctx = context.WithValue(ctx, migratedKey{}, csimigration.IsMigrated(r.PV))
	v, err := p.volumeOf(ctx, r)
	if err != nil {
		return "", err
	}
	path, err := p.mountVolume(ctx, r, &v)
	p.tellSecrets(&v, cmp.Or(err, v.ungrown))
	return path, err
}

// mountVolume mounts a volume of a request, and returns its path.
func (p *Plugin) mountVolume(ctx context.Context, r persistentvolumes.Request, v *volume) (string, error) {
	target, path := p.books.target(v.place), p.books.target(v.place)
	if v.identity.block {
		path = r.Dir
	}
	p.books.readOne(p.books.userFile(v.place))
	before, known := p.books.user(v.place)
	published := false
	if known {
		mounted, err := p.mounted(target)
		if err != nil {
			return "", err
		}
		switch published = !mustPublish(&before, p.cfg.Boot, mounted, false); {
		case before.identity == v.identity && (published || mounted):
			v.Label = before.label
		case before.identity != v.identity, before.label != v.Label:
			// A persistent volume of the same name was another volume before, or it had another SELinux label in an earlier
			// boot.
			if err := p.Unmount(ctx, r.Dir); err != nil {
				return "", err
			}
			published, known = false, false
		}
	}
	if published && !v.republishes() {
		return path, p.expand(ctx, v, false)
	}
	if v.identity.block {
		if err := blockdevice.Link(target, r.Dir); err != nil {
			return "", err
		}
	}
	if !known {
		begins := v.record(p.cfg.NodeName)
		if p.books.isBroken(p.books.userFile(v.place)) {
			begins.phase = uncertain // it may be published
		}
		if err := p.books.putUser(begins); err != nil {
			return "", err
		}
	}
	return path, p.mount(ctx, v, published)
}

// mount stages and publishes a volume, or publishes a published one again.
func (p *Plugin) mount(ctx context.Context, v *volume, published bool) error {
	group, err := v.groupOf()
	if err != nil {
		return err
	}
	attached, err := p.attached(ctx, v, published)
	if err != nil {
		return err
	}
	n, err := p.node(ctx, v.driver, published)
	if err != nil {
		return fmt.Errorf("%s: mounter.SetUpAt failed to get CSI client: %w", pluginName, err)
	}
	request := &csi.NodePublishVolumeRequest{
		VolumeId: v.handle, PublishContext: attached, TargetPath: p.driverPath(p.books.target(v.place)), Readonly: v.readOnly,
	}
	var driversGroup *int64
	if n.can[csi.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP] {
		driversGroup, group = v.FSGroup, nil
	}
	request.VolumeCapability = v.capability(n, driversGroup)
	if err := p.addPodsValues(ctx, v, request); err != nil {
		return err
	}
	if !v.inline && n.can[csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME] {
		request.StagingTargetPath = p.driverPath(p.books.staging(v.identity))
	}
	if !published {
		if err := p.notLink(p.books.target(v.place)); err != nil {
			return err
		}
		if err := p.stage(ctx, v, n, request); err != nil {
			return err
		}
	}
	if err := p.publish(ctx, v, n, request, published); err != nil {
		return err
	}
	if group != nil {
		if err := p.own(ctx, v, *group); err != nil {
			return fmt.Errorf("applyFSGroup failed for vol %s: %w", v.handle, err)
		}
	}
	if v.identity.block {
		answered := volumes.Asking(ctx, blockDevice)
		err := blockdevice.Hold(p.books.target(v.place), p.books.held(v.place), p.mounted)
		answered()
		if err != nil {
			return err
		}
		p.reportDevice(ctx, v, published)
	}
	if err := p.expand(ctx, v, !published); err != nil {
		return err
	}
	return p.published(v)
}

// own gives the content of a published volume to a group.
func (p *Plugin) own(ctx context.Context, v *volume, group int64) error {
	target := p.books.target(v.place)
	begun, answered := p.cfg.Clock.Now(), volumes.Asking(ctx, volumes.Owners)
	err := fsgroup.Apply(ctx, target, group, v.readOnly, v.FSGroupChangePolicy, &fsgroup.Monitor{
		Clock: p.cfg.Clock, Volume: fsgroup.VolumeOf(target, v.Pod.UID),
		Warn: func(message string) { p.cfg.Events.Warning(ctx, v.Pod, "", fsgroup.EventSlow, message) },
	})
	answered()
	return p.measure(v, fsgroup.Operation, begun, err)
}

// attached returns the publish context of a volume that the cluster attaches, once it is attached. A volume that is not
// in place is only used if no detachment is in progress: as in the kubelet, the Node's status says so, and then the
// VolumeAttachment is read from the API server, because a known one may be that of before.
func (p *Plugin) attached(ctx context.Context, v *volume, published bool) (values map[string]string, err error) {
	if !v.attach {
		return nil, nil
	}
	if published {
		return p.cfg.Cluster.Attachment(ctx, v.driver, v.handle)
	}
	err = volumes.Waiting(ctx, func(ctx context.Context) error {
		defer volumes.Asking(ctx, "cluster to attach the volume")()
		if p.cfg.Attached != nil && !p.books.isInPlace(v.identity, p.cfg.Boot) {
			begun := p.cfg.Clock.Now()
			err := p.measure(v, "verify_controller_attached_volume", begun, p.cfg.Attached(ctx, v.uniqueName()))
			if err != nil {
				// The VolumeAttachment says more, such as the error of an attacher.
				_, why := p.cfg.Cluster.Attachment(ctx, v.driver, v.handle)
				return cmp.Or(why, err)
			}
		}
		values, err = p.cfg.Cluster.AttachmentNow(ctx, v.driver, v.handle)
		return err
	})
	return values, err
}

// addPodsValues adds what the driver needs of the pod to a request.
func (p *Plugin) addPodsValues(ctx context.Context, v *volume, request *csi.NodePublishVolumeRequest) error {
	secrets, err := p.secret(ctx, v, "NodePublishSecretRef", v.publishSecret)
	if err != nil {
		return err
	}
	tokens, asSecrets, err := p.podTokens(ctx, v)
	if err != nil {
		return err
	}
	request.Secrets, request.VolumeContext = secrets, merged(v.attributes, v.podInfo())
	if asSecrets {
		request.Secrets = merged(secrets, tokens)
	} else {
		request.VolumeContext = merged(request.VolumeContext, tokens)
	}
	return nil
}

// stage stages a volume on the node, unless another pod has it staged, and records that it is going to be published for
// this one.
func (p *Plugin) stage(ctx context.Context, v *volume, n node, publish *csi.NodePublishVolumeRequest) error {
	unlock, err := p.lock(ctx, v.identity, v.driver)
	if err != nil {
		return err
	}
	defer unlock()
	_, users := p.books.all()
	if v.isForOnePod() && (takenByOther(users, v.identity, v.place) || p.books.isTakenByUnknown(v.place)) {
		return &volumes.InUseError{}
	}
	if isLabeledOtherwise(p.books.stagedOne(v.identity), users, v.identity, v.place, v.Label) {
		p.signal() // it may be idle
		return fmt.Errorf("waiting for unmount of volume %q, because it is already mounted to a different pod with a different SELinux label", v.uniqueName())
	}
	if rival := p.books.rival(v.identity); rival != nil {
		return fmt.Errorf("the volume %q of an earlier persistent volume %s is still staged; it is unstaged when no pod uses it", rival.handle, v.identity.name)
	}
	switch {
	case publish.GetStagingTargetPath() != "":
		err = p.callStage(ctx, v, n, publish)
	case !v.inline && p.books.stagedOne(v.identity) == nil:
		// As in the kubelet, whose only record of a block device this is. It keeps the volume in use if the record of the
		// pod cannot be read.
		err = p.books.putStaged(record{identity: v.identity, phase: begun, attach: v.attach, label: v.Label})
	}
	if err != nil {
		return err
	}
	record := v.record(p.cfg.NodeName)
	record.phase = uncertain
	return p.books.putUser(record)
}

// callStage asks the driver to stage a volume. The caller has the lock of the staged volume.
func (p *Plugin) callStage(ctx context.Context, v *volume, n node, publish *csi.NodePublishVolumeRequest) error {
	staging := p.books.staging(v.identity)
	mounted, err := p.mounted(staging)
	if err != nil {
		return err
	}
	before := p.books.stagedOne(v.identity)
	if !mustStage(before, p.cfg.Boot, mounted) {
		return nil
	}
	secrets, err := p.secret(ctx, v, "NodeStageSecretRef", v.stageSecret)
	if err != nil {
		return err
	}
	if err := errors.Join(p.notLink(filepath.Dir(staging)), p.notLink(staging)); err != nil {
		return err
	}
	record := record{identity: v.identity, phase: uncertain, attach: v.attach, label: v.Label}
	if err := p.books.putStaged(record); err != nil {
		return err
	}
	if err := os.MkdirAll(staging, folderMode); err != nil {
		return err
	}
	_, err = n.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{
		VolumeId: v.handle, PublishContext: publish.GetPublishContext(), StagingTargetPath: publish.GetStagingTargetPath(),
		VolumeCapability: publish.GetVolumeCapability(), Secrets: secrets, VolumeContext: v.attributes,
	})
	if err != nil {
		if before == nil && isFinal(err) {
			err = errors.Join(err, p.forgetStaged(v.identity))
		}
		return err
	}
	if record.mounted, err = p.mounted(staging); err != nil {
		return err
	}
	record.phase, record.boot = done, p.cfg.Boot
	return p.books.putStaged(record)
}

// publish asks the driver to publish a volume for the pod.
func (p *Plugin) publish(
	ctx context.Context, v *volume, n node, request *csi.NodePublishVolumeRequest, published bool,
) error {
	target := p.books.target(v.place)
	if err := os.MkdirAll(filepath.Dir(target), folderMode); err != nil {
		return err
	}
	_, err := n.NodePublishVolume(ctx, request)
	if err == nil || published || !isFinal(err) {
		return err
	}
	// The driver has not published it: nothing is to be undone when the pod goes.
	record := v.record(p.cfg.NodeName)
	if mounted, failed := p.mounted(target); failed != nil || mounted {
		return err
	}
	return errors.Join(err, remove(target), p.books.putUser(record))
}

// published records that a volume is published.
func (p *Plugin) published(v *volume) error {
	record := v.record(p.cfg.NodeName)
	record.phase, record.boot = done, p.cfg.Boot
	var err error
	if record.mounted, err = p.mounted(p.books.target(v.place)); err != nil {
		return err
	}
	if before, _ := p.books.user(v.place); before == record {
		return nil
	}
	return p.books.putUser(record)
}
