package imagegc

import (
	"slices"
	"time"
)

// highOff is the high threshold that turns the collection for space off.
const highOff = 100

// Policy says when images are removed: the kubelet's fields.
type Policy struct {
	// HighPercent is how much of the file system may be in use before images are removed, LowPercent to where it is
	// brought down, imageGCHighThresholdPercent and imageGCLowThresholdPercent. A HighPercent of 100 removes none for
	// space.
	HighPercent, LowPercent int
	// MinAge is how long an image is kept after it was first seen, whatever the space: imageMinimumGCAge.
	MinAge time.Duration
	// MaxAge is how long an image may be unused, whatever the space: imageMaximumGCAge. 0 is for ever.
	MaxAge time.Duration
}

// Off tells whether the policy never removes an image.
func (p Policy) Off() bool { return p.HighPercent >= highOff && p.MaxAge == 0 }

// Image is an image of the runtime, as far as its removal goes.
type Image struct {
	// ID is the runtime's.
	ID string
	// Size is in bytes, with the layers that it shares with others.
	Size int64
	// FirstSeen is when this process first saw it, LastUsed when it last saw it in use; zero for never.
	FirstSeen, LastUsed time.Time
	// InUse is true while a container is of it, or one is about to be. Pinned is true when the runtime wants to keep it,
	// as the image of sandboxes. Neither is ever removed.
	InUse, Pinned bool
}

// Usage is how full the file system of images is, in bytes.
type Usage struct{ Capacity, Available int64 }

// Percent is how much of it is in use, rounded up.
func (u Usage) Percent() int {
	if u.Capacity <= 0 {
		return 0
	}
	return highOff - int(min(u.Available, u.Capacity)*highOff/u.Capacity)
}

// ToFree is how many bytes images have to give back; 0 when the file system is not too full.
func (p Policy) ToFree(u Usage) int64 {
	if p.HighPercent >= highOff || u.Percent() < p.HighPercent {
		return 0
	}
	return max(u.Capacity*int64(highOff-p.LowPercent)/highOff-min(u.Available, u.Capacity), 0)
}

// Expired are the images that have been unused for too long, the one that was used longest ago first. Began is when
// this process began to look: before it has looked for as long, nothing is known to be unused for so long.
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

// ForSpace are the images whose removal frees so many bytes, by their sizes, the one that was used longest ago first;
// fewer when there are no more to remove, none for 0 bytes.
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

// order has the images that may be removed at all, the one that was used longest ago first, then the one that has been
// there longest.
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
