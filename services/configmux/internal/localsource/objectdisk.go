package localsource

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/services/configmux/internal/apiobject"
	"github.com/quartet-node/quartet/services/configmux/internal/sealing"
	"github.com/quartet-node/quartet/services/configmux/internal/source"
)

const (
	// configMapExtension and secretExtension are those of files with an object.
	configMapExtension = ".configmap"
	secretExtension    = ".secret"
	// maxRecord bounds a file with an object, which has 1 MiB of data at most, in bytes: JSON and base64 make that larger.
	maxRecord = 8 << 20
)

// record is what a file with an object holds.
type record struct {
	Kind      apiobject.Kind `json:"kind"`
	Namespace string         `json:"namespace"`
	Name      string         `json:"name"`
	CreatedAt time.Time      `json:"createdAt"`
	// ConfigMap is the object, of a config map.
	ConfigMap *v1.ConfigMap `json:"configMap,omitempty"`
	// Sealed are the bytes of a secret, encrypted, and about the path of its key.
	Sealed *sealing.Box `json:"sealed,omitempty"`
}

func (r record) key() apiobject.Key {
	return apiobject.Key{Kind: r.Kind, Namespace: r.Namespace, Name: r.Name}
}

// objectPath is the file of an object. A hash has no slash, and is never too long for a file's name.
func (s *Source) objectPath(key apiobject.Key) string {
	extension := configMapExtension
	if key.Kind == apiobject.Secret {
		extension = secretExtension
	}
	sum := sha256.Sum256([]byte(key.Path()))
	return filepath.Join(s.cfg.Dir, hex.EncodeToString(sum[:16])+extension)
}

// encodeObject returns what the file of an object is to hold.
func (s *Source) encodeObject(e *objectEntry) ([]byte, error) {
	key := e.object.Key()
	r := record{Kind: key.Kind, Namespace: key.Namespace, Name: key.Name, CreatedAt: e.createdAt.UTC(), ConfigMap: e.object.ConfigMap}
	if key.Kind == apiobject.Secret {
		box, err := s.cfg.Seals.Seal(e.content, key.Path())
		if err != nil {
			return nil, err
		}
		r.Sealed = &box
	}
	data, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encoding the %s: %w", key, err)
	}
	return data, nil
}

func (s *Source) writeRecord(path string, r record) error {
	data, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encoding the %s: %w", r.key(), err)
	}
	if err := statedir.WriteFileAtomic(path, data, fileMode); err != nil {
		return fmt.Errorf("keeping the %s: %w: see that there is space in %s and that it can be written, and try again", r.key(), err, s.cfg.Dir)
	}
	return nil
}

// readRecord reads the file of an object.
func readRecord(path string) (record, error) {
	var r record
	data, err := readRegular(path, maxRecord)
	if err != nil {
		return r, err
	}
	if json.Unmarshal(data, &r) != nil {
		return record{}, errors.New("it is not JSON of a config map or a secret")
	}
	return r, nil
}

// readObject reads the file of one object into memory.
func (s *Source) readObject(path string) error {
	r, err := readRecord(path)
	if err != nil {
		return err
	}
	if !r.Kind.Known() || s.objectPath(r.key()) != path {
		return fmt.Errorf("it is not the file of what is in it, %s", r.key())
	}
	object := &apiobject.Object{ConfigMap: r.ConfigMap}
	switch {
	case r.Kind == apiobject.Secret && r.Sealed == nil:
		return errors.New("it has no encrypted secret")
	case r.Kind == apiobject.Secret:
		data, err := s.cfg.Seals.Open(*r.Sealed, r.key().Path())
		if err != nil {
			return &sealedError{key: r.key(), err: err}
		}
		if object, err = apiobject.Unmarshal(r.Kind, data); err != nil {
			return err
		}
	case r.ConfigMap == nil:
		return errors.New("it has no config map")
	}
	e, err := s.objectEntryOf(object)
	if err != nil {
		return err
	}
	if object.Key() != r.key() {
		return fmt.Errorf("it is not the file of the %s that is in it", object.Key())
	}
	e.createdAt = r.CreatedAt
	s.objects[object.Key()] = e
	return nil
}

// sealedError says that a secret cannot be decrypted.
type sealedError struct {
	key apiobject.Key
	err error
}

// Error says why.
func (e *sealedError) Error() string { return e.err.Error() }

// Unwrap returns the cause.
func (e *sealedError) Unwrap() error { return e.err }

// isLocked reports whether a secret cannot be decrypted for want of its key: it is good, and may be read when the key is
// there.
func (e *sealedError) isLocked() bool { return !errors.Is(e.err, sealing.ErrDamaged) }

// leaveLocked tells of a secret that waits for its key, which is looked for again.
func (s *Source) leaveLocked(path string, locked *sealedError) {
	s.locked = true
	s.broken[path] = source.Error{
		Path: path, Object: locked.key.String(), SeenAt: s.cfg.Clock.Now(), Message: locked.Error() + "; the secret is left out until then",
	}
}

// secretFiles returns the files that hold secrets, those that were set aside among them.
func (s *Source) secretFiles() ([]string, error) {
	files, err := os.ReadDir(s.cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("cannot read the secrets: %w: see that this process may read the directory", err)
	}
	var paths []string
	for _, file := range files {
		if isSecretFile(file.Name()) && !strings.HasPrefix(file.Name(), ".") {
			paths = append(paths, filepath.Join(s.cfg.Dir, file.Name()))
		}
	}
	return paths, nil
}
