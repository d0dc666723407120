package csidriver

import (
	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// check returns what the specification requires of a request and it does not have; nil if it is complete.
func check(request any) error {
	switch r := request.(type) {
	case *csi.CreateVolumeRequest:
		return missing("name", r.GetName() != "", "volume_capabilities", len(r.GetVolumeCapabilities()) > 0)
	case *csi.ControllerPublishVolumeRequest:
		return missing("volume_id", r.GetVolumeId() != "", "node_id", r.GetNodeId() != "",
			"volume_capability", r.GetVolumeCapability() != nil)
	case *csi.ValidateVolumeCapabilitiesRequest:
		return missing("volume_id", r.GetVolumeId() != "", "volume_capabilities", len(r.GetVolumeCapabilities()) > 0)
	case *csi.ControllerExpandVolumeRequest:
		return missing("volume_id", r.GetVolumeId() != "", "capacity_range", r.GetCapacityRange() != nil)
	case *csi.NodeStageVolumeRequest:
		return missing("volume_id", r.GetVolumeId() != "", "staging_target_path", r.GetStagingTargetPath() != "",
			"volume_capability", r.GetVolumeCapability() != nil)
	case *csi.NodeUnstageVolumeRequest:
		return missing("volume_id", r.GetVolumeId() != "", "staging_target_path", r.GetStagingTargetPath() != "")
	case *csi.NodePublishVolumeRequest:
		return missing("volume_id", r.GetVolumeId() != "", "target_path", r.GetTargetPath() != "",
			"volume_capability", r.GetVolumeCapability() != nil)
	case *csi.NodeUnpublishVolumeRequest:
		return missing("volume_id", r.GetVolumeId() != "", "target_path", r.GetTargetPath() != "")
	case interface {
		GetVolumeId() string
		GetVolumePath() string
	}: // NodeGetVolumeStatsRequest, NodeExpandVolumeRequest
		return missing("volume_id", r.GetVolumeId() != "", "volume_path", r.GetVolumePath() != "")
	case *csi.NodeGetVolumeHealthRequest:
		return missing("volume_id", r.GetVolumeId() != "", "volume_publish_path", r.GetVolumePublishPath() != "")
	case interface{ GetVolumeId() string }: // DeleteVolumeRequest, ControllerUnpublishVolumeRequest
		return missing("volume_id", r.GetVolumeId() != "")
	}
	return nil
}

// missing returns an error with the first field that is missing, from names and whether they are there.
func missing(fields ...any) error {
	for i := 0; i+1 < len(fields); i += 2 {
		if there, ok := fields[i+1].(bool); ok && !there {
			return status.Errorf(codes.InvalidArgument, "%v is missing", fields[i])
		}
	}
	return nil
}
