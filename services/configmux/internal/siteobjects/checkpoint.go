package siteobjects

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"time"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/configmux/internal/apiobject"
	"github.com/quartet-node/quartet/services/configmux/internal/sealing"
)

const (
	// saveEvery is the minimum interval of writes, so that many changes at once cause few, and saveAgain the delay before
	// a failed write is retried.
	saveEvery, saveAgain = time.Second, 10 * time.Second
	// checkpointMode lets only the owner read the objects.
	checkpointMode = 0o600
)

// checkpoint is the content of the file.
type checkpoint struct {
	Objects []savedObject `json:"objects"`
}

// savedObject is one object. A missing one has neither data nor a box.
type savedObject struct {
	Kind      apiobject.Kind `json:"kind"`
	Namespace string         `json:"namespace"`
	Name      string         `json:"name"`
	// Data is an object that is no secret, and Box a secret.
	Data []byte       `json:"data,omitempty"`
	Box  *sealing.Box `json:"box,omitempty"`
}

func (s savedObject) key() apiobject.Key {
	return apiobject.Key{Kind: s.Kind, Namespace: s.Namespace, Name: s.Name}
}

// Load reads the checkpoint. What cannot be read is logged and left out: its nodes wait for the API server.
func (o *Objects) Load() {
	var content checkpoint
	err := statedir.LoadChecked(o.cfg.Checkpoint, "", &content, nil)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err != nil {
		o.cfg.Logger.Warn("the checkpoint of the pods' objects cannot be used; pods that need them wait for the API server",
			telemetry.KeyFile, o.cfg.Checkpoint, telemetry.KeyError, err)
		return
	}
	for _, s := range content.Objects {
		restored, err := o.restore(s)
		if err != nil {
			o.cfg.Logger.Warn("an object of the checkpoint cannot be used; pods that need it wait for the API server",
				telemetry.KeyFile, o.cfg.Checkpoint, telemetry.KeyObject, s.key().String(), telemetry.KeyError, err)
			continue
		}
		o.saved[s.key()] = restored
	}
}

func (o *Objects) restore(s savedObject) (*content, error) {
	data := s.Data
	switch {
	case !s.Kind.OfSite():
		return nil, &apiobject.KindError{Kind: string(s.Kind)}
	case s.Box != nil:
		var err error
		if data, err = o.cfg.Seals.Open(*s.Box, s.key().Path()); err != nil {
			return nil, err
		}
	case s.Kind == apiobject.Secret && len(data) > 0:
		return nil, errors.New("the secret is not encrypted")
	}
	if len(data) == 0 {
		data = nil
	}
	return newContent(s.key(), data)
}

// Settle drops the objects of the checkpoint that no pod names. Call it when the pods of all nodes are known.
func (o *Objects) Settle() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.saved) == 0 {
		return
	}
	named := map[apiobject.Key]bool{}
	for n := range o.nodes {
		maps.Copy(named, n.reach())
	}
	for key := range o.saved {
		if _, is := named[key]; !is {
			delete(o.saved, key)
			o.dirty()
		}
	}
}

// dirty has the checkpoint written soon.
func (o *Objects) dirty() {
	select {
	case o.changed <- struct{}{}:
	default:
	}
}

// keep writes the checkpoint after changes, until ctx ends, and then once more.
func (o *Objects) keep(ctx context.Context) {
	boxes := map[*configv1.Object]*sealing.Box{}
	for {
		select {
		case <-ctx.Done():
			select {
			case <-o.changed:
				o.save(boxes)
			default:
			}
			return
		case <-o.changed:
		}
		pause := saveEvery
		if !o.save(boxes) {
			pause = saveAgain
			o.dirty()
		}
		select {
		case <-ctx.Done():
		case <-o.cfg.Clock.After(pause):
		}
	}
}

// save writes the objects that nodes use. Boxes has the sealed secrets of the last time.
func (o *Objects) save(boxes map[*configv1.Object]*sealing.Box) bool {
	objects := o.known()
	data, err := o.encode(objects, boxes)
	if err == nil {
		err = statedir.WriteFileAtomic(o.cfg.Checkpoint, data, checkpointMode)
	}
	if err != nil {
		o.cfg.Logger.Warn("cannot save the objects of the site's pods; a start without the API server has the last saved ones",
			telemetry.KeyFile, o.cfg.Checkpoint, telemetry.KeyError, err)
	}
	return err == nil
}

// known returns what is known of the objects that nodes use, and those of the checkpoint that no node has used yet.
func (o *Objects) known() []*configv1.Object {
	o.mu.Lock()
	defer o.mu.Unlock()
	var all []*configv1.Object
	for _, h := range o.held {
		if h.content != nil {
			all = append(all, h.content.object)
		}
	}
	for _, c := range o.saved {
		all = append(all, c.object)
	}
	return all
}

func (o *Objects) encode(objects []*configv1.Object, boxes map[*configv1.Object]*sealing.Box) ([]byte, error) {
	content := checkpoint{Objects: make([]savedObject, 0, len(objects))}
	current := make(map[*configv1.Object]bool, len(objects))
	for _, object := range objects {
		s := savedObject{
			Kind: apiobject.Kind(object.GetKind()), Namespace: object.GetNamespace(), Name: object.GetName(),
		}
		if s.Kind != apiobject.Secret || object.GetMissing() {
			s.Data = object.GetObject()
		} else if s.Box = boxes[object]; s.Box == nil {
			box, err := o.cfg.Seals.Seal(object.GetObject(), s.key().Path())
			if err != nil {
				return nil, fmt.Errorf("seal %s: %w", s.key(), err)
			}
			s.Box, boxes[object] = &box, &box
		}
		current[object] = true
		content.Objects = append(content.Objects, s)
	}
	for object := range boxes {
		if !current[object] {
			delete(boxes, object)
		}
	}
	slices.SortFunc(content.Objects, func(a, b savedObject) int { return strings.Compare(a.key().Path(), b.key().Path()) })
	data, err := json.Marshal(content)
	if err != nil {
		return nil, fmt.Errorf("encode the objects: %w", err)
	}
	return statedir.WithChecksum(data, "")
}
