package claims

import (
	"context"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/internal/reflector"
)

// drivers caches the CSIDriver objects of the cluster, from the first pod or caller that needs one.
type drivers struct {
	// wanted has capacity for one signal, that of the first use. answered is closed at the first answer or failure.
	wanted, answered chan struct{}
	// objects maps names to objects; nil before the first list. err is the error of the last list.
	objects map[string]*storagev1.CSIDriver
	err     error
	// late is true if a caller has got no answer.
	late bool
}

func newDrivers() drivers {
	return drivers{wanted: make(chan struct{}, 1), answered: make(chan struct{})}
}

// start makes Run watch the drivers.
func (d *drivers) start() {
	select {
	case d.wanted <- struct{}{}:
	default:
	}
}

// followDrivers watches the drivers from the first use until ctx ends, whose error it returns.
func (c *Cluster) followDrivers(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-c.drivers.wanted:
	}
	return reflector.Run(ctx, reflector.Config{
		Client: c.cfg.Storage, Resource: "csidrivers", Empty: &storagev1.CSIDriver{}, Handler: follower{c}, Clock: c.cfg.Clock,
	})
}

// Driver implements Source. It waits up to firstAnswer for the first list.
func (c *Cluster) Driver(ctx context.Context, name string) (*storagev1.CSIDriver, error) {
	c.drivers.start()
	timer := c.cfg.Clock.NewTimer(firstAnswer)
	defer timer.Stop()
	select {
	case <-c.drivers.answered:
	case <-timer.C():
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.drivers.objects != nil {
		return c.drivers.objects[name], nil
	}
	c.drivers.late = true
	return nil, &Error{
		Cause: CauseUnknown, Object: "csidriver " + name, err: c.drivers.err,
		message: "CSIDriver " + name + " is not known yet: the API server: " + why(c.drivers.err),
	}
}

// follower handles the objects of the watch.
type follower struct{ c *Cluster }

// Listed implements reflector.Handler.
func (f follower) Listed(objects []runtime.Object, _ time.Time) {
	now := make(map[string]*storagev1.CSIDriver, len(objects))
	for _, object := range objects {
		if driver, ok := object.(*storagev1.CSIDriver); ok {
			now[driver.Name] = driver
		}
	}
	f.hears(func(d *drivers) (changed []string) {
		for name := range d.objects {
			if now[name] == nil {
				changed = append(changed, name)
			}
		}
		for name, driver := range now {
			if before := d.objects[name]; d.objects != nil && (before == nil || versionOf(before) != versionOf(driver)) {
				changed = append(changed, name)
			}
		}
		d.objects, d.err = now, nil
		return changed
	})
}

// Changed implements reflector.Handler.
func (f follower) Changed(object runtime.Object) {
	if driver, ok := object.(*storagev1.CSIDriver); ok {
		f.hears(func(d *drivers) []string {
			d.objects[driver.Name] = driver
			return []string{driver.Name}
		})
	}
}

// Deleted implements reflector.Handler.
func (f follower) Deleted(object runtime.Object) {
	if driver, ok := object.(*storagev1.CSIDriver); ok {
		f.hears(func(d *drivers) []string {
			delete(d.objects, driver.Name)
			return []string{driver.Name}
		})
	}
}

// ListFailed implements reflector.Handler.
func (f follower) ListFailed(err error) {
	f.hears(func(d *drivers) []string {
		d.err = err
		return nil
	})
}

// hears records an answer, which returns the names of changed drivers, and notifies their pods. After the first list it
// notifies all pods if a caller was too early for it.
func (f follower) hears(note func(*drivers) []string) {
	c := f.c
	c.mu.Lock()
	d := &c.drivers
	first := d.objects == nil
	changed := note(d)
	var affected []types.UID
	for uid, u := range c.pods {
		if first && d.objects != nil && d.late || c.usesDriver(u, changed) {
			affected = append(affected, uid)
		}
	}
	if !isClosed(d.answered) {
		close(d.answered)
	}
	c.mu.Unlock()
	c.notify(affected)
}

// usesDriver reports whether a pod has a volume of one of these drivers. The caller holds mu.
func (c *Cluster) usesDriver(u use, names []string) bool {
	if slices.ContainsFunc(u.drivers, func(name string) bool { return slices.Contains(names, name) }) {
		return true
	}
	return slices.ContainsFunc(c.reach(u), func(k key) bool {
		volume, ok := c.object(k).(*v1.PersistentVolume)
		return ok && volume.Spec.CSI != nil && slices.Contains(names, volume.Spec.CSI.Driver)
	})
}
