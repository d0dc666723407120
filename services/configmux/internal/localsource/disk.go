package localsource

import (
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

// fileMode lets only the owner read the pods, whose environment may hold what others should not see.
const fileMode = 0o600

const (
	// extension is that of a file with a pod.
	extension = ".json"
	// aside is what is added to the name of a file that holds no pod.
	aside = ".broken"
)

// entry is one pod, in memory and on the disk.
type entry struct {
	// given is the name without the node's suffix; the path follows from it.
	given types.NamespacedName
	path  string
	// manifest is the content of the file.
	manifest []byte
	pod      *v1.Pod
}

// name is the pod's whole name.
func (e *entry) name() types.NamespacedName {
	return types.NamespacedName{Namespace: e.pod.Namespace, Name: e.pod.Name}
}

// suffix is what a pod's name has after the one that was given.
func (s *Source) suffix() string { return "-" + strings.ToLower(s.cfg.Node) }

// pathOf is the file of a pod. A hash has no slash, and is never too long for a file's name.
func (s *Source) pathOf(given types.NamespacedName) string {
	sum := sha256.Sum256([]byte(given.String()))
	return filepath.Join(s.cfg.Dir, hex.EncodeToString(sum[:16])+extension)
}

func asideOf(path string) string { return path + aside }

// isObjectFile reports whether a path is that of a config map or a secret, or of one that was set aside.
func isObjectFile(path string) bool {
	return isSecretFile(path) || strings.HasSuffix(strings.TrimSuffix(path, aside), configMapExtension)
}

// holds reports whether a file has given a pod or an object.
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

// withUID returns the pod with a UID; nil when there is none.
func (s *Source) withUID(uid types.UID) *entry {
	for _, e := range s.pods {
		if e.pod.UID == uid {
			return e
		}
	}
	return nil
}

// read reads what is on the disk, and gives it, with the traces of what may have changed by path.
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
		return fmt.Errorf("cannot keep pods in %s: %w: see that it is a directory that this process can write", s.cfg.Dir, err)
	}
	// Whoever died between a change and its sync told nobody of it. Before this process does, it has to last.
	if err := syncDir(s.cfg.Dir); err != nil {
		return fmt.Errorf("cannot make the pods in %s last: %w: see to the disk", s.cfg.Dir, err)
	}
	// In the order of names: a pod comes before what was set aside of it.
	files, err := os.ReadDir(s.cfg.Dir)
	if err != nil {
		return fmt.Errorf("cannot read the pods: %w: see that this process may read the directory", err)
	}
	for _, file := range files {
		path := filepath.Join(s.cfg.Dir, file.Name())
		switch {
		case strings.HasPrefix(file.Name(), ".") && strings.Contains(file.Name(), ".tmp-"):
			// A write that was cut short: nobody was told that it is done.
			if err := statedir.RemoveFile(path); err != nil {
				s.note(path, fmt.Sprintf("cannot remove what a crash has left: %s; remove it", err))
			}
		case isObjectFile(path) && !s.cfg.Standalone:
			// What was applied before the node had an API server.
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
			s.note(path, "it is nothing that was applied, and is skipped: remove it, which the next start notices")
		}
	}
	return nil
}

// syncDir makes what was renamed and removed in a directory last through a crash of the machine.
func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// leaveAside tells of a file that was set aside, unless the pod was applied anew since: then it is removed, which whoever
// applied the pod did not live to do.
func (s *Source) leaveAside(path string) {
	if !s.holds(strings.TrimSuffix(path, aside)) {
		s.note(path, "it was set aside because it holds no "+whatIn(path)+" that can be: apply that again, or delete it")
		return
	}
	if err := statedir.RemoveFile(path); err != nil {
		s.note(path, fmt.Sprintf("it was set aside, its %s was applied anew, and it cannot be removed: %s; remove it", whatIn(path), err))
	}
}

// whatIn says what the file of a path is to hold.
func whatIn(path string) string {
	switch {
	case isSecretFile(path):
		return "secret"
	case isObjectFile(path):
		return "config map"
	default:
		return "pod"
	}
}

// take takes in the file of one pod or object, or tells why it holds none. Its error says that the file cannot be read, so
// that it is not known what it holds: then nothing is known of the whole, and what runs is left alone.
func (s *Source) take(path string, read func(path string) error) error {
	err := read(path)
	var invalid *InvalidError
	var unreadable *fs.PathError
	var sealed *sealedError
	switch {
	case errors.Is(err, fs.ErrNotExist):
		// Somebody has removed it a moment ago.
	case errors.As(err, &sealed) && sealed.isLocked():
		s.leaveLocked(path, sealed)
	case errors.As(err, &unreadable):
		return fmt.Errorf("cannot read an applied %s: %w: see to the disk and to the file's owner, or remove the file, which deletes the %[1]s", whatIn(path), err)
	case errors.As(err, &invalid):
		// It may be valid again with another configuration, or another version of this program.
		first := invalid.Problems[0]
		s.broken[path] = source.Error{
			Path: path, Pod: first.Pod, Object: first.Object, Field: first.Field, SeenAt: s.cfg.Clock.Now(),
			Message: first.Message + "; the " + whatIn(path) + " is left out: apply it anew, or delete it",
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

// readRegular reads a file that is no larger than a number of bytes.
func readRegular(path string, most int64) ([]byte, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > most {
		return nil, fmt.Errorf("it is no file of %d bytes at most", most)
	}
	return os.ReadFile(path)
}

// setAside puts a file out of the way that holds nothing that can be, so that it is there for people and in nobody's way.
func (s *Source) setAside(path string, cause error) {
	message := cause.Error()
	if err := os.Rename(path, asideOf(path)); err != nil {
		s.note(path, fmt.Sprintf("%s; it is skipped, and cannot be set aside: %s; remove it", message, errors.Unwrap(err)))
		return
	}
	s.note(asideOf(path), message+"; it was set aside: apply the "+whatIn(path)+" again, or delete it")
}

func (s *Source) note(path, message string) {
	s.broken[path] = source.Error{Path: path, Message: message, SeenAt: s.cfg.Clock.Now()}
}
