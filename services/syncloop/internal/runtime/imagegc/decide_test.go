package imagegc_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/imagegc"
)

var epoch = time.Date(2024, 5, 1, 12, 0, 0, 0, time.UTC)

// at returns a time in minutes; 0 is never.
func at(minutes int) time.Time {
	if minutes == 0 {
		return time.Time{}
	}
	return epoch.Add(time.Duration(minutes) * time.Minute)
}

// ids returns the IDs of images in their order.
func ids(images []imagegc.Image) string {
	var names []string
	for _, image := range images {
		names = append(names, image.ID)
	}
	return strings.Join(names, " ")
}

func TestHowMuchIsToBeFreed(t *testing.T) {
	kubelets := imagegc.Policy{HighPercent: 85, LowPercent: 80}
	for _, c := range []struct {
		policy              imagegc.Policy
		capacity, available int64
		percent             int
		want                int64
	}{
		{kubelets, 1000, 1000, 0, 0},
		{kubelets, 1000, 160, 84, 0},
		{kubelets, 1000, 151, 85, 49}, // the percentage is rounded up
		{kubelets, 1000, 150, 85, 50},
		{kubelets, 1000, 0, 100, 200},
		{kubelets, 1000, 2000, 0, 0}, // a file system with invalid values
		{kubelets, 0, 0, 0, 0},
		{imagegc.Policy{HighPercent: 100, LowPercent: 80}, 1000, 0, 100, 0}, // disabled
		{imagegc.Policy{HighPercent: 1, LowPercent: 0}, 1000, 900, 10, 100},
		{kubelets, 1 << 56, 0, 100, (1 << 56) / 5},
	} {
		u := imagegc.Usage{Capacity: c.capacity, Available: c.available}
		if got := u.Percent(); got != c.percent {
			t.Errorf("%+v: %d %%, want %d %%", u, got, c.percent)
		}
		if got := c.policy.ToFree(u); got != c.want {
			t.Errorf("%+v of %+v: %d bytes, want %d", c.policy, u, got, c.want)
		}
	}
}

func TestWhatIsRemovedForSpace(t *testing.T) {
	policy := imagegc.Policy{HighPercent: 85, LowPercent: 80, MinAge: 2 * time.Minute}
	now := at(100)
	old, older := imagegc.Image{ID: "old", Size: 10, FirstSeen: at(1), LastUsed: at(50)}, imagegc.Image{ID: "older", Size: 10, FirstSeen: at(2), LastUsed: at(40)}
	never, neverEarlier := imagegc.Image{ID: "never", Size: 10, FirstSeen: at(5)}, imagegc.Image{ID: "never-earlier", Size: 10, FirstSeen: at(4)}
	used := imagegc.Image{ID: "used", Size: 1000, FirstSeen: at(1), InUse: true}
	pinned := imagegc.Image{ID: "pinned", Size: 1000, FirstSeen: at(1), Pinned: true}
	young := imagegc.Image{ID: "young", Size: 1000, FirstSeen: now.Add(-2*time.Minute + time.Nanosecond)}
	grown := imagegc.Image{ID: "grown", Size: 10, FirstSeen: now.Add(-2 * time.Minute)}
	for name, c := range map[string]struct {
		images []imagegc.Image
		bytes  int64
		want   string
	}{
		"nothing to free":                {[]imagegc.Image{old}, 0, ""},
		"no images":                      {nil, 10, ""},
		"the one that is oldest in use":  {[]imagegc.Image{old, older}, 10, "older"},
		"as many as it takes":            {[]imagegc.Image{old, older}, 11, "older old"},
		"never used before ever used":    {[]imagegc.Image{old, never}, 10, "never"},
		"of two, that was there longest": {[]imagegc.Image{never, neverEarlier}, 10, "never-earlier"},
		"never one in use, or pinned":    {[]imagegc.Image{used, pinned}, 1, ""},
		"never a young one":              {[]imagegc.Image{young, old}, 1000, "old"},
		"one of just the least age":      {[]imagegc.Image{grown}, 1, "grown"},
		"all there are, if too few":      {[]imagegc.Image{old, older, never, used}, 1000, "never older old"},
	} {
		if got := ids(policy.ForSpace(c.images, c.bytes, now)); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestWhatIsRemovedForItsAge(t *testing.T) {
	images := []imagegc.Image{
		{ID: "recent", FirstSeen: at(1), LastUsed: at(1000 - 59)},
		{ID: "just", FirstSeen: at(1), LastUsed: at(1000 - 60)},
		{ID: "long", FirstSeen: at(1), LastUsed: at(1000 - 61)},
		{ID: "never", FirstSeen: at(999)},
		{ID: "used", InUse: true},
		{ID: "pinned", Pinned: true},
	}
	for _, c := range []struct {
		maxAge time.Duration
		began  time.Time
		want   string
	}{
		{0, at(1), ""},
		{time.Hour, at(1000 - 60), ""}, // the collector has not run for that long
		{time.Hour, at(1000 - 61), "never long"},
	} {
		if got := ids(imagegc.Policy{MaxAge: c.maxAge}.Expired(images, at(1000), c.began)); got != c.want {
			t.Errorf("%s, began %s: %q, want %q", c.maxAge, c.began, got, c.want)
		}
	}
}

// TestNoImageIsRemovedThatMustNotBe checks for any images and any policy: no image that is in use, pinned or young is
// removed, no more images than needed are removed, enough images are removed, and the least recently used ones are
// removed first.
func TestNoImageIsRemovedThatMustNotBe(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		minutes := rapid.IntRange(0, 200)
		policy := imagegc.Policy{
			HighPercent: rapid.IntRange(1, 100).Draw(t, "high"), MinAge: time.Duration(minutes.Draw(t, "least")) * time.Minute, MaxAge: time.Duration(minutes.Draw(t, "most")) * time.Minute,
		}
		policy.LowPercent = rapid.IntRange(0, policy.HighPercent-1).Draw(t, "low")
		var images []imagegc.Image
		for i := range rapid.IntRange(0, 12).Draw(t, "images") {
			images = append(images, imagegc.Image{
				ID: fmt.Sprint(i), Size: rapid.Int64Range(0, 500).Draw(t, "size"), FirstSeen: at(minutes.Draw(t, "seen")), LastUsed: at(minutes.Draw(t, "used")),
				InUse: rapid.Bool().Draw(t, "inUse"), Pinned: rapid.Bool().Draw(t, "pinned"),
			})
		}
		before := slices.Clone(images)
		usage := imagegc.Usage{Capacity: rapid.Int64Range(1<<20, 1<<50).Draw(t, "capacity")}
		usage.Available = rapid.Int64Range(0, usage.Capacity).Draw(t, "available")
		now := at(200)
		toFree := policy.ToFree(usage)
		if toFree > 0 && (policy.HighPercent == 100 || usage.Percent() < policy.HighPercent) {
			t.Fatalf("%d bytes are to be freed of %+v by %+v", toFree, usage, policy)
		}
		after := imagegc.Usage{Capacity: usage.Capacity, Available: usage.Available + toFree}
		if toFree > 0 && after.Percent() > policy.LowPercent+1 {
			t.Fatalf("after %d bytes %d %% are in use, wanted %d %%", toFree, after.Percent(), policy.LowPercent)
		}
		bytes := rapid.Int64Range(0, 3000).Draw(t, "bytes")
		removed, expired := policy.ForSpace(images, bytes, now), policy.Expired(images, now, at(1))
		for _, image := range slices.Concat(removed, expired) {
			if image.InUse || image.Pinned {
				t.Fatalf("%+v is removed", image)
			}
		}
		var freed int64
		for i, image := range removed {
			if freed >= bytes {
				t.Fatalf("%+v is removed, and there is enough without", image)
			}
			if now.Sub(image.FirstSeen) < policy.MinAge {
				t.Fatalf("%+v is removed before its time", image)
			}
			if i > 0 && image.LastUsed.Before(removed[i-1].LastUsed) {
				t.Fatalf("%+v is removed after one that was used later", image)
			}
			freed += image.Size
		}
		if freed < bytes {
			for _, image := range images {
				kept := !slices.ContainsFunc(removed, func(r imagegc.Image) bool { return r.ID == image.ID })
				if kept && !image.InUse && !image.Pinned && now.Sub(image.FirstSeen) >= policy.MinAge {
					t.Fatalf("%+v is left although %d bytes are missing", image, bytes-freed)
				}
			}
		}
		if !slices.Equal(before, images) {
			t.Fatal("the images that were given have been changed")
		}
	})
}
