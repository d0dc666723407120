package csi

import (
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
)

// Connect returns a connection to a driver whose calls have a deadline and a span, and whose errors contain no secret
// of the request. A timeout of zero is the kubelet's.
func Connect(
	inner grpc.ClientConnInterface, driver string, timeout time.Duration, tracer trace.Tracer,
) grpc.ClientConnInterface {
	if timeout == 0 {
		timeout = callTimeout
	}
	return conn{ClientConnInterface: inner, driver: driver, timeout: timeout, tracer: tracer}
}

// IsFinal reports whether a call that has failed is for sure not in progress any more.
func IsFinal(err error) bool { return isFinal(err) }

// AccessMode returns an access mode for a driver. singleWriter reports whether it has the capability
// SINGLE_NODE_MULTI_WRITER.
func AccessMode(mode v1.PersistentVolumeAccessMode, singleWriter bool) csi.VolumeCapability_AccessMode_Mode {
	return accessMode(mode, node{can: map[csi.NodeServiceCapability_RPC_Type]bool{
		csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER: singleWriter,
	}})
}

// Uses reports whether a volume is staged or published on this node, or about to be, or whether that is not known.
func (p *Plugin) Uses(driver, handle string) bool {
	if p.books.isRead() != nil {
		return true
	}
	staged, users := p.books.all()
	for _, all := range [][]record{staged, users} {
		for _, r := range all {
			if r.driver == driver && r.handle == handle {
				return true
			}
		}
	}
	return false
}
