package filesource

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/internal/privilege"
	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/configmux/internal/apiobject"
	"github.com/quartet-node/quartet/services/configmux/internal/sealing"
	"github.com/quartet-node/quartet/services/configmux/internal/staticpod"
)

// checkpoint stores the last good content of each manifest on disk, for manifests that are broken when the process
// starts. It is not used for valid manifests.
type checkpoint struct {
	// Node is the name of the node. The checkpoint of another node is ignored.
	Node string `json:"node"`
	// Manifests maps paths to the encoded pods.
	Manifests map[string][][]byte `json:"manifests"`
	// Objects maps paths to the config maps and secrets.
	Objects map[string][]keptObject `json:"objects,omitempty"`
}

// keptObject is a config map or a secret in the checkpoint.
type keptObject struct {
	Kind      apiobject.Kind `json:"kind"`
	Namespace string         `json:"namespace"`
	Name      string         `json:"name"`
	// Object is the encoding of a config map.
	Object []byte `json:"object,omitempty"`
	// Sealed is the encrypted encoding of a secret.
	Sealed *sealing.Box `json:"sealed,omitempty"`
}

// about returns the associated data of a sealed secret, which makes its box invalid in another place.
func (o keptObject) about() string {
	return "manifest " + apiobject.Key{Kind: o.Kind, Namespace: o.Namespace, Name: o.Name}.Path()
}

// seal encrypts data with associated data.
type seal func(data []byte, about string) (sealing.Box, error)

// encode returns the checkpoint of the manifests. It omits secrets that cannot be sealed, and returns the reason as an
// error beside the result. On another error it returns no result.
func encode(node string, manifests map[string]staticpod.Held, seal seal) ([]byte, error) {
	c := checkpoint{Node: node, Manifests: make(map[string][][]byte, len(manifests)), Objects: map[string][]keptObject{}}
	var unsealed error
	for path, held := range manifests {
		for _, pod := range held.Pods {
			data, err := pod.Marshal()
			if err != nil {
				return nil, fmt.Errorf("encode the pod %s of %s: %w", nameOf(pod), path, err)
			}
			c.Manifests[path] = append(c.Manifests[path], data)
		}
		for _, object := range held.Objects {
			kept, err := keep(object, seal)
			if err != nil {
				unsealed = err
				continue
			}
			c.Objects[path] = append(c.Objects[path], kept)
		}
	}
	data, err := c.marshal()
	if err != nil {
		return nil, err
	}
	return data, unsealed
}

// marshal returns the content of the file.
func (c checkpoint) marshal() ([]byte, error) {
	data, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	return statedir.WithChecksum(data, c.Node)
}

// keep returns the form of an object in the checkpoint.
func keep(object *apiobject.Object, seal seal) (keptObject, error) {
	key := object.Key()
	kept := keptObject{Kind: key.Kind, Namespace: key.Namespace, Name: key.Name}
	data, err := object.Marshal()
	if err != nil {
		return keptObject{}, err
	}
	if key.Kind != apiobject.Secret {
		kept.Object = data
		return kept, nil
	}
	box, err := seal(data, kept.about())
	if err != nil {
		return keptObject{}, fmt.Errorf("the %s: %w", key, err)
	}
	kept.Sealed = &box
	return kept, nil
}

// sumOf returns a digest of the state, including secrets, keyed with the sealing key. It is never written.
func sumOf(node string, manifests map[string]staticpod.Held, key string) ([sha256.Size]byte, error) {
	data, err := encode(node, manifests, func(data []byte, _ string) (sealing.Box, error) {
		sum := sha256.Sum256(data)
		return sealing.Box{Key: key, Data: sum[:]}, nil
	})
	return sha256.Sum256(data), err
}

// restore reads the checkpoint. It returns nothing if there is none, or if it is that of another node. It omits entries
// that cannot be read, and returns the reason as an error.
func restore(path, node string, seals *sealing.Keyring) (map[string]staticpod.Held, error) {
	c, err := readCheckpoint(path)
	if err != nil || c.Node != node {
		return nil, err
	}
	manifests := make(map[string]staticpod.Held, len(c.Manifests))
	for manifest, pods := range c.Manifests {
		var held staticpod.Held
		for _, bytes := range pods {
			pod := &v1.Pod{}
			if err := pod.Unmarshal(bytes); err != nil {
				return nil, fmt.Errorf("decode a pod in the checkpoint of the manifests %s: %w", path, err)
			}
			held.Pods = append(held.Pods, pod)
		}
		manifests[manifest] = held
	}
	var lost error
	for manifest, kept := range c.Objects {
		held := manifests[manifest]
		for _, k := range kept {
			object, err := k.restore(seals)
			if err != nil {
				lost = fmt.Errorf(
					"the %s of %s in the checkpoint %s: %w",
					apiobject.Key{Kind: k.Kind, Namespace: k.Namespace, Name: k.Name},
					manifest,
					path,
					err,
				)
				continue
			}
			held.Objects = append(held.Objects, object)
		}
		manifests[manifest] = held
	}
	return manifests, lost
}

// readCheckpoint reads the file. The result has no node if there is no file. A damaged file is set aside.
func readCheckpoint(path string) (checkpoint, error) {
	var c checkpoint
	err := statedir.LoadChecked(path, "", &c, nil) // another node's is no damage, see restore
	if errors.Is(err, fs.ErrNotExist) {
		return checkpoint{}, nil
	}
	if err != nil {
		return checkpoint{}, fmt.Errorf("read the checkpoint of the manifests: %w", err)
	}
	return c, nil
}

// restore returns the object.
func (o keptObject) restore(seals *sealing.Keyring) (*apiobject.Object, error) {
	data := o.Object
	if o.Kind == apiobject.Secret {
		if o.Sealed == nil {
			return nil, errors.New("it is not encrypted, so configmux has not written it")
		}
		var err error
		if data, err = seals.Open(*o.Sealed, o.about()); err != nil {
			return nil, err
		}
	}
	return apiobject.Unmarshal(o.Kind, data)
}

// startKeeper restores the checkpoint and starts to save it. The returned function writes the last state and stops the
// keeper.
func (s *Source) startKeeper() (stop func()) {
	restored, err := restore(s.cfg.Checkpoint, s.cfg.Node, s.cfg.Seals)
	switch {
	case statedir.IsUnreadable(err):
		s.unread = err
		s.cfg.Logger.Warn("the last good versions of the manifests cannot be read, and are tried again if a manifest is broken",
			telemetry.KeyError, err)
	case err != nil && restored == nil:
		s.cfg.Logger.Warn("starting without the last good versions of the manifests", telemetry.KeyError, err)
	case err != nil:
		s.cfg.Logger.Warn("starting without the last good versions of secrets of the manifests", telemetry.KeyError, err)
	}
	s.restored = s.allowed(restored)
	k := s.keeper
	k.path, k.node, k.seals, k.clock, k.logger = s.cfg.Checkpoint, s.cfg.Node, s.cfg.Seals, s.cfg.Clock, s.cfg.Logger
	// The keeper does not end with the process's context, because the reader may pass it one more state after that.
	end := make(chan struct{})
	go func() {
		defer close(k.ended)
		k.run(end)
	}()
	return func() {
		close(end)
		<-k.ended
	}
}

// restoreAgain reads a checkpoint that could not be read.
func (s *Source) restoreAgain() {
	if s.unread == nil {
		return
	}
	restored, err := restore(s.cfg.Checkpoint, s.cfg.Node, s.cfg.Seals)
	if statedir.IsUnreadable(err) {
		s.unread = err
		return
	}
	s.cfg.Logger.Info("the last good versions of the manifests are read", telemetry.KeyFile, s.cfg.Checkpoint, telemetry.KeyError, err)
	s.restored, s.unread = s.allowed(restored), nil
	for path, f := range s.files {
		if len(f.errs) > 0 {
			delete(s.files, path) // so that its last good version is looked up again
		}
	}
}

// lacksCheckpoint reports whether a manifest is broken, so that its last good version counts.
func (s *Source) lacksCheckpoint() bool {
	for _, f := range s.files {
		if len(f.errs) > 0 {
			return true
		}
	}
	return false
}

// allowed removes pods that this configuration does not permit, because a stricter configuration applies to the last
// good versions too.
func (s *Source) allowed(manifests map[string]staticpod.Held) map[string]staticpod.Held {
	for path, held := range manifests {
		held.Pods = slices.DeleteFunc(held.Pods, func(pod *v1.Pod) bool {
			return len(privilege.Check(pod, Name, s.cfg.Allowed)) > 0 || !s.cfg.Standalone && staticpod.NamesObjects(pod)
		})
		if !s.cfg.Standalone {
			held.Objects = nil
		}
		manifests[path] = held
	}
	return manifests
}

// keep passes the present state of each manifest to the keeper.
func (s *Source) keep() {
	manifests := make(map[string]staticpod.Held, len(s.files))
	for path, f := range s.files {
		if !f.held.Empty() {
			manifests[path] = f.held
		}
	}
	s.keeper.keep(manifests)
}

// known returns the known state of a manifest; at the start, that of the checkpoint.
func (s *Source) known(path string) *file {
	if f := s.files[path]; f != nil {
		return f
	}
	if held := s.restored[path]; !held.Empty() {
		return &file{held: held}
	}
	return nil
}
