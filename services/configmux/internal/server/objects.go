package server

import (
	"context"
	"os"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	streamv1 "github.com/quartet-node/quartet/gen/quartet/stream/v1"
	"github.com/quartet-node/quartet/internal/rights"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/internal/stream/streamrpc"
	"github.com/quartet-node/quartet/services/configmux/internal/apiobject"
	"github.com/quartet-node/quartet/services/configmux/internal/localsource"
	"github.com/quartet-node/quartet/services/configmux/internal/mux"
)

// Objects provides the objects other than pods of a node without an API server. All fields except SecretUIDs
// and SecretNames are required.
type Objects struct {
	// Held provides the effective objects; *mux.Mux implements it.
	Held Held
	// Local stores applied objects; *localsource.Source implements it.
	Local interface {
		// ApplyObject creates or replaces an object.
		ApplyObject(ctx context.Context, object *apiobject.Object, dryRun bool) (localsource.AppliedObject, error)
		// DeleteObject deletes an object.
		DeleteObject(ctx context.Context, key apiobject.Key) error
	}
	// Rotate encrypts the secrets on disk with another key, and returns the number of files and the key's name.
	Rotate func(ctx context.Context) (files int, key string, err error)
	// SecretUIDs are the users, besides root and the process's own, who may read the values of secrets.
	SecretUIDs []int
	// SecretNames are the names of certificates that may read them from other machines.
	SecretNames []string
}

// Held provides objects.
type Held interface {
	// ObjectStream returns the stream of the objects of a selection.
	ObjectStream(selection mux.Selection) stream.Source[mux.ObjectEntry]
	// Objects returns summaries of the objects, sorted.
	Objects(kind apiobject.Kind) []*configv1.ObjectSummary
}

// mayHaveSecrets reports whether the caller may read the values of secrets.
func (o *Objects) mayHaveSecrets(ctx context.Context) bool {
	if names, remote := rpc.PeerNames(ctx); remote {
		return rights.Names{rights.Secrets: o.SecretNames}.Have(names, rights.Secrets)
	}
	uid, known := rpc.PeerUID(ctx)
	return known && (uid == 0 || uid == os.Geteuid() || slices.Contains(o.SecretUIDs, uid))
}

// WatchObjects implements configv1.ConfigServiceServer.
func (s *Server) WatchObjects(
	req *configv1.WatchObjectsRequest,
	out grpc.ServerStreamingServer[configv1.WatchObjectsResponse],
) error {
	selection := mux.Selection{Kind: apiobject.Kind(req.GetKind()), Namespace: req.GetNamespace(), Name: req.GetName()}
	held, opening, err := s.held(out.Context(), selection.Kind, true)
	if err == nil {
		err = s.checkStreamedKind(selection.Kind)
	}
	if err != nil {
		return err
	}
	select {
	case <-opening:
	case <-out.Context().Done():
		return out.Context().Err()
	}
	return streamrpc.Serve(
		out.Context(),
		held.ObjectStream(selection),
		req.GetResumeToken(),
		func(f *streamv1.Frame, e mux.ObjectEntry) error {
			return out.Send(&configv1.WatchObjectsResponse{Frame: f, Object: e.Object, Source: e.Source})
		},
	)
}

// checkKind returns the problem with the kind of a request. If every is true, the kind may be empty.
func checkKind(kind apiobject.Kind, every bool) error {
	if kind.Known() || kind == "" && every {
		return nil
	}
	return status.Error(codes.InvalidArgument, (&apiobject.KindError{Kind: string(kind)}).Error())
}

// checkStreamedKind returns the problem with the kind of a request of a stream. A site has kinds of its own.
func (s *Server) checkStreamedKind(kind apiobject.Kind) error {
	if s.site != nil && kind.OfSite() {
		return nil
	}
	return checkKind(kind, true)
}

// noObjects returns the error of a node that stores no objects.
func noObjects() error {
	return status.Error(
		codes.Unimplemented,
		"this node has no config maps, secrets, claims, storage classes and CSIDrivers of its own: its API server has them, or it replays a recording",
	)
}

// ListObjects implements configv1.ConfigServiceServer.
func (s *Server) ListObjects(
	ctx context.Context,
	req *configv1.ListObjectsRequest,
) (*configv1.ListObjectsResponse, error) {
	kind := apiobject.Kind(req.GetKind())
	held, _, err := s.held(ctx, kind, false)
	if err == nil {
		err = checkKind(kind, true)
	}
	if err != nil {
		return nil, err
	}
	return &configv1.ListObjectsResponse{Objects: held.Objects(kind)}, nil
}

// ApplyObject implements configv1.ConfigServiceServer.
func (s *Server) ApplyObject(
	ctx context.Context,
	req *configv1.ApplyObjectRequest,
) (*configv1.ApplyObjectResponse, error) {
	if s.objects == nil {
		return nil, noObjects()
	}
	object, err := apiobject.Unmarshal(apiobject.Kind(req.GetKind()), req.GetObject())
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	// Until the other sources are ready, their names are unknown.
	select {
	case <-s.opening:
	case <-ctx.Done():
		return nil, statusOf(ctx.Err())
	}
	applied, err := s.objects.Local.ApplyObject(ctx, object, req.GetDryRun())
	if err != nil {
		return nil, statusOf(err)
	}
	return &configv1.ApplyObjectResponse{
		Op:        opOf(applied.Op),
		Namespace: applied.Key.Namespace,
		Name:      applied.Key.Name,
	}, nil
}

// DeleteObject implements configv1.ConfigServiceServer.
func (s *Server) DeleteObject(
	ctx context.Context,
	req *configv1.DeleteObjectRequest,
) (*configv1.DeleteObjectResponse, error) {
	if s.objects == nil {
		return nil, noObjects()
	}
	key := apiobject.Key{Kind: apiobject.Kind(req.GetKind()), Namespace: req.GetNamespace(), Name: req.GetName()}
	if err := checkKind(key.Kind, false); err != nil {
		return nil, err
	}
	if err := s.objects.Local.DeleteObject(ctx, key); err != nil {
		return nil, statusOf(err)
	}
	return &configv1.DeleteObjectResponse{}, nil
}

// RotateSecretsKey implements configv1.ConfigServiceServer.
func (s *Server) RotateSecretsKey(
	ctx context.Context,
	_ *configv1.RotateSecretsKeyRequest,
) (*configv1.RotateSecretsKeyResponse, error) {
	if s.objects == nil {
		return nil, noObjects()
	}
	files, key, err := s.objects.Rotate(ctx)
	if err != nil {
		return nil, statusOf(err)
	}
	return &configv1.RotateSecretsKeyResponse{Files: int32(files), Key: key}, nil //nolint:gosec // one for each object
}
