package heartbeat

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"
	"k8s.io/utils/clock"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	"github.com/quartet-node/quartet/services/nodestatus/internal/nodeobject"
)

const (
	// imagesInterval is the polling interval of images, as in the kubelet.
	imagesInterval = 30 * time.Second
	// imagesTimeout bounds syncloop's answer, for which it queries the runtime.
	imagesTimeout = 10 * time.Second
)

// ListImages returns the images of the node from syncloop; nil, and not an empty list, if syncloop does not answer.
type ListImages func(ctx context.Context) []nodeobject.Image

// AskImages returns a ListImages for a connection to syncloop.
func AskImages(conn grpc.ClientConnInterface) ListImages {
	client := enginev1.NewEngineServiceClient(conn)
	return func(ctx context.Context) []nodeobject.Image {
		response, err := client.ListImages(ctx, &enginev1.ListImagesRequest{})
		if err != nil {
			return nil // the poll of syncloop's health reports that it is unreachable
		}
		images := make([]nodeobject.Image, 0, len(response.GetImages()))
		for _, image := range response.GetImages() {
			bytes := int64(image.GetSizeBytes()) //nolint:gosec // less than 8 EiB
			images = append(images, nodeobject.Image{Names: image.GetNames(), Bytes: bytes})
		}
		return images
	}
}

// imageWatcher polls the images, and keeps the last answer.
type imageWatcher struct {
	list  ListImages
	clock clock.Clock

	mu   sync.Mutex
	last []nodeobject.Image
}

// run polls until ctx ends.
func (w *imageWatcher) run(ctx context.Context) {
	for ctx.Err() == nil {
		interval := imagesInterval
		if !w.once(ctx) {
			interval = askInterval
		}
		select {
		case <-ctx.Done():
		case <-w.clock.After(interval):
		}
	}
}

func (w *imageWatcher) once(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, imagesTimeout)
	defer cancel()
	images := w.list(ctx)
	if images == nil {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last = images
	return true
}

func (w *imageWatcher) images() []nodeobject.Image {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.last
}
