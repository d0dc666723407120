package clients

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	streamv1 "github.com/quartet-node/quartet/gen/quartet/stream/v1"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/internal/stream/streamrpc"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/configobjects"
)

// Objects returns configmux's stream of objects other than pods. Subscribing waits for a configmux that is
// away.
func Objects(client configv1.ConfigServiceClient) stream.Source[*configobjects.Entry] {
	return streamrpc.NewSource(func(ctx context.Context, token []byte) (streamrpc.Receive[*configobjects.Entry], error) {
		watch, err := client.WatchObjects(ctx, &configv1.WatchObjectsRequest{ResumeToken: token}, grpc.WaitForReady(true))
		if err != nil {
			return nil, fmt.Errorf("watch configmux's config maps, secrets and claims: %w", err)
		}
		return func() (*streamv1.Frame, *configobjects.Entry, error) {
			m, err := watch.Recv()
			if err != nil {
				return nil, nil, err
			}
			entry, err := decodeObject(m)
			if errors.Is(err, errLaterKind) || err == nil && entry == nil && hasContent(m.GetFrame()) {
				return skipped(m.GetFrame()), nil, nil
			}
			return m.GetFrame(), entry, err
		}, nil
	})
}

// errLaterKind is the error of an object of a kind that only later versions of configmux know. This version has no use
// for it.
var errLaterKind = errors.New("a kind of objects of a later version")

// decodeObject returns the content of a message; nil if it carries neither an object nor a source. Its error has the
// name of the object and none of its content.
func decodeObject(m *configv1.WatchObjectsResponse) (*configobjects.Entry, error) {
	if source := m.GetSource(); source != nil {
		return &configobjects.Entry{Source: source.GetName(), Ready: source.GetReady()}, nil
	}
	wire := m.GetObject()
	if wire == nil {
		return nil, nil
	}
	entry := &configobjects.Entry{
		Key: configobjects.Key{
			Kind: configobjects.Kind(wire.GetKind()), Namespace: wire.GetNamespace(), Name: wire.GetName(),
		},
	}
	if m.GetFrame().GetRemoved() {
		return entry, nil
	}
	if wire.GetMissing() {
		entry.Missing = true
		return entry, nil
	}
	var err error
	switch entry.Key.Kind {
	case configobjects.ConfigMap:
		object := &v1.ConfigMap{}
		err, entry.Object = object.Unmarshal(wire.GetObject()), object
	case configobjects.Secret:
		object := &v1.Secret{}
		err, entry.Object = object.Unmarshal(wire.GetObject()), object
	case configobjects.Claim:
		object := &v1.PersistentVolumeClaim{}
		err, entry.Object = object.Unmarshal(wire.GetObject()), object
	case configobjects.Class:
		object := &storagev1.StorageClass{}
		err, entry.Object = object.Unmarshal(wire.GetObject()), object
	case configobjects.Driver:
		object := &storagev1.CSIDriver{}
		err, entry.Object = object.Unmarshal(wire.GetObject()), object
	case configobjects.Volume:
		object := &v1.PersistentVolume{}
		err, entry.Object = object.Unmarshal(wire.GetObject()), object
	case configobjects.Service:
		object := &v1.Service{}
		err, entry.Object = object.Unmarshal(wire.GetObject()), object
	case configobjects.Services:
		object := &v1.ServiceList{}
		err, entry.Object = object.Unmarshal(wire.GetObject()), object
	default:
		return nil, errLaterKind
	}
	if err != nil {
		return nil, fmt.Errorf("read %s that configmux sent: %w: run the same version of both", m.GetFrame().GetKey(), err)
	}
	return entry, nil
}
