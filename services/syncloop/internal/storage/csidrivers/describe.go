package csidrivers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/drivererror"
)

// maxNameLength and maxIDLength are the API server's limits for the name of a driver and its ID of a node.
const maxNameLength, maxIDLength = 63, 256

// maxSegments bounds the segments of a topology, which become labels of the Node. Real ones have up to five.
const maxSegments = 64

// Node is a driver's description of this node.
type Node struct {
	// Driver is the name of the driver.
	Driver string
	// ID is the driver's name for this node.
	ID string
	// Topology has the segments of the topology in which the driver's volumes are accessible from this node.
	Topology map[string]string
	// Volumes is the number of volumes of the driver that this node can have; 0 if the driver sets no limit.
	Volumes int64
}

// equal reports whether two descriptions are the same.
func (n Node) equal(other Node) bool {
	return n.Driver == other.Driver && n.ID == other.ID && n.Volumes == other.Volumes &&
		maps.Equal(n.Topology, other.Topology)
}

// checkName returns why the API server would not accept the name of a driver, or nil.
func checkName(name string) error {
	if name == "" {
		return errors.New("the name of the driver is empty")
	}
	if len(name) > maxNameLength {
		return fmt.Errorf("the name of the driver %.64q is longer than %d characters", name, maxNameLength)
	}
	if wrong := validation.IsDNS1123Subdomain(strings.ToLower(name)); len(wrong) > 0 {
		return fmt.Errorf("the name of the driver %q is invalid: %s", name, wrong[0])
	}
	return nil
}

// highest returns the highest supported version of a driver, which must be 1.x, in the kubelet's words.
func highest(name string, versions []string) (*version.Version, error) {
	if len(versions) == 0 {
		return nil, fmt.Errorf("CSI driver %q failed. Plugin returned an empty list for supported versions", name)
	}
	found, err := version.HighestSupportedVersion(versions)
	if err != nil {
		return nil, fmt.Errorf("CSI driver %q failed. None of the versions specified %q are supported. err=%w",
			name, versions, err)
	}
	return found, nil
}

// describe asks a driver about this node, and checks its answer.
func describe(ctx context.Context, name string, c *conn) (Node, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	info, err := csi.NewNodeClient(c).NodeGetInfo(ctx, &csi.NodeGetInfoRequest{})
	if err != nil {
		return Node{}, fmt.Errorf("ask the driver about this node with NodeGetInfo: %w", drivererror.Of(err))
	}
	node := Node{
		Driver: name, ID: info.GetNodeId(), Topology: info.GetAccessibleTopology().GetSegments(),
		Volumes: max(info.GetMaxVolumesPerNode(), 0),
	}
	if node.ID == "" {
		return Node{}, errors.New("error adding CSI driver node info: driverNodeID must not be empty")
	}
	if len(node.ID) > maxIDLength {
		return Node{}, fmt.Errorf("the driver's ID of this node is longer than %d characters: %.32s…", maxIDLength, node.ID)
	}
	if strings.ContainsFunc(node.ID, unicode.IsControl) {
		return Node{}, fmt.Errorf("the driver's ID of this node has control characters: %q", node.ID)
	}
	if len(node.Topology) > maxSegments {
		return Node{}, fmt.Errorf("the driver's topology has %d segments, more than %d", len(node.Topology), maxSegments)
	}
	for _, label := range slices.Sorted(maps.Keys(node.Topology)) {
		wrong := slices.Concat(validation.IsQualifiedName(label), validation.IsValidLabelValue(node.Topology[label]))
		if len(wrong) > 0 {
			return Node{}, fmt.Errorf("the topology %.64q: %.64q of the driver is no label of a Node: %s",
				label, node.Topology[label], wrong[0])
		}
	}
	return node, nil
}
