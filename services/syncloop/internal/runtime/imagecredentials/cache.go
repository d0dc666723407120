package imagecredentials

import (
	"maps"
	"sync"
	"time"

	"k8s.io/kubernetes/pkg/credentialprovider"
)

const (
	// purgeEvery is the time between two removals of expired responses. It is the kubelet's.
	purgeEvery = 15 * time.Minute
	// maxKept is the largest number of cached responses of one plugin. The kubelet has no limit.
	maxKept = 1000
)

// cache holds the responses of a plugin.
type cache struct {
	mu     sync.Mutex
	kept   map[string]answer
	purged time.Time
}

type answer struct {
	config credentialprovider.DockerConfig
	until  time.Time
}

func newCache() *cache { return &cache{kept: map[string]answer{}} }

// get returns the response for a key if it has not expired.
func (c *cache) get(now time.Time, key string) (credentialprovider.DockerConfig, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now.Sub(c.purged) > purgeEvery {
		c.purge(now)
	}
	one, ok := c.kept[key]
	if !ok || now.After(one.until) {
		return nil, false
	}
	return one.config, true
}

// put stores a response. If there are too many, it removes the one that expires first.
func (c *cache) put(key string, config credentialprovider.DockerConfig, now time.Time, holds time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kept[key] = answer{config: config, until: now.Add(holds)}
	if len(c.kept) <= maxKept {
		return
	}
	c.purge(now)
	for len(c.kept) > maxKept {
		first := key
		for key, one := range c.kept {
			if one.until.Before(c.kept[first].until) {
				first = key
			}
		}
		delete(c.kept, first)
	}
}

// purge removes expired responses. The caller holds the lock.
func (c *cache) purge(now time.Time) {
	maps.DeleteFunc(c.kept, func(_ string, one answer) bool { return now.After(one.until) })
	c.purged = now
}
