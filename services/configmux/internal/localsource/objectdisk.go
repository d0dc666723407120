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
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/services/configmux/internal/apiobject"
	"github.com/quartet-node/quartet/services/configmux/internal/sealing"
	"github.com/quartet-node/quartet/services/configmux/internal/source"
)

const (
	// The extensions of files with an object.
	configMapExtension = ".configmap"
	secretExtension    = ".secret"
	claimExtension     = ".claim"
	classExtension     = ".storageclass"
	driverExtension    = ".csidriver"
	// maxRecord bounds the size of a file with an object, in bytes. The object has at most 1 MiB of data, which JSON and
	// base64 enlarge.
	maxRecord = 8 << 20
)

// record is the content of a file with an object.
type record struct {
	Kind      apiobject.Kind `json:"kind"`
	Namespace string         `json:"namespace"`
	Name      string         `json:"name"`
	CreatedAt time.Time      `json:"createdAt"`
	// ConfigMap is the config map, if the object is one.
	ConfigMap *v1.ConfigMap `json:"configMap,omitempty"`
	// Sealed is the encrypted encoding of a secret. The path of its key is the associated data.
	Sealed *sealing.Box `json:"sealed,omitempty"`
	// Claim is the claim, if the object is one, with its UID.
	Claim *v1.PersistentVolumeClaim `json:"claim,omitempty"`
	// Class is the storage class, and Driver the CSIDriver, if the object is one.
	Class  *storagev1.StorageClass `json:"storageClass,omitempty"`
	Driver *storagev1.CSIDriver    `json:"csiDriver,omitempty"`
}

func (r record) key() apiobject.Key {
	return apiobject.Key{Kind: r.Kind, Namespace: r.Namespace, Name: r.Name}
}

// objectPath returns the file of an object. Its name is a hash, which contains no slash and is short enough.
func (s *Source) objectPath(key apiobject.Key) string {
	extension := configMapExtension
	switch key.Kind {
	case apiobject.Secret:
		extension = secretExtension
	case apiobject.Claim:
		extension = claimExtension
	case apiobject.Class:
		extension = classExtension
	case apiobject.Driver:
		extension = driverExtension
	case apiobject.ConfigMap, apiobject.Volume, apiobject.Service, apiobject.Services:
	}
	sum := sha256.Sum256([]byte(key.Path()))
	return filepath.Join(s.cfg.Dir, hex.EncodeToString(sum[:16])+extension)
}

// encodeObject returns the content of the file of an object.
func (s *Source) encodeObject(e *objectEntry) ([]byte, error) {
	key := e.object.Key()
	r := record{
		Kind:      key.Kind,
		Namespace: key.Namespace,
		Name:      key.Name,
		CreatedAt: e.createdAt.UTC(),
		ConfigMap: e.object.ConfigMap,
		Claim:     e.object.Claim,
		Class:     e.object.Class,
		Driver:    e.object.Driver,
	}
	if key.Kind == apiobject.Secret {
		box, err := s.cfg.Seals.Seal(e.content, key.Path())
		if err != nil {
			return nil, err
		}
		r.Sealed = &box
	}
	return r.marshal()
}

// marshal returns the content of the file.
func (r record) marshal() ([]byte, error) {
	data, err := json.Marshal(r)
	if err == nil {
		data, err = statedir.WithChecksum(data, "")
	}
	if err != nil {
		return nil, fmt.Errorf("encoding the %s: %w", r.key(), err)
	}
	return data, nil
}

func (s *Source) writeRecord(path string, r record) error {
	data, err := r.marshal()
	if err != nil {
		return err
	}
	if err := statedir.WriteFileAtomic(path, data, fileMode); err != nil {
		return fmt.Errorf(
			"saving the %s: %w: check that there is space in %s and that it is writable, and try again",
			r.key(),
			err,
			s.cfg.Dir,
		)
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
	if data, err = statedir.Checked(data, ""); err != nil {
		return r, err
	}
	if json.Unmarshal(data, &r) != nil {
		return record{}, errors.New("it is not JSON of a config map, a secret, a claim, a storage class or a CSIDriver")
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
	object := &apiobject.Object{ConfigMap: r.ConfigMap, Claim: r.Claim, Class: r.Class, Driver: r.Driver}
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
	case r.Kind == apiobject.Claim && (r.Claim == nil || r.Claim.UID == ""):
		return errors.New("it has no claim with a UID")
	case r.Kind == apiobject.ConfigMap && r.ConfigMap == nil:
		return errors.New("it has no config map")
	case r.Kind == apiobject.Class && r.Class == nil:
		return errors.New("it has no storage class")
	case r.Kind == apiobject.Driver && r.Driver == nil:
		return errors.New("it has no CSIDriver")
	}
	var uid types.UID
	if r.Kind == apiobject.Claim {
		uid = r.Claim.UID
	}
	e, err := s.objectEntryOf(object, uid)
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

// sealedError is the error of a secret that cannot be decrypted.
type sealedError struct {
	key apiobject.Key
	err error
}

// Error returns the text of the cause.
func (e *sealedError) Error() string { return e.err.Error() }

// Unwrap returns the cause.
func (e *sealedError) Unwrap() error { return e.err }

// isLocked reports whether the key of a secret is missing: the secret is intact, and can be read when the key is
// available again.
func (e *sealedError) isLocked() bool { return !errors.Is(e.err, sealing.ErrDamaged) }

// leaveLocked reports a secret whose key is missing, and schedules a retry.
func (s *Source) leaveLocked(path string, locked *sealedError) {
	s.locked = true
	s.broken[path] = source.Error{
		Path:    path,
		Object:  locked.key.String(),
		SeenAt:  s.cfg.Clock.Now(),
		Message: locked.Error() + "; the secret is missing until then",
	}
}

// secretFiles returns the files with secrets, including renamed ones.
func (s *Source) secretFiles() ([]string, error) {
	files, err := os.ReadDir(s.cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("cannot read the secrets: %w: check that this process may read the directory", err)
	}
	var paths []string
	for _, file := range files {
		if isSecretFile(file.Name()) && !strings.HasPrefix(file.Name(), ".") {
			paths = append(paths, filepath.Join(s.cfg.Dir, file.Name()))
		}
	}
	return paths, nil
}
