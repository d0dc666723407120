package show

import (
	"context"
	"testing"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	"github.com/quartet-node/quartet/internal/layout"
)

// ListImages implements EngineService.
func (f *fakeEngine) ListImages(context.Context, *enginev1.ListImagesRequest) (*enginev1.ListImagesResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return &enginev1.ListImagesResponse{Images: f.images}, nil
}

func TestGetImages(t *testing.T) {
	n := newNode(t)
	n.serve(layout.SyncLoop)
	if got := n.must("get", "images"); got != "There are no images on this node.\n" {
		t.Errorf("without images: %q", got)
	}
	n.engine.mu.Lock()
	n.engine.images = []*enginev1.Image{
		{Id: "sha256:11", Names: []string{"quartet.local/hello:1", "quartet.local/hello@sha256:aa"}, SizeBytes: 12_345_678},
		{Id: "sha256:22", Names: []string{"quartet.local/pause:1"}, SizeBytes: 700_000, Pinned: true},
		{Id: "sha256:33", SizeBytes: 40},
	}
	n.engine.mu.Unlock()
	golden(t, "images.txt", n.must("get", "images"))
	golden(t, "images-wide.txt", n.must("get", "image", "-o", "wide"))
	golden(t, "images-name.txt", n.must("get", "images", "-o", "name"))
	golden(t, "images.json", n.must("get", "images", "-o", "json"))
}
