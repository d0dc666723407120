package apisource

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/configmux/internal/source"
)

// The checkpoint consists of a line with the format and the checksum of the rest, a line with the node's name, and a
// v1.PodList as protobuf:
//
//	quartet.api-pods/1 sha256:HEX
//	NODE
//	…
const checkpointMagic = "quartet.api-pods/1 sha256:"

// checkpointMode lets only the owner read the pods, because their environment may be confidential.
const checkpointMode = 0o600

// encode returns the checkpoint of pods. It is deterministic. The pods are encoded into the result, without copies of
// it, because pods that end one after another are written each second until all have ended.
func encode(node string, held map[types.UID]*v1.Pod) ([]byte, error) {
	list := v1.PodList{Items: make([]v1.Pod, 0, len(held))}
	for _, pod := range sorted(held) {
		list.Items = append(list.Items, *pod)
	}
	const sumSize = 2 * sha256.Size
	header, size := len(checkpointMagic)+sumSize+1, list.Size()
	data := make([]byte, header+len(node)+1+size)
	copy(data, checkpointMagic)
	data[header-1] = '\n'
	body := data[header:]
	copy(body, node+"\n")
	if _, err := list.MarshalToSizedBuffer(body[len(body)-size:]); err != nil {
		return nil, fmt.Errorf("encode the pods: %w", err)
	}
	sum := sha256.Sum256(body)
	hex.Encode(data[len(checkpointMagic):], sum[:])
	return data, nil
}

// decode decodes a checkpoint. The error describes the problem with its bytes.
func decode(data []byte) (node string, pods []*v1.Pod, err error) {
	rest, ours := bytes.CutPrefix(data, []byte(checkpointMagic))
	if !ours {
		return "", nil, errors.New("it does not begin like a checkpoint of this version")
	}
	sum, body, whole := bytes.Cut(rest, []byte("\n"))
	if actual := sha256.Sum256(body); !whole || string(sum) != hex.EncodeToString(actual[:]) {
		return "", nil, errors.New("its checksum is wrong, so it was changed or is incomplete")
	}
	name, encoded, whole := bytes.Cut(body, []byte("\n"))
	if !whole {
		return "", nil, errors.New("the name of its node has no end")
	}
	var list v1.PodList
	if err := list.Unmarshal(encoded); err != nil {
		return "", nil, fmt.Errorf("its pods cannot be decoded: %w", err)
	}
	for i := range list.Items {
		pods = append(pods, &list.Items[i])
	}
	return string(name), pods, nil
}

// opening is the result of reading the checkpoint.
type opening struct {
	// pods are the pods of the node; nil if the checkpoint is not used.
	pods []*v1.Pod
	// problem is why it cannot be used; empty if it can, or if there is none.
	problem string
	// unreadable is true if the disk does not give it, so that it may be read later.
	unreadable bool
}

// open reads the checkpoint. It renames a corrupt one; the node then starts without one. One that cannot be read stays.
func (k *keeper) open() opening {
	data, err := statedir.Read(k.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return opening{}
	case statedir.IsUnreadable(err):
		return opening{problem: err.Error() + "; it is tried again", unreadable: true}
	case err != nil:
		return opening{problem: err.Error()}
	}
	node, pods, err := decode(data)
	switch {
	case err != nil:
		return opening{
			problem: fmt.Sprintf("the checkpoint of the API server's pods is corrupt: %v; %s", err, putAside(k.path)),
		}
	case node != k.node:
		k.logger.Warn("the checkpoint of the API server's pods is that of another node; it is not used, and replaced with the first list",
			telemetry.KeySource, Name, telemetry.KeyFile, k.path, "node", node, "this", k.node)
		return opening{}
	}
	k.written = data
	return opening{pods: pods}
}

// opened takes the result of reading the checkpoint. After a list only its problem matters, until it is written again.
func (s *Source) opened(ctx context.Context, o opening) {
	s.opening = false
	changed := s.damaged != nil || o.problem != ""
	s.damaged = nil
	if o.problem != "" {
		s.damage(o.problem)
	}
	if !s.listed {
		s.restored, s.unread = o.pods, o.unreadable
	}
	if changed {
		s.sink.Set(Name, s.corrected())
	}
	if s.due && !s.listed {
		s.restore(ctx)
	}
}

// openAgain reads a checkpoint that could not be read.
func (s *Source) openAgain() {
	if s.unread && !s.opening {
		s.opening = true
		s.keeper.read <- struct{}{}
	}
}

// damage records the problem with the checkpoint until it is written again.
func (s *Source) damage(problem string) {
	s.damaged = &source.Error{
		Path: s.cfg.Checkpoint, SeenAt: s.cfg.Clock.Now(),
		Message: problem + "; without the API server this node starts none of its pods, and the first list replaces the file",
	}
}

// putAside renames a checkpoint, so that it is available for an investigation, and returns a sentence about it.
func putAside(path string) string {
	aside, err := statedir.Rename(path)
	if err != nil {
		return fmt.Sprintf("it cannot be renamed: %v", err)
	}
	return "it is now " + aside + ": look at the disk, then remove it"
}
