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

// withUID returns the pod with a UID; nil when there is none.
func (s *Source) withUID(uid types.UID) *entry {
	for _, e := range s.pods {
		if e.pod.UID == uid {
			return e
		}
	}
	return nil
}

// read reads what was applied before this process began, and gives it.
func (s *Source) read() {
	clear(s.pods)
	clear(s.broken)
	s.failure = s.readAll()
	if s.failure == nil {
		s.readAt = s.cfg.Clock.Now()
	}
	s.give(nil)
}

func (s *Source) readAll() error {
	if err := statedir.MakeDir(s.cfg.Dir); err != nil {
		return fmt.Errorf("cannot keep pods in %s: %w: see that it is a directory that this process can write", s.cfg.Dir, err)
	}
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
		case strings.HasSuffix(path, extension+aside):
			s.note(path, "it was set aside because it holds no pod that can run: apply the pod again, or delete it")
		case strings.HasSuffix(path, extension):
			s.take(path)
		default:
			s.note(path, "it is no pod that was applied, and is skipped: remove it, which the next start notices")
		}
	}
	return nil
}

// take takes in the file of one pod, or tells why it cannot.
func (s *Source) take(path string) {
	err := s.readOne(path)
	var invalid *InvalidError
	switch {
	case errors.As(err, &invalid):
		// It may be valid again with another configuration, or another version of this program.
		first := invalid.Problems[0]
		s.broken[path] = source.Error{
			Path: path, Pod: first.Pod, Field: first.Field, SeenAt: s.cfg.Clock.Now(),
			Message: first.Message + "; the pod is left out: apply it anew, or delete it",
		}
	case err != nil:
		s.setAside(path, err)
	}
}

// readOne reads the file of one pod.
func (s *Source) readOne(path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() || info.Size() > maxManifest {
		return fmt.Errorf("it is no file of %d bytes at most", maxManifest)
	}
	data, err := os.ReadFile(path)
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

// setAside puts a file out of the way that holds no pod, so that it is there for people and in nobody's way.
func (s *Source) setAside(path string, cause error) {
	message := cause.Error()
	if err := os.Rename(path, asideOf(path)); err != nil {
		s.note(path, fmt.Sprintf("%s; it is skipped, and cannot be set aside: %s; remove it", message, errors.Unwrap(err)))
		return
	}
	s.note(asideOf(path), message+"; it was set aside: apply the pod again, or delete it")
}

func (s *Source) note(path, message string) {
	s.broken[path] = source.Error{Path: path, Message: message, SeenAt: s.cfg.Clock.Now()}
}
