package volumeprojected

import "sync"

// keeper keeps the immutable ones of the objects that volumes are made of, for as long as the volumes are there.
type keeper[T any] struct {
	mu sync.Mutex
	// kept has them by the folder of the volume and their name.
	kept map[string]map[string]T
}

// get gives an object that is kept, or asks for it; ask says also whether it is immutable.
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

// forget drops what is kept for a volume.
func (k *keeper[T]) forget(dir string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.kept, dir)
}
