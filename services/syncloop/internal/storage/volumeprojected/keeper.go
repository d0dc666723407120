package volumeprojected

import "sync"

// keeper caches the immutable objects of volumes as long as the volumes exist.
type keeper[T any] struct {
	mu sync.Mutex
	// kept maps the directory of a volume and the name to the object.
	kept map[string]map[string]T
}

// get returns a cached object, or calls ask, which also reports whether it is immutable.
func (k *keeper[T]) get(dir, name string, ask func() (T, bool, error)) (T, error) {
	k.mu.Lock()
	object, ok := k.kept[dir][name]
	k.mu.Unlock()
	if ok {
		return object, nil
	}
	object, immutable, err := ask()
	if !immutable {
		return object, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.kept == nil {
		k.kept = map[string]map[string]T{}
	}
	if k.kept[dir] == nil {
		k.kept[dir] = map[string]T{}
	}
	k.kept[dir][name] = object
	return object, nil
}

// forget drops the objects of a volume.
func (k *keeper[T]) forget(dir string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.kept, dir)
}
