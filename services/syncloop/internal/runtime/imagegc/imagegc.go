// Package imagegc removes unused images, as the kubelet does: the least recently used ones while the file system of
// images is too full, and those that have been unused for too long. The decisions are pure functions in decide.go.
//
// The times when an image was first seen and last used are in memory only. After a restart they are lost, and images
// are kept for longer. Package images pulls images and knows which ones are about to be used.
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
	// period is the time between two rounds. It is the kubelet's.
	period = 5 * time.Minute
	// aboutToBeUsed is how long an image counts as in use after it was returned to a caller that creates a container from
	// it. By then the container exists, or it never will.
	aboutToBeUsed = 10 * time.Minute
)

// Uses knows which images are about to be used; *images.Puller implements it.
type Uses interface {
	// UsedAt returns when an image, by the runtime's ID, was last returned to a caller; zero if never.
	UsedAt(id string) time.Time
	// Retire reports whether an image may be removed, because no caller got it after a time.
	Retire(id string, since time.Time) bool
}

// Config holds the dependencies of a Collector.
type Config struct {
	// Runtime and Images wait for the runtime's services and return them. Required.
	Runtime func(context.Context) (internalapi.RuntimeService, error)
	Images  func(context.Context) (internalapi.ImageManagerService, error)
	// Usage returns the usage of the file system of a directory. Required.
	Usage func(dir string) (Usage, error)
	// Uses knows which images are about to be used. Required.
	Uses Uses
	// Policy decides which images are removed, and when.
	Policy Policy
	// Clock is the time. Required.
	Clock clock.WithTicker
	// Tracer creates spans. Calls makes the runtime calls of removals. Required.
	Tracer trace.Tracer
	Calls  cri.Caller
	// Logger logs removals and failures. Required.
	Logger *slog.Logger
	// Metrics counts removals and failures; nil counts nothing.
	Metrics *Metrics
	// Events records failures. Required.
	Events Events
	// Left is called after each round with the IDs of the runtime's images and the time when they were listed; nil is a
	// no-op.
	Left func(ctx context.Context, ids []string, listed time.Time)
}

// Events records warnings about the node; *podevents.Recorder implements it.
type Events interface {
	NodeWarning(ctx context.Context, reason, message string)
}

// Collector removes images.
type Collector struct {
	cfg   Config
	began time.Time
	known map[string]record
	// failed is the number of consecutive failures. reported holds the reasons of the events that were recorded since the
	// last success.
	failed   int
	reported map[string]bool
	// turn has a capacity of one: only one round runs at a time.
	turn chan struct{}
}

// record is what a Collector remembers of an image.
type record struct{ firstSeen, lastUsed time.Time }

// New returns a Collector. It starts nothing.
func New(cfg Config) *Collector {
	cfg.Metrics = cmp.Or(cfg.Metrics, NewMetrics(nil))
	return &Collector{
		cfg: cfg, began: cfg.Clock.Now(), turn: make(chan struct{}, 1),
		known: map[string]record{}, reported: map[string]bool{},
	}
}

// Run runs a round at once and then every five minutes, until ctx ends; it then returns nil. If the policy never
// removes an image, Run returns at once.
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

// Round removes the images that are due, and reports failures.
func (c *Collector) Round(ctx context.Context) {
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
		c.report(ctx, c.collect(ctx))
	case <-ctx.Done():
	}
}

// Reasons of failures. They are those of the kubelet's events.
const (
	reasonFailed   = "ImageGCFailed"
	reasonNoSpace  = "FreeDiskSpaceFailed"
	reasonCapacity = "InvalidDiskCapacity"
)

// failure is an error with its own reason.
type failure struct {
	reason string
	error
}

// ErrorType returns the error.type of the failed span.
func (f *failure) ErrorType() string { return f.reason }

// report reports a failure. It logs the first failure, which may be due to a runtime that has just started, and the
// second one; further ones are not logged until a success. Events are the kubelet's, once for each reason: a file
// system that is too full or has no size is an event at once, other failures from the second consecutive one on.
func (c *Collector) report(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	if err == nil {
		if c.failed > 0 {
			c.cfg.Logger.InfoContext(ctx, "unused images can be removed again")
		}
		c.failed = 0
		clear(c.reported)
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
		c.cfg.Logger.WarnContext(ctx, "cannot remove unused images; retrying in five minutes", telemetry.KeyReason, reason, telemetry.KeyError, err)
	case 2:
		c.cfg.Logger.ErrorContext(ctx, "cannot remove unused images repeatedly; further failures are not logged until a success", telemetry.KeyReason, reason, telemetry.KeyError, err)
	}
}

// event records the event of a failure, unless one of the same reason was recorded since the last success.
func (c *Collector) event(ctx context.Context, reason string, err error) {
	if !c.reported[reason] {
		c.reported[reason] = true
		c.cfg.Events.NodeWarning(ctx, reason, err.Error())
	}
}

// collect removes the images that are due.
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
	images, err := c.observe(ctx, runtime, service, now)
	if err != nil {
		return err
	}
	var errs []error
	r := &removal{Collector: c, service: service, since: now, tried: map[string]bool{}}
	if expired := c.cfg.Policy.Expired(images, now, c.began); len(expired) > 0 {
		errs = append(errs, r.removeAll(ctx, causeAge, "unused for longer than imageMaximumGCAge", expired))
	}
	errs = append(errs, c.freeSpace(ctx, r, images))
	if c.cfg.Left != nil {
		var left []string
		for _, image := range images {
			if !r.tried[image.ID] {
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
		next := c.cfg.Policy.ForSpace(r.untried(images), toFree-r.freed, r.since)
		if len(next) == 0 {
			break
		}
		// the next iteration takes other images instead of those that could not be removed
		errs = append(errs, r.removeAll(ctx, causeSpace, why, next))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("wanted to free %d bytes, but freed %d bytes: %w", toFree, r.freed, err)
	}
	if r.freed < toFree && ctx.Err() == nil {
		return &failure{reasonNoSpace, fmt.Errorf("%d %% of %.1f GiB of the image file system are used, and the removal of unused images has freed %d of %d bytes: "+
			"check what else uses space there, such as images in use, logs and volumes", usage.Percent(), float64(usage.Capacity)/(1<<30), r.freed, toFree)}
	}
	return nil
}

// usage returns the usage of the file system of images.
func (c *Collector) usage(ctx context.Context, service internalapi.ImageManagerService) (Usage, error) {
	info, err := service.ImageFsInfo(cri.Quiet(ctx))
	if err != nil {
		return Usage{}, fmt.Errorf("ask the runtime where it stores images: %w", err)
	}
	if len(info.GetImageFilesystems()) == 0 {
		return Usage{}, errors.New("the runtime does not report where it stores images")
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

// removal is one removal of images.
type removal struct {
	*Collector
	service internalapi.ImageManagerService
	// since is when the uses of images were listed. tried holds the images that were tried already. freed is the sum of
	// the sizes of the removed images.
	since time.Time
	tried map[string]bool
	freed int64
}

// untried returns the images that have not been tried.
func (r *removal) untried(images []Image) []Image {
	var left []Image
	for _, image := range images {
		if !r.tried[image.ID] {
			left = append(left, image)
		}
	}
	return left
}

// removeAll removes images. It returns the errors of those that could not be removed.
func (r *removal) removeAll(ctx context.Context, reason cause, why string, images []Image) (err error) {
	ctx, span := telemetry.Start(ctx, r.cfg.Tracer, "image.collect", telemetry.Subject{})
	defer func() { telemetry.End(span, err) }()
	var errs []error
	for _, image := range images {
		if ctx.Err() != nil {
			break
		}
		r.tried[image.ID] = true
		if !r.cfg.Uses.Retire(image.ID, r.since) {
			continue // a caller has got it in the meantime
		}
		about := telemetry.Subject{Image: image.ID}
		const method = runtimeapi.ImageService_RemoveImage_FullMethodName
		err := r.cfg.Calls.Call(ctx, method, about, nil, func(ctx context.Context) error {
			return r.service.RemoveImage(ctx, &runtimeapi.ImageSpec{Image: image.ID})
		})
		if err != nil {
			errs = append(errs, fmt.Errorf("remove image %s: %w", image.ID, err))
			continue
		}
		r.freed += image.Size
		delete(r.known, image.ID)
		r.cfg.Metrics.collected(reason)
		r.cfg.Logger.InfoContext(ctx, "removed an unused image", telemetry.KeyImage, image.ID, telemetry.KeyReason, why)
	}
	return errors.Join(errs...)
}
