package localsource

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/configmux/internal/apiobject"
	"github.com/quartet-node/quartet/services/configmux/internal/sealing"
	"github.com/quartet-node/quartet/services/configmux/internal/staticpod"
)

// AppliedObject is the result of an apply of an object of a kind other than pods.
type AppliedObject struct {
	// Key is the key of the object, including its namespace.
	Key apiobject.Key
	// Op is Add or Update, or None if the object was unchanged.
	Op podset.Op
}

// objectEntry is one object of a kind other than pods, in memory and on disk.
type objectEntry struct {
	object *apiobject.Object
	path   string
	// content is the encoding of the object.
	content []byte
	// createdAt is the time of the first apply.
	createdAt time.Time
}

// ApplyObject creates an object of a kind other than pods, or replaces the applied one of the same name. A new claim
// gets a UID, which it keeps until it is deleted: it identifies the claim's data. It takes ownership of the object.
// With dryRun it only returns what it would do. It fails with an *InvalidError, an *ObjectTakenError or a *FullError if
// the object is refused, with a *sealing.FileError if there is no key for a secret, and with ErrEnded if the source has
// ended. After any other error the object may be unchanged or applied; a second call resolves that.
func (s *Source) ApplyObject(ctx context.Context, object *apiobject.Object, dryRun bool) (AppliedObject, error) {
	wanted, err := s.objectEntryOf(object, types.UID(uuid.NewString()))
	if err != nil {
		return AppliedObject{}, err
	}
	applied, err := s.ask(ctx, func(ctx context.Context) (Applied, error) {
		op, err := s.applyObject(ctx, wanted, dryRun)
		return Applied{Op: op}, err
	})
	if err != nil {
		return AppliedObject{}, err
	}
	return AppliedObject{Key: wanted.object.Key(), Op: applied.Op}, nil
}

// DeleteObject removes an object of a kind other than pods. It fails with an *UnknownObjectError, and otherwise as
// Delete does.
func (s *Source) DeleteObject(ctx context.Context, key apiobject.Key) error {
	key.Namespace = key.Kind.Namespace(key.Namespace)
	_, err := s.ask(ctx, func(ctx context.Context) (Applied, error) { return Applied{}, s.removeObject(ctx, key) })
	return err
}

// objectEntryOf returns the entry of an object; uid is its UID if it is a claim. It does not depend on other objects.
func (s *Source) objectEntryOf(object *apiobject.Object, uid types.UID) (*objectEntry, error) {
	if errs := object.Prepare(); len(errs) > 0 {
		return nil, invalidObject(object.Key(), errs)
	}
	e := &objectEntry{object: object, path: s.objectPath(object.Key())}
	return e, e.identify(uid)
}

// identify sets the UID of a claim, and encodes the object.
func (e *objectEntry) identify(uid types.UID) error {
	if e.object.Claim != nil {
		e.object.Claim.UID = uid
	}
	content, err := e.object.Marshal()
	e.content = content
	return err
}

// invalidObject returns the validation errors of an object as one error.
func invalidObject(key apiobject.Key, errs field.ErrorList) error {
	invalid := &InvalidError{}
	for _, e := range errs {
		invalid.Problems = append(
			invalid.Problems,
			staticpod.Problem{Object: key.String(), Field: e.Field, Message: e.ErrorBody()},
		)
	}
	return invalid
}

// applyObject adds an entry. It runs in the owner's goroutine.
func (s *Source) applyObject(ctx context.Context, wanted *objectEntry, dryRun bool) (podset.Op, error) {
	began := s.cfg.Clock.Now()
	key := wanted.object.Key()
	known, op := s.objects[key], podset.Add
	wanted.createdAt = began
	if known != nil {
		if err := wanted.identify(known.object.Meta().UID); err != nil {
			return podset.None, err
		}
		if bytes.Equal(known.content, wanted.content) {
			return podset.None, nil
		}
		if errs := wanted.object.CheckUpdate(known.object); len(errs) > 0 {
			return podset.None, invalidObject(key, errs)
		}
		wanted.createdAt, op = known.createdAt, podset.Update
	}
	var err error
	if s.steps.Do(func() { err = s.admitObject(key, known) }); err != nil || dryRun {
		return op, err
	}
	data, err := s.encodeObject(wanted)
	if err != nil {
		return podset.None, err
	}
	ctx, span := s.begin(ctx, wanted.path, began)
	err = s.writeFile(wanted.path, data)
	telemetry.End(span, err)
	causes := map[string]context.Context{wanted.path: ctx}
	if err != nil {
		// The file may have been written despite the error.
		s.read(causes)
		return podset.None, err
	}
	s.objects[key] = wanted
	delete(s.broken, wanted.path)
	delete(s.broken, asideOf(wanted.path))
	s.give(causes)
	return op, nil
}

// admitObject returns why an object conflicts with the others; nil if it does not.
func (s *Source) admitObject(key apiobject.Key, known *objectEntry) error {
	if known == nil && len(s.objects) >= s.cfg.MaxObjects {
		return &FullError{What: "config maps, secrets, claims, storage classes and CSIDrivers", Number: len(s.objects)}
	}
	if from, path, taken := s.cfg.Others().ObjectHolder(key, Name); taken {
		return &ObjectTakenError{Key: key, Source: from, Path: path}
	}
	return nil
}

// removeObject removes an object. It runs in the owner's goroutine.
func (s *Source) removeObject(ctx context.Context, key apiobject.Key) error {
	began := s.cfg.Clock.Now()
	path := s.objectPath(key)
	known := s.objects[key]
	if known == nil {
		broken := slices.DeleteFunc([]string{path, asideOf(path)}, func(path string) bool {
			_, broken := s.broken[path]
			return !broken
		})
		if len(broken) == 0 {
			return &UnknownObjectError{Key: key}
		}
		return s.removeFiles(broken)
	}
	ctx, span := s.begin(ctx, path, began)
	span.AddEvent("gone")
	err := statedir.RemoveFile(path)
	if err != nil {
		err = fmt.Errorf("removing the file of the %s: %w: check that %s is writable, and try again", key, err, s.cfg.Dir)
	}
	telemetry.End(span, err)
	causes := map[string]context.Context{path: ctx}
	if err != nil {
		// The file may have been removed despite the error.
		s.read(causes)
		return err
	}
	delete(s.objects, key)
	s.give(causes)
	return nil
}

// Reseal encrypts all secrets on disk with the current key, and returns the number of written files. It reads back what
// it has written. It fails at the first secret that cannot be read, because the caller then drops the other keys.
func (s *Source) Reseal(ctx context.Context) (files int, err error) {
	done, err := s.ask(ctx, func(ctx context.Context) (Applied, error) {
		n, err := s.reseal(ctx)
		return Applied{resealed: n}, err
	})
	return done.resealed, err
}

func (s *Source) reseal(ctx context.Context) (files int, err error) {
	current, err := s.cfg.Seals.Current()
	if err != nil {
		return 0, err
	}
	paths, err := s.secretFiles()
	if err != nil {
		return 0, err
	}
	for _, path := range paths {
		if err := ctx.Err(); err != nil {
			return files, err
		}
		kept, data, err := s.readSecret(path)
		if err != nil {
			return files, err
		}
		if kept.Sealed.Key == current {
			continue
		}
		if err := s.resealFile(path, kept, data); err != nil {
			return files, err
		}
		files++
	}
	return files, nil
}

// resealFile writes a secret with the current key, and reads it back.
func (s *Source) resealFile(path string, kept record, data []byte) error {
	box, err := s.cfg.Seals.Seal(data, kept.key().Path())
	if err != nil {
		return err
	}
	kept.Sealed = &box
	if err := s.writeRecord(path, kept); err != nil {
		return err
	}
	again, read, err := s.readSecret(path)
	if err == nil && (again.Sealed.Key != box.Key || !bytes.Equal(read, data)) {
		err = fmt.Errorf("the file %s does not have what was written to it: check the disk", path)
	}
	return err
}

// readSecret reads the file of a secret and decrypts it.
func (s *Source) readSecret(path string) (kept record, data []byte, err error) {
	if kept, err = readRecord(path); err == nil && kept.Sealed == nil {
		err = errors.New("it has no encrypted secret")
	}
	if err == nil {
		data, err = s.cfg.Seals.Open(*kept.Sealed, kept.key().Path())
	}
	var unusable *sealing.FileError
	if err != nil && !errors.As(err, &unusable) {
		err = fmt.Errorf("the secret in %s cannot be read: %w; or remove it if it is not needed", path, err)
	}
	return kept, data, err
}

// isSecretFile reports whether a file name is that of a secret, or of a renamed one.
func isSecretFile(name string) bool {
	return strings.HasSuffix(strings.TrimSuffix(name, aside), secretExtension)
}
