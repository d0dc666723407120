package applycmd

import (
	"context"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/rpc"
)

// forgetfulEngine is a syncloop with the retained volume pvc-1.
type forgetfulEngine struct {
	enginev1.UnimplementedEngineServiceServer
}

func (forgetfulEngine) DeleteReleasedVolume(
	_ context.Context, r *enginev1.DeleteReleasedVolumeRequest,
) (*enginev1.DeleteReleasedVolumeResponse, error) {
	if r.GetName() != "pvc-1" {
		return nil, status.Error(codes.NotFound, "there is no such persistent volume")
	}
	return &enginev1.DeleteReleasedVolumeResponse{Driver: "disks.example.com", Handle: "vol-1"}, nil
}

func TestARetainedVolumeIsDeletedBySyncloop(t *testing.T) {
	n := newNode(t)
	ctx, cancel := context.WithCancel(t.Context())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- rpc.Serve(ctx, rpc.Config{
			Address: n.layout.Address(layout.SyncLoop), Health: rpc.NewHealth(), Ready: func() { close(ready) },
			Register: func(s *grpc.Server) { enginev1.RegisterEngineServiceServer(s, forgetfulEngine{}) },
		})
	}()
	defer func() {
		cancel()
		must(t, <-done)
	}()
	<-ready
	const deleted = "persistentvolume/pvc-1 deleted; its driver disks.example.com still has it as vol-1\n"
	n.expect("", []string{"delete", "pv", "pvc-1"}, deleted, "", "")
	n.expect("", []string{"delete", "persistentvolume/pvc-1"}, deleted, "", "")
	n.expect("", []string{"delete", "pv", "pvc-2"}, "", "persistentvolume/pvc-2: there is no such persistent volume\n",
		"1 of 1 could not be deleted: see above")
}
