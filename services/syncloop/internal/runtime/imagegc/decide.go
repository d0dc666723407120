package imagegc

import (
	"slices"
	"time"
)

// highOff is the high threshold that disables removals for disk space.
const highOff = 100

// Policy decides when images are removed. Its fields are the kubelet's.
type Policy struct {
	// HighPercent is the usage of the file system above which images are removed, LowPercent is the usage to reach:
	// imageGCHighThresholdPercent and imageGCLowThresholdPercent. A HighPercent of 100 disables removals for disk space.
	HighPercent, LowPercent int
	// MinAge is the time after its first observation for which an image is never removed: imageMinimumGCAge.
	MinAge time.Duration
	// MaxAge is the time after which an unused image is removed even without a lack of space: imageMaximumGCAge. 0 is no
	// limit.
	MaxAge time.Duration
}

// Off reports whether the policy never removes an image.
func (p Policy) Off() bool { return p.HighPercent >= highOff && p.MaxAge == 0 }

// Image is an image of the runtime with the facts that decide about its removal.
type Image struct {
	// ID is the runtime's ID.
	ID string
	// Size is the size in bytes, including layers that are shared with other images.
	Size int64
	// FirstSeen is when this process first saw the image, LastUsed when it last saw it in use; zero if never.
	FirstSeen, LastUsed time.Time
	// InUse is true if a container uses the image or is about to. Pinned is true if the runtime keeps it, for example the
	// sandbox image. Such images are never removed.
	InUse, Pinned bool
}

// Usage is the usage of the file system of images in bytes.
type Usage struct{ Capacity, Available int64 }

// Percent returns the used part in percent, rounded up.
func (u Usage) Percent() int {
	if u.Capacity <= 0 {
		return 0
	}
	return highOff - int(min(u.Available, u.Capacity)*highOff/u.Capacity)
}

// ToFree returns how many bytes of images are to be removed; 0 if the file system is not too full.
func (p Policy) ToFree(u Usage) int64 {
	if p.HighPercent >= highOff || u.Percent() < p.HighPercent {
		return 0
	}
	return max(u.Capacity*int64(highOff-p.LowPercent)/highOff-min(u.Available, u.Capacity), 0)
}

// Expired returns the images that have been unused for longer than MaxAge, the least recently used first. began is when
// this process started to observe images: until MaxAge has passed since then, no image counts as unused for that long.
func (p Policy) Expired(images []Image, now, began time.Time) []Image {
	if p.MaxAge == 0 || now.Sub(began) <= p.MaxAge {
		return nil
	}
	var expired []Image
	for _, image := range order(images) {
		if now.Sub(image.LastUsed) > p.MaxAge {
			expired = append(expired, image)
		}
	}
	return expired
}

// ForSpace returns the images to remove to free a number of bytes, the least recently used first. It returns fewer if
// there are not enough, none for 0 bytes.
func (p Policy) ForSpace(images []Image, bytes int64, now time.Time) []Image {
	var chosen []Image
	for _, image := range order(images) {
		if bytes <= 0 {
			break
		}
		if now.Sub(image.FirstSeen) < p.MinAge {
			continue
		}
		chosen = append(chosen, image)
		bytes -= image.Size
	}
	return chosen
}

// order returns the images that may be removed, the least recently used first, and among equals the oldest first.
func order(images []Image) []Image {
	removable := slices.DeleteFunc(slices.Clone(images), func(i Image) bool { return i.InUse || i.Pinned })
	slices.SortStableFunc(removable, func(a, b Image) int {
		if c := a.LastUsed.Compare(b.LastUsed); c != 0 {
			return c
		}
		return a.FirstSeen.Compare(b.FirstSeen)
	})
	return removable
}
