package imagegc

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/quartet-node/quartet/internal/cri"
	"github.com/quartet-node/quartet/internal/podlabels"
)

// observe lists the runtime's images and their uses, and records when images are in use.
func (c *Collector) observe(
	ctx context.Context,
	runtime internalapi.RuntimeService,
	service internalapi.ImageManagerService,
	now time.Time,
) ([]Image, error) {
	ctx = cri.Quiet(ctx)
	list, err := service.ListImages(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("list the runtime's images: %w", err)
	}
	containers, err := runtime.ListContainers(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("list the runtime's containers: %w", err)
	}
	used := named(containers)
	images := make([]Image, 0, len(list))
	known := make(map[string]record, len(list))
	for _, image := range list {
		r, found := c.known[image.GetId()]
		if !found {
			r.firstSeen = now
		}
		given := c.cfg.Uses.UsedAt(image.GetId())
		inUse := uses(used, image)
		switch {
		case inUse:
			r.lastUsed = now
		case given.After(r.lastUsed):
			r.lastUsed = given
		}
		known[image.GetId()] = r
		images = append(images, Image{
			ID: image.GetId(), Size: int64(min(image.GetSize(), math.MaxInt64)),
			FirstSeen: r.firstSeen, LastUsed: r.lastUsed, Pinned: image.GetPinned(),
			InUse: inUse || (!given.IsZero() && now.Sub(given) < aboutToBeUsed),
		})
	}
	c.known = known // drops the removed images
	return images, nil
}

// named returns all names by which containers, ended ones included, refer to their images and to the images that are
// mounted in them. Runtimes differ in which of the three fields holds the ID. A name may have moved to another image;
// then that image is kept although it is unused.
func named(containers []*runtimeapi.Container) map[string]bool {
	used := map[string]bool{}
	for _, c := range containers {
		for _, name := range []string{c.GetImageId(), c.GetImageRef(), c.GetImage().GetImage()} {
			used[name] = true
		}
		for ref := range strings.SplitSeq(c.GetAnnotations()[podlabels.ImageVolumes], ",") {
			used[ref] = true
		}
	}
	return used
}

// uses reports whether an image is among the used ones.
func uses(used map[string]bool, image *runtimeapi.Image) bool {
	is := func(name string) bool { return used[name] }
	return used[image.GetId()] ||
		slices.ContainsFunc(image.GetRepoTags(), is) || slices.ContainsFunc(image.GetRepoDigests(), is)
}
