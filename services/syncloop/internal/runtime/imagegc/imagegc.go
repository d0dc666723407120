// Package imagegc removes images that nobody needs, as the kubelet does: when the file system of images is too full,
// the ones that were used longest ago, until it is not; and those that were not used for too long. What it decides is
// pure, in decide.go.
//
// When an image was first seen and last used is known since this process began, and may be lost: images are then kept
// for longer. Package images gets images, and says which are about to be used.
package imagegc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/trace"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/cri"
	"github.com/quartet-node/quartet/internal/telemetry"
)

const (
	// period is how often is looked, as the kubelet does.
	period = 5 * time.Minute
	// aboutToBeUsed is for how long an image counts as in use after it was given to somebody who makes a container of it:
	// by then the container is there, or will not be.
	aboutToBeUsed = 10 * time.Minute
)

// Uses knows which images are about to be used; *images.Puller does.
type Uses interface {
	// UsedAt says when an image, by the runtime's ID, was last given to somebody; zero when it was not.
	UsedAt(id string) time.Time
	// Retire says whether an image may be removed, since nobody was given it after a time.
	Retire(id string, since time.Time) bool
}

// Config is what a Collector needs.
type Config struct {
	// Runtime and Images wait for the runtime's services and hand them out. Required.
	Runtime func(context.Context) (internalapi.RuntimeService, error)
	Images  func(context.Context) (internalapi.ImageManagerService, error)
	// Usage says how full the file system is that a directory is on. Required.
	Usage func(dir string) (Usage, error)
	// Uses knows which images are about to be used. Required.
	Uses Uses
	// Policy says what to remove and when.
	Policy Policy
	// Clock is the time. Required.
	Clock clock.WithTicker
	// Tracer makes the spans, Calls those of removals. Required.
	Tracer trace.Tracer
	Calls  cri.Caller
	// Logger tells of removals and failures. Required.
	Logger *slog.Logger
	// Metrics counts both; nil counts nothing.
	Metrics *Metrics
	// Events is told of failures. Required.
	Events Events
	// Left is told after each round which images the runtime has left, by ID, and when it was asked; nil tells nobody.
	Left func(ctx context.Context, ids []string, asked time.Time)
}

// Events is told what is wrong with the node; *podevents.Recorder keeps it.
type Events interface {
	NodeWarning(ctx context.Context, reason, message string)
}

// Collector removes images.
type Collector struct {
	cfg   Config
	began time.Time
	known map[string]record
	// failed is how many times in a row it has failed, told the reasons of which there has been an event since.
	failed int
	told   map[string]bool
	// turn has room for the one who looks and removes.
	turn chan struct{}
}

// record is what is remembered of an image.
type record struct{ firstSeen, lastUsed time.Time }

// New makes a Collector. It starts nothing.
func New(cfg Config) *Collector {
	cfg.Metrics = cmp.Or(cfg.Metrics, NewMetrics(nil))
	return &Collector{cfg: cfg, began: cfg.Clock.Now(), known: map[string]record{}, told: map[string]bool{}, turn: make(chan struct{}, 1)}
}

// Run makes a round at once and then every five minutes, until ctx ends; it then returns nil. A policy that removes
// nothing ends it at once.
func (c *Collector) Run(ctx context.Context) error {
	if c.cfg.Policy.Off() {
		c.cfg.Logger.InfoContext(ctx, "images are never removed: imageGCHighThresholdPercent is 100 and imageMaximumGCAge is 0")
		return nil
	}
	ticker := c.cfg.Clock.NewTicker(period)
	defer ticker.Stop()
	for {
		c.Round(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		}
	}
}

// Round removes what is to be removed now, and tells what has failed.
func (c *Collector) Round(ctx context.Context) {
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
		c.tell(ctx, c.collect(ctx))
	case <-ctx.Done():
	}
}

// Reasons of failures, those of the kubelet's events.
const (
	reasonFailed   = "ImageGCFailed"
	reasonNoSpace  = "FreeDiskSpaceFailed"
	reasonCapacity = "InvalidDiskCapacity"
)

// failure is an error with a reason of its own.
type failure struct {
	reason string
	error
}

// ErrorType is the error.type of a span that failed of it.
func (f *failure) ErrorType() string { return f.reason }

// tell says what has failed: the first time, which a runtime that has just started is enough for, and the second; then
// it is quiet until all is well again. Events are the kubelet's: a file system that is too full or has no size is one
// at once, any failure is one when it is not the first in a row; each once.
func (c *Collector) tell(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	if err == nil {
		if c.failed > 0 {
			c.cfg.Logger.InfoContext(ctx, "images are collected again")
		}
		c.failed = 0
		clear(c.told)
		return
	}
	reason := reasonFailed
	if f := (*failure)(nil); errors.As(err, &f) {
		reason = f.reason
		c.event(ctx, reason, err)
	}
	c.cfg.Metrics.failed(reason)
	c.failed++
	if c.failed > 1 {
		c.event(ctx, reasonFailed, err)
	}
	switch c.failed {
	case 1:
		c.cfg.Logger.WarnContext(ctx, "images could not be collected; this is tried again in five minutes", telemetry.KeyReason, reason, telemetry.KeyError, err)
	case 2:
		c.cfg.Logger.ErrorContext(ctx, "images could not be collected several times in a row; nothing more is said until they can", telemetry.KeyReason, reason, telemetry.KeyError, err)
	}
}

// event tells of a failure, unless there has been an event of that reason since all was well.
func (c *Collector) event(ctx context.Context, reason string, err error) {
	if !c.told[reason] {
		c.told[reason] = true
		c.cfg.Events.NodeWarning(ctx, reason, err.Error())
	}
}

// collect removes what is to be removed now.
func (c *Collector) collect(ctx context.Context) error {
	runtime, err := c.cfg.Runtime(ctx)
	if err != nil {
		return err
	}
	service, err := c.cfg.Images(ctx)
	if err != nil {
		return err
	}
	now := c.cfg.Clock.Now()
	images, err := c.look(ctx, runtime, service, now)
	if err != nil {
		return err
	}
	var errs []error
	r := &removal{Collector: c, service: service, since: now, gone: map[string]bool{}}
	if expired := c.cfg.Policy.Expired(images, now, c.began); len(expired) > 0 {
		errs = append(errs, r.all(ctx, causeAge, "unused for longer than imageMaximumGCAge", expired))
	}
	errs = append(errs, c.freeSpace(ctx, r, images))
	if c.cfg.Left != nil {
		var left []string
		for _, image := range images {
			if !r.gone[image.ID] {
				left = append(left, image.ID)
			}
		}
		c.cfg.Left(ctx, left, now)
	}
	return errors.Join(errs...)
}

// freeSpace removes images while the file system is too full.
func (c *Collector) freeSpace(ctx context.Context, r *removal, images []Image) error {
	usage, err := c.usage(ctx, r.service)
	if err != nil {
		return err
	}
	toFree := c.cfg.Policy.ToFree(usage)
	if toFree == 0 {
		return nil
	}
	why := fmt.Sprintf("%d %% of the file system are in use, to be brought down to %d %%", usage.Percent(), c.cfg.Policy.LowPercent)
	r.freed = 0
	var errs []error
	for r.freed < toFree && ctx.Err() == nil {
		next := c.cfg.Policy.ForSpace(r.left(images), toFree-r.freed, r.since)
		if len(next) == 0 {
			break
		}
		errs = append(errs, r.all(ctx, causeSpace, why, next)) // what cannot be removed makes room for the next
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("wanted to free %d bytes, but freed %d bytes: %w", toFree, r.freed, err)
	}
	if r.freed < toFree && ctx.Err() == nil {
		return &failure{reasonNoSpace, fmt.Errorf("%d %% of %.1f GiB of the image file system are used, and the removal of images that nobody uses has freed %d of %d bytes: "+
			"see what else takes room there, such as images in use, logs and volumes", usage.Percent(), float64(usage.Capacity)/(1<<30), r.freed, toFree)}
	}
	return nil
}

// usage asks how full the file system of images is.
func (c *Collector) usage(ctx context.Context, service internalapi.ImageManagerService) (Usage, error) {
	info, err := service.ImageFsInfo(cri.Quiet(ctx))
	if err != nil {
		return Usage{}, fmt.Errorf("ask the runtime where it keeps images: %w", err)
	}
	if len(info.GetImageFilesystems()) == 0 {
		return Usage{}, errors.New("the runtime does not say where it keeps images")
	}
	dir := info.GetImageFilesystems()[0].GetFsId().GetMountpoint()
	usage, err := c.cfg.Usage(dir)
	if err != nil {
		return Usage{}, fmt.Errorf("read how full the file system of %s is: %w", dir, err)
	}
	if usage.Capacity <= 0 {
		return Usage{}, &failure{reasonCapacity, fmt.Errorf("the file system of %s has no size", dir)}
	}
	return usage, nil
}

// removal is the removal of some images.
type removal struct {
	*Collector
	service internalapi.ImageManagerService
	// since is when was looked at who uses what; gone has the images that need not be tried again, freed is by their
	// sizes.
	since time.Time
	gone  map[string]bool
	freed int64
}

// left are the images that have not been tried.
func (r *removal) left(images []Image) []Image {
	var left []Image
	for _, image := range images {
		if !r.gone[image.ID] {
			left = append(left, image)
		}
	}
	return left
}

// all removes images, and fails with what could not be.
func (r *removal) all(ctx context.Context, reason cause, why string, images []Image) (err error) {
	ctx, span := telemetry.Start(ctx, r.cfg.Tracer, "image.collect", telemetry.Subject{})
	defer func() { telemetry.End(span, err) }()
	var errs []error
	for _, image := range images {
		if ctx.Err() != nil {
			break
		}
		r.gone[image.ID] = true
		if !r.cfg.Uses.Retire(image.ID, r.since) {
			continue // somebody has asked for it meanwhile
		}
		about := telemetry.Subject{Image: image.ID}
		err := r.cfg.Calls.Call(ctx, runtimeapi.ImageService_RemoveImage_FullMethodName, about, nil, func(ctx context.Context) error {
			return r.service.RemoveImage(ctx, &runtimeapi.ImageSpec{Image: image.ID})
		})
		if err != nil {
			errs = append(errs, fmt.Errorf("remove image %s: %w", image.ID, err))
			continue
		}
		r.freed += image.Size
		delete(r.known, image.ID)
		r.cfg.Metrics.collected(reason)
		r.cfg.Logger.InfoContext(ctx, "removed an image that nobody uses", telemetry.KeyImage, image.ID, telemetry.KeyReason, why)
	}
	return errors.Join(errs...)
}
