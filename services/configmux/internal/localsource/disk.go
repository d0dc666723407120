package localsource

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/services/configmux/internal/source"
)

// fileMode lets only the owner read the pods, because their environment may be confidential.
const fileMode = 0o600

const (
	// extension is the extension of a file with a pod.
	extension = ".json"
	// aside is the suffix of a renamed file without a valid pod.
	aside = ".broken"
)

// entry is one pod, in memory and on disk.
type entry struct {
	// given is the name without the node's suffix. It determines the path.
	given types.NamespacedName
	path  string
	// manifest is the content of the file.
	manifest []byte
	pod      *v1.Pod
}

// name returns the pod's full name.
func (e *entry) name() types.NamespacedName {
	return types.NamespacedName{Namespace: e.pod.Namespace, Name: e.pod.Name}
}

// suffix returns the suffix of pod names on this node.
func (s *Source) suffix() string { return "-" + strings.ToLower(s.cfg.Node) }

// pathOf returns the file of a pod. Its name is a hash, which contains no slash and is short enough.
func (s *Source) pathOf(given types.NamespacedName) string {
	sum := sha256.Sum256([]byte(given.String()))
	return filepath.Join(s.cfg.Dir, hex.EncodeToString(sum[:16])+extension)
}

func asideOf(path string) string { return path + aside }

// wordOf returns the word for the kind of object of each extension.
var wordOf = map[string]string{
	configMapExtension: "config map", secretExtension: "secret", claimExtension: "claim",
	classExtension: "storage class", driverExtension: "CSIDriver",
}

// isObjectFile reports whether a path is that of an object of a kind other than pods, or of a renamed one.
func isObjectFile(path string) bool {
	return wordOf[filepath.Ext(strings.TrimSuffix(path, aside))] != ""
}

// holds reports whether a pod or an object was read from a file.
func (s *Source) holds(path string) bool {
	for _, e := range s.pods {
		if e.path == path {
			return true
		}
	}
	for _, e := range s.objects {
		if e.path == path {
			return true
		}
	}
	return false
}

// withUID returns the pod with a UID; nil if there is none.
func (s *Source) withUID(uid types.UID) *entry {
	for _, e := range s.pods {
		if e.pod.UID == uid {
			return e
		}
	}
	return nil
}

// read reads the files and passes their content to the sink, with the traces of potential changes by path.
func (s *Source) read(causes map[string]context.Context) {
	clear(s.pods)
	clear(s.objects)
	clear(s.broken)
	s.locked = false
	s.failure = s.readAll()
	if s.failure == nil {
		s.readAt = s.cfg.Clock.Now()
	}
	s.give(causes)
}

func (s *Source) readAll() error {
	if err := statedir.MakeDir(s.cfg.Dir); err != nil {
		return fmt.Errorf(
			"cannot store pods in %s: %w: check that it is a directory that this process can write",
			s.cfg.Dir,
			err,
		)
	}
	// A process that died between a change and its sync has reported no success. The change must be durable before this
	// process reports it.
	if err := syncDir(s.cfg.Dir); err != nil {
		return fmt.Errorf("cannot sync the pods in %s to disk: %w: check the disk", s.cfg.Dir, err)
	}
	// Sorted by name: a file precedes its renamed version.
	files, err := os.ReadDir(s.cfg.Dir)
	if err != nil {
		return fmt.Errorf("cannot read the pods: %w: check that this process may read the directory", err)
	}
	for _, file := range files {
		path := filepath.Join(s.cfg.Dir, file.Name())
		switch {
		case strings.HasPrefix(file.Name(), ".") && strings.Contains(file.Name(), ".tmp-"):
			// The file is an interrupted write, for which no success was reported.
			if err := statedir.RemoveFile(path); err != nil {
				s.note(path, fmt.Sprintf("cannot remove an incomplete file: %s; remove it", err))
			}
		case isObjectFile(path) && !s.cfg.Standalone:
			// It was applied before the node had an API server.
		case strings.HasSuffix(path, extension+aside), isObjectFile(path) && strings.HasSuffix(path, aside):
			s.leaveAside(path)
		case strings.HasSuffix(path, extension):
			if err := s.take(path, s.readOne); err != nil {
				return err
			}
		case isObjectFile(path):
			if err := s.take(path, s.readObject); err != nil {
				return err
			}
		default:
			s.note(path, "it was not written by configmux and is skipped: remove it, and restart")
		}
	}
	return nil
}

// syncDir makes renames and removals in a directory durable.
func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// leaveAside reports a renamed file. If the pod was applied again since, it removes the file, which an interrupted
// apply has left.
func (s *Source) leaveAside(path string) {
	if !s.holds(strings.TrimSuffix(path, aside)) {
		s.note(path, "it was renamed because it holds no valid "+kindIn(path)+": apply that again, or delete it")
		return
	}
	if err := statedir.RemoveFile(path); err != nil {
		s.note(
			path,
			fmt.Sprintf("it was renamed, its %s was applied again, and it cannot be removed: %s; remove it", kindIn(path), err),
		)
	}
}

// kindIn returns the kind of object in the file of a path.
func kindIn(path string) string {
	return cmp.Or(wordOf[filepath.Ext(strings.TrimSuffix(path, aside))], "pod")
}

// take processes the file of one pod or object, or reports why it is invalid. It returns an error if the file cannot be
// read: then the full set is unknown, and running pods are not changed.
func (s *Source) take(path string, read func(path string) error) error {
	err := read(path)
	var invalid *InvalidError
	var unreadable *fs.PathError
	var sealed *sealedError
	switch {
	case errors.Is(err, fs.ErrNotExist):
		// The file was removed in the meantime.
	case errors.As(err, &sealed) && sealed.isLocked():
		s.leaveLocked(path, sealed)
	case errors.As(err, &unreadable):
		return fmt.Errorf(
			"cannot read an applied %s: %w: check the disk and the file's owner, or remove the file, which deletes the %[1]s",
			kindIn(path),
			err,
		)
	case errors.As(err, &invalid):
		// It may be valid with another configuration, or another version of this program.
		first := invalid.Problems[0]
		s.broken[path] = source.Error{
			Path: path, Pod: first.Pod, Object: first.Object, Field: first.Field, SeenAt: s.cfg.Clock.Now(),
			Message: first.Message + "; the " + kindIn(path) + " is rejected: apply it again, or delete it",
		}
	case err != nil:
		s.setAside(path, err)
	}
	return nil
}

// readOne reads the file of one pod.
func (s *Source) readOne(path string) error {
	data, err := readRegular(path, maxManifest)
	if err != nil {
		return err
	}
	if data, err = statedir.Checked(data, ""); err != nil {
		return err
	}
	var object metav1.PartialObjectMetadata
	if err := json.Unmarshal(data, &object); err != nil {
		return fmt.Errorf("it is not JSON: %w", err)
	}
	given := types.NamespacedName{Namespace: object.Namespace, Name: object.Name}
	if s.pathOf(given) != path {
		return fmt.Errorf("it is not the file of the pod %s that is in it", given)
	}
	e, err := s.decode(given, data)
	if err != nil {
		return err
	}
	if other := s.withUID(e.pod.UID); other != nil {
		return fmt.Errorf("its UID is that of %s", other.name())
	}
	s.pods[given] = e
	return nil
}

// withChecksum returns the content of the file of a pod. The checksum is in the status, because an applied pod has
// none, and a version without checksums ignores that field but no unknown one.
func withChecksum(manifest []byte) ([]byte, error) {
	open, ok := bytes.CutSuffix(manifest, []byte("}"))
	if !ok || !bytes.HasSuffix(open, []byte(`"status":{}`)) {
		return manifest, nil
	}
	data, err := statedir.WithChecksum(open, "")
	return append(bytes.TrimSpace(data), '}'), err
}

// readRegular reads a file of limited size.
func readRegular(path string, limit int64) ([]byte, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > limit {
		return nil, fmt.Errorf("it is no file of %d bytes at most", limit)
	}
	return os.ReadFile(path)
}

// setAside renames an invalid file, so that it is kept for people without an effect.
func (s *Source) setAside(path string, cause error) {
	message := cause.Error()
	if err := os.Rename(path, asideOf(path)); err != nil {
		s.note(path, fmt.Sprintf("%s; it is skipped, and cannot be renamed: %s; remove it", message, errors.Unwrap(err)))
		return
	}
	s.note(asideOf(path), message+"; it was renamed: apply the "+kindIn(path)+" again, or delete it")
}

func (s *Source) note(path, message string) {
	s.broken[path] = source.Error{Path: path, Message: message, SeenAt: s.cfg.Clock.Now()}
}
