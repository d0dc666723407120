package csi

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/drivererror"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
)

// maxConditions is the API server's limit of the conditions of a volume, and of those of a driver's storage.
const maxConditions = 16

// The API server's limits of the reason and the message of a condition, in bytes.
const maxReason, maxMessage = 256, 1024

// Health implements persistentvolumes.Examiner: the driver reports what is wrong with a volume. As in the kubelet, it
// is not asked about inline volumes.
func (p *Plugin) Health(ctx context.Context, dir string) ([]v1.VolumeHealthCondition, error) {
	at := placeOf(dir)
	r, known := p.books.user(at)
	if !known {
		return nil, fs.ErrNotExist
	}
	if r.inline {
		return nil, volumes.ErrNotExamined
	}
	n, err := p.node(ctx, r.driver, true)
	if err != nil {
		return nil, err
	}
	if !n.can[csi.NodeServiceCapability_RPC_GET_VOLUME_HEALTH] {
		return nil, volumes.ErrNotExamined
	}
	request := &csi.NodeGetVolumeHealthRequest{
		VolumeId: r.handle, VolumePublishPath: p.driverPath(p.books.target(at)),
	}
	if n.can[csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME] {
		request.StagingTargetPath = p.driverPath(p.books.staging(r.identity))
	}
	answer, err := n.NodeGetVolumeHealth(ctx, request)
	if err != nil {
		return nil, err
	}
	return volumeConditions(answer.GetVolumeHealth().GetHealthStatuses()), nil
}

// volumeConditions returns the conditions in a driver's answer that Kubernetes knows, in its order and within the
// limits of the API server, which would otherwise refuse the status of the pod.
func volumeConditions(entries []*csi.VolumeHealth_VolumeHealthEntry) []v1.VolumeHealthCondition {
	var all []v1.VolumeHealthCondition
	has := map[string]bool{}
	for _, entry := range entries {
		var status v1.VolumeHealthStatusType
		switch entry.GetStatus() {
		case csi.VolumeHealthErrorType_INACCESSIBLE:
			status = v1.VolumeHealthInaccessible
		case csi.VolumeHealthErrorType_DATA_LOSS:
			status = v1.VolumeHealthDataLoss
		case csi.VolumeHealthErrorType_DEGRADED:
			status = v1.VolumeHealthDegraded
		case csi.VolumeHealthErrorType_UNKNOWN_VOLUME_HEALTH_TYPE:
			continue
		default: // of a later version of CSI
			continue
		}
		reason, message := fit(string(status), entry.GetReason(), entry.GetMessage())
		if id := string(status) + " " + reason; !has[id] && len(all) < maxConditions {
			has[id] = true
			all = append(all, v1.VolumeHealthCondition{
				Status: status, Reason: reason, Message: message,
			})
		}
	}
	return all
}

// fit returns a driver's reason and message as the API server accepts them. A reason that is no name is replaced by the
// status, and begins the message.
func fit(status, reason, message string) (fitting, text string) {
	if len(reason) > maxReason || len(validation.IsValidConditionReason(reason)) > 0 {
		reason, message = status, strings.TrimPrefix(reason+": "+message, ": ")
	}
	return reason, drivererror.Bounded(strings.TrimSuffix(message, ": "), maxMessage)
}

// StorageHealth returns what a driver reports to be wrong with its storage. It fails with volumes.ErrNotExamined for a
// driver that reports nothing.
func (p *Plugin) StorageHealth(ctx context.Context, driver string) ([]storagev1.StorageHealthCondition, error) {
	n, err := p.node(ctx, driver, true)
	if err != nil {
		return nil, err
	}
	if !n.can[csi.NodeServiceCapability_RPC_GET_STORAGE_HEALTH] {
		return nil, volumes.ErrNotExamined
	}
	answer, err := n.NodeGetStorageHealth(ctx, &csi.NodeGetStorageHealthRequest{})
	if err != nil {
		return nil, err
	}
	return storageConditions(answer.GetBackendHealth())
}

// storageConditions returns the conditions in a driver's answer that Kubernetes knows. As in the kubelet, an answer
// with too many of them, or with a capability that is not valid, is an error.
func storageConditions(
	entries []*csi.NodeGetStorageHealthResponse_StorageBackendHealth,
) ([]storagev1.StorageHealthCondition, error) {
	if len(entries) > maxConditions {
		return nil, fmt.Errorf("NodeGetStorageHealth returned %d conditions, maximum is %d", len(entries), maxConditions)
	}
	var all []storagev1.StorageHealthCondition
	for i, entry := range entries {
		var status storagev1.StorageHealthStatusType
		switch entry.GetStatus() {
		case csi.StorageHealthErrorType_STORAGE_UNREACHABLE:
			status = storagev1.StorageUnreachable
		case csi.StorageHealthErrorType_STORAGE_DEGRADED:
			status = storagev1.StorageDegraded
		case csi.StorageHealthErrorType_UNKNOWN_STORAGE_HEALTH_ERROR_TYPE:
			continue
		default: // of a later version of CSI
			continue
		}
		reason, message := fit(string(status), entry.GetReason(), entry.GetMessage())
		condition := storagev1.StorageHealthCondition{Status: status, Reason: reason, Message: message}
		if capability := entry.GetVolumeCapability(); capability != nil {
			access, mode, err := modesOf(capability)
			if err != nil {
				return nil, fmt.Errorf("NodeGetStorageHealth condition %d has invalid volume capability: %w", i, err)
			}
			condition.AccessMode, condition.VolumeMode = &access, &mode
		}
		all = append(all, condition)
	}
	return all, nil
}

// modesOf returns the access mode and the volume mode of a capability.
func modesOf(
	capability *csi.VolumeCapability,
) (access v1.PersistentVolumeAccessMode, mode v1.PersistentVolumeMode, err error) {
	switch {
	case capability.GetBlock() != nil:
		mode = v1.PersistentVolumeBlock
	case capability.GetMount() != nil:
		mode = v1.PersistentVolumeFilesystem
	default:
		return "", "", errors.New("access type is required")
	}
	switch capability.GetAccessMode().GetMode() {
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY,
		csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER:
		return v1.ReadWriteOnce, mode, nil
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER:
		return v1.ReadWriteOncePod, mode, nil
	case csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY:
		return v1.ReadOnlyMany, mode, nil
	case csi.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER,
		csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER:
		return v1.ReadWriteMany, mode, nil
	case csi.VolumeCapability_AccessMode_UNKNOWN:
	}
	if capability.GetAccessMode() == nil {
		return "", "", errors.New("access mode is required")
	}
	return "", "", fmt.Errorf("unsupported access mode %q", capability.GetAccessMode().GetMode())
}
